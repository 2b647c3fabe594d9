"""/generate, and what a prompt of any endpoint becomes: jobs."""

from collections.abc import AsyncGenerator, Mapping, Sequence
import dataclasses
import math
from typing import Any
import uuid

from evojax.rollout import service as service_lib
from evojax.rollout.server import errors
from evojax.rollout.server import host as host_lib
from evojax.rollout.server import protocol
from evojax.rollout.server import samples
from evojax.rollout.server import tokens

DONE = b'data: [DONE]\n\n'


@dataclasses.dataclass(frozen=True)
class Generation:
  """A request of /generate, ready to be submitted."""

  asks: list[samples.Ask]  # Prompt by prompt, its n samples in a row.
  names: Mapping[str, Sequence[str]]  # To abort it by -> ids of its jobs.
  is_list: bool  # The answer is a list, even of one.
  stream: bool


def event(value: Any) -> bytes:
  """One server-sent event."""
  return b'data: ' + protocol.dumps(value) + b'\n\n'


async def prepare(
    host: host_lib.Host, request: protocol.Generate
) -> Generation:
  """Tokenises and checks a request of /generate.

  Raises:
    ApiError: 400 that names what is wrong.
  """
  settings = host.settings
  if (request.text is None) == (request.input_ids is None):
    raise errors.ApiError(400, 'send either text or input_ids')
  field, prompts = 'text', request.text
  if prompts is None:
    field, prompts = 'input_ids', request.input_ids
  is_batch = isinstance(prompts, list) and not (
      field == 'input_ids' and prompts and isinstance(prompts[0], int)
  )
  if not is_batch:
    prompts = [prompts]
  if not prompts:
    raise errors.bad_request(field, 'the batch is empty')

  def spread(name: str) -> list[Any]:
    """A field's value for each prompt."""
    value = getattr(request, name)
    if not isinstance(value, list):
      return [value] * len(prompts)
    if not is_batch:
      raise errors.bad_request(name, 'a list, where there is one prompt')
    if len(value) != len(prompts):
      raise errors.bad_request(
          name, f'{len(value)} values for {len(prompts)} prompts'
      )
    return value

  sampling = [
      protocol.check(protocol.Sampling, fields, 'sampling_params.')
      for fields in spread('sampling_params')
  ]
  n = sampling[0].n
  if any(fields.n != n for fields in sampling):
    raise errors.bad_request('sampling_params.n', 'must be equal in a batch')
  host.check_size(len(prompts) * n)
  options = list(
      zip(
          spread('return_logprob'),
          spread('logprob_start_len'),
          spread('top_logprobs_num'),
          strict=True,
      )
  )
  is_list = is_batch or n > 1
  rids = spread('rid')
  if isinstance(request.rid, list):
    rids = [
        [f'{rid}_{s}' for s in range(n)] if n > 1 else [rid] for rid in rids
    ]
    names = dict(zip(request.rid, rids, strict=True))
    if len(names) < len(rids):
      raise errors.bad_request('rid', 'holds the same id twice')
  else:
    name = request.rid or uuid.uuid4().hex
    count = len(prompts) * n
    flat = [f'{name}_{k}' for k in range(count)] if is_list else [name]
    rids = [flat[k : k + n] for k in range(0, count, n)]
    names = {name: flat}
  asks = []
  for i, (prompt, fields) in enumerate(zip(prompts, sampling, strict=True)):
    ids = await encode_prompt(host, prompt, field)
    with_logprobs, start, top = options[i]
    top = check_top('top_logprobs_num', top, settings.max_top_logprobs)
    params = protocol.sampling_params(
        fields,
        settings,
        prompt_tokens=len(ids),
        max_tokens=fields.max_new_tokens,
        max_field='max_new_tokens',
        min_tokens=fields.min_new_tokens,
    )
    if with_logprobs and not -1 <= start < len(ids):
      raise errors.bad_request(
          'logprob_start_len',
          f'{start} is no position of a prompt of {len(ids)} tokens, nor -1',
      )
    for s, seed in enumerate(protocol.seeds(fields.sampling_seed, n)):
      asks.append(
          samples.Ask(
              service_lib.Job(
                  rid=rids[i][s],
                  prompt_tokens=ids,
                  params=params,
                  seed=seed,
                  logprob_start=start if with_logprobs and start >= 0 else None,
                  top_logprobs=top if with_logprobs else 0,
              ),
              skip_special_tokens=fields.skip_special_tokens,
              trim=not fields.no_stop_trim,
              logprobs=with_logprobs,
              token_texts=request.return_text_in_logprobs,
          )
      )
  return Generation(asks, names, is_list, request.stream)


async def encode_prompt(
    host: host_lib.Host, prompt: str | Sequence[int], field: str
) -> tuple[int, ...]:
  """Token ids of a prompt.

  Raises:
    ApiError: 400 if it is empty, or an id is outside the vocabulary.
  """
  if isinstance(prompt, str):
    ids = await host.encode(host.tokenizer.encode_prompt, prompt)
  else:
    ids = prompt
  if not ids:
    raise errors.bad_request(field, 'the prompt is empty')
  protocol.check_tokens(field, ids, host.settings.vocab_size)
  return tuple(ids)


def check_top(field: str, top: int, limit: int) -> int:
  """Checks how many of the most probable tokens are asked for.

  Raises:
    ApiError: 400 that names the limit.
  """
  if not 0 <= top <= limit:
    raise errors.bad_request(field, f'{top}: must lie in [0, {limit}]')
  return top


def answer(
    sample: samples.Sample, tokenizer: tokens.ServerTokenizer, version: str
) -> dict[str, Any]:
  """What /generate says of a sample, finished or not.

  Args:
    sample: Collected.
    tokenizer: For the text of single tokens.
    version: Of the weights, where the sample has no token yet.
  """
  finish = sample.finish
  spans = sample.spans or [(version, 0, 0)]
  meta = {
      'id': sample.ask.job.rid,
      'finish_reason': finish_reason(sample) if finish else None,
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
      text = tokenizer.token_text(token) if sample.ask.token_texts else None
      return [_finite(logprob), token, text]

    for side, tokens in (('input', sample.prompt), ('output', sample.tokens)):
      meta[f'{side}_token_logprobs'] = [
          entry(t.token, t.logprob) for t in tokens
      ]
      if sample.ask.job.top_logprobs:
        meta[f'{side}_top_logprobs'] = [
            [entry(*top) for top in t.top] or None for t in tokens
        ]
  return {'text': sample.text, 'output_ids': sample.ids, 'meta_info': meta}


def finish_reason(sample: samples.Sample) -> dict[str, Any]:
  """SGLang's object for how a sample ended."""
  finish = sample.finish
  if finish.reason == 'length':
    return {'type': 'length', 'length': len(sample.ids)}
  if finish.reason == 'abort':
    return {'type': 'abort', 'message': finish.message or 'aborted'}
  return {'type': 'stop', 'matched': finish.matched}


async def stream(
    host: host_lib.Host, batch: samples.Batch, *, is_list: bool
) -> AsyncGenerator[bytes]:
  """The events of a stream: each holds all that its sample has so far."""
  async for index in batch.changes():
    shown = answer(batch.samples[index], host.tokenizer, host.weight_version)
    yield event({**shown, 'index': index} if is_list else shown)
  yield DONE


def _finite(logprob: float | None) -> float | None:
  """JSON knows no infinity, which is what a token that is ruled out has."""
  if logprob is None or not math.isfinite(logprob):
    return None
  return float(logprob)
