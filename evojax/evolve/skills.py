"""Skills: changes that worked, with the evidence for them.

A skill is one JSON file, `<sha256>.json`. The hash covers trigger and change,
so the same skill found again, perhaps in another domain, adds evidence to it.
Values are relative where the surface has a logarithmic scale ("three times the
learning rate"), so that the skill also applies to other recipes.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import functools
import hashlib
import json
import math
import os
import pathlib
from typing import Any, ClassVar

from absl import logging

from evojax.evolve import diagnose
from evojax.harness import delta as delta_lib
from evojax.harness import library
from evojax.harness import parts as parts_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.harness import syntax
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from evojax.runtime import durable

MAX_BYTES = 1 << 20  # Largest file of a skill.
CROSS_DOMAIN = 2  # A skill that held in this many domains applies to any.


class SkillError(ValueError):
  """A skill file is not what `write` writes, or a skill does not apply."""


@dataclasses.dataclass(frozen=True)
class Evidence:
  """The result of one trial that kept the change."""

  run: str  # Name of the run.
  trial: int
  domain: str
  base: str  # Hash of the harness that was changed.
  effect: float  # Avg@k, a fraction.
  low: float  # 95 % interval.
  high: float

  def __post_init__(self):
    numbers = (self.effect, self.low, self.high)
    if not all(math.isfinite(x) and abs(x) <= 1 for x in numbers):
      raise SkillError(f'effect, low and high are fractions, not {numbers}')
    if not self.low <= self.effect <= self.high:
      raise SkillError(f'the effect lies outside its interval: {numbers}')


@dataclasses.dataclass(frozen=True)
class Skill:
  """A change to make after an alert or finding, with the effects it has had.

  Exactly one of overlay and file is not empty.
  """

  VERSION: ClassVar[int] = 0  # Files hold no version.

  trigger: str  # Name of the alert, or the check of the finding.
  hypothesis: str
  # Dotted path -> ('set', value) or ('scale', factor).
  overlay: dict[str, tuple[str, Any]]
  file: str  # Path of the file in the harness.
  source: str  # Source of the file.
  evidence: tuple[Evidence, ...]

  def __post_init__(self):
    if bool(self.overlay) == bool(self.file) or not self.trigger:
      raise SkillError('a skill has a trigger, and either an overlay or a file')
    if not self.evidence:
      raise SkillError('a skill needs the evidence of at least one trial')
    for path, (operation, value) in self.overlay.items():
      scale = is_number(value) and 0 < value < math.inf
      if not {'set': True, 'scale': scale}.get(operation):
        raise SkillError(f'{path}: {operation!r} {value!r} is not a change')

  @functools.cached_property
  def sha256(self) -> str:
    """Hash of trigger and change; evidence and wording do not count."""
    identity = dataclasses.asdict(self)
    del identity['hypothesis'], identity['evidence']
    text = json.dumps(identity, sort_keys=True, separators=(',', ':'))
    return hashlib.sha256(text.encode()).hexdigest()

  @property
  def domains(self) -> tuple[str, ...]:
    """The domains in which it held, sorted."""
    return tuple(sorted({e.domain for e in self.evidence}))

  @property
  def expected(self) -> tuple[float, float]:
    """The range from the lowest to the highest interval bound so far."""
    return min(e.low for e in self.evidence), max(e.high for e in self.evidence)

  def apply(
      self,
      parent: spec.Harness,
      config: Mapping[str, Any],
      surface: surface_lib.Surface,
  ) -> spec.Harness:
    """Return the parent with the change.

    Args:
      parent: Any harness.
      config: Flat config values under the parent, for relative changes.
      surface: The fields that a harness of the run may set.

    Raises:
      SkillError: If the config has no number to scale, the scaled number is
        too large, a reward part does not exist, or no harness can hold the
        change.
    """
    try:
      if self.file:
        return parent.with_file(self.file, self.source)
      values, after = {}, parent
      for path, (operation, value) in self.overlay.items():
        if surface_lib.is_weight(path):
          part = path.removeprefix(surface_lib.WEIGHTS)
          after = with_part(after, part)
          if after is None:
            raise SkillError(f'no reward part {part!r} fits here')
        if operation == 'scale':
          current = config.get(path)
          if not is_number(current):
            raise SkillError(f'{path}={current!r} is not a number to scale')
          value = round_value(surface.field(path), current * value)
        values[path] = value
      return after.with_overlay(values)
    except (
        spec.HarnessError,
        surface_lib.SurfaceError,
        OverflowError,
    ) as error:
      raise SkillError(str(error)) from error

  def to_json(self) -> str:
    """Return the text of the skill's file."""
    fields = dataclasses.asdict(self) | {
        name: getattr(self, name) for name in ('sha256', 'domains', 'expected')
    }
    return json.dumps(fields, indent=2, sort_keys=True) + '\n'


def is_number(value: Any) -> bool:
  """Return whether a JSON value is a number; a bool is not."""
  return isinstance(value, int | float) and not isinstance(value, bool)


def round_value(field: surface_lib.Field, value: int | float) -> int | float:
  """Round a value to three digits, or to an integer for an integer field.

  1e-4 * 3 becomes 3e-4 and not 0.00030000000000000003, so that the same change
  leads to the same harness hash.
  """
  return round(value) if field.kind == 'int' else float(f'{value:.3g}')


def with_part(harness: spec.Harness, part: str) -> spec.Harness | None:
  """Return the harness with a reward part, its own or a shipped one.

  Returns:
    The harness; None if there is no such part, or if the reward uses a name of
    the part for something else.
  """
  reward, file = harness.files.get('reward.py'), f'reward/{part}.py'
  if reward is None:
    return None
  try:
    if part in parts_lib.hashes(reward):
      return harness
    if file not in library.names():
      return None
    reward = parts_lib.add(reward, library.source(file))
    return harness.with_file('reward.py', reward)
  except (syntax.SourceError, spec.HarnessError):
    return None


def learned(
    delta: delta_lib.Delta,
    after: spec.Harness,
    before: Mapping[str, Any],
    surface: surface_lib.Surface,
    *,
    trigger: str,
    hypothesis: str,
    evidence: Evidence,
) -> Skill:
  """Return the skill that a kept trial is evidence for.

  Args:
    delta: The change.
    after: The harness with the change.
    before: Flat config values under the parent.
    surface: The fields that a harness of the run may set.
    trigger: The alert or finding that led to the change.
    hypothesis: Why it should work.
    evidence: The results of the trial.

  Returns:
    The skill; relative for numbers on a logarithmic scale, otherwise absolute.

  Raises:
    SkillError: If it cannot be applied elsewhere: the change removed something
      from the harness, or wrote a reward part that is not shipped.
  """
  sources = [path for path, _ in delta.sources]
  if sources and not sources[0].startswith('reward.py:'):
    source = after.files.get(sources[0], '')
    if not source:
      raise SkillError(f'{sources[0]} was removed; nothing is left to apply')
    return Skill(trigger, hypothesis, {}, sources[0], source, (evidence,))
  for path, part_hash in delta.sources:
    part = path.partition(':')[2]
    file = f'reward/{part}.py'
    shipped = {}
    if file in library.names():
      shipped = parts_lib.hashes(library.source(file))
    if part_hash != shipped.get(part, ''):
      raise SkillError(f'the reward part {part!r} is not the shipped one')
  overlay = {}
  for path, *_ in delta.changes:
    if path in sources:
      continue
    if path not in after.overlay:
      raise SkillError(f'{path} was removed; nothing is left to apply')
    overlay[path] = _relative(
        surface.field(path), before.get(path), after.overlay[path]
    )
  return Skill(trigger, hypothesis, overlay, '', '', (evidence,))


def _relative(field: surface_lib.Field, old: Any, new: Any) -> tuple[str, Any]:
  """Return ('scale', factor) on a logarithmic scale, else ('set', value)."""
  if field.scale == 'log' and is_number(old) and old > 0 and new > 0:
    # 3e-4 / 1e-4 is 2.9999999999999996; rounded, it is the same skill as 3.
    return 'scale', float(f'{new / old:.6g}')
  return 'set', new


def _merge(old: Skill, new: Skill) -> Skill:
  """Return one skill with the evidence of both, each trial once."""
  evidence = dict.fromkeys((*old.evidence, *new.evidence))
  return dataclasses.replace(old, evidence=tuple(evidence))


def write(root: str | os.PathLike[str], skill: Skill) -> pathlib.Path:
  """Write root/<sha256>.json atomically; merge it with an existing file.

  Writing the same skill again changes nothing.

  Raises:
    SkillError: If the existing file is damaged.
    durable.DiskError: If the disk is full.
  """
  root = pathlib.Path(root)
  root.mkdir(parents=True, exist_ok=True)
  path = root / f'{skill.sha256}.json'
  if path.exists():
    skill = _merge(_read(path), skill)
  durable.write_atomic(path, skill.to_json().encode())
  return path


def withdraw(
    root: str | os.PathLike[str], sha256: str, run: str, trial: int
) -> None:
  """Remove the evidence of a trial whose change was taken back.

  A skill without evidence is deleted. Doing it again changes nothing.

  Args:
    root: Directory of the skills.
    sha256: Hash of the skill.
    run: Name of the run of the trial.
    trial: Number of the trial.

  Raises:
    SkillError: If the file is damaged.
    durable.DiskError: If the disk is full.
  """
  path = pathlib.Path(root) / f'{sha256}.json'
  if not path.exists():
    return
  skill = _read(path)
  left = tuple(e for e in skill.evidence if (e.run, e.trial) != (run, trial))
  if left:
    skill = dataclasses.replace(skill, evidence=left)
    durable.write_atomic(path, skill.to_json().encode())
  else:
    path.unlink()


def _read(path: pathlib.Path) -> Skill:
  """Return the skill read from a file.

  Raises:
    SkillError: If the file is not a skill, or its hash does not match.
  """
  try:
    # A pipe would block, and a huge file fill the memory.
    if path.exists() and not path.is_file():
      raise SkillError('is not a file; remove it')
    if (size := path.stat().st_size) > MAX_BYTES:
      raise SkillError(f'has {size} bytes, more than {MAX_BYTES}; remove it')
    fields = json.loads(path.read_bytes().decode())
    own = {
        field.name: fields[field.name] for field in dataclasses.fields(Skill)
    }
    skill = rows_lib.from_json(Skill, own)
    if fields.get('sha256') != skill.sha256:
      raise SkillError(f'was changed: its content has the hash {skill.sha256}')
  except (SkillError, OSError, UnicodeDecodeError) as error:
    raise SkillError(f'{path}: {error}') from error
  except (
      ValueError,
      KeyError,
      TypeError,
      AttributeError,
      OverflowError,
      RecursionError,
  ) as error:
    raise SkillError(
        f'{path}: is not a skill as evojax writes it; remove it: {error!r}'
    ) from error
  return skill


def check_directories(directories: Iterable[str | os.PathLike[str]]) -> None:
  """Raise ValueError if one of the directories of a config does not exist."""
  for directory in directories:
    if not pathlib.Path(directory).is_dir():
      raise ValueError(
          f'config.evolve.skills has {os.fspath(directory)!r}, which is not a'
          ' directory: name the skills/ of a run that kept a change (one that'
          ' kept none has no such directory), or leave it out'
      )


def read_all(
    directories: Iterable[str | os.PathLike[str]],
    surface: surface_lib.Surface,
) -> tuple[Skill, ...]:
  """Return all skills of some directories, sorted by hash.

  A skill that is in two of them is returned once, with the evidence of both. A
  file that is damaged, or that sets a field which is not on this run's surface,
  is left out with a warning; a directory that does not exist holds no skills.
  """
  found: dict[str, Skill] = {}
  for directory in directories:
    for path in sorted(pathlib.Path(directory).glob('[!.]*.json')):
      try:
        skill = _read(path)
        for name in skill.overlay:
          surface.field(name)
      except (SkillError, surface_lib.SurfaceError) as error:
        logging.warning('skill left out: %s', error)
        continue
      known = found.get(skill.sha256)
      found[skill.sha256] = _merge(known, skill) if known else skill
  return tuple(found[sha256] for sha256 in sorted(found))


def matching(
    library: Sequence[Skill],
    domain: str,
    measures: Sequence[records.Measure],
    findings: Sequence[records.Finding] = (),
) -> list[Skill]:
  """Return the skills whose alert or finding is raised here.

  They are sorted by the lower end of their expected effect, highest first. A
  skill applies in the domains in which it held, and in any domain once it has
  held in CROSS_DOMAIN of them.
  """
  raised = {*diagnose.alerts(measures), *(f.check for f in findings)}
  usable = [
      skill
      for skill in library
      if skill.trigger in raised
      and (domain in skill.domains or len(skill.domains) >= CROSS_DOMAIN)
  ]
  return sorted(usable, key=lambda s: (-s.expected[0], s.sha256))
