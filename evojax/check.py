"""--mode=check: what of a config, a domain, a reward or a harness is refused.

Nothing is trained and no model is loaded. Functions are tried on completions
made up for the domain's first problems: answers in every common format, prose,
silence.
"""

from collections.abc import Callable, Sequence
import pathlib
from typing import Any
import warnings

import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax import domains
from evojax import reward as reward_lib
from evojax import types
from evojax.eval import rollouts
from evojax.evidence import rows as rows_lib
from evojax.evidence import schema
from evojax.evidence import views
from evojax.harness import admit
from evojax.harness import spec

_PROBLEMS = 4
# What is put around a reference answer.
_COMPLETIONS = (
    '{}',
    'So 1 + 1 = 2. <answer>{}</answer>',
    '<answer>0</answer>',
    '\\boxed{{{}}}',
    '#### {}',
    'The answer is {}.',
    'I cannot say.',
    '',
)


def run(config: ml_collections.ConfigDict, paths: Sequence[str] = ()) -> int:
  """Prints what is wrong and why.

  Args:
    config: Of a run: its values, domain and reward are checked.
    paths: Directories of harnesses, checked as that run would use them.

  Returns:
    0 if nothing is refused, else 1: an exit code.
  """
  refused = 0

  def report(what: str, reasons: Sequence[str], said: str = '') -> None:
    nonlocal refused
    refused += bool(reasons)
    print(f'{what}: {"refused" if reasons else "ok"}{said}')
    for reason in reasons:
      print(f'  {reason}')

  report(f'config {config.name}', _reasons(config_lib.validate, config))
  domain = view = None
  try:
    domain = domains.make(config.domain.name, **config.domain.kwargs.to_dict())
    view, solved = evidence(domain, config)
  except ValueError as error:
    report(f'domain {config.domain.name}', [str(error)])
  else:
    share = f', {solved} of {view.valid.size} made-up completions are solved'
    report(f'domain {config.domain.name}', [], share)
    # A harness brings its own.
    if not paths or config.reward.parts:
      reasons, notes = _check_reward(config, domain)
      report(f'reward {config.reward.parts or "of the domain"}', reasons)
      for note in notes:
        print(f'  warning: {note}')
  for path in paths:
    try:
      harness = spec.read(path)
    except spec.HarnessError as error:
      report(f'harness {path}', [str(error)])
      continue
    reasons = admit.check(harness, config, view)
    report(f'harness {path}', reasons, f', sha256 {harness.sha256}')
    for line in _foreign(harness, config):
      print(f'  as a proposal it would be refused: {line}')
  return int(refused > 0)


def _reasons(check: Callable[..., Any], *args: Any) -> list[str]:
  """Lines of the error that a check raises, if it does."""
  try:
    check(*args)
  except ValueError as error:
    return [line.strip() for line in str(error).splitlines() if line.strip()]
  return []


def evidence(
    domain: types.Domain,
    config: ml_collections.ConfigDict,
    reader: str = 'diagnostic',
) -> tuple[views.View, int]:
  """Evidence of made-up completions, and how many of them are solved.

  Raises:
    ValueError: If the domain does not give problems or grades that fit its own
      declaration.
  """
  problems = domain.source('train', config.seed).take(0, _PROBLEMS)
  completions = []
  for problem in problems:
    for form in _COMPLETIONS:
      text = form.format(problem.answer)
      tokens = np.arange(min(len(text) + 1, config.rollout.max_tokens))
      completion = types.Completion(
          tokens.astype(np.int32),
          np.full(len(tokens), -0.5, np.float32),
          'stop' if text else 'length',
          0,
          text,
      )
      completions.append(completion)
  grades, seconds = rollouts.grade(domain, problems, completions)
  columns = schema.declare(domain.columns, tuple(config.reward.weights))
  rows = rows_lib.from_rollouts(
      problems,
      completions,
      grades,
      columns=columns,
      group_size=len(_COMPLETIONS),
      step=0,
      split='train',
      seed=config.seed,
      version='seed',
      prompt_tokens=[(0,)] * len(problems),
      grade_seconds=seconds,
  )
  outcome = np.array([grade.outcome for grade in grades], np.float32)
  by_group = outcome.reshape(len(problems), -1)
  advantage = by_group - by_group.mean(1, keepdims=True)
  kept = [True] * len(grades)
  rows.update(reward=outcome, advantage=advantage.ravel(), kept=kept)
  for name in config.reward.weights:
    rows[schema.PART_PREFIX + name] = outcome
  view = views.View.from_rows(
      rows,
      columns,
      prompts=len(problems),
      group_size=len(_COMPLETIONS),
      max_tokens=config_lib.token_limit(config),
      reader=reader,
  )
  return view, int(outcome.sum())


def _check_reward(
    config: ml_collections.ConfigDict, domain: types.Domain
) -> tuple[list[str], list[str]]:
  """(why it is refused, what it is warned about) of the config's reward."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always', reward_lib.RewardWarning)

    def compute():
      parts = reward_lib.load_parts(config.reward.parts, domain.reward_parts)
      view, _ = evidence(domain, config, reward_lib.reader(parts))
      reward_lib.compute(parts, view, config.reward.weights.to_dict())

    reasons = _reasons(compute)
  return reasons, [str(w.message) for w in caught]


def _foreign(
    harness: spec.Harness, config: ml_collections.ConfigDict
) -> list[str]:
  """What a proposal could not bring, though it may be trained with."""
  folder = pathlib.Path(domains.load(config.domain.name).__file__).parent
  seeds = [
      spec.read(path)
      for path in (folder / 'seed_harness', folder / 'seed_blind')
      if path.is_dir()
  ]
  return admit.unknown_sources(harness, admit.shipped(*seeds))
