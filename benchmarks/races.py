"""Simulated races: false keeps under the null, power, and measured arms.

    python -m benchmarks.races [--races=10000] [--curves=FILE]

All tables run `evojax.eval.race` itself, through `evojax.eval.simulation`, on
differences sampled here: from Gaussian arms that share the incumbent's, or from
arms recorded by `benchmarks.race_curves`, whose arms and problems are
resampled. A run enters MOST candidates, CANDIDATES at a time, and ends a race
at the first keep. No device is used; on one core it takes minutes.
"""

from collections.abc import Sequence
import functools
import json
import math
import pathlib
import time
from typing import Any
from unittest import mock

from absl import app
from absl import flags
import numpy as np
from scipy import special

from evojax.eval import paired
from evojax.eval import race
from evojax.eval import simulation

LEVEL, MOST, CANDIDATES, PAIRS, ROUNDS = 0.2, 6, 3, 4, 3
SPREADS = (1.0, 2.0, 3.0)  # A candidate's spread relative to the incumbent's.
# Spread of an arm's score, as a fraction, due to samples and seeds at 512 x 4.
SIGMA = 0.0141
EFFECTS = (0.10, 0.05, 0.02)

_RACES = flags.DEFINE_integer('races', 10_000, 'Runs of each row of a table.')
_CURVES = flags.DEFINE_string(
    'curves',
    str(pathlib.Path(__file__).with_name('race_curves.jsonl')),
    'Rows of benchmarks.race_curves.',
)

simulate = functools.partial(
    simulation.simulate, candidates=CANDIDATES, rounds=ROUNDS, level=LEVEL
)


def gaussian(
    rng: np.random.Generator,
    spreads: Sequence[float],
    *,
    pairs: int = PAIRS,
    sigma: float = SIGMA,
    rho: float = 0.0,
    lost: float = 0.0,
    depth: float = 0.2,
    equal: str = 'mean',
    falling: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
  """Return a simulation.Draw: arms of equal mean, each with its own spread.

  Args:
    rng: Random number generator.
    spreads: Spreads of the candidates, in units of sigma.
    pairs: Number of pairs in a round, n.
    sigma: Standard deviation of an incumbent's arm.
    rho: Correlation between the arms of a pair.
    lost: Probability that an arm collapses, under any harness.
    depth: Mean loss of score of a collapsed arm, scaled by the spread.
    equal: 'mean': a candidate that loses more in a collapse is better without
      one. 'typical': it is not, and has a lower mean.
    falling: Spread of the first pair divided by that of the last; in a chain,
      pairs start from ever better states.
  """
  scale = np.array([1.0, *spreads])[:, None]
  own = rng.standard_normal((len(scale), pairs)) * scale
  arms = sigma * (math.sqrt(1 - rho) * own + math.sqrt(rho) * own[0])
  arms[0] = sigma * own[0]
  arms *= np.geomspace(math.sqrt(falling), 1 / math.sqrt(falling), pairs)
  if lost:
    falls = depth * rng.uniform(0.5, 1.5, arms.shape)
    arms -= scale * falls * (rng.random(arms.shape) < lost)
    if equal == 'mean':
      arms += scale * depth * lost
  return arms[1:] - arms[0], np.zeros((len(spreads), pairs))


class Recorded:
  """Recorded arms, resampled with their problems.

  Every arm of a round, of incumbent and candidates alike, is one of those
  recorded, so that no candidate is better. A pair has two arms, and its own
  problems. A spread other than 1 moves the scores of a candidate's arm away
  from the center, which by default is the mean of all scores.
  """

  def __init__(
      self,
      scores: np.ndarray,
      chances: Sequence[float] | None = None,
      center: float | None = None,
  ):
    """Take scores [arms, problems], how often each arm is drawn, the center."""
    self.scores = scores
    self.means = scores.mean(axis=1)
    self.chances = chances or [1 / len(scores)] * len(scores)
    mean = float(self.chances @ self.means)
    self.center = mean if center is None else center

  def __call__(
      self, rng: np.random.Generator, spreads: Sequence[float]
  ) -> tuple[np.ndarray, np.ndarray]:
    arms, problems = self.scores.shape
    shape = (1 + len(spreads), PAIRS)
    chosen = rng.choice(arms, size=shape, p=self.chances)
    # An arm paired with itself is not a pair.
    same = chosen[1:] == chosen[0]
    chosen[1:] = (chosen[1:] + same) % arms
    weights = rng.multinomial(problems, [1 / problems] * problems, PAIRS)
    own = self.scores[chosen]  # [1 + C, n, P]
    d = own[1:] - own[0]
    mean = (weights * d).sum(axis=2) / problems
    square = (weights * d**2).sum(axis=2) / problems - mean**2
    away = self.means[chosen[1:]] - self.center
    return (
        mean + (np.array(spreads)[:, None] - 1) * away,
        np.sqrt(np.maximum(square, 0) / problems),
    )


def rate(count: int, of: int) -> str:
  """Return a share and its exact 95 % interval as text."""
  low, high = simulation.exact_interval(count, of)
  return f'{count / of:.4f} [{low:.4f}, {high:.4f}]'


def print_null(name: str, draw: simulation.Draw) -> None:
  """Print how often a run keeps anything although nothing is better."""
  for spread in SPREADS:
    rng = np.random.default_rng(1)
    runs = [
        simulate(rng, draw, [0.0] * MOST, [spread] * MOST)
        for _ in range(_RACES.value)
    ]
    false = sum(bool(run.kept) for run in runs)
    first = sum(bool(run.kept) and run.kept[0] < CANDIDATES for run in runs)
    print(
        f'  {name:37} x{spread:<4g}  run {rate(false, len(runs))}'
        f'  first race {rate(first, len(runs))}'
        f'  rounds {np.mean([run.spent for run in runs]):.2f}',
        flush=True,
    )


def print_mixed(
    name: str, draw: simulation.Draw, effects: Sequence[float]
) -> None:
  """Print the share of false keeps if some candidates are better."""
  for spread in SPREADS:
    rng = np.random.default_rng(2)
    shares, kept = [], 0
    for _ in range(_RACES.value):
      order = rng.permutation(effects)
      found = simulate(rng, draw, order, [spread] * MOST).kept
      false = sum(order[i] <= 0 for i in found)
      shares.append(false / max(1, len(found)))
      kept += len(found) - false
    error = np.std(shares) / math.sqrt(len(shares))
    print(
        f'  {name:37} x{spread:<4g}  false share {np.mean(shares):.4f}'
        f' ± {1.96 * error:.4f}  true keeps a run {kept / len(shares):.2f}',
        flush=True,
    )


def print_power() -> None:
  """Print how often the better of three candidates is kept, by round."""
  print(f'power: candidate 1, 2 or 4 of {MOST}; two others do nothing')
  runs = max(1, _RACES.value // 5)
  for pairs in (3, 4, 6):
    for spread in (0.015, 0.02, 0.03, 0.05):
      draw = functools.partial(
          gaussian, pairs=pairs, sigma=spread / math.sqrt(2)
      )
      for place in (0, 1, 3):
        cells = []
        for effect in EFFECTS:
          rng = np.random.default_rng(3)
          effects = [0.0] * MOST
          effects[place] = effect
          by_round = np.zeros(ROUNDS)
          for _ in range(runs):
            run = simulate(rng, draw, effects, [1.0] * MOST)
            for i, when in zip(run.kept, run.rounds, strict=True):
              by_round[when - 1 :] += i == place
          cells.append('/'.join(f'{x:.2f}' for x in by_round / runs))
        alpha = race.alpha_of(place + 1, MOST, 0, LEVEL)
        print(
            f'  {pairs} pairs, sd of a difference {100 * spread:g} points,'
            f' level {alpha:.3f}: '
            + ' | '.join(
                f'{100 * e:g} points {c}'
                for e, c in zip(EFFECTS, cells, strict=True)
            ),
            flush=True,
        )


def print_borrowed() -> None:
  """Print the true levels of tests with a borrowed variance.

  The moderated t of limma (Smyth 2004, Stat. Appl. Genet. Mol. Biol. 3:3) mixes
  the variance of the pairs with one known beforehand that counts `borrowed`
  degrees of freedom; here it is the true variance of pairs of two incumbents.
  """
  print('borrowed variance: real level of a round at nominal .02 (.005)')
  rng = np.random.default_rng(4)
  own = rng.standard_normal((200_000, PAIRS))
  for borrowed in (0, 3, 9):
    cells = []
    for spread in SPREADS:
      ratio = math.sqrt((1 + spread**2) / 2)
      d = ratio * own
      df = PAIRS - 1 + borrowed
      square = (borrowed + d.var(axis=1, ddof=1) * (PAIRS - 1)) / df
      t = d.mean(axis=1) / np.sqrt(square / PAIRS)
      real = [
          np.mean(t > special.stdtrit(df, 1 - level)) for level in (0.02, 0.005)
      ]
      cells.append(f'x{spread:g} {real[0]:.4f} ({real[1]:.4f})')
    print(f'  {borrowed} degrees of freedom: ' + '  '.join(cells), flush=True)


def print_checks() -> None:
  """Print the error rates of the perturbed gate and of the horizon check."""
  print('perturbed gate: 4 pairs, sd 2 points; holds / open / fails')
  rng = np.random.default_rng(5)
  runs = max(1, _RACES.value // 2)
  errors = [0.0] * PAIRS
  for gained, left in ((0.1, 0.1), (0.05, 0.05), (0.02, 0.02), (0.1, 0.0)):
    plain = gained + 0.02 * rng.standard_normal((runs, PAIRS))
    other = left + 0.02 * rng.standard_normal((runs, PAIRS))
    found = [
        race.gate(d, p, errors).status
        for d, p in zip(plain.tolist(), other.tolist(), strict=True)
    ]
    shares = [found.count(s) / runs for s in ('holds', 'open', 'fails')]
    print(
        f'  gain {100 * gained:g}, {100 * left:g} of it on perturbed problems: '
        + ' / '.join(f'{share:.3f}' for share in shares)
    )
  print('horizon: 4 pairs a look, 3 looks, sd 2 points; taken back')
  for effect in (-0.11, -0.05, -0.02, 0.0, 0.02, 0.05):
    # The difference grows with the horizon.
    means = effect * np.arange(1, 4)[:, None] / 3
    back = 0
    for _ in range(runs):
      looks = (means + 0.02 * rng.standard_normal((3, PAIRS))).tolist()
      for i, d in enumerate(looks):
        verdict = race.horizon(d, errors, looks=3, last=i == 2)
        if verdict.status != 'go_on':
          back += verdict.status == 'drop'
          break
    print(f'  {100 * effect:+g} points at the end: {rate(back, runs)}')


def print_repairs() -> None:
  """Print how often the repair of a critical fault is kept in its only round.

  A keep is false where the repair loses `race.MARGIN` on average. The gains of
  true repairs fall from pair to pair, since the chain follows the repair.
  """
  runs = max(1, _RACES.value // 2)
  levels = [race.alpha_of(place, MOST, 0, LEVEL) for place in (1, 2)]

  def row(name: str, differences: np.ndarray) -> None:
    cells = []
    for cap in (math.inf, race.CAP):
      with mock.patch.object(race, 'CAP', cap):
        kept = [
            np.mean([_is_kept(d, level) for d in differences.tolist()])
            for level in levels
        ]
      cells.append(', '.join(f'{share:.3f}' for share in kept))
    print(f'  {name:32} {cells[0]}  gains cut: {cells[1]}', flush=True)

  text = ', '.join(f'{level:.3f}' for level in levels)
  print(f'repair: kept at levels {text}; sd of a difference in points')
  for sd in (0.01, 0.02, 0.04, 0.08):
    rng = np.random.default_rng(6)
    drawn = {
        'normal': rng.standard_normal((runs, PAIRS)),
        "Student's t, 3 df": rng.standard_t(3, (runs, PAIRS)) / math.sqrt(3),
        'exponential': rng.exponential(1.0, (runs, PAIRS)) - 1,
    }
    for name, unit in drawn.items():
      row(f'loses 2 points, {name}, {100 * sd:g}', sd * unit - race.MARGIN)
  for points in ((14, 1, 0, -1), (6, 2, 2, 1), (2, 2, 2, 2), (0, 0, 0, 0)):
    rng = np.random.default_rng(7)
    noise = 0.01 * rng.standard_normal((runs, PAIRS))
    row(f'gains {points}, 1', np.array(points) / 100 + noise)


def _is_kept(differences: Sequence[float], level: float) -> bool:
  """Return whether a repair passes in its only round."""
  standing = race.Standing(index=1, margin=race.MARGIN)
  after = race.after_round(
      standing,
      differences,
      [0.0] * len(differences),
      spread=0.0,  # `after_round` uses at least the spread of these pairs.
      alpha=level,
      last=True,
  )
  return after.e_value > 0


def read_curves(path: pathlib.Path) -> dict[str, list[dict[str, Any]]]:
  """Return the recorded arms by domain and learning rate, pairs in order."""
  found: dict[str, list[dict[str, Any]]] = {}
  for line in path.read_text().splitlines():
    row = json.loads(line)
    found.setdefault(f'{row["domain"]} {row["rate"]:g}', []).append(row)
  return {
      name: sorted(rows, key=lambda row: row['pair'])
      for name, rows in sorted(found.items())
  }


def recorded_draws(
    curves: dict[str, list[dict[str, Any]]],
) -> dict[str, simulation.Draw]:
  """Return draws from the arms of each recipe, and of the best with collapses.

  In the latter, one arm in ten comes from the worst recipe, as after a
  collapse.
  """
  scores = {
      name: np.array([row['dev'] for row in rows])
      for name, rows in curves.items()
  }
  found: dict[str, simulation.Draw] = {
      f'recorded {name}': Recorded(own) for name, own in scores.items()
  }
  best, worst = (
      scores[pick(scores, key=lambda n: scores[n].mean())]
      for pick in (max, min)
  )
  chances = [0.9 / len(best)] * len(best) + [0.1 / len(worst)] * len(worst)
  for equal, center in (('typical', float(best.mean())), ('mean', None)):
    both = Recorded(np.concatenate([best, worst]), chances, center)
    found[f'recorded, 10% collapse, equal {equal}'] = both
  return found


def print_measured(curves: dict[str, list[dict[str, Any]]]) -> None:
  """Print the spreads of recorded arms and the effect of pairing on them."""
  print('recorded arms: points; sd between arms, of pairs; correlation')
  names = list(curves)
  for name in names:
    scores = 100 * np.array([np.mean(row['dev']) for row in curves[name]])
    own = 100 * np.array([np.mean(row['solved']) for row in curves[name]])
    print(
        f'  {name:14} {len(scores)} arms: dev {scores.mean():.1f}, sd'
        f' {scores.std(ddof=1):.2f}; own rollouts {own.mean():.1f}, sd'
        f' {own.std(ddof=1):.2f}'
    )
  for i, one in enumerate(names):
    for other in names[i + 1 :]:
      for text, value in (
          ('dev', lambda row: np.mean(row['dev'])),
          ('own rollouts', lambda row: np.mean(row['solved'])),
          ('their last half', lambda r: np.mean(_last_half(r['solved']))),
      ):
        pairs = [
            (100 * value(a), 100 * value(b))
            for a in curves[one]
            for b in curves[other]
            if a['pair'] == b['pair']
        ]
        if len(pairs) < 3:
          continue
        x, y = np.array(pairs).T
        d = y - x
        kept = d.var(ddof=1) / (x.var(ddof=1) + y.var(ddof=1))
        print(
            f'  {other} - {one}, {text}: {d.mean():+.1f}, sd'
            f' {d.std(ddof=1):.2f}, rho {1 - kept:+.2f}, p'
            f' {paired.p_value(d.tolist(), [0.0] * len(d)):.4f}'
        )


def _last_half(solved: Sequence[Sequence[float]]) -> np.ndarray:
  return np.array(solved[len(solved) // 2 :])


def main(_):
  began = time.process_time()
  print(
      f'{_RACES.value} runs a row: {MOST} candidates, {CANDIDATES} at a time,'
      f' {PAIRS} pairs, {ROUNDS} rounds, level {LEVEL}'
  )
  print('null: a run keeps anything; 95 % intervals')
  draws: dict[str, simulation.Draw] = {
      'Gaussian': gaussian,
      'Gaussian, rho .5': functools.partial(gaussian, rho=0.5),
      'Gaussian, spread falls by 3': functools.partial(gaussian, falling=3.0),
  }
  for lost, depth in ((0.05, 0.2), (0.15, 0.2), (0.15, 0.3)):
    for equal in ('typical', 'mean'):
      draw = functools.partial(gaussian, lost=lost, depth=depth, equal=equal)
      draws[f'{lost:.0%} lose {100 * depth:g}, equal {equal}'] = draw
  curves = read_curves(pathlib.Path(_CURVES.value))
  draws |= recorded_draws(curves)
  for name, draw in draws.items():
    print_null(name, draw)
  print('three of six are better by 5, 2 and 2 points, one is worse by 5')
  print_mixed('Gaussian', gaussian, [0.05, 0.02, 0.02, 0.0, 0.0, -0.05])
  print_power()
  print_borrowed()
  print_checks()
  print_repairs()
  print_measured(curves)
  print(f'{time.process_time() - began:.0f} CPU-s')


if __name__ == '__main__':
  app.run(main)
