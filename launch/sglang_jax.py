"""Serve a policy with sglang-jax; a trainer can replace its weights.

launch/sglang_jax.sh runs this script in its own environment. It takes the flags
of sglang-jax. Version 0.1.0rc0 cannot replace the weights of a running server.
This script runs it in one process, with its files unchanged, and adds the
endpoints

    POST /update_weights_from_disk   as in mainline SGLang:
        {model_path, weight_version, abort_all_requests, flush_cache}
        -> {success, message, weight_version, num_paused_requests}
    GET /model_info                  /get_model_info with weight_version

To the meta_info of every answer it adds weight_version and weight_versions: the
spans [{version, start, end}] of the answer's tokens.

The update is an additional request to the scheduler, which executes it between
two batches: running requests are put back into the queue, with their tokens,
and continue with the new weights after a new prefill. The old weights are kept
until the new ones are complete, so for a moment both are in memory.
"""

import asyncio
import dataclasses
import json
import os
import pathlib
from typing import Any

import fastapi
from fastapi import responses
from flax import nnx
import jax
from sgl_jax.srt.entrypoints import engine
from sgl_jax.srt.entrypoints import http_server
from sgl_jax.srt.managers import io_struct
from sgl_jax.srt.managers import scheduler as scheduler_lib
from sgl_jax.srt.managers import tokenizer_manager
from sgl_jax.srt.server_args import ServerArgs
from sgl_jax.srt.utils import kill_process_tree

_FIRST_VERSION = 'default'  # Version of the initial weights, as in mainline.
# Request -> [(version, number of its first token), ...]. The scheduler's thread
# adds an entry; the HTTP server's thread, in the same process, removes it after
# the last answer to the request.
_spans: dict[str, list[tuple[str, int]]] = {}


@dataclasses.dataclass
class UpdateWeights(io_struct.BaseReq):
  """A request to the scheduler of every host to load new weights."""

  model_path: str
  weight_version: str
  flush_cache: bool


@dataclasses.dataclass
class Updated(io_struct.BaseReq):
  """The answer to UpdateWeights."""

  success: bool
  message: str
  weight_version: str
  paused: int  # Requests that were running or waiting.


class Scheduler(scheduler_lib.Scheduler):
  """sglang-jax's scheduler, extended by UpdateWeights."""

  def __init__(self, *arguments: Any, **keywords: Any):
    self.weight_version = _FIRST_VERSION
    super().__init__(*arguments, **keywords)
    self._request_dispatcher._mapping.append((UpdateWeights, self._update))

  def handle_generate_request(self, request: Any) -> Any:
    """Queue a request, and record the version of the weights it begins with."""
    if self.node_rank == 0:  # The node that sends the answers.
      _spans[request.rid] = [(self.weight_version, 0)]
    return super().handle_generate_request(request)

  def pause_generation(self, request: Any) -> Any:
    """Pause; in 'retract' mode all running requests return to the queue.

    0.1.0rc0 forgets requests that are prefilled but not decoded yet. Therefore
    they are added to the running requests first.
    """
    if request.mode == 'retract':
      if self.enable_overlap and self.last_batch:
        self.process_batch_result(*self.result_queue.popleft())
      last, self.last_batch = self.last_batch, None
      if last is not None and last.forward_mode.is_extend():
        chunked = self._prepare_chunked_reqs_to_exclude()
        last.filter_batch(chunked_req_to_exclude=chunked)
        if self.running_batch.is_empty():
          self.running_batch = last
        elif not last.is_empty():
          self.running_batch.merge_batch(last)
    return super().pause_generation(request)

  def _update(self, request: UpdateWeights) -> Updated:
    """Replace the weights; the old ones stay if the new ones do not fit."""
    was_paused = self._engine_paused
    self.pause_generation(io_struct.PauseGenerationReqInput(mode='retract'))
    waiting, self.waiting_queue = self.waiting_queue, []
    try:
      self._load(request.model_path)
      # The cache holds keys and values of the old weights, also those of the
      # retracted requests.
      if request.flush_cache or waiting:
        flushed, message, _ = self.flush_cache()
        assert flushed, message  # No request is running or waiting.
    except (OSError, ValueError, KeyError, RuntimeError) as error:
      return Updated(False, str(error), self.weight_version, len(waiting))
    finally:
      self.waiting_queue = waiting
      self._engine_paused = was_paused
    self.weight_version = request.weight_version
    for waits in waiting:
      if (spans := _spans.get(waits.rid)) is not None:
        spans.append((self.weight_version, len(waits.output_ids)))
    return Updated(True, 'Succeeded.', self.weight_version, len(waiting))

  def _load(self, path: str) -> None:
    """Load the weights from a directory; replace all of them or none."""
    runner = self.tp_worker.get_model_runner()
    config = runner.model_config
    if _tensors(path) != _tensors(config.model_path):
      # The loader would keep the old values of missing tensors.
      raise ValueError(f'{path} is no policy of the shape that is served')
    before, config.model_path = config.model_path, path
    try:
      with jax.set_mesh(runner.mesh):
        runner.model.load_weights(config)
    finally:
      config.model_path = before
    _, state = nnx.split(runner.model)
    leaves, definition = jax.tree.flatten(state)
    kinds = [(x.shape, x.dtype, x.sharding) for x in leaves]
    if definition != runner._model_state_def or kinds != [
        (x.shape, x.dtype, x.sharding) for x in runner.model_state_leaves
    ]:
      raise ValueError(f'{path} was not loaded as the first weights were')
    runner.model_state_leaves = jax.block_until_ready(leaves)


def _tensors(path: str) -> dict[str, list[int]]:
  """Return the shape of every tensor in a directory's files, by name."""
  shapes = {}
  for name in sorted(pathlib.Path(path).glob('*.safetensors')):
    with name.open('rb') as file:
      size = int.from_bytes(file.read(8), 'little')
      header = json.loads(file.read(size))
    header.pop('__metadata__', None)
    shapes |= {tensor: entry['shape'] for tensor, entry in header.items()}
  if not shapes:
    raise ValueError(f'{path} holds no *.safetensors')
  return shapes


class TokenizerManager(tokenizer_manager.TokenizerManager):
  """sglang-jax's front end with weight updates and versions in its answers."""

  def __init__(self, *arguments: Any, **keywords: Any):
    super().__init__(*arguments, **keywords)
    self.weight_version = _FIRST_VERSION
    self._unnamed = 0  # Number of updates that did not name their version.
    self._updating = asyncio.Lock()
    self._updates = tokenizer_manager._Communicator(self.send_to_scheduler, 1)
    self._result_dispatcher._mapping.append(
        (Updated, self._updates.handle_recv)
    )

  def _handle_batch_output(self, output: Any) -> None:
    """Deliver answers with the versions of their weights.

    All answers of the scheduler pass through here, also those of requests whose
    client is gone, and those of each of n samples, whose ids are internal.
    """
    states = [self.rid_to_state.get(rid) for rid in output.rids]
    super()._handle_batch_output(output)
    for rid, state, reason in zip(
        output.rids, states, output.finished_reasons, strict=True
    ):
      if state is not None:
        _stamp(state.out_list[-1]['meta_info'])
      if reason is not None:
        _spans.pop(rid, None)

  def _handle_abort_req(self, aborted: Any) -> None:
    """End a request that was still waiting.

    0.1.0rc0 keeps it in `rid_to_state`. A pause in 'abort' mode waits until
    that dict is empty, so it would never end.
    """
    super()._handle_abort_req(aborted)
    state = self.rid_to_state.pop(aborted.rid)
    _stamp(state.out_list[-1]['meta_info'])
    _spans.pop(aborted.rid, None)

  async def update_weights(self, body: dict[str, Any]) -> Updated:
    """Replace the weights; concurrent updates run one after the other."""
    self.auto_create_handle_loop()
    async with self._updating:
      abort = body.get('abort_all_requests', False) and not self.is_pause
      if abort:
        await self.pause_generation(
            io_struct.PauseGenerationReqInput(mode='abort')
        )
      try:
        self._unnamed += not body.get('weight_version')
        (answer,) = await self._updates(
            UpdateWeights(
                model_path=body['model_path'],
                # Mainline would keep the old name; then a trainer could not
                # detect that another client has replaced the weights.
                weight_version=body.get('weight_version')
                or f'unnamed-{self._unnamed}',
                flush_cache=body.get('flush_cache', True),
            )
        )
      finally:
        if abort:
          await self.continue_generation(io_struct.ContinueGenerationReqInput())
    if answer.success:
      self.weight_version = answer.weight_version
      self.model_path = body['model_path']
    return answer


def _stamp(meta: dict[str, Any]) -> None:
  """Add the versions of the weights that sampled an answer's tokens."""
  spans = _spans.get(meta['id'])
  if spans is None:  # The scheduler of another node handled the request.
    return
  ends = [start for _, start in spans[1:]] + [meta['completion_tokens']]
  meta['weight_version'] = spans[-1][0]
  meta['weight_versions'] = [
      dict(version=version, start=start, end=end)
      for (version, start), end in zip(spans, ends, strict=True)
      if start < end
  ]


@http_server.app.get('/model_info')
async def model_info() -> dict[str, Any]:
  """Return information on the served model."""
  manager = http_server._global_state.tokenizer_manager
  return dict(
      await http_server.get_model_info(), weight_version=manager.weight_version
  )


@http_server.app.post('/update_weights_from_disk')
async def update_weights_from_disk(
    request: fastapi.Request,
) -> responses.JSONResponse:
  """Handle mainline's endpoint of the same name."""
  try:
    body = await request.json()
  except ValueError:
    body = None
  if not isinstance(body, dict) or not isinstance(body.get('model_path'), str):
    answer = Updated(False, 'the body is {"model_path": DIRECTORY}', '', 0)
  else:
    manager = http_server._global_state.tokenizer_manager
    answer = await manager.update_weights(body)
  return responses.JSONResponse(
      dict(
          success=answer.success,
          message=answer.message,
          weight_version=answer.weight_version,
          num_paused_requests=answer.paused,
      ),
      status_code=200 if answer.success else 400,
  )


def main() -> None:
  """Serve until the process is stopped."""
  arguments = ServerArgs.from_cli()
  arguments.enable_single_process = True
  scheduler_lib.Scheduler = Scheduler
  engine.TokenizerManager = TokenizerManager
  try:
    http_server.launch(arguments)
  finally:
    kill_process_tree(os.getpid(), include_parent=False)


if __name__ == '__main__':
  main()
