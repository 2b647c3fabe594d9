"""/generate, SGLang's own endpoint: requests, answers and streams."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
import dataclasses
import math
import time
from typing import Any
import uuid

from fastapi import responses

from evojax.rollout import service as service_lib
from evojax.rollout.server import errors
from evojax.rollout.server import host as host_lib
from evojax.rollout.server import protocol
from evojax.rollout.server import samples

DONE = b'data: [DONE]\n\n'
Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Generation:
  """A request that is ready to be submitted, and the format of its answer."""

  host: host_lib.Host
  request: protocol.Generate | protocol.Completion | protocol.Chat
  asks: list[samples.Ask]  # The n samples of each prompt, prompt by prompt.
  names: Mapping[str, Sequence[str]]  # Name for abort -> ids of its jobs.
  is_list: bool = True  # The answer is a list, even for one sample.
  created: int = dataclasses.field(default_factory=lambda: int(time.time()))

  def answer(self, batch: samples.Batch) -> Any:
    """Return the body of the answer once all samples have ended."""
    shown = [self._shown(sample) for sample in batch.samples]
    return shown if self.is_list else shown[0]

  async def stream(self, batch: samples.Batch) -> AsyncGenerator[bytes]:
    """Yield the events of a stream, each with all tokens of a sample so far."""
    async for index in batch.changes():
      shown = self._shown(batch.samples[index])
      yield event({**shown, 'index': index} if self.is_list else shown)
    yield DONE

  def _shown(self, sample: samples.Sample) -> Json:
    """Return the part of the answer for a sample, finished or not."""
    meta = meta_info(self.host, sample)
    shown = {'text': sample.text, 'output_ids': sample.ids, 'meta_info': meta}
    if self.request.return_prompt_token_ids:
      shown['prompt_token_ids'] = sample.ask.job.prompt_tokens
    return shown


def event(value: Any) -> bytes:
  """Return a server-sent event; raise ValueError for NaN and infinities."""
  return b'data: ' + responses.JSONResponse(value).body + b'\n\n'


async def prepare(host: host_lib.Host, asked: protocol.Generate) -> Generation:
  """Tokenize and check a request of /generate.

  Raises:
    ApiError: 400 if the request is not valid; names the field.
  """
  field, prompts, is_batch = _prompts(asked)

  def spread(name: str) -> list[Any]:
    """Return the value of a field for each prompt."""
    value = getattr(asked, name)
    if not isinstance(value, list):
      return [value] * len(prompts)
    if not is_batch:
      raise errors.bad_request(name, 'a list, where there is one prompt')
    if len(value) != len(prompts):
      problem = f'{len(value)} values for {len(prompts)} prompts'
      raise errors.bad_request(name, problem)
    return value

  host.check_size(len(prompts))  # Checked before any work per prompt.
  check = lambda fields: protocol.check(protocol.Sampling, fields)
  if isinstance(asked.sampling_params, dict):
    sampling = [check(asked.sampling_params)] * len(prompts)
  else:
    sampling = [check(fields) for fields in spread('sampling_params')]
  n = sampling[0].n
  if any(fields.n != n for fields in sampling):
    raise errors.bad_request('sampling_params.n', 'must be equal in a batch')
  host.check_size(len(prompts) * n)
  with_logprobs = spread('return_logprob')
  starts, tops = spread('logprob_start_len'), spread('top_logprobs_num')
  is_list = is_batch or n > 1
  spread('rid')  # Checks that there is one per prompt.
  names = _names(asked.rid, len(prompts), n, is_list)
  rids = iter([rid for ids in names.values() for rid in ids])
  asks = []
  for prompt, fields, logprobs, start, top in zip(
      prompts, sampling, with_logprobs, starts, tops, strict=True
  ):
    asks += await make_asks(
        host,
        (field, prompt),
        fields,
        rids,
        logprobs=logprobs,
        start=start,
        top=top,
        token_texts=asked.return_text_in_logprobs,
    )
  return Generation(host, asked, asks, names, is_list)


async def make_asks(
    host: host_lib.Host,
    prompt: tuple[str, str | Sequence[int]],
    fields: protocol.Sampler,
    rids: Iterator[str],
    *,
    logprobs: bool,
    start: int = -1,
    top: int,
    token_texts: bool = False,
) -> list[samples.Ask]:
  """Tokenize a prompt and return the n samples to request for it.

  Args:
    host: Its settings hold the limits.
    prompt: Name of its field, and its text or its tokens.
    fields: Sampling parameters.
    rids: Ids of the jobs; the next n are taken.
    logprobs: See `samples.Ask`.
    start: First prompt position whose log-prob is reported; -1, or the length
      of the prompt, for none.
    top: Number of most probable tokens to report at each position.
    token_texts: Whether the text of each token is reported.

  Raises:
    ApiError: 400 if the request is not valid; names the field.
  """
  settings, (field, ids) = host.settings, prompt
  await asyncio.sleep(0)  # Lets other requests run between prompts.
  if isinstance(ids, str):
    host.check_text(len(ids))
    ids = await host.encode(host.tokenizer.encode_prompt, ids)
  if not ids:
    raise errors.bad_request(field, 'the prompt is empty')
  protocol.check_tokens(field, ids, settings.vocab_size)
  if logprobs and not -1 <= start <= len(ids):
    raise errors.bad_request(
        'logprob_start_len',
        f'{start} is no position of a prompt of {len(ids)} tokens, nor -1',
    )
  if not 0 <= top <= settings.max_top_logprobs:
    problem = (
        f'{top}: must lie in [0, {settings.max_top_logprobs}]; run SGLang for'
        ' more'
    )
    raise errors.bad_request(fields.top_field, problem)
  params = protocol.sampling_params(fields, settings, prompt_tokens=len(ids))
  ids = tuple(ids)  # Shared by all samples; compared fast.
  scored = logprobs and 0 <= start < len(ids)
  return [
      samples.Ask(
          service_lib.Job(
              rid=next(rids),
              prompt_tokens=ids,
              params=params,
              seed=seed,
              logprob_start=start if scored else None,
              top_logprobs=top if logprobs else 0,
          ),
          skip_special_tokens=fields.skip_special_tokens,
          trim=not fields.no_stop_trim,
          logprobs=logprobs,
          token_texts=token_texts,
      )
      for seed in protocol.seeds(fields)
  ]


def _prompts(request: protocol.Generate) -> tuple[str, Sequence[Any], bool]:
  """Return (field of the prompts, the prompts, whether it is a list).

  Raises:
    ApiError: 400 if there is no field, more than one, or an empty list.
  """
  if (request.text is None) == (request.input_ids is None):
    raise errors.ApiError(400, 'send either text or input_ids')
  field = 'input_ids' if request.text is None else 'text'
  prompts = getattr(request, field)
  is_batch = isinstance(prompts, list) and not is_tokens(prompts)
  if not prompts and is_batch:
    raise errors.bad_request(field, 'the batch is empty')
  return field, prompts if is_batch else [prompts], is_batch


def is_tokens(prompts: str | Sequence[Any]) -> bool:
  """Return whether this is the token ids of one prompt."""
  return bool(prompts) and isinstance(prompts[0], int)


def _names(
    rid: str | list[str] | None, prompts: int, n: int, is_list: bool
) -> dict[str, list[str]]:
  """Return the names for abort -> ids of their jobs, prompt by prompt.

  Raises:
    ApiError: 400 if the client gives two prompts the same name.
  """
  if isinstance(rid, list):
    if len(set(rid)) < len(rid):
      raise errors.bad_request('rid', 'holds the same id twice')
    return {r: [f'{r}_{s}' for s in range(n)] if n > 1 else [r] for r in rid}
  name = rid or uuid.uuid4().hex
  count = prompts * n
  return {name: [f'{name}_{k}' for k in range(count)] if is_list else [name]}


def meta_info(host: host_lib.Host, sample: samples.Sample) -> Json:
  """Return SGLang's meta information about a sample, finished or not."""
  finish = sample.finish
  # A sample without tokens reports the service's current version.
  spans = sample.spans or [(host.weight_version, 0, 0)]
  meta = {
      'id': sample.ask.job.rid,
      'finish_reason': _finish_reason(sample) if finish else None,
      'prompt_tokens': len(sample.ask.job.prompt_tokens),
      'completion_tokens': len(sample.ids),
      'cached_tokens': sample.cached_tokens,
      'weight_version': spans[-1][0],
      'weight_versions': [
          {'version': version, 'start': start, 'end': end}
          for version, start, end in spans
      ],
  }
  if finish:
    meta['e2e_latency'] = sample.seconds
  if sample.ask.logprobs:

    def entry(token: int, logprob: float | None) -> list[Any]:
      with_text = sample.ask.token_texts
      text = host.tokenizer.token_text(token) if with_text else None
      return [finite(logprob), token, text]

    for side, tokens in (('input', sample.prompt), ('output', sample.tokens)):
      shown = [entry(t.token, t.logprob) for t in tokens]
      meta[f'{side}_token_logprobs'] = shown
      if sample.ask.job.top_logprobs:
        meta[f'{side}_top_logprobs'] = [
            [entry(*top) for top in t.top] or None for t in tokens
        ]
  return meta


def _finish_reason(sample: samples.Sample) -> Json:
  """Return SGLang's object for how a sample ended."""
  finish = sample.finish
  if finish.reason == 'length':
    return {'type': 'length', 'length': len(sample.ids)}
  if finish.reason == 'abort':
    return {'type': 'abort', 'message': finish.message or 'aborted'}
  return {'type': 'stop', 'matched': finish.matched}


def finite(logprob: float | None, otherwise: Any = None) -> float | None:
  """Return a log-prob that JSON can hold; excluded tokens have -inf.

  Args:
    logprob: A log-prob; None stays None.
    otherwise: Replaces infinities and NaN.
  """
  if logprob is None:
    return None
  return float(logprob) if math.isfinite(logprob) else otherwise
