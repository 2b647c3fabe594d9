"""Transfer of new weights to a server, in a directory or as tensors over HTTP.

In both cases the trainer writes the weights as a Hugging Face directory. By
default a server reads this directory, so trainer and server must see it under
the same path. Tensors are sent in the bodies of requests, once for each tensor-
parallel rank of a server, and only the trainer needs the directory. Use them if
trainer and servers share no file system.
"""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator
import contextlib
import json
import mmap
import pathlib
from typing import Any

from evojax.rollout import answers
from evojax.rollout import servers
from evojax.rollout import torch_pickle

FROM_FOLDER = '/update_weights_from_disk'
FROM_TENSORS = '/update_weights_from_tensor'
_BEGIN, _END = '/begin_weight_update', '/end_weight_update'
# A request holds whole tensors of about this size, or one that is larger.
_REQUEST_BYTES = 64 << 20

# (path, body) -> the answer of the server; raises DisagreementError if it
# refuses, and other errors if it cannot be reached.
Post = Callable[[str, dict[str, Any]], Awaitable[Any]]


def check(server: servers.Server, transport: str) -> None:
  """Check that a server can receive weights in this way.

  Args:
    server: A server that was probed.
    transport: 'folder' or 'tensors'; see config.rollout.weights_transport.

  Raises:
    DisagreementError: If it cannot.
  """
  can = server.abilities
  tensors = transport == 'tensors'
  if not (can.tensors if tensors else can.update):
    raise answers.DisagreementError(
        f'{server.url} has no {FROM_TENSORS if tensors else FROM_FOLDER} (it is'
        f' version {can.version!r}), so it cannot follow the training: start it'
        ' with'
        + (
            ' launch/sglang.sh, or let it read a directory'
            ' (config.rollout.weights_transport=folder)'
            if tensors
            else ' launch/sglang_jax.sh or launch/sglang.sh'
        )
    )
  if tensors and can.replicas > 1:
    raise answers.DisagreementError(
        f'{server.url} has dp_size={can.replicas}; SGLang takes tensors only'
        ' with 1: start one server for each replica, or let it read a directory'
        ' (config.rollout.weights_transport=folder)'
    )


async def from_folder(post: Post, url: str, weights: servers.Weights) -> None:
  """Let a server load the directory of the weights.

  Raises:
    DisagreementError: If it refuses.
  """
  body = {'model_path': weights.path, 'weight_version': weights.version}
  body |= {'abort_all_requests': False, 'flush_cache': True}
  answer = await post(FROM_FOLDER, body)
  if not _took(answer):
    raise answers.DisagreementError(
        f'{url} did not take the weights in {weights.path}: {answer}; it must'
        ' see that directory under the same path (config.rollout.weights_dir)'
        ' and serve a policy of this shape'
    )


async def from_tensors(
    post: Post, url: str, weights: servers.Weights, ranks: int
) -> None:
  """Send the tensors of the weights to a server.

  The last request names the version, so that a server which got only some of
  them does not claim to serve it.

  Args:
    post: Sends a request to the server.
    url: Address of the server.
    weights: A directory that this process can read.
    ranks: Tensor-parallel ranks of the server; each gets all tensors.

  Raises:
    DisagreementError: If it refuses, or the directory cannot be read.
  """
  try:
    await post(_BEGIN, {})
  except answers.DisagreementError:
    # An earlier trainer may have died before it ended its update.
    with contextlib.suppress(answers.DisagreementError):
      await post(_END, {})
    await post(_BEGIN, {})
  folder = pathlib.Path(weights.path)
  try:
    requests = await asyncio.to_thread(lambda: list(_requests(folder)))
  except OSError as error:
    raise answers.DisagreementError(
        f'the weights for {url} in {folder} cannot be read: {error}'
    ) from error
  for number, tensors in enumerate(requests, 1):
    body = await asyncio.to_thread(_body, tensors, ranks)
    last = number == len(requests)
    body |= {'flush_cache': last, 'abort_all_requests': False}
    if last:
      body['weight_version'] = weights.version
    answer = await post(FROM_TENSORS, body)
    if not _took(answer):
      raise answers.DisagreementError(
          f'{url} did not take the tensors of {weights.version}: {answer}; it'
          ' must serve a policy of this shape'
      )
  await post(_END, {})


def _took(answer: Any) -> bool:
  return isinstance(answer, dict) and bool(answer.get('success'))


def _requests(folder: pathlib.Path) -> Iterator[list[torch_pickle.Tensor]]:
  """Yield the tensors of each request, which are read when they are sent."""
  files = sorted(folder.glob('*.safetensors'))
  if not files:
    raise FileNotFoundError(f'there are no *.safetensors in {folder}')
  held, size = [], 0
  for file in files:
    for tensor in _tensors(file):
      if held and size + len(tensor.data) > _REQUEST_BYTES:
        yield held
        held, size = [], 0
      held.append(tensor)
      size += len(tensor.data)
  if held:
    yield held


def _tensors(path: pathlib.Path) -> Iterator[torch_pickle.Tensor]:
  """Yield the tensors of a safetensors file, as views of the mapped file."""
  with path.open('rb') as file:
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
  begin = 8 + int.from_bytes(mapped[:8], 'little')
  fields = json.loads(mapped[8:begin])
  fields.pop('__metadata__', None)
  view = memoryview(mapped)
  for name, field in fields.items():
    first, end = (begin + at for at in field['data_offsets'])
    shape, dtype = tuple(field['shape']), field['dtype']
    yield torch_pickle.Tensor(name, dtype, shape, view[first:end])


def _body(tensors: list[torch_pickle.Tensor], ranks: int) -> dict[str, Any]:
  text = base64.b64encode(torch_pickle.dumps(tensors)).decode()
  return {'serialized_named_tensors': [text] * ranks}
