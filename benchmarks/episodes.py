"""Compares multi-turn episodes with single turns, and times their waiting.

    python -m benchmarks.episodes [--rounds=5] [--turns=3] [--chunk=64]

The shipped math policy samples on the engine in this process. One run
alternates between these systems:

single   one turn with as many tokens as an episode of the others in all
free     several turns; the environment answers at once
box      the same, but each answer comes from a program that runs in the box
rounds   like box, but all episodes take each turn at the same time

Prints medians of episodes and of sampled tokens per second, and the share of
time without sampling because all episodes waited for their environments, which
should stay below 20 %.
"""

import statistics
import time

from absl import app
from absl import flags
import numpy as np

from configs import math as math_config
from evojax import domains
from evojax import records
from evojax.domains import environments
from evojax.domains.math import domain as math_domain
from evojax.domains.math import python_tool
from evojax.episodes import collect
from evojax.episodes import episode
from evojax.models import policy as policy_lib
from evojax.runtime import sharding
from evojax.training import engines

_ROUNDS = flags.DEFINE_integer('rounds', 5, 'Timed rounds.', lower_bound=1)
_EPISODES = flags.DEFINE_integer('episodes', 96, 'Per round, in groups of 8.')
_TURNS = flags.DEFINE_integer('turns', 3, 'Turns of an episode.')
_CHUNK = flags.DEFINE_integer('chunk', 64, 'config.rollout.prefill_chunk.')
_TURN_TOKENS, _OBSERVED = 24, 16


class _Asks:
  """An environment that answers every turn, at once or from the box."""

  def __init__(self, box: bool):
    self._box = box

  def reply(self, turn: records.Episode) -> environments.Reply:
    text = '42'
    if self._box:
      text = python_tool.run({'code': f'print({len(turn.text)} + 6 * 7)'}).text
    return environments.Reply(({'role': 'user', 'content': text},))

  def close(self) -> None:
    pass


def _domain(name: str) -> math_domain.MathDomain:
  """Return the math domain with the environment of a system."""

  class Domain(math_domain.MathDomain):
    limits = environments.Limits(1 if name == 'single' else _TURNS.value)

    def environment(self, problem: records.Problem) -> _Asks:
      return _Asks(name in ('box', 'rounds'))

  made = domains.make('math', families=('chain_sum:0',))
  return Domain(made.problems, made.answer_format)


def main(_) -> None:
  config = math_config.get_config().unlock()
  turns = _TURNS.value
  config.rollout.max_tokens = turns * (_TURN_TOKENS + _OBSERVED)
  config.rollout.turn_tokens = _TURN_TOKENS
  config.rollout.prefill_chunk = _CHUNK.value
  several = config.copy_and_resolve_references()
  config.rollout.turn_tokens = 0
  config.rollout.max_tokens = turns * _TURN_TOKENS
  policy = policy_lib.open_policy(
      **config.model.to_dict()
      | {'path': domains.policy_path(config.model.path)}
  )
  mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1)
  params = policy_lib.load_params(policy, mesh, param_dtype='float32')
  samplers = {
      name: engines.make_engine(of, policy, mesh)
      for name, of in (('single', config), ('several', several))
  }
  for sampler in samplers.values():
    sampler.update_weights(params, 0)

  class Rounds:  # A sampler without a stream.
    generate = samplers['several'].generate

  players = {
      name: episode.Player(sampler, policy.tokenizer, _domain(name))
      for name, sampler in (
          ('single', samplers['single']),
          ('free', samplers['several']),
          ('box', samplers['several']),
          ('rounds', Rounds),
      )
  }
  found = {name: [] for name in players}
  for number in range(-1, _ROUNDS.value):  # The first round compiles.
    for name, player in players.items():
      limit = config if name == 'single' else several
      asked = collect.request_batch(
          policy.tokenizer,
          _domain(name).source('train', 0).take(0, _EPISODES.value // 8),
          records.SamplingParams(
              max_tokens=limit.rollout.max_tokens,
              turn_tokens=limit.rollout.turn_tokens,
              # No turn ends early, so that all systems sample equally many
              # tokens.
              ignore_eos=True,
          ),
          group_size=8,
          seed=number + 1,
          max_prompt_tokens=config.data.max_prompt_tokens,
      )
      waited, started = player.waited, time.perf_counter()
      episodes = player.play(asked)
      seconds = time.perf_counter() - started
      sampled = sum(int(e.loss_mask.sum()) for e in episodes)
      if number >= 0:
        share = (player.waited - waited) / seconds
        found[name].append(
            (len(episodes) / seconds, sampled / seconds, share, sampled)
        )
  print('system    episodes/s  tokens/s  waits for environments  tokens')
  for name, rows in found.items():
    rate, tokens, share, sampled = (
        statistics.median(column) for column in zip(*rows, strict=True)
    )
    print(
        f'{name:8}  {rate:10.1f}  {tokens:8.0f}  {share:22.1%}  {sampled:6.0f}'
    )
  against = np.median(
      [b[1] / f[1] for b, f in zip(found['box'], found['free'], strict=True)]
  )
  print(f'box / free, tokens a second: {against:.2f}')


if __name__ == '__main__':
  app.run(main)
