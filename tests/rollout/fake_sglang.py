"""A toy policy and SGLang servers that serve it, well or badly.

The next token depends on the last one and on one weight, so that log-probs can
be checked without a model.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
import functools
import json
import pathlib
from typing import Any

import httpx2
import ml_dtypes
import numpy as np
from safetensors import numpy as safetensors

from evojax.rollout import comparison
from evojax.rollout import torch_pickle

VOCAB, EOS = 40, 0


def logprobs(
    weight: float, last: int, temperature: float, dtype: type = np.float64
) -> np.ndarray:
  """Return the log-probs of every next token, [VOCAB]."""
  logits = 2 * np.sin(np.arange(VOCAB) * (0.37 * last + 1) + weight)
  logits[EOS] = -2.0
  logits = logits.astype(dtype).astype(np.float64)
  scaled = logits / (temperature or 1.0)
  return scaled - np.log(np.exp(scaled).sum())


def sample(
    weight: float,
    prompt: Sequence[int],
    *,
    seed: int,
    count: int,
    temperature: float = 1.0,
    ignore_eos: bool = False,
) -> tuple[list[int], list[float]]:
  """Tokens and their log-probs; random numbers depend on seed and position."""
  tokens, scores, last = [], [], prompt[-1]
  while len(tokens) < count:
    scored = logprobs(weight, last, temperature)
    noise = np.random.default_rng([seed, len(prompt) + len(tokens)])
    last = int(np.argmax(scored + (temperature > 0) * noise.gumbel(size=VOCAB)))
    tokens.append(last)
    scores.append(float(scored[last]))
    if last == EOS and not ignore_eos:
      break
  return tokens, scores


def score(
    weight: float,
    pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
    temperatures: Sequence[float],
    dtype: type = np.float64,
) -> list[np.ndarray]:
  """The forward pass of the process that trains."""
  rows = []
  for (prompt, tokens), temperature in zip(pairs, temperatures):
    context = [prompt[-1], *tokens]
    rows.append(
        np.array(
            [
                logprobs(weight, last, temperature, dtype)[token]
                for last, token in zip(context, tokens)
            ]
        )
    )
  return rows


def export(weight: float, path: pathlib.Path, dtype: str) -> None:
  path.mkdir()
  (path / 'dtype').write_text(dtype)
  (path / 'weight.json').write_text(json.dumps(weight))
  # As tensors, the weight is a sum, so that a server needs all of them.
  halves = {name: np.float64(weight / 2) for name in ('first', 'second')}
  halves = {name: np.array([half], np.float32) for name, half in halves.items()}
  safetensors.save_file(halves, path / 'model.safetensors')


def model(**changes: Any) -> comparison.Model:
  """Return all that a client must know of the toy."""
  return comparison.Model(
      **{
          'vocab_size': VOCAB,
          'eos_ids': (EOS,),
          'decode': lambda ids: ' '.join(map(str, ids)),
          'decode_all': lambda ids: ' '.join(map(str, ids)),
          'encode': lambda text: [1 + ord(c) % (VOCAB - 1) for c in text],
          'max_prompt_tokens': 16,
          'max_tokens': 64,
          'context_tokens': 80,
          'dtype': 'float32',
          'export': export,
          'score': score,
          'score_bfloat16': functools.partial(score, dtype=ml_dtypes.bfloat16),
          'corrected': False,
          'probe': (3, 4),
          **changes,
      }
  )


class Server:
  """One server; its attributes say how it behaves."""

  def __init__(self, url: str):
    self.url = url
    self.up = True
    self.weight = -9.0
    self.version: str | None = 'default'  # None: does not tell.
    self.asked: list[dict[str, Any]] = []  # Bodies of /generate.
    self.updates: list[dict[str, Any]] = []
    self.received: dict[str, float] | None = None  # Tensors of an open update.
    self.fails_at = 0  # Dies with the request with tensors of this number.
    self.busy = 0  # Next requests that get a 503.
    self.aborts: list[int] = []  # Next requests end after so many tokens.
    self.tokens_off = 0  # Added to all tokens of a text.
    self.silent = 0  # Next requests that it takes and never answers.
    self.held: set[str] = set()  # Their names, which are in use.
    self.dies_at = 0  # Dies with the request of this number.
    self.missing: tuple[str, ...] = ()  # Paths it lacks.
    self.unscaled = False  # Reports log-probs of softmax(logits).
    self.dtype = np.float64  # In which it computes.
    self.info = {
        'max_total_num_tokens': 4096,
        'enable_deterministic_sampling': True,
    }
    # Answer -> answer, of requests that are not probes of the client.
    self.spoil: Callable[[Any], Any] = lambda answer: answer
    self.key = ''
    self.now = self.most = 0  # Requests at the same time.

  def restart(self) -> None:
    self.up, self.weight, self.version = True, -9.0, 'default'

  def handle(
      self, path: str, body: Any, authorization: str
  ) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON of an answer; raises if the server is dead."""
    if not self.up:
      raise httpx2.ConnectError('connection refused')
    if path in self.missing:
      return 404, {}, {}
    if path == '/health':
      return 200, {}, {}
    if self.key and authorization != f'Bearer {self.key}':
      return 401, {}, {'error': 'Unauthorized'}
    if path in ('/model_info', '/get_model_info'):
      told = {} if self.version is None else {'weight_version': self.version}
      return 200, {}, {'model_path': 'toy', **told}
    if path in ('/server_info', '/get_server_info'):
      return 200, {}, self.info
    if body is None:
      return 405, {}, {}
    if path == '/update_weights_from_disk':
      return self._update(body)
    if path in ('/begin_weight_update', '/end_weight_update'):
      return self._bracket(path.startswith('/begin'))
    if path == '/update_weights_from_tensor':
      return self._receive(body)
    if path == '/generate':
      return self._generate(body)
    return 200, {}, {}

  def _bracket(self, opens: bool) -> tuple[int, dict[str, str], Any]:
    if opens == (self.received is not None):
      return 400, {}, {'success': False, 'message': 'wrong order'}
    self.received = {} if opens else None
    return 200, {}, {'success': True, 'message': ''}

  def _receive(self, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    self.updates.append(body)
    if self.received is None:
      return 400, {}, {'success': False, 'message': 'no update is open'}
    if len(self.updates) == self.fails_at:
      self.up = False
      raise httpx2.ReadError('connection reset')
    payload = body['serialized_named_tensors'][0]
    for tensor in torch_pickle.loads(base64.b64decode(payload)):
      (value,) = np.frombuffer(tensor.data, np.float32)
      self.received[tensor.name] = float(value)
    self.weight = sum(self.received.values())
    if 'weight_version' in body:
      self.version = body['weight_version']
    return 200, {}, {'success': True, 'message': ''}

  def _update(self, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    self.updates.append(body)
    file = pathlib.Path(body['model_path'], 'weight.json')
    if not file.is_file():
      return 400, {}, {'success': False, 'message': f'no {file}'}
    self.weight = json.loads(file.read_text())
    if self.version is not None:
      self.version = body['weight_version']
    return 200, {}, {'success': True, 'message': ''}

  def _generate(self, body: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
    p = body['sampling_params']
    if 'text' in body:
      ids = [i + self.tokens_off for i in model().encode(body['text'])]
      sure = -1.0 - self.weight**2
      pairs = [[None if not t else sure, i, None] for t, i in enumerate(ids)]
      told = {} if self.version is None else {'weight_version': self.version}
      return 200, {}, {'meta_info': {'input_token_logprobs': pairs, **told}}
    probe = tuple(body['input_ids'][:2]) == model().probe
    if not probe:
      self.asked.append(body)
      if self.dies_at and len(self.asked) >= self.dies_at:
        self.up, self.dies_at = False, 0
        raise httpx2.ReadError('connection reset')
      if body['rid'] in self.held:
        return 400, {}, {'error': f'rid {body["rid"]} is in use'}
      if self.silent:
        self.silent -= 1
        self.held.add(body['rid'])
        raise httpx2.ReadTimeout('no answer')
      if self.busy:
        self.busy -= 1
        return 503, {'Retry-After': '0.05'}, {'error': 'queue full'}
    tokens, scores = sample(
        self.weight,
        body['input_ids'],
        seed=p['sampling_seed'],
        count=p['max_new_tokens'],
        temperature=p['temperature'],
        ignore_eos=p['ignore_eos'],
    )
    if self.unscaled or self.dtype != np.float64:
      scale = 1.0 if self.unscaled else p['temperature']
      pairs = [(body['input_ids'], tokens)]
      scores = score(self.weight, pairs, [scale], self.dtype)[0].tolist()
    reason = 'stop' if tokens[-1] == EOS else 'length'
    if self.aborts and not probe:
      keep = self.aborts.pop(0)
      # As real ones do, whatever the last of these tokens is.
      tokens, scores, reason = tokens[:keep], scores[:keep], 'abort'
    answer = {
        'meta_info': {
            'id': body['rid'],
            'prompt_tokens': len(body['input_ids']),
            'completion_tokens': len(tokens),
            'finish_reason': {'type': reason},
            # In front: what a server repeats of earlier chunks.
            'output_token_logprobs': [
                [s, t, None]
                for s, t in (*zip(scores[:2], tokens), *zip(scores, tokens))
            ],
        }
    }
    if self.version is not None:
      answer['meta_info']['weight_version'] = self.version
    return 200, {}, answer if probe else self.spoil(answer)


def transport(servers: Sequence[Server]) -> httpx2.MockTransport:
  """The network in which these servers are."""
  by_url = {server.url: server for server in servers}

  async def handle(request: httpx2.Request) -> httpx2.Response:
    url = request.url
    server = by_url[f'{url.scheme}://{url.netloc.decode()}']
    body = json.loads(request.content) if request.content else None
    server.now += 1
    server.most = max(server.most, server.now)
    await asyncio.sleep(0.002)
    server.now -= 1
    answer = server.handle(
        url.path, body, request.headers.get('Authorization', '')
    )
    if answer is None:
      await asyncio.sleep(60)
    status, headers, value = answer
    # JSON has no NaN, but Python's has, and servers are written in Python.
    return httpx2.Response(status, headers=headers, text=json.dumps(value))

  return httpx2.MockTransport(handle)
