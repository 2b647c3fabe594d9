"""What the page says about one trial."""

from collections.abc import Callable, Mapping
import dataclasses
import pathlib
from typing import Any

from evojax.report import charts
from evojax.report import diffs
from evojax.report import history
from evojax.report import numerals
from evojax.report import rollouts
from evojax.report import svg

# Field of a row, its name, how it is written; the decision of a trial.
_DECISION = (
    ('verify', 'effect', 'effect', 'points'),
    ('verify', 'standard_error', 'standard error', 'size'),
    ('verify', 'df', 'degrees of freedom', 'number'),
    ('verify', 'low', '95 % low', 'points'),
    ('verify', 'high', '95 % high', 'points'),
    ('verify', 'p', 'p, one-sided', 'p'),
    ('verify', 'alpha', 'α, online FDR', 'p'),
    ('verify', 'sigma_seed', 'σ between seeds', 'size'),
    ('verify', 'se_problems', 'standard error, problems', 'size'),
    ('trial', 'mde', 'minimum detectable effect', 'size'),
    ('verify', 'wilcoxon_p', 'Wilcoxon p', 'p'),
    ('verify', 'control', 'controls, mean score', 'share'),
    ('verify', 'child', 'children, mean score', 'share'),
    ('verify', 'perturbed_effect', 'effect, perturbed', 'points'),
)


def _p_value(value: float) -> str:
  return '< 0.0001' if value < 1e-4 else f'{value:.4f}'


_FORMS: dict[str, Callable[[float], str]] = {
    'points': lambda v: f'{numerals.points(v, "+.2f")} pt',
    'size': lambda v: f'{numerals.points(v, ".2f")} pt',
    'share': numerals.share,
    'p': _p_value,
    'number': numerals.short,
}


@dataclasses.dataclass(frozen=True)
class Number:
  """A number of the ledger: as it stands there, and as it is read."""

  name: str
  exact: str  # Its repr; '' if the row does not have it yet.
  text: str


def _number(name: str, value: Any, form: str) -> Number:
  number = history.number(value)
  if number is None:
    return Number(name, '', '–')
  return Number(name, repr(value), _FORMS[form](number))


def _decision(trial: history.Trial) -> list[Number]:
  """The numbers that the verdict rests on, as the ledger has them."""
  return [
      _number(name, trial.get(step, field), form)
      for step, field, name, form in _DECISION
  ]


def _statistics(trial: history.Trial) -> list[tuple[str, str, str]]:
  """What the backtest reported: (name, of the parent, of the candidate)."""
  found = trial.get('backtest', 'statistics', {})
  if not isinstance(found, Mapping):
    return []

  def shown(name: str) -> str:
    number = history.number(found.get(name))
    return (
        str(found.get(name, '')) if number is None else numerals.short(number)
    )

  return [
      (name, shown(f'{name}_before'), shown(name))
      for name in found
      if name.removesuffix('_before') not in found.keys() - {name}
  ]


def _effects(trial: history.Trial, scale: svg.Scale) -> list[dict[str, Any]]:
  """Predictions and what came of them, one line each."""
  mark = 'dot kept' if trial.kind == 'keep' else 'dot discarded'
  zero = ('rule', 0.0, 'zero')
  mde = history.number(trial.get('trial', 'mde'))
  perturbed = history.number(trial.get('verify', 'perturbed_effect'))
  rows = []
  for name, bar in (
      ('hypothesis', trial.expected),
      ('backtest', trial.backtested),
  ):
    if bar:
      rows.append(
          (name, numerals.between(bar), [zero, ('bar', *bar, 'predicted')])
      )
  if trial.effect is not None:
    marks: list[tuple] = [zero]
    if mde is not None:
      marks.append(('rule', mde, 'detectable'))
    if trial.realised:
      marks.append(('whisker', *trial.realised, 'whisker'))
    marks.append(('dot', trial.effect, mark))
    text = numerals.effect(trial.effect, trial.realised)
    rows.append(('realised', text, marks))
  if perturbed is not None:
    marks = [zero, ('dot', perturbed, 'dot discarded')]
    rows.append(('perturbed', numerals.points(perturbed), marks))
  return [
      {
          'name': name,
          'text': text,
          'strip': svg.strip(scale, marks, label=f'{name}: {text} points'),
      }
      for name, text, marks in rows
  ]


def section(
    path: pathlib.Path,
    run: history.History,
    trial: history.Trial,
    scale: svg.Scale,
    config: Mapping[str, Any],
    readable: bool,
) -> dict[str, Any]:
  """Everything about one trial."""
  before = str(trial.delta.get('before', ''))
  after = str(trial.get('design', 'harness', ''))
  trained = trial.folders('child', 'trained')
  controls = trial.folders('control', 'arm')
  children = trial.folders('child', 'arm')
  reasons = [*trial.get('admit', 'reasons', ())]
  reasons += trial.get('verify', 'reasons', ())
  texts = [
      (name, str(text))
      for name in (
          'trigger',
          'criterion',
          'rollback',
          'source',
          'skill',
          'note',
      )
      if (text := trial.get('hypothesize', name))
  ]
  skill = trial.get('accumulate', 'skill')
  if skill:
    texts.append(('skill written', str(skill)[:12]))
  return {
      'trial': trial,
      'change': diffs.change_text(trial.delta),
      'hypothesis': str(trial.get('hypothesize', 'hypothesis', '')),
      'texts': texts,
      'reasons': [str(reason) for reason in reasons],
      'alerts': [str(a) for a in trial.get('diagnose', 'alerts', ())],
      'new_alerts': [str(a) for a in trial.get('verify', 'alerts', ())],
      'decision': _decision(trial),
      'effects': _effects(trial, scale),
      'statistics': _statistics(trial),
      'curves': charts.arms(trial),
      'diff': diffs.compare(path, before, after, config),
      'mde': history.number(trial.get('trial', 'mde')),
      'strip': charts.effect_strip(trial, scale),
      'readable': readable,
      'sampled': (
          rollouts.sample(path, trained[0]) if readable and trained else None
      ),
      'flips': (
          rollouts.flips(path, controls[0], children[0], *controls[1:2])
          if readable and children and controls
          else None
      ),
  }
