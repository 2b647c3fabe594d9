"""The part of the page about one trial."""

from collections.abc import Callable, Mapping
import pathlib
from typing import Any

from evojax.ledger import history
from evojax.report import charts
from evojax.report import diffs
from evojax.report import lineage
from evojax.report import rollouts
from evojax.report import svg
from evojax.runtime import numerals

# The decision: step, field of its record, display name and format.
_DECISION = (
    ('verify', 'effect', 'effect', 'points'),
    ('verify', 'standard_error', 'standard error', 'size'),
    ('verify', 'low', '95 % low', 'points'),
    ('verify', 'high', '95 % high', 'points'),
    ('verify', 'rounds', 'rounds', 'number'),
    ('verify', 'pairs', 'pairs of arms', 'number'),
    ('verify', 'e_value', 'e-value', 'number'),
    ('verify', 'threshold', 'e-value that keeps a change', 'number'),
    ('standing', 'detectable', 'minimum detectable effect', 'size'),
    (
        'verify',
        'perturbed_effect',
        'effect on perturbed problems',
        'points',
    ),
    ('verify', 'perturbed_error', 'its standard error', 'size'),
)
_FORMS: dict[str, Callable[[float], str]] = {
    'points': lambda v: f'{numerals.points(v, "+.2f")} pt',
    'size': lambda v: f'{numerals.points(v, ".2f")} pt',
    'share': numerals.share,
    'number': numerals.short,
}


def _decision(trial: history.Trial) -> list[tuple[str, str, str]]:
  """Return (name, exact, text) of the numbers behind the verdict.

  `exact` is the number's repr; '' if there is no such row or number yet.
  """
  return [
      (name, '', '–')
      if (value := getattr(getattr(trial, step), field, None)) is None
      else (name, repr(value), _FORMS[form](value))
      for step, field, name, form in _DECISION
  ]


def _statistics(trial: history.Trial) -> list[tuple[str, str, str]]:
  """Return the backtest: (statistic, parent's value, candidate's value)."""
  found = trial.backtest.statistics if trial.backtest else {}

  def shown(name: str) -> str:
    value = found.get(name, '')
    return value if isinstance(value, str) else numerals.short(value)

  return [
      (name, shown(f'{name}_before'), shown(name))
      for name in found
      if name.removesuffix('_before') not in found.keys() - {name}
  ]


def _effects(
    trial: history.Trial, scale: svg.Scale
) -> list[tuple[str, str, svg.Strip]]:
  """Return predicted and realised effects as (name, text, strip)."""
  expected = trial.expected if trial.trains else None
  backtested, effect = trial.backtested, trial.effect
  perturbed = trial.verify.perturbed_effect if effect is not None else None
  dot = 'dot keep' if trial.kind == 'keep' else 'dot discard'
  rows = (
      (
          'hypothesis',
          numerals.between(expected),
          ('bar', 'predicted', expected),
      ),
      (
          'backtest',
          numerals.between(backtested),
          ('bar', 'predicted', backtested),
      ),
      (
          'measured',
          numerals.effect(effect, trial.realised),
          ('rule', 'detectable', trial.mde),
          ('whisker', 'whisker', trial.realised),
          ('dot', dot, effect),
      ),
      (
          'perturbed',
          numerals.points(perturbed),
          ('dot', 'dot discard', perturbed),
      ),
  )
  # The last mark is the quantity of the row; without it the row is left out.
  zero = ('rule', 'zero', 0.0)
  return [
      (name, text, svg.strip(scale, f'{name}: {text} points', zero, *marks))
      for name, text, *marks in rows
      if marks[-1][-1] is not None
  ]


def section(
    path: pathlib.Path,
    trial: history.Trial,
    scale: svg.Scale,
    config: Mapping[str, Any],
    readable: bool,
    tokens: int,
    unchecked: str,
) -> dict[str, Any]:
  """Return the variables of the template for one trial, besides its records.

  Args:
    path: The run's directory.
    trial: The trial.
    scale: The scale of effects that all trials share.
    config: Flat config; gives the values of fields that an overlay lacks.
    readable: Whether its rollouts and flips are read from the evidence.
    tokens: Number of tokens sampled to train its arms.
    unchecked: See `history.History.unchecked`.
  """
  incumbents, candidates = map(trial.role, ('incumbent', 'candidate'))
  sampled = flips = None
  gamed = rollouts.Gamed()
  if readable and candidates:
    gamed = rollouts.gamed(path, candidates[0].folder, candidates[0].dev)
    sampled = rollouts.sample(path, candidates[0].folder)
    # The arms of a pair also share the problems of their own rollouts.
    by_dev = trial.races[-1].scored_by == 'dev'
    scored = lambda arm: arm.dev if by_dev else arm.folder
    if incumbents:
      noise = scored(incumbents[1]) if by_dev and len(incumbents) > 1 else ''
      sides = scored(incumbents[0]), scored(candidates[0])
      flips = rollouts.flips(path, *sides, noise)
  before = trial.delta.before if trial.delta else ''
  after = trial.design.harness if trial.design else ''
  return {
      'trial': trial,
      'tokens': tokens,
      'unchecked': unchecked,
      'anchor': lineage.anchor(trial),
      'change': diffs.change_text(trial.delta),
      'decision': _decision(trial),
      'effects': _effects(trial, scale),
      'statistics': _statistics(trial),
      'curves': charts.arms(trial),
      'diff': diffs.compare(path, before, after, config),
      'strip': charts.effect_strip(trial, scale),
      'sampled': sampled,
      'gamed': gamed,
      'flips': flips,
  }
