"""--mode=check: check a config, its domain, proposer and reward, and harnesses.

Nothing is trained and no weights are loaded. Functions are tried on synthetic
completions of the domain's first problems, see `episodes.synthetic`. If every
part is accepted and no harness is named, the checks that a run makes before its
first step are made, too: they find parts that do not fit together.
"""

from collections.abc import Callable, Sequence
from typing import Any
import warnings

import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax import domains
from evojax.domains import base
from evojax.domains import graders
from evojax.domains import splits
from evojax.episodes import synthetic
from evojax.evidence import views
from evojax.evolve import opening
from evojax.evolve import propose
from evojax.harness import admit
from evojax.harness import run as harness_run
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.rl import filters
from evojax.runtime import config_checks
from evojax.runtime import output
from evojax.runtime import plugins
from evojax.runtime import workdir as workdir_lib
from evojax.sandbox import probe
from evojax.training import agreement
from evojax.training import meshes
from evojax.training import reward_parts
from evojax.training import settings
from evojax.training import setup as setup_lib

_COMPARED = 200  # Problems of each split that are compared with the others.


def run(
    config: ml_collections.ConfigDict,
    paths: Sequence[str] = (),
    workdir: str | None = None,
) -> int:
  """Print what is refused and why, and the config fields that differ.

  Args:
    config: The config of a run; its values, domain, proposer and reward are
      checked.
    paths: Directories of harnesses, checked as that run would use them.
    workdir: Directory in which the run would start or continue; None skips its
      check.

  Returns:
    An exit code: 0 if nothing is refused, else 1.
  """
  refused = 0

  def report(what: str, reasons: Sequence[str], said: str = '') -> None:
    nonlocal refused
    refused += bool(reasons)
    output.say(f'{what}: {"refused" if reasons else "ok"}{said}')
    for reason in reasons:
      output.say(f'  {reason}')

  report(f'config {config.name}', _reasons(config_checks.validate, config))
  for line in _changed_fields(config):
    output.say(f'  {line}')
  for line in config_checks.unusual(config):
    output.say(f'  warning: {line}')
  if config.evolve.rounds:
    name = config.evolve.proposer
    report(f'proposer {name}', _reasons(propose.load, name))
  made, surface = None, surface_lib.recipe()
  try:
    domain = settings.make_domain(config)
    view, solved = synthetic.make_view(domain, config)
  except Exception as error:  # pylint: disable=broad-except
    if not isinstance(error, ValueError) and not plugins.is_of_user(error):
      raise
    report(f'domain {config.domain.name}', [plugins.located(error)])
  else:
    made = synthetic.Evidence(domain)
    surface = surface_lib.recipe(domain.surface_fields)
    share = f', {solved} of {view.valid.size} synthetic completions are solved'
    report(f'domain {config.domain.name}', [], share)
    # Our tests check that the splits of the other domains are disjoint.
    if config.domain.name not in domains.DOMAINS:
      for line in _shared(domain):
        output.say(f'  warning: {line}')
    if grader := getattr(domain, 'grader', None):
      said, notes = _tried(grader, view)
      report(f'grader {grader.path}', [], said)
      for note in notes:
        output.say(f'  warning: {note}')
    # A harness has its own reward, so the domain's would not be used.
    if not paths or config.reward.parts:
      reasons, notes = _check_reward(config, domain)
      report(f'reward {config.reward.parts or "of the domain"}', reasons)
      for note in notes:
        output.say(f'  {note}')
  for path in paths:
    try:
      harness = spec.read(path)
    except spec.HarnessError as error:
      report(f'harness {path}', [str(error)])
      continue
    reasons = admit.check(harness, config, surface, made)
    report(f'harness {path}', reasons, f', sha256 {harness.sha256}')
    if made and not reasons:
      for note in _idle(harness, config, surface, made):
        output.say(f'  warning: {note}')
  mode = 'evolve' if config.evolve.rounds else 'train'
  if not refused and not paths:
    report(f'run of --mode={mode}', _reasons(_start, config, workdir))
  if workdir is not None:
    reasons = _reasons(workdir_lib.check, workdir, config, mode)
    report(f'workdir {workdir}', reasons)
  return int(refused > 0)


def _start(config: ml_collections.ConfigDict, workdir: str | None) -> None:
  """Do what a run does before its first step, without opening its workdir.

  Args:
    config: The config of the run.
    workdir: Its workdir, if one is given.
  """
  begins = workdir is None or not workdir_lib.owner(workdir)
  if config.evolve.rounds:
    setup, *_ = opening.check(config, opening.Options())
  else:
    setup = setup_lib.prepare(config)
  meshes.open_run(setup, begins=begins)
  if not begins:
    workdir_lib.check_problems(workdir, agreement.problems(setup))


def _changed_fields(config: ml_collections.ConfigDict) -> list[str]:
  """Return a line for each changed field: value, default and meaning."""
  defaults = config_lib.flatten(config_lib.base())
  return [
      f'{path}={value!r} (default {defaults[path]!r}): {declared.doc}'
      for path, value in config_lib.flatten(config).items()
      if (declared := config_lib.declaration(path)).doc
      and value != defaults[path]
  ]


def _reasons(check: Callable[..., Any], *args: Any) -> list[str]:
  """Return the lines of the error that a check raises; [] if it raises none."""
  try:
    check(*args)
  except (ValueError, OSError, probe.WeakSandboxError) as error:
    lines = map(str.strip, plugins.located(error).splitlines())
    return list(filter(None, lines))
  return []


def _shared(domain: base.Domain) -> list[str]:
  """Return a warning for each split that shares a problem with an earlier
  one."""
  found, owner = [], {}
  for split in splits.SHARES:
    source = domain.source(split, 0)
    problems = source.take(0, min(len(source), _COMPARED))
    names = {problem.problem_id for problem in problems}
    if shared := names & owner.keys():
      name = min(shared)
      found.append(
          f'problem {name} is in {owner[name]!r} and in {split!r}, so that'
          ' scores are too high; let `source` give each split problems of its'
          ' own, as evojax.domains.splits.split_of does'
      )
    owner |= dict.fromkeys(names - owner.keys(), split)
  return found


def _tried(grader: graders.Grader, view: views.View) -> tuple[str, list[str]]:
  """Return a summary of a user's grader on synthetic attempts, and warnings.

  Args:
    grader: The grader.
    view: Synthetic evidence, in which most attempts hold the reference answer.
  """
  scores = grader.low + (grader.high - grader.low) * view.partial
  scores = np.where(view.valid, scores, np.nan)
  empty = view.completion == ''
  best = np.nanargmax(np.where(empty, -np.inf, scores)[0])
  form, right = str(view.completion[0][best]), scores[0][best]
  nothing = np.nanmax(scores[empty], initial=grader.low)
  notes = []
  if not right >= grader.threshold:  # Also true if the score is NaN.
    notes.append(
        f'no form of the reference answer reaches the threshold'
        f' {grader.threshold:g}; the best, {form!r:.80}, scores {right:g}'
    )
  if nothing >= grader.threshold:
    notes.append(
        f'an empty completion scores {nothing:g} and so counts as right'
        f' (threshold {grader.threshold:g})'
    )
  said = f', {form!r:.80} scores {right:g}, an empty completion {nothing:g}'
  return said, notes


def _check_reward(
    config: ml_collections.ConfigDict, domain: base.Domain
) -> tuple[list[str], list[str]]:
  """Return the reasons to refuse the config's reward, and notes on it."""
  notes = []
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always', reward_parts.RewardWarning)

    def compute():
      parts = reward_parts.load_parts(config.reward.parts, domain.reward_parts)
      view, _ = synthetic.make_view(domain, config, reward_parts.reader(parts))
      weights = config.reward.weights.to_dict()
      rewards, _ = reward_parts.compute(parts, view, weights)
      notes.extend(f'warning: {line}' for line in _no_signal(rewards, view))
      if config.reward.parts:
        found = reward_parts.offers(parts, view)
        notes.append(f'it may read {found}; see evojax/evidence/COLUMNS.md')

    reasons = _reasons(compute)
  return reasons, [f'warning: {w.message}' for w in caught] + notes


def _no_signal(rewards: np.ndarray, view: views.View) -> list[str]:
  """Return a warning if rewards [P, G] are equal within every group."""
  spread = np.where(view.valid, rewards, np.nan)
  spread = np.nanmax(spread, 1) - np.nanmin(spread, 1)
  if spread.max() >= filters.MIN_STD:
    return []
  return [
      'no signal: right, wrong and empty completions of a problem all get the'
      f' reward {rewards.flat[0]:g}, so that nothing is learned; change'
      ' config.reward.weights or the reward'
  ]


def _idle(
    harness: spec.Harness,
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
    made: synthetic.Evidence,
) -> list[str]:
  """Return warnings about functions with which nothing would be learned."""
  config = surface.apply(config, harness.overlay)
  view = made.evidence(config)
  functions = harness_run.Functions(harness)
  notes = []
  # The user's own parts, if any, may distinguish completions that those of the
  # harness do not.
  if functions.has('reward') and not config.reward.parts:
    weights = config.reward.weights.to_dict()
    rewards, _ = reward_parts.compute(functions.parts, view, weights)
    notes += _no_signal(rewards, view)
  if functions.has('keep'):
    kept, _ = functions.keep(view, functions.init())
    solved = (view.outcome & view.valid).sum(1)
    mixed = (solved > 0) & (solved < view.valid.sum(1))
    if mixed.any() and not (kept & view.valid).any():
      notes.append(
          'keep.py keeps nothing of groups with right and wrong completions; a'
          ' step in which nothing is kept teaches the policy nothing'
      )
  return notes
