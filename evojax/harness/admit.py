"""The gate: what a changed harness must be before it is paid for.

Everything that is wrong is said at once, and nothing here trusts a proposal:
the one factor is read off the sources, sources are shipped ones, values lie
within bounds, and every function answers in the worker, twice the same.
"""

from collections.abc import Collection
import hashlib
from typing import Any

import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax.harness import delta
from evojax.harness import library
from evojax.harness import run
from evojax.harness import spec
from evojax.harness import surface
from evojax.harness import syntax


def source_sha256(source: str) -> str:
  """Hash of a source's text, as in `shipped`."""
  return hashlib.sha256(source.encode()).hexdigest()


def shipped(*harnesses: spec.Harness) -> frozenset[str]:
  """Hashes of the library's files and of these harnesses' own.

  Beside the hash of each file stands that of each reward part: a part may be
  added to another reward.
  """
  hashes = set()
  for name in library.names():
    text = library.source(name)
    hashes.add(source_sha256(text))
    if name.startswith('reward/'):
      hashes |= set(syntax.parts(text).values())
  for harness in harnesses:
    hashes |= set(map(source_sha256, harness.files.values()))
    if 'reward.py' in harness.files:
      hashes |= set(syntax.parts(harness.files['reward.py']).values())
  return frozenset(hashes)


def admit(
    before: spec.Harness,
    after: spec.Harness,
    config: ml_collections.ConfigDict,
    view: Any | None,
    *,
    known: Collection[str],
) -> list[str]:
  """Why a change is refused; nothing if it is admitted.

  Args:
    before: The parent, admitted itself.
    after: The candidate.
    config: The run's config, without an overlay.
    view: Recorded evidence that the functions are tried on, open to
      diagnostics: each function sees what it may read. None tries none.
    known: Hashes of sources that may run, see `shipped`.

  Returns:
    One line per reason.
  """
  reasons = []
  try:
    found = delta.diff(before, after, config_lib.flatten(config))
    reasons += _check_effect(found, before, after, config)
  except (delta.DeltaError, surface.SurfaceError) as error:
    reasons.append(f'delta: {error}')
  may_run = known | shipped(before) if known else shipped(before)
  return reasons + check(after, config, view) + unknown_sources(after, may_run)


def _check_effect(
    found: delta.Delta,
    before: spec.Harness,
    after: spec.Harness,
    config: ml_collections.ConfigDict,
) -> list[str]:
  """Refuses a change of a part that is not part of the reward."""
  kind, _, part = found.factor.partition(':')
  path = surface.WEIGHTS + part
  if kind != 'reward' or any(
      surface.value(config, harness.overlay, path)
      for harness in (before, after)
  ):
    return []
  return [
      f'delta: {found.factor} has no weight before and after, so nothing would'
      f' change; set {path}'
  ]


def unknown_sources(harness: spec.Harness, known: Collection[str]) -> list[str]:
  """Files that are not shipped, one line each."""
  reasons = []
  for name, source in harness.files.items():
    if source_sha256(source) in known:
      continue
    try:
      parts = syntax.parts(source) if name == 'reward.py' else None
    except syntax.SourceError:
      continue  # `check` says so.
    strange = sorted(p for p, h in (parts or {}).items() if h not in known)
    if parts is None or strange:
      what = f'part {", ".join(strange)} of {name}' if strange else name
      reasons.append(
          f'{what} is not a shipped function; proposals draw from'
          ' evojax/harness/library and the seed harness'
      )
  return reasons


def check(
    harness: spec.Harness, config: ml_collections.ConfigDict, view: Any | None
) -> list[str]:
  """What is wrong with a harness, whatever it came from; one line each."""
  reasons = []
  try:
    applied = surface.apply(config, harness.overlay)
  except surface.SurfaceError as error:
    reasons += [f'overlay: {line}' for line in str(error).splitlines()]
  else:
    reasons += _check_config(applied)
    reasons += _check_weights(harness, applied)
  reasons += _check_sources(harness)
  if view is not None and not reasons:
    reasons += _try_functions(harness, view)
  return reasons


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


def _try_functions(harness: spec.Harness, view: Any) -> list[str]:
  """Calls every function in two processes and compares bit by bit."""
  answers, reasons = [], []
  for _ in range(2):
    with run.Functions(harness) as functions:
      found, failed = {}, []
      for name, call in _calls(functions, view):
        try:
          found[name] = _bits(call())
        except run.FunctionError as error:
          failed.append(str(error))
      answers.append(found)
      reasons += [reason for reason in failed if reason not in reasons]
  first, second = answers
  for name in first.keys() & second.keys():
    if first[name] != second[name]:
      reasons.append(f'{name}: two processes give two answers to one input')
  return reasons


def _calls(functions: run.Functions, view: Any):
  """(file, call) of every function of the harness."""
  if functions.has('reward'):
    yield 'reward.py', lambda: functions.parts(view)
  if functions.has('keep'):

    def keep():
      state = functions.init()
      answers = []
      for _ in range(2):  # The second sees the state of the first.
        mask, state = functions.keep(view, state)
        answers.append((mask, state))
      return answers

    yield 'keep.py', keep
  if functions.has('weight'):
    yield 'weight.py', lambda: functions.weight(view)
  for name in functions.diagnostics:
    yield (
        f'diagnostics/{name}.py',
        lambda name=name: functions.measure(name, view),
    )
  for name in functions.backtests:
    yield (
        f'backtests/{name}.py',
        lambda name=name: functions.predict(name, view, view),
    )


def _bits(value: Any) -> Any:
  """Arrays and numbers as bytes, in their containers."""
  if isinstance(value, dict):
    return {key: _bits(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [_bits(item) for item in value]
  array = np.asarray(value)
  return (array.dtype.str, array.shape, array.tobytes())
