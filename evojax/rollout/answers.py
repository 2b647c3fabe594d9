"""Request bodies and answers of SGLang's POST /generate.

All functions are pure. A wrong number from a server would silently train the
policy on noise, so everything that can be checked is checked; a contradiction
raises an error that names the server, the field, the values and the remedy.
"""

from collections.abc import Callable, Sequence
import dataclasses
import hashlib
import math
from typing import Any

from evojax import records

# Rounding can make a log-prob slightly positive; a larger value is an error.
_ABOVE_ZERO = 1e-3
_SHOWN = 200  # Most characters of a wrong value that an error shows.
_IS_SGLANG = 'is it an SGLang server, of a version in launch/?'


class DisagreementError(ValueError):
  """A server does not serve the policy of this run; no retry would help."""


_Spans = tuple[tuple[str, int], ...]
# need(holds, field, value, wanted, remedy): raises unless `holds` is true.
_Need = Callable[..., None]


@dataclasses.dataclass(frozen=True)
class Part:
  """The tokens that one answer adds to a completion."""

  tokens: tuple[int, ...]
  logprobs: tuple[float, ...]  # Under softmax(logits / temperature).
  reason: str  # 'stop' | 'length' | 'abort'.
  # (version, end): the weights `version` sampled the tokens up to `end`. Empty
  # if the server does not report versions.
  spans: _Spans


def seed_of(request: records.Request, sampled: int = 0) -> int:
  """Return the seed of a sample: 31 bits, as SGLang's samplers expect.

  Args:
    request: The request; the seed depends on its seed, problem_key and sample.
    sampled: Number of tokens that a resumed completion already has. The seed
      depends on it, too; otherwise the resumed part would be sampled with the
      same noise as the first part.
  """
  key = (request.seed, request.problem_key, request.sample, sampled)
  digest = hashlib.blake2b(repr(key).encode(), digest_size=4).digest()
  return int.from_bytes(digest, 'little') >> 1


def ask(
    request: records.Request, tokens: Sequence[int], *, eos_ids: Sequence[int]
) -> dict[str, Any]:
  """Return the body that starts or resumes a completion, without a rid.

  Args:
    request: The completion to sample.
    tokens: Tokens of the completion that aborted requests already sampled.
    eos_ids: Tokens that end a completion, whatever the server's own files say.
  """
  p = request.params
  stop_ids = p.stop_token_ids if p.ignore_eos else (*eos_ids, *p.stop_token_ids)
  optional = {
      'stop': list(p.stop),
      'stop_token_ids': list(dict.fromkeys(stop_ids)),
      'min_new_tokens': max(p.min_tokens - len(tokens), 0),
      'frequency_penalty': p.frequency_penalty,
      'presence_penalty': p.presence_penalty,
      'repetition_penalty': p.repetition_penalty,
      'logit_bias': {str(token): bias for token, bias in p.logit_bias},
  }
  if p.repetition_penalty == 1.0:
    del optional['repetition_penalty']
  sampling = {
      'n': 1,
      'max_new_tokens': p.max_tokens - len(tokens),
      'temperature': p.temperature,
      'top_p': p.top_p,
      'top_k': p.top_k if p.top_k > 0 else -1,
      'min_p': p.min_p,
      'ignore_eos': p.ignore_eos,
      'sampling_seed': seed_of(request, len(tokens)),
      **{name: value for name, value in optional.items() if value},
  }
  return {
      'input_ids': [*request.prompt_tokens, *tokens],
      'sampling_params': sampling,
      'return_logprob': True,
  }


def read(
    answer: Any,
    body: dict[str, Any],
    *,
    url: str,
    vocab_size: int,
    eos_ids: Sequence[int],
) -> Part:
  """Check an answer and return the part that it adds to a completion.

  Args:
    answer: JSON of an answer with status 200.
    body: The request, from `ask`, with its rid.
    url: Address of the server, for errors.
    vocab_size: V of the policy.
    eos_ids: As in `ask`.

  Raises:
    DisagreementError: If the answer contradicts itself or the policy.
  """

  def need(holds, field, value, wanted, remedy=_IS_SGLANG) -> None:
    if not holds:
      raise DisagreementError(
          f'{url}/generate answered {field}={repr(value)[:_SHOWN]}, wanted'
          f' {wanted}: {remedy}'
      )

  meta, reason, n = _read_counts(answer, body, need)
  if n == 0:
    return Part((), (), reason, ())
  tokens, logprobs = _read_tokens(meta, n, vocab_size, need)
  sampling = body['sampling_params']
  ends = set(sampling.get('stop_token_ids', ()))
  early = not sampling['ignore_eos'] and set(tokens[:-1]) & set(eos_ids)
  matched = meta['finish_reason'].get('matched')
  by_token = reason == 'stop' and isinstance(matched, int)
  need(
      not early and (not by_token or tokens[-1] in ends),
      'a completion',
      list(tokens[-8:]),
      f'to end at its first token of {sorted(ends)}',
      'it uses another tokenizer or generation_config.json: start it with'
      ' the policy of config.model.path',
  )
  if reason == 'abort' and tokens[-1] in ends:
    reason = 'stop'  # Servers report an abort even if the last token is a stop.
  return Part(tokens, logprobs, reason, _spans(meta, n, need))


def _read_counts(
    answer: Any, body: dict[str, Any], need: _Need
) -> tuple[dict[str, Any], str, int]:
  """Return meta_info, the finish reason, and the number of sampled tokens."""
  meta = answer.get('meta_info') if isinstance(answer, dict) else None
  if not isinstance(meta, dict):
    need(False, 'the body', answer, 'an object with meta_info')
  need(
      meta.get('id') == body['rid'],
      'meta_info.id',
      meta.get('id'),
      body['rid'],
      'the answer of another request; does a proxy in between cache or mix'
      ' them up?',
  )
  finish = meta.get('finish_reason')
  reason = finish.get('type') if isinstance(finish, dict) else None
  wanted = f'a type of {records.FINISH_REASONS}'
  known = reason in records.FINISH_REASONS
  need(known, 'meta_info.finish_reason', finish, wanted)
  n, field = meta.get('completion_tokens'), 'meta_info.completion_tokens'
  asked = body['sampling_params']['max_new_tokens']
  # A bool is an int, but not a number of tokens.
  need(type(n) is int and 0 <= n <= asked, field, n, f'0 to {asked}')
  if reason == 'abort' and n == 0:
    return meta, reason, n
  wanted = f'{asked} tokens' if reason == 'length' else 'at least one token'
  need(
      n > 0 and (reason != 'length' or n == asked),
      field,
      n,
      f'{wanted} with finish_reason {reason!r}',
      'the context of the server may be shorter than prompt and completion:'
      ' raise its --context-length or --max-total-tokens',
  )
  found, prompt = meta.get('prompt_tokens'), len(body['input_ids'])
  remedy = 'the server must take input_ids as they are'
  need(found == prompt, 'meta_info.prompt_tokens', found, prompt, remedy)
  return meta, reason, n


def _read_tokens(
    meta: dict[str, Any], n: int, vocab_size: int, need: _Need
) -> tuple[tuple[int, ...], tuple[float, ...]]:
  """Return the sampled tokens and their log-probs."""
  pairs, field = meta.get('output_token_logprobs'), 'output_token_logprobs'
  # In long answers, sglang-jax repeats earlier tokens at the front.
  pairs = pairs[-n:] if isinstance(pairs, list) else ()
  value, wanted = f'{len(pairs)} entries', f'{n} (completion_tokens)'
  need(len(pairs) == n, f'meta_info.{field}', value, wanted)
  tokens, logprobs = [], []
  for t, pair in enumerate(pairs, -n):
    known = pair if isinstance(pair, list) else ()
    logprob, token = (*known, None, None)[:2]
    if not isinstance(token, int) or not 0 <= token < vocab_size:
      wanted = f'a token of 0 to {vocab_size - 1}'
      remedy = (
          'it serves another model: start it with the policy of'
          ' config.model.path'
      )
    elif not isinstance(logprob, (int, float)) or not math.isfinite(logprob):
      wanted = 'a finite log-prob'
      remedy = (
          'its weights or its attention backend are broken; restart it, or'
          ' serve in float32'
      )
    elif logprob > _ABOVE_ZERO:
      wanted, remedy = 'a log-prob <= 0', _IS_SGLANG
    else:
      tokens.append(token)
      logprobs.append(min(float(logprob), 0.0))
      continue
    need(False, f'meta_info.{field}[{t}]', pair, wanted, remedy)
  return tuple(tokens), tuple(logprobs)


def _spans(meta: dict[str, Any], n: int, need: _Need) -> _Spans:
  """Return (version, end) of each span of tokens from the same weights."""
  spans = meta.get('weight_versions')
  if spans is None:
    version = meta.get('weight_version')
    return () if version is None else ((str(version), n),)
  found, end = [], 0
  for span in spans if isinstance(spans, list) else [None]:
    if not isinstance(span, dict) or span.get('start') != end:
      break
    end = span.get('end')
    found.append((str(span.get('version')), end))
  wanted = f'spans that cover tokens 0 to {n}'
  need(end == n, 'meta_info.weight_versions', spans, wanted)
  return tuple(found)
