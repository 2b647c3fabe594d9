"""Admission of a harness: the checks before any arm trains with it.

All problems are reported at once, and no claim of a proposal is trusted: the
changed factor is found from the sources, values must lie within bounds, and
functions that do not come with the package must pass the `gate`.
"""

from collections.abc import Mapping
import json
from typing import Any, Protocol, runtime_checkable

import ml_collections

from evojax import config as config_lib
from evojax.evidence import schema
from evojax.harness import delta
from evojax.harness import gate
from evojax.harness import language
from evojax.harness import library
from evojax.harness import parts as parts_lib
from evojax.harness import run
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.harness import syntax
from evojax.runtime import config_checks


@runtime_checkable
class Synthetic(Protocol):
  """Synthetic evidence, see `episodes.synthetic`."""

  def columns(self, config: ml_collections.ConfigDict) -> frozenset[str]:
    """Return the names of all columns that a diagnostic may read."""

  def evidence(self, config: ml_collections.ConfigDict) -> Any:
    """Return evidence under a config, readable by diagnostics."""


def admit(
    before: spec.Harness,
    after: spec.Harness,
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
    synthetic: Synthetic | None,
    recorded: Any | None = None,
) -> list[str]:
  """Return the reasons to refuse a change, one line each; [] admits it.

  Args:
    before: The parent, which was admitted earlier.
    after: The candidate.
    config: The run's config, without an overlay.
    surface: The fields that a harness of the run may set.
    synthetic: Evidence that does not depend on the run. None runs no function.
    recorded: Evidence of the run, readable by diagnostics: each function sees
      only the columns that it may read.

  Raises:
    run.InfraError: If the box failed, which says nothing about the harness.
  """
  changed = {
      name: source
      for name, source in after.files.items()
      if before.files.get(name) != source
  }
  reasons = []
  for name, source in changed.items():
    try:
      syntax.parse(name, source)
    except syntax.SourceError as error:
      reasons.append(str(error))
  if reasons:  # The other checks need a syntax tree of every source.
    return reasons
  try:
    found = delta.diff(before, after, surface, config_lib.flatten(config))
    kind, _, part = found.factor.partition(':')
    weight = surface_lib.WEIGHTS + part
    if kind == 'reward' and not any(
        surface.value(config, harness.overlay, weight)
        for harness in (before, after)
    ):
      reasons.append(
          f'delta: {found.factor} has no weight before and after, so nothing'
          f' would change; set {weight}'
      )
  except (delta.DeltaError, surface_lib.SurfaceError) as error:
    reasons.append(f'delta: {error}')
  reasons += check_functions(
      after, config, surface, synthetic, changed, recorded
  )
  reasons += _check_declared(after, config, surface)
  return list(dict.fromkeys(reasons))


def check(
    harness: spec.Harness,
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
    synthetic: Synthetic | None,
) -> list[str]:
  """Return what is wrong with a harness, one line each; [] if nothing is.

  Sources that come with the package, or that have already passed in this
  process, are not tested again.

  Args:
    harness: The harness to train with.
    config: The run's config, without the overlay.
    surface: The fields that a harness of the run may set.
    synthetic: As in `admit`.

  Raises:
    run.InfraError: If the box failed, which says nothing about the harness.
  """
  reasons = _check_declared(harness, config, surface)
  reasons += check_functions(harness, config, surface, synthetic)
  return list(dict.fromkeys(reasons))


# (path, source, columns, shapes, steps) of every source that has passed.
_passed: set[tuple[Any, ...]] = set()


def check_functions(
    harness: spec.Harness,
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
    synthetic: Synthetic | None,
    files: Mapping[str, str] | None = None,
    recorded: Any | None = None,
) -> list[str]:
  """Return the reasons against functions of a harness; see `check`.

  For functions that come with the package, it is only checked that the evidence
  has the columns that they read.

  Args:
    harness: The harness to train with.
    config: The run's config, without the overlay.
    surface: The fields that a harness of the run may set.
    synthetic: As in `admit`.
    files: The files to check; None checks all files of the harness.
    recorded: As in `admit`.
  """
  files = harness.files if files is None else files
  if synthetic is None or not files:
    return []
  try:
    config = surface.apply(config, harness.overlay)
  except surface_lib.SurfaceError:
    pass  # `_check_declared` reports it.
  reasons = []
  columns = synthetic.columns(config) | {c.name for c in schema.CORE}
  shapes = ((config.grpo.prompts, config.grpo.group_size),)
  steps = _steps(config)
  for path, source in files.items():
    key = (path, source, columns, shapes, steps)
    ours = library.is_shipped(path, source)
    if key in _passed and (ours or recorded is None):
      continue
    if ours:
      found = language.reasons(path, source, columns)
    else:
      made = synthetic.evidence(config)
      found = gate.reasons(
          path,
          source,
          made,
          recorded,
          columns=columns,
          shapes=shapes,
          steps=steps,
      )
      if recorded is None and any(map(run.is_busy, found)):
        # It was admitted before, or training's own limits will end it, so that
        # a busy machine is no reason against it.
        continue
    reasons += found
    if not found:
      _passed.add(key)
  return reasons


def _steps(config: ml_collections.ConfigDict) -> int:
  """Return the maximum number of calls of `keep` in a run."""
  e = config.evolve
  steps = max(1, config.steps, e.updates, e.first_updates)
  return steps * (1 + config.grpo.refill_rounds)


def _check_declared(
    harness: spec.Harness,
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
) -> list[str]:
  """Check the overlay and the declarations in the files."""
  reasons = []
  try:
    applied = surface.apply(config, harness.overlay)
  except surface_lib.SurfaceError as error:
    reasons += [f'overlay: {line}' for line in str(error).splitlines()]
  else:
    try:
      config_checks.validate(applied)
    except config_lib.ConfigError as error:
      reasons += [line.strip() for line in str(error).splitlines()[1:]]
    reasons += _check_weights(harness, applied)
  return reasons + _check_sources(harness, surface)


def _check_weights(
    harness: spec.Harness, applied: ml_collections.ConfigDict
) -> list[str]:
  """Refuse weights of parts that reward.py does not have."""
  if 'reward.py' not in harness.files:
    return []
  try:
    parts = parts_lib.hashes(harness.files['reward.py'])
  except syntax.SourceError:
    return []  # `_check_sources` reports it.
  unknown = sorted(set(applied.reward.weights) - set(parts))
  shown = {surface_lib.WEIGHTS + part: 1.0 for part in parts}
  return [
      f'reward.weights.{name}: reward.py has the parts {", ".join(parts)}, and'
      f' no {name}; give the weights of its parts in {spec.OVERLAY}, which'
      f' replace those of the config: {json.dumps(shown)}'
      for name in unknown
  ]


def _check_sources(
    harness: spec.Harness, surface: surface_lib.Surface
) -> list[str]:
  """Refuse sources that lack what their file needs, or declare it wrongly."""
  reasons = []
  functions = run.Functions(harness)
  classes = delta.intervention_classes(surface)
  for name, source in harness.files.items():
    try:
      if name == 'reward.py':
        parts_lib.hashes(source)
      else:
        syntax.parse(name, source)
      if name.startswith('diagnostics/'):
        stem = name.removeprefix('diagnostics/').removesuffix('.py')
        if unknown := set(functions.meta(stem)['CALLS_FOR']) - classes:
          reasons.append(
              f'{name}: CALLS_FOR names {sorted(unknown)}; intervention classes'
              f' are {", ".join(sorted(classes))}'
          )
    except (syntax.SourceError, run.FunctionError) as error:
      reasons.append(str(error))
  return reasons
