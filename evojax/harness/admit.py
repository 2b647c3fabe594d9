"""The gate: what a changed harness must be before it is paid for.

Everything that is wrong is said at once, and nothing here trusts a proposal:
the one factor is read off the sources, values lie within bounds, and every
function that does not come with the package passes the `gate`.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import ml_collections

from evojax import config as config_lib
from evojax.evidence import schema
from evojax.harness import delta
from evojax.harness import gate
from evojax.harness import language
from evojax.harness import run
from evojax.harness import shipped
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.harness import syntax


@runtime_checkable
class MadeUp(Protocol):
  """Completions that nobody sampled, see `episodes.synthetic`."""

  def columns(self, config: ml_collections.ConfigDict) -> frozenset[str]:
    """Names of all columns that a diagnostic may read."""

  def evidence(self, config: ml_collections.ConfigDict) -> Any:
    """Evidence under a config, open to diagnostics."""


def admit(
    before: spec.Harness,
    after: spec.Harness,
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
    made_up: MadeUp | None,
    recorded: Any | None = None,
) -> list[str]:
  """Why a change is refused; nothing if it is admitted.

  Args:
    before: The parent, admitted itself.
    after: The candidate.
    config: The run's config, without an overlay.
    surface: What a harness of the run may set.
    made_up: Evidence that does not depend on the run. None tries no function.
    recorded: Evidence of the run, open to diagnostics: each function sees what
      it may read.

  Returns:
    One line per reason.

  Raises:
    run.InfraError: If the box failed: that is no verdict.
  """
  changed = {
      name: source
      for name, source in after.files.items()
      if before.files.get(name) != source
  }
  # First: nothing can be read off a source that is not Python, or too long.
  reasons = _unread(changed)
  if reasons:
    return reasons
  reasons = _check_functions(after, changed, config, surface, made_up, recorded)
  try:
    found = delta.diff(before, after, surface, config_lib.flatten(config))
    reasons = _check_effect(found, before, after, config, surface) + reasons
  except (delta.DeltaError, surface_lib.SurfaceError) as error:
    reasons = [f'delta: {error}', *reasons]
  return list(
      dict.fromkeys([*reasons, *_check_declared(after, config, surface)])
  )


def _unread(files: Mapping[str, str]) -> list[str]:
  """Why sources cannot be read, one line for each."""
  reasons = []
  for name, source in files.items():
    try:
      syntax.parse(name, source)
    except syntax.SourceError as error:
      reasons.append(str(error))
  return reasons


def _check_effect(
    found: delta.Delta,
    before: spec.Harness,
    after: spec.Harness,
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
) -> list[str]:
  """Refuses a change of a part that is not part of the reward."""
  kind, _, part = found.factor.partition(':')
  path = surface_lib.WEIGHTS + part
  if kind != 'reward' or any(
      surface.value(config, harness.overlay, path)
      for harness in (before, after)
  ):
    return []
  return [
      f'delta: {found.factor} has no weight before and after, so nothing would'
      f' change; set {path}'
  ]


def check(
    harness: spec.Harness,
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
    made_up: MadeUp | None,
) -> list[str]:
  """What is wrong with a harness, whatever it came from; one line each.

  Sources that come with the package, or that passed in this process already,
  are not tried again.

  Args:
    harness: To be trained with.
    config: Of the run, without its overlay.
    surface: What a harness of the run may set.
    made_up: As in `admit`.

  Raises:
    run.InfraError: If the box failed: that is no verdict.
  """
  return list(
      dict.fromkeys(
          [
              *_check_declared(harness, config, surface),
              *check_functions(harness, config, surface, made_up),
          ]
      )
  )


def check_functions(
    harness: spec.Harness,
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
    made_up: MadeUp | None,
) -> list[str]:
  """Why functions of a harness may not run; see `check`."""
  return _check_functions(
      harness, harness.files, config, surface, made_up, None
  )


# (path, hash of the source, columns, shapes): passed in this process.
_passed: set[tuple[Any, ...]] = set()


def _check_functions(
    harness: spec.Harness,
    files: Mapping[str, str],
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
    made_up: MadeUp | None,
    recorded: Any | None,
) -> list[str]:
  """What the gate says of the sources.

  Of those that come with the package: whether the evidence has what they read.
  """
  if made_up is None or not files:
    return []
  try:
    config = surface.apply(config, harness.overlay)
  except surface_lib.SurfaceError:
    pass  # `_check_declared` says so.
  reasons = []
  columns = made_up.columns(config) | {c.name for c in schema.CORE}
  shapes = _shapes(config)
  for path, source in files.items():
    key = (path, shipped.source_sha256(source), columns, shapes)
    ours = shipped.is_shipped(path, source)
    if key in _passed and (ours or recorded is None):
      continue
    if ours:
      found = language.reasons(path, source, columns)
    else:
      found = gate.reasons(
          path,
          source,
          made_up.evidence(config),
          recorded,
          columns=columns,
          shapes=shapes,
      )
    reasons += found
    if not found:
      _passed.add(key)
  return reasons


def _shapes(config: ml_collections.ConfigDict) -> tuple[tuple[int, int], ...]:
  """(P, G) of a training step, and of an arm's."""
  steps = (config.grpo, config.evolve)
  return tuple(dict.fromkeys((c.prompts, c.group_size) for c in steps))


def _check_declared(
    harness: spec.Harness,
    config: ml_collections.ConfigDict,
    surface: surface_lib.Surface,
) -> list[str]:
  """What is wrong with the overlay, and with the files' shapes."""
  reasons = []
  try:
    applied = surface.apply(config, harness.overlay)
  except surface_lib.SurfaceError as error:
    reasons += [f'overlay: {line}' for line in str(error).splitlines()]
  else:
    reasons += _check_config(applied)
    reasons += _check_weights(harness, applied)
  return reasons + _check_sources(harness)


def _check_config(applied: ml_collections.ConfigDict) -> list[str]:
  """What `config.validate` says of the config under the overlay."""
  try:
    config_lib.validate(applied)
  except config_lib.ConfigError as error:
    return [line.strip() for line in str(error).splitlines()[1:]]
  return []


def _check_weights(
    harness: spec.Harness, applied: ml_collections.ConfigDict
) -> list[str]:
  """Weights of parts that reward.py does not have."""
  if 'reward.py' not in harness.files:
    return []
  try:
    parts = syntax.parts(harness.files['reward.py'])
  except syntax.SourceError:
    return []  # `_check_sources` says so.
  unknown = sorted(set(applied.reward.weights) - set(parts))
  return [
      f'reward.weights.{name}: reward.py has the parts {", ".join(parts)}'
      for name in unknown
  ]


def _check_sources(harness: spec.Harness) -> list[str]:
  """Sources that are not Python, or not of the shape that their file needs."""
  reasons = []
  functions = run.Functions(harness)  # Reads; starts nothing.
  for name, source in harness.files.items():
    try:
      if name == 'reward.py':
        syntax.parts(source)
      else:
        syntax.parse(name, source)
      if name.startswith('diagnostics/'):
        functions.meta(name.removeprefix('diagnostics/').removesuffix('.py'))
    except (syntax.SourceError, run.FunctionError) as error:
      reasons.append(str(error))
  return reasons
