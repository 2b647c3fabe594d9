"""Compares training of one arm with training of several arms that are merged.

    python -m benchmarks.merging [--domains=math,coding] [--lines=seed,...]
        [--seeds=5] [--most_tokens=2e6] [--out=merging.jsonl]
    python -m benchmarks.merging --table [--out=merging.jsonl]
    python -m benchmarks.merging --table --out=benchmarks/merging.jsonl

The third command prints the table of the lines that are recorded, under five
seeds (2026-11-26, one H100).

A line of training starts from the shipped policy and spends a number of sampled
tokens in one of the ways in `LINES`: in a single arm, or in rounds of several
arms that start from the same state and end in their merge or in the best one.
Each line is scored after 0.25, 0.5, 1 and 2 million tokens, on dev problems
that all lines of a seed share; tokens of scoring are not counted, since they
are the same for all. A line is scored at the first merge after each mark, which
may be a round later; the table prints the tokens actually spent.
Finished lines are found in --out, so that the same command continues.

Averaging arms that train separately is local SGD: DiLoCo, arXiv:2311.08105,
with the outer momentum of `outer_*`; WARP, arXiv:2406.16768, for rewards.
Continuing with the best arm is a round of PBT, arXiv:1711.09846.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import pathlib
import tempfile
import time
from typing import Any

from absl import app
from absl import flags
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import json_lines
from configs import coding as coding_config
from configs import math as math_config
from evojax import config as config_lib
from evojax import records
from evojax.episodes import collect
from evojax.eval import estimates
from evojax.eval import scores
from evojax.rollout import parity
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import sharding
from evojax.stats import intervals
from evojax.training import engines
from evojax.training import settings
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib

MARKS = (250_000, 500_000, 1_000_000, 2_000_000)  # Sampled tokens.
GROUP = 8
ROUND = 8  # Updates of each arm between two merges, as in evolve.updates.
WARMING = 3  # Updates at learning rate 0 that estimate restarted moments.
EMA_DECAYS = (0.95, 0.99)  # Per update.
PROBLEMS, SAMPLES = 384, 4  # Problems of a score, and completions of each.
MEASURED = 256  # Episodes of a score whose log-probs are recomputed.
ON_THE_LINE = (0.25, 0.5, 0.75)  # Points on the line between two arms.
_CONFIGS = {'math': math_config, 'coding': coding_config}
_DEV_SEED = 1_000_003  # Added to a seed to get its dev problems.

Params = Any
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Line:
  """A way of spending tokens."""

  rates: tuple[float, ...] = (1e-4,)  # Learning rate of each arm.
  prompts: int = 12  # P of each arm's updates.
  # A round of several arms ends in their mean, in an outer step towards the
  # mean with momentum, or in the arm with the best outcomes of the round.
  combine: str = 'mean'
  # Adam's moments after a merge: the arms' mean, zero, or zero and then
  # estimated from the gradients of a few updates that change no parameter.
  moments: str = 'keep'
  # The outer step is x + outer_rate * (mean - x), with Nesterov momentum; the
  # defaults are those of DiLoCo, Sec. 3.1.
  outer_rate: float = 0.7
  outer_momentum: float = 0.9


# Plain SGD as the outer optimizer.
_SGD = dict(combine='outer', outer_momentum=0.0)

LINES = {
    'seed': Line(),
    'seed_3e-4': Line(rates=(3e-4,)),
    'large_1e-4': Line(prompts=48),
    'large_2e-4': Line(rates=(2e-4,), prompts=48),
    'large_3e-4': Line(rates=(3e-4,), prompts=48),
    'best_1e-4': Line(rates=(1e-4,) * 4, combine='best'),
    'merged_1e-4': Line(rates=(1e-4,) * 4),
    'merged_2e-4': Line(rates=(2e-4,) * 4),
    'merged_3e-4': Line(rates=(3e-4,) * 4),
    'reset_3e-4': Line(rates=(3e-4,) * 4, moments='reset'),
    'recompute_3e-4': Line(rates=(3e-4,) * 4, moments='recompute'),
    # The outer step of the race; see config.evolve.outer_learning_rate.
    'step2_1e-4': Line(rates=(1e-4,) * 4, outer_rate=2.0, **_SGD),
    'step3_1e-4': Line(rates=(1e-4,) * 4, outer_rate=3.0, **_SGD),
    'step4_1e-4': Line(rates=(1e-4,) * 4, outer_rate=4.0, **_SGD),
    'step2_3e-4': Line(rates=(3e-4,) * 4, outer_rate=2.0, **_SGD),
    'step3_3e-4': Line(rates=(3e-4,) * 4, outer_rate=3.0, **_SGD),
    # DiLoCo's own outer optimizer, with different numbers of arms.
    'outer2_1e-4': Line(rates=(1e-4,) * 2, combine='outer'),
    'outer4_1e-4': Line(rates=(1e-4,) * 4, combine='outer'),
    'outer8_1e-4': Line(rates=(1e-4,) * 8, combine='outer'),
    'unlike': Line(rates=(1e-4, 1e-4, 3e-4, 3e-4)),
    'unlike_best': Line(rates=(1e-4, 1e-4, 3e-4, 3e-4), combine='best'),
}

_DOMAINS = flags.DEFINE_list('domains', list(_CONFIGS), 'Domains to train.')
_LINES = flags.DEFINE_list('lines', list(LINES), 'Keys of LINES.')
_SEEDS = flags.DEFINE_integer('seeds', 5, 'Number of seeds.', lower_bound=1)
_FIRST = flags.DEFINE_integer('first_seed', 0, 'The first seed.')
_TOKENS = flags.DEFINE_float(
    'most_tokens', MARKS[-1], 'Sampled tokens of a line.'
)
_OUT = flags.DEFINE_string('out', 'merging.jsonl', 'File that gets the rows.')
_TABLE = flags.DEFINE_bool('table', False, 'Only print the rows in --out.')


def copy(tree: Any) -> Any:
  """Return a tree in new buffers, since an update donates those of its
  state."""
  return jax.tree.map(jnp.copy, tree)


def mean(trees: Sequence[Any], weights: Sequence[float] | None = None) -> Any:
  """Return the weighted mean of trees, leaf by leaf, in the leaves' dtypes."""
  weights = weights or [1 / len(trees)] * len(trees)

  def of_leaves(*leaves):
    pairs = zip(weights, leaves, strict=True)
    return sum(w * x for w, x in pairs).astype(leaves[0].dtype)

  return jax.tree.map(of_leaves, *trees)


def merge(
    line: Line,
    start: Params,
    states: Sequence[Mapping[str, Any]],
    velocity: Params | None,
) -> tuple[Mapping[str, Any], Params | None]:
  """Return the merged state of arms, and the outer momentum.

  Args:
    line: The way of merging.
    start: The parameters from which the arms started.
    states: States of the arms after equally many updates.
    velocity: The momentum from the last merge; None at the first.
  """
  params = mean([s['params'] for s in states])
  if line.combine == 'outer':
    step = jax.tree.map(jnp.subtract, start, params)
    if velocity is not None:
      velocity = jax.tree.map(
          lambda v, d: line.outer_momentum * v + d, velocity, step
      )
    else:
      velocity = step
    params = jax.tree.map(  # Nesterov momentum.
        lambda x, d, v: x - line.outer_rate * (d + line.outer_momentum * v),
        start,
        step,
        velocity,
    )
  kept = [s['moments'] for s in states]
  moments = kept[0]._replace(
      mu=mean([m.mu for m in kept]), nu=mean([m.nu for m in kept])
  )
  if line.moments != 'keep':  # The count, too, because of the bias correction.
    moments = jax.tree.map(jnp.zeros_like, moments)
  return dict(states[0], params=params, moments=moments), velocity


class Bench:
  """The setup, engine and programs that all lines of a domain share."""

  def __init__(self, domain: str):
    self.domain = domain
    config = config_lib.with_fields(
        _CONFIGS[domain].get_config('seed'),
        {'grpo.group_size': GROUP, 'steps': 10**6, 'eval.sealed': False},
    )
    self.config = config
    self.setup = setup_lib.prepare(self.config)
    self.policy = self.setup.policy
    if self.policy.cfg.lora_rank:
      raise ValueError(
          'config.model.lora_rank: the mean of adapters is not the mean of'
          ' their products; train all parameters'
      )
    self.mesh = sharding.make_mesh(**config.mesh.to_dict())
    self.engine = engines.make_engine(self.config, self.policy, self.mesh)
    self.base = self.setup.base_params(self.mesh)
    length = config.data.max_prompt_tokens + config.rollout.max_tokens
    self._logprobs = parity.make_scorer(
        self.policy.cfg, self.mesh, rows=MEASURED, length=length
    )

  def arm(
      self, line: Line, seed: int, folder: pathlib.Path
  ) -> trainer_lib.Trainer:
    """Return an arm at the base policy, with its own training problems."""
    config = config_lib.with_fields(
        self.config, {'seed': seed, 'grpo.prompts': line.prompts}
    )
    setup = self.setup.under(config)
    phases = metrics_lib.Phases()
    return trainer_lib.Trainer(setup, folder, phases, engine=self.engine)

  def answers(
      self, params: Params, draw: int, seed: int, problems: int, samples: int
  ) -> tuple[
      records.RequestBatch, Sequence[records.Episode], collect.RolloutBatch
  ]:
    """Sample dev problems with these parameters, at temperature 1.

    Args:
      params: Parameters of the policy.
      draw: Seed of the problems.
      seed: Seed of the sampler.
      problems: Number of problems.
      samples: Completions per problem.
    """
    self.engine.update_weights(copy(params), 0)
    asked = collect.request_batch(
        self.policy.tokenizer,
        self.setup.domain.source('dev', draw).take(0, problems),
        settings.eval_params(self.config),
        group_size=samples,
        seed=seed,
        max_prompt_tokens=self.config.data.max_prompt_tokens,
    )
    episodes = self.engine.generate(asked.requests)
    rollouts = collect.rollout_batch(
        self.setup.domain, self.setup.columns, asked, episodes, step=0
    )
    return asked, episodes, rollouts

  def score(
      self,
      params: Params,
      seed: int,
      others: Sequence[Params] = (),
      problems: int = PROBLEMS,
  ) -> Row:
    """Score parameters on a seed's dev problems, at temperature 1.

    Args:
      params: Parameters of the policy.
      seed: Seed of the line.
      others: Parameters whose divergence from the policy is measured.
      problems: Number of problems.
    """
    asked, episodes, rollouts = self.answers(
        params, seed + _DEV_SEED, seed, problems, SAMPLES
    )
    rows, graded = rollouts.rows, rollouts.graded
    solved = np.asarray(rows['outcome'], bool).reshape(graded.shape)
    each = scores.of_problems(solved, graded)
    pairs = [
        (request.prompt_tokens, episode.tokens.tolist())
        for request, episode in zip(asked.requests, episodes, strict=True)
    ][:MEASURED]
    found = lambda p: np.concatenate(self._logprobs(p, pairs, [1.0] * MEASURED))
    own = found(params)
    sampled = np.concatenate([e.logprobs for e in episodes[:MEASURED]])
    # Estimated from the policy's own samples, in nats per token.
    divergence = lambda p: float(np.mean(own - found(p)))
    return dict(
        score=100 * float(each.mean()),
        standard_error=100 * estimates.standard_error(each),
        pass_at_k=100 * scores.pass_at_k(solved, SAMPLES, graded),
        length=float(np.mean(rows['n_tokens'])),
        truncated=float(np.mean(rows['truncated'])),
        entropy=float(-own.mean()),
        kl_base=divergence(self.base),
        kl_arms=[divergence(p) for p in others],
        logprob_gap=float(np.abs(own - sampled).mean()),
    )


def set_rate(arm: trainer_lib.Trainer, rate: float) -> None:
  """Set the learning rate for an arm's further updates."""
  arm.learner.config = config_lib.with_fields(
      arm.learner.config, {'optim.learning_rate': rate}
  )


class Training:
  """The training of one line under one seed, from the base policy on."""

  def __init__(self, bench: Bench, name: str, seed: int, folder: pathlib.Path):
    self.bench, self.line, self.seed = bench, LINES[name], seed
    self.names = dict(domain=bench.domain, line=name, seed=seed)
    self.arms = [
        bench.arm(self.line, 1000 * (seed + 1) + i, folder / str(i))
        for i in range(len(self.line.rates))
    ]
    self.state = copy(self.arms[0].learner.state)
    self.velocity: Params | None = None
    self.emas: dict[float, Params] = {}
    if len(self.arms) == 1:
      self.emas = {d: copy(self.state['params']) for d in EMA_DECAYS}
    self.tokens = self.steps = self.rounds = 0
    self.spent = 0.0

  def round(self) -> list[Params]:
    """Train each arm for a round and merge them; return the arms'
    parameters."""
    began, start, outcomes = time.monotonic(), self.state['params'], []
    for arm, rate in zip(self.arms, self.line.rates, strict=True):
      arm.learner.state.update(copy(dict(self.state)))
      arm.install()
      solved = []
      for update in range(ROUND):
        warms = self.line.moments == 'recompute' and self.rounds > 0
        set_rate(arm, 0.0 if warms and update < WARMING else rate)
        log = arm.train_step()
        solved.append(log['outcome'])
        self.tokens += int(log['sampled_tokens'])
        for decay, ema in self.emas.items():
          params = arm.learner.params
          self.emas[decay] = mean([ema, params], [decay, 1 - decay])
      outcomes.append(np.mean(solved))
    self.steps += ROUND
    self.rounds += 1
    states = [arm.learner.state for arm in self.arms]
    if self.line.combine == 'best':
      self.state = states[int(np.argmax(outcomes))]
    else:
      self.state, self.velocity = merge(self.line, start, states, self.velocity)
    # The next round of the arms donates their buffers.
    self.state = copy(dict(self.state))
    self.spent += time.monotonic() - began
    return [copy(s['params']) for s in states]

  def rows(self, mark: int, arms: Sequence[Params], last: bool) -> list[Row]:
    """Return the scores at a mark: of the line, its averages and its arms."""
    done = dict(
        mark=mark,
        tokens=self.tokens,
        updates_in_a_row=self.steps,
        seconds=round(self.spent, 1),
    )
    bench, seed, merged = self.bench, self.seed, self.state['params']
    several = arms if len(arms) > 1 else ()
    found = [dict(what='policy', **bench.score(merged, seed, several))]
    for decay, ema in self.emas.items():
      found.append(dict(what=f'ema_{decay}', **bench.score(ema, seed)))
    for i, arm in enumerate(several if last else ()):
      found.append(dict(what='arm', arm=i, **bench.score(arm, seed)))
    for t in ON_THE_LINE if last and several else ():
      between = mean(arms[:2], [1 - t, t])
      found.append(dict(what=f'between_{t}', **bench.score(between, seed)))
    return [{**self.names, **done, **row} for row in found]

  def run(self, most: float, write: Callable[[Sequence[Row]], None]) -> None:
    """Train up to the last mark within `most` tokens; write all rows."""
    marks = [m for m in MARKS if m <= most]
    with contextlib.ExitStack() as stack:
      for arm in self.arms:
        stack.callback(arm.close)
      for mark in marks:
        arms: list[Params] = []
        while self.tokens < mark:
          arms = self.round()
        write(self.rows(mark, arms, last=mark == marks[-1]))


def read(path: pathlib.Path) -> dict[tuple[Any, ...], Row]:
  """Return the rows of a file by their key.

  A line that was interrupted is trained again; its newer rows replace the old.
  """
  names = ('domain', 'line', 'what', 'mark', 'seed', 'arm')
  rows = json_lines.read(path)
  return {tuple(row.get(name, 0) for name in names): row for row in rows}


def interval(values: Sequence[float]) -> str:
  """Return the mean over seeds and half of its 95 % t interval, as text."""
  if len(values) < 2:
    return f'{np.mean(values):5.1f}      '
  found = intervals.student(values)
  return f'{found.value:5.1f} ±{found.high - found.value:4.1f}'


def print_table(rows: Mapping[tuple[Any, ...], Row]) -> None:
  """Print scores by line, and their differences to the seed recipe."""
  names = ('score', 'pass_at_k', 'length', 'truncated', 'entropy', 'kl_base')
  print(
      'domain line           what     at mark (tokens)   seeds score, ahead of'
      f' seed, {", ".join(names[1:])}, KL between arms, gap of log-probs,'
      ' updates in a row, seconds'
  )
  groups = itertools.groupby(sorted(rows), key=lambda key: key[:4])
  for (domain, line, what, mark), keys in groups:
    if what == 'arm' or what.startswith('between'):
      continue
    of_line = [rows[key] for key in keys]
    control = {
        row['seed']: row['score']
        for row in rows.values()
        if (row['domain'], row['line'], row['what'], row['mark'])
        == (domain, 'seed', 'policy', mark)
    }
    gains = [
        row['score'] - control[row['seed']]
        for row in of_line
        if row['seed'] in control
    ]
    means = [np.mean([row[name] for row in of_line]) for name in names[1:]]
    kl = [x for row in of_line for x in row['kl_arms']]
    print(
        f'{domain:6} {line:14} {what:8} {mark / 1e6:4.2f} M'
        f' ({np.mean([row["tokens"] for row in of_line]) / 1e6:4.2f} spent)'
        f'  n={len(of_line)}'
        f'  {interval([row["score"] for row in of_line])}'
        f'  {interval(gains) if gains else "":11}'
        + ''.join(f' {x:7.3f}' for x in means)
        + f' {np.mean(kl) if kl else 0:7.4f}'
        f' {np.mean([row["logprob_gap"] for row in of_line]):.1e}'
        f' {np.mean([row["updates_in_a_row"] for row in of_line]):5.0f}'
        f' {np.mean([row["seconds"] for row in of_line]):6.0f} s'
    )
  ends = [row for row in rows.values() if row['what'] != 'policy']
  for (domain, line), chosen in itertools.groupby(
      sorted(ends, key=lambda r: (r['domain'], r['line'], r['what'])),
      key=lambda r: (r['domain'], r['line']),
  ):
    shown = {}
    for row in chosen:
      shown.setdefault(row['what'], []).append(row['score'])
    if 'arm' in shown:
      text = ', '.join(f'{k} {np.mean(v):.1f}' for k, v in shown.items())
      print(f'{domain:6} {line:14} at its end: {text}')


def main(_):
  path = pathlib.Path(_OUT.value)
  if _TABLE.value:
    if not (rows := read(path)):
      raise app.UsageError(f'--out={path}: no rows are recorded there')
    print_table(rows)
    return
  last = max((m for m in MARKS if m <= _TOKENS.value), default=0)
  if not last:
    raise app.UsageError(
        f'--most_tokens={_TOKENS.value:g}: at least {MARKS[0]}'
    )
  for name, known in (('domains', _CONFIGS), ('lines', LINES)):
    if wrong := set(flags.FLAGS[name].value) - set(known):
      raise app.UsageError(f'--{name}={sorted(wrong)}: choose from {[*known]}')

  def write(new: Sequence[Row]) -> None:
    json_lines.append(path, new)
    for row in new:
      print(
          f'{row["domain"]} {row["line"]} seed {row["seed"]}, {row["what"]}:'
          f' {row["score"]:.1f} after {row["tokens"]} tokens',
          flush=True,
      )

  seeds = range(_FIRST.value, _FIRST.value + _SEEDS.value)
  wanted = itertools.product(_DOMAINS.value, seeds, _LINES.value)
  for domain, all_of_domain in itertools.groupby(wanted, key=lambda w: w[0]):
    bench = None
    for _, seed, name in all_of_domain:
      if (domain, name, 'policy', last, seed, 0) in read(path):
        continue
      bench = bench or Bench(domain)
      with tempfile.TemporaryDirectory() as folder:
        training = Training(bench, name, seed, pathlib.Path(folder))
        training.run(_TOKENS.value, write)


if __name__ == '__main__':
  app.run(main)
