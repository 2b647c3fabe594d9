"""A setting: a directory that plants a fault in a sound config.

    fault.toml       the fault, and the answers that count; see `Setting`
    harness/*.py     reward.py, keep.py or weight.py, if a function is faulty
    task.py          make(**kwargs) of a domain, if the grader or the
                     problems are; fault.toml then says 'domain.name' = 'task'

Settings do not depend on how they are used, so that a directory of your own
works like those beside this file.
"""

from collections.abc import Iterator, Mapping
import contextlib
import dataclasses
import importlib
import json
import math
import pathlib
import shutil
import sys
import tomllib
from typing import Any

import ml_collections

from evojax import config as config_lib
from evojax import domains
from evojax.episodes import synthetic
from evojax.evidence import schema
from evojax.harness import language
from evojax.harness import parts as parts_lib
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.runtime import config_checks
from evojax.training import reward_parts
from evojax.training import settings as training_lib

# Domains with a sound config, configs/NAME.py.
BASES = ('coding', 'math', 'swe')
FOLDER = pathlib.Path(__file__).parent
FILE = 'fault.toml'
TASK = 'task'  # Module of a setting's own domain.
# broken: a harness can repair the fault. outside: no harness can change it.
# leaky: the score that the run sees can be gamed. sound: nothing is wrong, and
# what a system names is a false alarm.
KINDS = ('broken', 'outside', 'leaky', 'sound')
# Causes that a system may name: topics of a change, and two that no change of
# the harness can repair.
CAUSES = (
    'reward', 'length', 'exploration', 'optimizer', 'regularisation', 'loss',
    'clip', 'filter', 'credit', 'data',
    'tools',  # Tools, turns and history of an agent.
    'grader',  # It pays for something other than what is wanted.
    'outside',  # Something that no harness can change.
)  # fmt: skip
_TOKENIZER = 'tokenizer.json'
_WEIGHTS = 'reward.weights'
_FILES = ('reward.py', 'keep.py', 'weight.py')


class SettingError(ValueError):
  """A directory is not a setting; the message has one line per reason."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
  """One fault; the fields are those of fault.toml."""

  path: pathlib.Path
  base: str  # One of BASES, for sound config and true grader.
  kind: str  # One of KINDS.
  summary: str  # A sentence for readers of the table.
  # Accepted answers, from CAUSES; one suffices. None in a sound setting.
  causes: tuple[str, ...]
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Values that the clean twin also has, such as problems that are too hard.
  twin: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Least share of sealed problems that a repaired policy must solve.
  score: float | None = None
  # Path -> range that its value must be in again, both ends included.
  paths: Mapping[str, tuple[float, float]] = dataclasses.field(
      default_factory=dict
  )
  remedy: str = ''  # The right answer if the fault cannot be repaired.
  # Text -> its replacement in the tokens of the base policy, which then writes
  # the replacement. The clean twin has the same policy.
  vocabulary: Mapping[str, str] = dataclasses.field(default_factory=dict)

  @property
  def name(self) -> str:
    return self.path.name

  @property
  def files(self) -> dict[str, str]:
    """The planted functions by file name in a harness."""
    found = sorted((self.path / 'harness').glob('*.py'))
    return {path.name: path.read_text('utf-8') for path in found}


def read(path: pathlib.Path, *, code: bool = True) -> Setting:
  """Read a setting.

  Args:
    path: Its directory.
    code: Whether to run its functions and its domain on synthetic episodes.

  Raises:
    SettingError: If it is not valid; lists every problem.
  """
  file = path / FILE
  try:
    table = tomllib.loads(file.read_text('utf-8'))
  except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
    raise SettingError(f'{file}: {error}') from error
  repaired = table.pop('repaired', {})
  given = {**table, **repaired} if isinstance(repaired, dict) else table
  problems = list(_problems(path, given))
  if not isinstance(repaired, dict):
    problems.append(f'{repaired=} must be a table with score, paths')
  if problems:
    raise SettingError('\n'.join(f'{file}: {text}' for text in problems))
  given['causes'] = tuple(given['causes'])
  for name in ('config', 'twin', 'vocabulary'):
    given[name] = config_lib.frozen(given.get(name, {}))
  given['paths'] = config_lib.frozen(given.get('paths', {}))
  found = Setting(path=path, **given)
  try:
    for config in (clean(found), planted(found)):
      config_checks.validate(config)
    harness(found)
    if found.vocabulary:
      _tokens(found)
    for where, (low, high) in found.paths.items():
      value = _get(planted(found), where)
      if value is None:
        raise ValueError(f'{where}: the planted config has no such value')
      if low <= value <= high:
        raise ValueError(f'{where}: what is planted lies in [{low}, {high}]')
    if code:
      _check_code(found)
  except (ValueError, AttributeError, KeyError, TypeError) as error:
    raise SettingError(f'{file}: {error}') from error
  return found


def _check_code(setting: Setting) -> None:
  """Check what a run would refuse, or what no run would notice.

  Otherwise a job would end with an error, which counts against the system.

  Raises:
    ValueError: If the domain cannot be made, a planted function is not one that
      a harness may hold, or nothing differs from the clean twin.
  """
  config = planted(setting)
  with importable(setting):
    try:
      domain = training_lib.make_domain(config)
    except (ValueError, AttributeError, KeyError, TypeError):
      raise  # `read` names the file.
    except Exception as error:  # pylint: disable=broad-except
      kind = type(error).__name__
      raise ValueError(f'{TASK}.py: {kind}: {error}') from error
  columns = synthetic.Evidence(domain).columns(config)
  columns |= {column.name for column in schema.CORE}
  for name, text in setting.files.items():
    if found := language.reasons(name, text, columns):
      raise ValueError('\n'.join(f'harness/{reason}' for reason in found))
    parts_lib.across(name, text)
  if _WEIGHTS in setting.config and 'reward.py' not in setting.files:
    parts = reward_parts.load_parts(config.reward.parts, domain.reward_parts)
    view, _ = synthetic.make_view(domain, config, reward_parts.reader(parts))
    reward_parts.compute(parts, view, config.reward.weights.to_dict())
  plain = config_lib.flatten(clean(setting))
  if not setting.files and all(
      plain.get(path) == value
      for path, value in config_lib.flatten(config).items()
      if path != 'name'
  ):
    raise ValueError('what is planted is what the clean twin has')


@contextlib.contextmanager
def importable(setting: Setting) -> Iterator[None]:
  """Let the module `task` be the one of a setting."""
  before = sys.modules.pop(TASK, None)
  known = set(sys.modules)
  sys.path.insert(0, str(setting.path))
  try:
    yield
  finally:
    sys.path.remove(str(setting.path))
    # Another setting may have modules with the same names.
    for name in set(sys.modules) - known:
      file = getattr(sys.modules[name], '__file__', None) or ''
      if setting.path.resolve() in pathlib.Path(file).resolve().parents:
        del sys.modules[name]
    if before is not None:
      sys.modules[TASK] = before


def _problems(path: pathlib.Path, given: Mapping[str, Any]):
  """Yield the problems of the values in a file."""
  fields = {f.name: f for f in dataclasses.fields(Setting)}
  del fields['path']
  for name in given.keys() - fields.keys():
    yield f'{name} is unknown; a setting has {", ".join(fields)}'
  for name in ('base', 'kind', 'summary', 'causes'):
    if name not in given:
      yield f'{name} is missing'
  choices = {'base': BASES, 'kind': KINDS}
  for name, allowed in choices.items():
    if given.get(name, allowed[0]) not in allowed:
      yield f'{name}={given[name]!r}: choose one of {allowed}'
  causes, sound = given.get('causes', CAUSES[:1]), given.get('kind') == 'sound'
  if not isinstance(causes, list | tuple) or not (causes or sound):
    yield f'{causes=} must be a list of names'
  elif causes and sound:
    yield f'{causes=} must be [], since nothing is wrong in a sound setting'
  elif wrong := [c for c in causes if c not in CAUSES]:
    yield f'causes: {wrong} are not among {CAUSES}'
  for name in ('config', 'twin', 'paths', 'vocabulary'):
    if not isinstance(given.get(name, {}), dict):
      yield f'{name} must be a table of paths'
  for name in ('summary', 'remedy'):
    if not isinstance(given.get(name, ''), str):
      yield f'{name}={given[name]!r} must be a text'
  paths = given.get('paths', {})
  for where, span in paths.items() if isinstance(paths, dict) else ():
    if not _is_range(span):
      yield f'{where}={span!r} must be a range [low, high] of numbers'
  score = given.get('score')
  number = isinstance(score, int | float) and not isinstance(score, bool)
  if given.get('kind') == 'broken' and not (number and 0 < score < 1):
    yield f'repaired.score={score!r} must be a share between 0 and 1'
  if given.get('kind') in ('outside', 'leaky') and not given.get('remedy'):
    yield 'remedy is missing: what somebody who finds it should do'
  files = {p.name for p in (path / 'harness').glob('*')}
  for name in sorted(files - set(_FILES) - {'__pycache__'}):
    yield f'harness/{name}: only {_FILES} can be planted'
  if not given.get('config') and not files:
    yield 'nothing is planted: no [config], no harness/*.py'
  own = given.get('config', {})
  if isinstance(own, dict) and own.get('domain.name') == TASK:
    if not (path / f'{TASK}.py').is_file():
      yield f"'domain.name' = '{TASK}', but there is no {TASK}.py"


def _is_range(span: Any) -> bool:
  if not isinstance(span, list) or len(span) != 2:
    return False
  return all(type(x) in (int, float) for x in span) and span[0] <= span[1]


def find(paths: tuple[pathlib.Path, ...] = (FOLDER,)) -> list[Setting]:
  """Return the settings in the given directories or in their subdirectories.

  The code of those in FOLDER is not run, unless they are given one by one: it
  takes seconds, as domains load their libraries, and tests do it.

  Raises:
    SettingError: If a setting is broken, or none is found.
  """
  found: list[tuple[pathlib.Path, bool]] = []
  for path in paths:
    inside = sorted(p.parent for p in path.glob(f'*/{FILE}'))
    chosen = [path] if (path / FILE).exists() else inside
    tested = path.resolve() == FOLDER.resolve()
    found += [(folder, not tested) for folder in chosen]
  if not found:
    listed = ', '.join(map(str, paths))
    raise SettingError(f'no {FILE} in {listed}, nor in folders below')
  return [read(path.resolve(), code=code) for path, code in found]


# ---------------------------------------------------------------------- configs


def clean(setting: Setting) -> ml_collections.ConfigDict:
  """Return the config of the clean twin, locked; its grader is the true one."""
  module = importlib.import_module(f'configs.{setting.base}')
  return _with(module.get_config(), setting.twin)


def planted(setting: Setting, dose: float = 1.0) -> ml_collections.ConfigDict:
  """Return the config with the fault, locked.

  Args:
    setting: The fault.
    dose: Position between the sound value (0) and the planted one (1), for
      numbers; logarithmic where the surface steps logarithmically. Other values
      are planted unchanged.
  """
  sound = clean(setting)
  values = {}
  for path, value in setting.config.items():
    old, tunable = _get(sound, path), config_lib.declaration(path).tunable
    # A limit that is off acts like one at the bound that has no effect.
    if tunable and tunable.end and old == tunable.off:
      old = _get(sound, tunable.end)
    values[path] = _dosed(old, value, dose, path)
  # The name of the config must not reveal the fault.
  return config_lib.with_fields(_with(sound, values), {'name': 'job'})


def harness(setting: Setting, dose: float = 1.0) -> spec.Harness:
  """Return the first harness of a run: the seed's with the planted changes.

  It contains the config's weights, since weights in a harness replace those.
  """
  found = spec.read(domains.folder(setting.base) / 'seed_harness')
  if _WEIGHTS in setting.config:
    prefix = f'{_WEIGHTS}.'
    old = {p: None for p in found.overlay if p.startswith(prefix)}
    weights = planted(setting, dose).reward.weights.to_dict()
    new = {prefix + name: value for name, value in weights.items()}
    found = found.with_overlay({**old, **new})
  for name, text in setting.files.items():
    found = found.with_file(name, text)
  return found


def write_policy(setting: Setting, folder: pathlib.Path) -> str:
  """Return the base policy of a setting, a value of config.model.path.

  Args:
    setting: The setting.
    folder: Receives the policy if its vocabulary is changed; may exist.
  """
  path = clean(setting).model.path
  if not setting.vocabulary:
    return path
  shutil.copytree(domains.policy_path(path), folder, dirs_exist_ok=True)
  (folder / _TOKENIZER).write_text(_tokens(setting), 'utf-8')
  return str(folder)


def _tokens(setting: Setting) -> str:
  """Return the tokenizer of a setting's base policy.

  Raises:
    ValueError: If no token holds a text of `vocabulary`, or two become equal.
  """
  file = domains.policy_path(clean(setting).model.path) / _TOKENIZER
  table = json.loads(file.read_text('utf-8'))
  added = table['added_tokens']
  for old, new in setting.vocabulary.items():
    holding = [token for token in added if old in token['content']]
    if not holding:
      raise ValueError(f'vocabulary: no token of {file} holds {old!r}')
    for token in holding:
      token['content'] = token['content'].replace(old, new)
  if len({token['content'] for token in added}) < len(added):
    raise ValueError(f'vocabulary: two tokens of {file} become equal')
  return json.dumps(table, ensure_ascii=False)


def _with(
    config: ml_collections.ConfigDict, values: Mapping[str, Any]
) -> ml_collections.ConfigDict:
  """Return a locked copy of the config with these values.

  Raises:
    config_lib.ConfigError: If a path is not a field.
  """
  new = config.copy_and_resolve_references()
  with new.unlocked():
    for path, value in values.items():
      if not path.startswith('domain.kwargs.'):
        config_lib.check_field(new, path)
      declared = config_lib.declaration(path)
      number = isinstance(value, int | float)
      if isinstance(declared.default, int | float) and not number:
        raise config_lib.ConfigError(f'{path}={value!r} must be a number')
      if problem := declared.problem(value):
        raise config_lib.ConfigError(f'{path}={value!r} {problem}')
      if isinstance(value, Mapping):
        value = ml_collections.ConfigDict(dict(value))
      new.update_from_flattened_dict({path: value})
  return new.lock()


def _get(config: ml_collections.ConfigDict, path: str) -> Any:
  for part in path.split('.'):
    config = config.get(part) if config is not None else None
  if isinstance(config, ml_collections.ConfigDict):
    return config.to_dict()
  return config


def _dosed(old: Any, new: Any, dose: float, path: str) -> Any:
  """Return the value between two values at a dose."""
  if isinstance(new, Mapping) and isinstance(old, Mapping | None):
    names = {**new, **(old or {})}
    return {
        n: _dosed((old or {}).get(n, 0.0), new.get(n, 0.0), dose, path)
        for n in names
    }
  numbers = all(
      isinstance(x, int | float) and not isinstance(x, bool) for x in (old, new)
  )
  if dose == 1 or not numbers:
    return new
  tunable = config_lib.declaration(path).tunable
  if tunable and tunable.scale == 'log' and min(old, new) > 0:
    between = math.exp((1 - dose) * math.log(old) + dose * math.log(new))
  else:
    between = (1 - dose) * old + dose * new
  return round(between) if type(new) is int else between


def factor(setting: Setting) -> str:
  """Return the only planted path on the surface; '' if there are several.

  All weights of a reward count as one path. The surface is that of the sound
  domain, with fields of its own, such as its tools.
  """
  paths = []
  for path, value in setting.config.items():
    names = value if path == _WEIGHTS else ('',)
    paths += [f'{path}.{n}' if n else path for n in names if n != 'outcome']
  if setting.files or len(paths) != 1:
    return ''
  sound = clean(setting).domain
  own = domains.make(sound.name, **sound.kwargs.to_dict()).surface_fields
  try:
    return surface_lib.recipe(own).field(paths[0]).path
  except surface_lib.SurfaceError:
    return ''


def value(setting: Setting, path: str, dose: float) -> Any:
  """Return a planted value at a dose; each weight has its own path."""
  config = planted(setting, dose)
  return _get(config, path)
