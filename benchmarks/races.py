"""Simulated runs: false keeps under the null, power, and measured arms.

    python -m benchmarks.races [--races=10000] [--curves=FILE]

All tables run `evojax.eval.race` itself, through `evojax.eval.simulation`, on
differences sampled here: from Gaussian arms that share the incumbent's, or from
arms recorded by `benchmarks.race_curves`, whose arms and problems are
resampled. Places, entries, pairs, rounds and levels are those of
configs/math.py. No device is used; on one core it takes about 30 minutes.
"""

from collections.abc import Callable, Sequence
import dataclasses
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

from configs import math as math_config
from evojax.eval import paired
from evojax.eval import race
from evojax.eval import simulation
from evojax.evolve import costs
from evojax.evolve import ranking
from evojax.stats import intervals

_EVOLVE = math_config.get_config().evolve
RULES = simulation.Rules.of(_EVOLVE)
# Pairs of a round that is paid for in full, and of the smallest one.
PAIRS, FEWEST = _EVOLVE.pairs, costs.LEAST_PAIRS
# Entries of a run that repair nothing critical.
ORDINARY = ranking.ordinary_entries(RULES.entries)
SPREADS = (1.0, 2.0, 3.0)  # A candidate's spread relative to the incumbent's.
# Spread of an arm's score, as a fraction, due to samples and seeds at 512 x 4.
SIGMA = 0.0141
EFFECTS = (0.10, 0.05, 0.02)
# Gains of repairs of critical faults in points, one for each pair of a round.
GAINS = (
    (40, 10, 2, 0),
    (20, 5, 1, 0),
    (14, 1, 0, -1),
    (10, 2, 0, 0),
    (10, 10, 10, 10),
    (6, 2, 2, 1),
    (2, 2, 2, 2),
    (0, 1, 2, 4),  # As when a KL penalty goes: it binds more from pair to pair.
    (0, 0, 0, 0),
)
PERTURBED = 0.03  # Spread of a pair on perturbed problems, as measured.

_RACES = flags.DEFINE_integer('races', 10_000, 'Runs of each table row.', 2)
_CURVES = flags.DEFINE_string(
    'curves',
    str(pathlib.Path(__file__).with_name('race_curves.jsonl')),
    'Rows of benchmarks.race_curves.',
)

Entry = simulation.Entry


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
  """Draw arms of equal mean, each with its own spread; a `simulation.Draw`.

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
  if falling != 1.0:
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
      pairs: int,
      chances: Sequence[float] | None = None,
      center: float | None = None,
  ):
    """Store scores [arms, problems], n, arms' probabilities, and the center."""
    self.scores, self._pairs = scores, pairs
    self.means = scores.mean(axis=1)
    self.chances = chances or [1 / len(scores)] * len(scores)
    mean = float(self.chances @ self.means)
    self.center = mean if center is None else center

  def __call__(
      self, rng: np.random.Generator, spreads: Sequence[float]
  ) -> tuple[np.ndarray, np.ndarray]:
    arms, problems = self.scores.shape
    shape = (1 + len(spreads), self._pairs)
    chosen = rng.choice(arms, size=shape, p=self.chances)
    # An arm paired with itself is not a pair.
    same = chosen[1:] == chosen[0]
    chosen[1:] = (chosen[1:] + same) % arms
    even = [1 / problems] * problems
    weights = rng.multinomial(problems, even, self._pairs)
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
  low, high = intervals.exact(count, of)
  return f'{count / of:.4f} [{low:.4f}, {high:.4f}]'


def null_entries(spread: float, repairs: str = '') -> list[Entry]:
  """Return all candidates of a run in which every keep is false.

  Args:
    spread: Their spread, in units of the incumbent's.
    repairs: Severity of what they repair. With 'critical', repairs that lose as
      much as they have to exclude are the first to enter and take the reserved
      entry; the others repair nothing.
  """
  if repairs != 'critical':
    return [Entry(spread=spread, repairs=repairs)] * ORDINARY
  loses = Entry(effect=-race.MARGIN, spread=spread, repairs=repairs)
  reserved = RULES.entries - ORDINARY
  return [
      loses,
      *[Entry(spread=spread)] * (ORDINARY - 1),
      *[loses] * reserved,
  ]


def null_runs(
    draw: simulation.Draw, entries: Sequence[Entry], runs: int
) -> list[simulation.Outcome]:
  """Return simulated runs of the same candidates."""
  rng = np.random.default_rng(1)
  return [simulation.simulate(rng, draw, entries, RULES) for _ in range(runs)]


def print_null(
    name: str,
    draw: simulation.Draw,
    repairs: str,
    spreads: Sequence[float],
) -> None:
  """Print how often a run keeps anything although nothing is better."""
  for spread in spreads:
    entries = null_entries(spread, repairs)
    runs = null_runs(draw, entries, _RACES.value)
    false = sum(bool(run.kept) for run in runs)
    stayed = sum(bool(run.stayed) for run in runs)
    print(
        f'  {name:37} x{spread:<4g}  kept {rate(false, len(runs))}'
        f'  not taken back {rate(stayed, len(runs))}'
        f'  rounds {np.mean([run.spent for run in runs]):.2f}',
        flush=True,
    )


def print_mixed(effects: Sequence[float]) -> None:
  """Print the share of false keeps if some candidates are better."""
  for spread in SPREADS:
    rng = np.random.default_rng(2)
    ever, stay, kept = [], [], 0
    for _ in range(_RACES.value):
      entries = [
          Entry(effect=effect, spread=spread)
          for effect in rng.permutation(effects).tolist()
      ]
      run = simulation.simulate(rng, gaussian, entries, RULES)
      for shares, found in ((ever, run.kept), (stay, run.stayed)):
        false = sum(entries[i].is_false for i in found)
        shares.append(false / max(1, len(found)))
      kept += len(found) - false
    print(
        f'  x{spread:<4g}  false share {mean_of(ever)}, of those that stay'
        f' {mean_of(stay)}  true keeps that stay {kept / len(stay):.2f}',
        flush=True,
    )


def mean_of(values: Sequence[float]) -> str:
  """Return a mean and the half of its 95 % interval as text."""
  error = np.std(values) / math.sqrt(len(values))
  return f'{np.mean(values):.4f} ± {intervals.Z95 * error:.4f}'


def power(
    draw: simulation.Draw,
    effect: float,
    place: int,
    rules: simulation.Rules,
    runs: int,
    spread: float = 1.0,
) -> np.ndarray:
  """Return how often a better candidate has been kept after each round.

  The others do nothing. The run ends with the last round of the candidate.

  Args:
    draw: Draws the pairs of a round.
    effect: The candidate's gain, a fraction.
    place: Its place in the order of entry, from 1; it enters with the one
      before.
    rules: Settings of the run.
    runs: Number of runs.
    spread: Spread of the others, in units of its own.
  """
  rng = np.random.default_rng(3)
  first = max(1, place - 1)
  entries = [Entry(spread=spread)] * (ORDINARY + 1 - first)
  entries[place - first] = Entry(effect=effect)
  rules = dataclasses.replace(rules, rounds=rules.patience)
  by_round = np.zeros(rules.patience)
  for _ in range(runs):
    run = simulation.simulate(rng, draw, entries, rules, first)
    for i, when in zip(run.kept, run.rounds, strict=True):
      by_round[when - 1 :] += i == place - first
  return by_round / runs


def print_power(
    text: str,
    pairs: int,
    sd: float,
    *,
    rules: simulation.Rules = RULES,
    levels: Callable[..., float] = race.alpha_of,
    spread: float = 1.0,
) -> None:
  """Print the power of candidates 1, 2 and the last that repairs nothing.

  Args:
    text: Begins the rows.
    pairs: Number of pairs in a round.
    sd: Standard deviation of a difference, a fraction.
    rules: Settings of the runs.
    levels: Replaces `race.alpha_of`.
    spread: Spread of the other candidates' arms.
  """
  draw = functools.partial(gaussian, pairs=pairs, sigma=sd / math.sqrt(2))
  runs = max(1, _RACES.value // 2)
  with mock.patch.object(race, 'alpha_of', levels):
    for place in (1, 2, ORDINARY):
      cells = []
      for effect in EFFECTS:
        found = power(draw, effect, place, rules, runs, spread)
        shares = '/'.join(f'{share:.2f}' for share in found)
        cells.append(f'{100 * effect:g} points {shares}')
      print(
          f'  {text}, {pairs} pairs, sd {100 * sd:g}, place {place}, level'
          f' {levels(place, RULES.entries, 0, RULES.level):.3f}: '
          + ' | '.join(cells),
          flush=True,
      )


def equal_level(index: int, most: int, kept: int, level: float) -> float:
  """Return the level of e-BH for a candidate, whatever its place.

  e-BH (Wang and Ramdas 2022, arXiv:2009.02824) rejects the k hypotheses with
  the largest e-values if each of these is at least most / (level k). For k = 1
  this is also the test of the mean of `most` e-values at 1 / level, if the
  others are 0. A run has to decide before later candidates have raced, so that
  k is one more than it has kept.
  """
  del index
  return level * (kept + 1) / most


def print_powers() -> None:
  """Print how often a better candidate is kept, by round."""
  print('power: one candidate is better; kept after round 1/2/3')
  for pairs in (PAIRS, FEWEST):
    for sd in (0.015, 0.02, 0.03):
      print_power('as shipped', pairs, sd)
  print_power('as shipped', PAIRS, 0.05)
  print_power('others spread x2', PAIRS, 0.02, spread=2.0)
  judged = dataclasses.replace(RULES, perturbed=PERTURBED)
  print_power(
      f'perturbed problems, sd {100 * PERTURBED:g}', PAIRS, 0.02, rules=judged
  )
  print_power('equal levels (e-BH)', PAIRS, 0.02, levels=equal_level)


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
  print(f'perturbed gate: {PAIRS} pairs, sd 2 points; holds / open / fails')
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
  looks = RULES.horizon
  print(f'horizon: {looks} looks at {PAIRS} pairs, sd 2 points; taken back')
  for effect in (-0.11, -0.05, -0.02, 0.0, 0.02, 0.05):
    # The difference grows with the horizon.
    means = effect * np.arange(1, looks + 1)[:, None] / looks
    back = 0
    for _ in range(runs):
      noise = 0.02 * rng.standard_normal((looks, PAIRS))
      for i, d in enumerate((means + noise).tolist()):
        last = i == looks - 1
        verdict = race.horizon(d, errors, looks=looks, last=last)
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
  levels = [
      race.alpha_of(place, RULES.entries, 0, RULES.level) for place in (1, 2)
  ]

  def row(name: str, draw: simulation.Draw, effect: Any) -> None:
    cells = []
    for place in (1, 2):
      rng = np.random.default_rng(6)
      entries = [Entry(effect=effect, repairs='critical')]
      kept = sum(
          bool(simulation.simulate(rng, draw, entries, RULES, place).kept)
          for _ in range(runs)
      )
      cells.append(rate(kept, runs))
    print(f'  {name:44} {", ".join(cells)}', flush=True)

  text = ', '.join(f'{level:.3f}' for level in levels)
  print(f'repair, alone in its round: kept at levels {text}; sd in points')
  for pairs in (PAIRS, FEWEST):
    for sd in (0.01, 0.02, 0.04, 0.08):
      for name, unit in _NOISES.items():
        text = f'{pairs} pairs, loses 2 points, {name}, sd {100 * sd:g}'
        row(text, functools.partial(_alone, unit, pairs, sd), -race.MARGIN)
    for points in GAINS:
      effect = tuple(point / 100 for point in points[:pairs])
      for sd in (0.01, 0.02, 0.03):
        draw = functools.partial(_alone, _NOISES['normal'], pairs, sd)
        text = f'{pairs} pairs, gains {points[:pairs]}, sd {100 * sd:g}'
        row(text, draw, effect)


# Differences with mean 0 and standard deviation 1.
_NOISES: dict[str, Callable[..., np.ndarray]] = {
    'normal': lambda rng, n: rng.standard_normal(n),
    "Student's t, 3 df": lambda rng, n: rng.standard_t(3, n) / math.sqrt(3),
    'exponential': lambda rng, n: rng.exponential(1.0, n) - 1,
}


def _alone(
    unit: Callable[..., np.ndarray],
    pairs: int,
    sd: float,
    rng: np.random.Generator,
    spreads: Sequence[float],
) -> tuple[np.ndarray, np.ndarray]:
  """Draw differences with a given distribution, as a `simulation.Draw`."""
  found = sd * unit(rng, len(spreads) * pairs).reshape(len(spreads), pairs)
  return found, np.zeros_like(found)


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
    curves: dict[str, list[dict[str, Any]]], pairs: int
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
      f'recorded {name}': Recorded(own, pairs) for name, own in scores.items()
  }
  best, worst = (
      scores[pick(scores, key=lambda n: scores[n].mean())]
      for pick in (max, min)
  )
  chances = [0.9 / len(best)] * len(best) + [0.1 / len(worst)] * len(worst)
  for equal, center in (('typical', float(best.mean())), ('mean', None)):
    both = Recorded(np.concatenate([best, worst]), pairs, chances, center)
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


def draws_of(
    curves: dict[str, list[dict[str, Any]]], pairs: int
) -> dict[str, simulation.Draw]:
  """Return the draws of equal arms, by name."""
  common = functools.partial(gaussian, pairs=pairs)
  found: dict[str, simulation.Draw] = {
      'Gaussian': common,
      'Gaussian, rho .5': functools.partial(common, rho=0.5),
      'Gaussian, spread falls by 3': functools.partial(common, falling=3.0),
  }
  for lost, depth in ((0.05, 0.2), (0.15, 0.2), (0.15, 0.3)):
    for equal in ('typical', 'mean'):
      draw = functools.partial(common, lost=lost, depth=depth, equal=equal)
      found[f'{lost:.0%} lose {100 * depth:g}, equal {equal}'] = draw
  return found | recorded_draws(curves, pairs)


# Candidates of the null by what they repair.
_NULLS = {
    '': 'candidates that repair nothing',
    'critical': 'critical repairs that lose 2 points enter first and last',
    'warning': 'candidates that repair warnings',
}
# Draws that are shown for all of these.
_MAIN = (
    'Gaussian',
    '15% lose 30, equal mean',
    'recorded math 0.0003',
    'recorded math 0.0009',
    'recorded, 10% collapse, equal mean',
)


def print_nulls(curves: dict[str, list[dict[str, Any]]]) -> None:
  """Print how often runs of equal arms keep anything, for all draws."""
  print('null: a run keeps anything; 95 % intervals')
  for pairs, repairs in (
      (PAIRS, ''),
      (FEWEST, ''),
      (PAIRS, 'critical'),
      (FEWEST, 'critical'),
      (PAIRS, 'warning'),
  ):
    print(f'{pairs} pairs; {_NULLS[repairs]}')
    whole = pairs == PAIRS and not repairs
    spreads = (1.0, 1.5, 2.0) if repairs == 'critical' else SPREADS[:2]
    spreads = SPREADS if whole else spreads
    for name, draw in draws_of(curves, pairs).items():
      if whole or name in _MAIN:
        print_null(name, draw, repairs, spreads)


def main(_):
  began = time.process_time()
  print(f'{_RACES.value} runs a row; {PAIRS} pairs, at least {FEWEST}; {RULES}')
  curves = read_curves(pathlib.Path(_CURVES.value))
  print_nulls(curves)
  print('two of four are better by 5 and 2 points, one is worse by 5')
  print_mixed([0.05, 0.02, 0.0, -0.05])
  print_powers()
  print_borrowed()
  print_checks()
  print_repairs()
  print_measured(curves)
  print(f'{time.process_time() - began:.0f} CPU-s')


if __name__ == '__main__':
  app.run(main)
