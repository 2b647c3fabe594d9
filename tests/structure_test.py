"""The structure of the package: allowed imports, and modules kept light."""

import ast
import fnmatch
import importlib
import importlib.metadata
import pathlib
import re
import subprocess
import sys

from absl.testing import absltest
from absl.testing import parameterized
import ml_collections

from benchmarks import house
from configs import math as math_config
import setup

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Data for agents to repair, not our modules.
PACKAGES = ROOT / 'evojax' / 'domains' / 'swe' / 'packages'
SOURCES = sorted(
    path
    for path in (ROOT / 'evojax').rglob('*.py')
    if not path.is_relative_to(PACKAGES)
)

# From the top down: a module imports its own folder and the ones below.
ORDER = (
    'main',
    'modes',
    'evolve',
    'diagnosis',
    'report',
    'training',
    'eval',
    'episodes',
    'domains',
    'harness',
    'rollout',
    'models',
    'rl',
    'evidence',
    'ledger',
    'stats',
    'sandbox',
    'runtime',
    'config',
    'records',
)
# Imported only if a config or a flag needs them: three extras, and a set of
# requirements.
OPTIONAL = {'openenv', 'ray', 'verifiers', 'wandb'}
FLOOR = {name: -i for i, name in enumerate(ORDER)}
# Files in the repository that people or other tools read.
_MACHINE_PATH = re.compile(r'(?<![\w.}~-])/(?:work|root|home/\w+|Users/\w+)/\w')


def module_name(path: pathlib.Path) -> str:
  """Return e.g. 'evojax.rl.losses'; the package for an __init__.py."""
  parts = path.relative_to(ROOT).with_suffix('').parts
  return '.'.join(parts[:-1] if parts[-1] == '__init__' else parts)


def imports(path: pathlib.Path, *, nested: bool = True) -> set[str]:
  """Return the modules that a file imports, if nested also in functions.

  `from a import b` means a.b if that is a module of ours, otherwise a.
  """
  tree = ast.parse(path.read_text(), str(path))
  nodes = list(ast.walk(tree)) if nested else _run_on_import(tree)
  found = set()
  for node in nodes:
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      for alias in node.names:
        name = f'{node.module}.{alias.name}'
        found.add(name if _is_ours(name) else node.module)
  return found


def _run_on_import(tree: ast.AST) -> list[ast.AST]:
  """Return all nodes except those in the bodies of functions."""
  nodes = []
  for node in ast.iter_child_nodes(tree):
    nodes.append(node)
    if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
      nodes += _run_on_import(node)
  return nodes


def _is_ours(name: str) -> bool:
  path = ROOT.joinpath(*name.split('.'))
  return path.with_suffix('.py').is_file() or (path / '__init__.py').is_file()


def top(name: str) -> str:
  """Return 'rl' for 'evojax.rl.losses', '' for the package itself."""
  return name.split('.')[1] if '.' in name else ''


def distributions(names: set[str]) -> set[str]:
  """Return the distributions, as in requirements, of third-party modules."""
  owners = importlib.metadata.packages_distributions()
  foreign = {name.split('.')[0] for name in names}
  foreign -= set(sys.stdlib_module_names)
  foreign -= {'evojax', 'configs', 'tests', 'benchmarks', 'setup'}
  return {
      normal(owner) for name in foreign for owner in owners.get(name, (name,))
  }


def normal(requirement: str) -> str:
  """Return 'tensorboardx' for 'tensorboardX>=2.6.5'; underscores: hyphens."""
  name = re.match(r'[\w.-]+', requirement)[0]
  return re.sub(r'[-_.]+', '-', name).lower()


def repository_files() -> list[pathlib.Path]:
  """Return the text files of the checkout that git tracks or would track."""
  listed = subprocess.run(
      [
          'git',
          '-C',
          ROOT,
          'ls-files',
          '-z',
          '--cached',
          '--others',
          '--exclude-standard',
      ],
      capture_output=True,
      text=True,
      check=False,
  )
  if listed.returncode:  # An unpacked archive.
    paths = [p for p in ROOT.rglob('*') if '.venv' not in str(p)]
  else:
    paths = [ROOT / name for name in listed.stdout.split('\0') if name]
  return [p for p in paths if p.is_file() and b'\0' not in p.read_bytes()]


def modules_after(statement: str) -> set[str]:
  """Return the top-level modules in a new interpreter after a statement."""
  code = f'{statement}\nimport sys\nprint(*sys.modules)'
  run = subprocess.run(
      [sys.executable, '-c', code],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=True,
  )
  return set(run.stdout.split())


class ImportsTest(parameterized.TestCase):

  def test_every_folder_has_its_place(self):
    homeless = {top(module_name(p)) for p in SOURCES} - set(ORDER) - {''}
    self.assertEmpty(homeless, 'add them to ORDER')

  def test_at_most_four_loose_modules(self):
    loose = {p.stem for p in SOURCES if p.parent == ROOT / 'evojax'}
    self.assertEqual(loose, {'__init__', 'main', 'config', 'records'})

  def test_no_module_shadows_the_standard_library(self):
    """Python started inside a folder finds the folder's modules first."""
    for path in SOURCES:
      with self.subTest(module_name(path)):
        self.assertNotIn(path.stem, sys.stdlib_module_names)

  def test_imports_go_down(self):
    upward = [
        f'{name} imports {other}'
        for name, other in self._arrows()
        if FLOOR[top(name)] < FLOOR[top(other)]
    ]
    self.assertEmpty(upward)

  def test_no_cycles(self):
    graph = {}
    for name, other in self._arrows(nested=False):
      if name != other:
        graph.setdefault(name, set()).add(other)
    done = set()

    def visit(name, trail):
      self.assertNotIn(name, trail, f'cycle: {[*trail, name]}')
      if name not in done:
        for other in sorted(graph.get(name, ())):
          visit(other, [*trail, name])
        done.add(name)

    for name in sorted(graph):
      visit(name, [])

  def _arrows(self, nested=True):
    """Return (importing module, imported module) pairs below evojax."""
    for path in SOURCES:
      for other in sorted(imports(path, nested=nested)):
        name = module_name(path)
        if top(name) and other.startswith('evojax.'):
          yield name, other

  def test_rl_sees_arrays_only(self):
    # sharding imports only jax, and says where an array is placed.
    allowed = (
        'jax',
        'jaxtyping',
        'numpy',
        'evojax.rl',
        'evojax.runtime.sharding',
    )
    for path in (ROOT / 'evojax' / 'rl').glob('*.py'):
      for name in imports(path):
        if name.split('.')[0] in sys.stdlib_module_names:
          continue
        with self.subTest(f'{path.name}: {name}'):
          self.assertTrue(any(f'{name}.'.startswith(f'{a}.') for a in allowed))

  def test_one_module_imports_ray(self):
    named = {module_name(p) for p in SOURCES if 'ray' in imports(p)}
    self.assertEqual(named, {'evojax.runtime.ray_engine'})

  def test_exchanges_between_processes_have_a_time_limit(self):
    """`runtime.peers` ends a run that waits too long in such a block."""
    for file, call, where in (
        ('sharding', 'multihost_utils.', 'multihost'),
        ('messages', 'client.blocking_key_value_get', 'blocking_key_value'),
    ):
      path = ROOT / 'evojax' / 'runtime' / f'{file}.py'
      tree = ast.parse(path.read_text())
      calls = lambda node, call=call: sum(
          isinstance(n, ast.Attribute) and ast.unparse(n).startswith(call)
          for n in ast.walk(node)
      )
      limited = [
          node
          for node in ast.walk(tree)
          if isinstance(node, ast.With)
          and 'waits.at(' in ' '.join(map(ast.unparse, node.items))
      ]
      self.assertGreater(calls(tree), 0)
      self.assertEqual(sum(map(calls, limited)), calls(tree))
      named = {module_name(p) for p in SOURCES if where in p.read_text()}
      self.assertEqual(named, {f'evojax.runtime.{file}'})

  def test_flax_stays_in_models(self):
    for path in SOURCES:
      if path.parent.name != 'models':
        with self.subTest(module_name(path)):
          self.assertNotIn('flax', {n.split('.')[0] for n in imports(path)})

  def test_nothing_imports_configs(self):
    for path in [*SOURCES, *(ROOT / 'benchmarks').rglob('*.py')]:
      if path.is_relative_to(ROOT / 'evojax'):
        with self.subTest(module_name(path)):
          self.assertNotIn('configs', {n.split('.')[0] for n in imports(path)})

  def test_configs_import_the_fields_and_ml_collections_only(self):
    for path in (ROOT / 'configs').glob('*.py'):
      with self.subTest(path.name):
        names = imports(path) - {'evojax.config'}
        self.assertContainsSubset(
            {n.split('.')[0] for n in names}, {'configs', 'ml_collections'}
        )

  def test_the_fields_need_ml_collections_only(self):
    names = {n.split('.')[0] for n in imports(ROOT / 'evojax' / 'config.py')}
    self.assertContainsSubset(
        names - set(sys.stdlib_module_names), {'ml_collections'}
    )

  def test_ledger_rows_are_read_as_records(self):
    """Only the ledger knows the keys of a row on disk."""
    for path in SOURCES:
      if path.parent.name == 'ledger':
        continue
      for node in ast.walk(ast.parse(path.read_text())):
        key = None
        if isinstance(node, ast.Subscript):
          key = node.slice
        elif isinstance(node, ast.Call) and node.args:
          if getattr(node.func, 'attr', '') in ('get', 'pop'):
            key = node.args[0]
        where = f'{module_name(path)}:{getattr(node, "lineno", 0)}'
        if isinstance(key, ast.Constant):
          self.assertNotIn(key.value, ('payload', 'measured', 'klass'), where)
        # A row of the chain comes from these calls; rows.parse reads it.
        if isinstance(node, ast.Attribute) and 'chain' in ast.unparse(
            node.value
        ):
          self.assertNotIn(node.attr, ('read', 'canonical', 'find'), where)

  def test_train_does_not_know_the_meta_loop(self):
    for path in SOURCES:
      name = module_name(path)
      # The package itself has `run`, the main job.
      if top(name) not in ('', 'main', 'modes', 'evolve'):
        with self.subTest(name):
          self.assertFalse(
              any(n.startswith('evojax.evolve') for n in imports(path))
          )

  def test_rl_loads_no_model(self):
    names = sorted(p.stem for p in (ROOT / 'evojax' / 'rl').glob('[a-z]*.py'))
    loaded = modules_after(
        '\n'.join(f'import evojax.rl.{name}' for name in names)
    )
    self.assertContainsSubset({f'evojax.rl.{n}' for n in names}, loaded)
    heavy = {'flax', 'transformers', 'ml_collections', 'orbax', 'pandas'}
    self.assertEmpty(heavy & loaded)
    self.assertEmpty({m for m in loaded if m.startswith('evojax.models')})

  def test_stats_need_numpy_and_scipy_only(self):
    allowed = {'jaxtyping', 'numpy', 'scipy', 'evojax.stats'}
    for path in (ROOT / 'evojax' / 'stats').glob('*.py'):
      for name in imports(path):
        if name.split('.')[0] in sys.stdlib_module_names:
          continue
        with self.subTest(f'{path.name}: {name}'):
          self.assertTrue(any(f'{name}.'.startswith(f'{a}.') for a in allowed))

  def test_harness_loads_no_jax(self):
    loaded = modules_after(
        'import evojax.harness.admit, evojax.harness.library'
    )
    self.assertIn('evojax.harness.run', loaded)
    self.assertEmpty({'jax', 'flax', 'transformers', 'orbax'} & loaded)

  @parameterized.parameters('math', 'coding', 'swe')
  def test_a_domain_loads_no_jax(self, name):
    loaded = modules_after(
        f'from evojax import domains; domains.load("{name}")'
    )
    self.assertIn(f'evojax.domains.{name}.demonstrations', loaded)
    heavy = {'jax', 'optax', 'flax', 'orbax', 'transformers', 'pandas'}
    heavy |= {'reasoning_gym', 'sympy', 'matplotlib'}
    self.assertEmpty(heavy & loaded)

  def test_repositories_load_no_jax(self):
    loaded = modules_after(
        'from evojax.domains.swe import foreign, grade, problems, tools'
    )
    self.assertIn('evojax.domains.swe.catalogue', loaded)
    heavy = {'jax', 'flax', 'transformers', 'pandas', 'pytest', 'scipy'}
    self.assertEmpty(heavy & loaded)

  def test_configs_are_light(self):
    loaded = modules_after('import configs.math as c; c.get_config()')
    heavy = {'jax', 'flax', 'transformers', 'pandas', 'pyarrow', 'numpy'}
    self.assertEmpty(heavy & loaded)
    ours = {name for name in loaded if name.startswith('evojax')}
    self.assertEqual(ours, {'evojax', 'evojax.config'})

  def test_the_package_is_light(self):
    loaded = modules_after('import evojax; evojax.run')
    self.assertEmpty({'jax', 'transformers', 'numpy'} & loaded)


class SizesTest(parameterized.TestCase):

  @parameterized.parameters('evojax', 'benchmarks', 'configs')
  def test_files_and_functions_are_short(self, folder):
    """A file has at most 600 lines; a function 100, and 10 parameters."""
    for path in sorted((ROOT / folder).rglob('*.py')):
      if path.is_relative_to(PACKAGES):
        continue
      text = path.read_text()
      where = str(path.relative_to(ROOT))
      self.assertLessEqual(len(text.splitlines()), 600, where)
      for node in ast.walk(ast.parse(text)):
        if not isinstance(node, house.FUNCTIONS):
          continue
        where = f'{path.relative_to(ROOT)}: {node.name}'
        self.assertLessEqual(house.length(node), 100, where)
        # Its parameters are the fields of config.domain.kwargs, which a user
        # sets by name.
        if node.name == 'make' and 'domains' in path.parts:
          continue
        self.assertLessEqual(house.parameters(node), 10, where)


class PackagingTest(parameterized.TestCase):

  def test_what_is_imported_is_required(self):
    needed = distributions(set().union(*map(imports, SOURCES)))
    needed -= OPTIONAL
    declared = {normal(r) for r in self._needed_by_a_run()}
    self.assertContainsSubset(needed - {'jaxlib'}, declared)

  def test_what_tests_import_is_required(self):
    paths = [*(ROOT / 'tests').rglob('*.py'), *ROOT.glob('benchmarks/*.py')]
    needed = distributions(set().union(*map(imports, paths)))
    declared = {
        normal(r)
        for r in (*self._needed_by_a_run(), *setup.EXTRAS_REQUIRE['test'])
    }
    self.assertContainsSubset(needed - {'jaxlib'}, declared | OPTIONAL)

  def test_every_requirement_is_pinned(self):
    for extra, wanted in (
        ('base', self._needed_by_a_run()),
        *setup.EXTRAS_REQUIRE.items(),
    ):
      if extra in ('train', 'dev', 'wandb'):  # In base, or for people.
        continue
      pins = self._pins('base') | self._pins(extra) | self._pins('torch')
      for requirement in wanted:
        with self.subTest(requirement):
          self.assertIn(normal(requirement), pins)

  def test_build_notes_name_the_pins(self):
    """Every direct dependency has a row with its pin and the reason."""
    rows = dict(
        re.findall(
            r'^\| `([\w.-]+)` \| ([\w.]+) \| \S',
            (ROOT / 'BUILD_NOTES.md').read_text(),
            re.MULTILINE,
        )
    )
    pins = self._pins('base') | self._pins('test') | self._pins('torch')
    direct = (*self._needed_by_a_run(), *setup.EXTRAS_REQUIRE['test'])
    for name in map(normal, direct):
      with self.subTest(name):
        self.assertEqual(rows.get(name), pins[name])

  def _needed_by_a_run(self):
    return (*setup.INSTALL_REQUIRES, *setup.EXTRAS_REQUIRE['train'])

  def _pins(self, name):
    text = (ROOT / 'requirements' / f'{name}.txt').read_text()
    found = re.findall(r'^([\w.-]+)==([^\s;]+)', text, re.MULTILINE)
    return {normal(package): version for package, version in found}

  def test_data_files_are_packaged(self):
    for path in (ROOT / 'evojax').rglob('*'):
      if (
          path.is_dir()
          or path.suffix == '.pyc'
          or (path.suffix == '.py' and not path.is_relative_to(PACKAGES))
          or path.name.startswith('.')
      ):
        continue
      with self.subTest(str(path)):
        self.assertTrue(
            any(
                fnmatch.fnmatch(
                    path.relative_to(ROOT).as_posix(),
                    f'{package.replace(".", "/")}/{pattern}',
                )
                for package, patterns in setup.PACKAGE_DATA.items()
                for pattern in patterns
            )
        )

  def test_every_folder_of_sources_is_a_package(self):
    for path in SOURCES:
      with self.subTest(str(path)):
        self.assertTrue((path.parent / '__init__.py').is_file())

  def test_no_path_of_one_machine(self):
    for path in repository_files():
      for number, line in enumerate(path.read_text().splitlines(), 1):
        found = _MACHINE_PATH.search(line)
        if found and path != pathlib.Path(__file__).resolve():
          self.fail(f'{path.relative_to(ROOT)}:{number}: {found[0]}')
      self.assertNotIn(f'{ROOT}/', path.read_text(), str(path))


class ConfigsTest(parameterized.TestCase):

  def test_every_config_and_variant_loads(self):
    """It is locked, with tuples instead of lists, and a new object each
    time."""
    for path in sorted((ROOT / 'configs').glob('*.py')):
      if path.stem in ('common', '__init__'):
        continue
      module = importlib.import_module(f'configs.{path.stem}')
      for variant in module.VARIANTS:
        with self.subTest(f'{path.name}:{variant}'):
          config = module.get_config(variant)
          self.assertTrue(config.is_locked)
          self.assertIsNot(config, module.get_config(variant))
          self._assert_overridable(config)

  def test_default_is_a_variant(self):
    self.assertEqual(
        math_config.get_config().to_dict(),
        math_config.get_config('default').to_dict(),
    )

  def test_unknown_variant(self):
    with self.assertRaisesRegex(ValueError, r'nonsense.*smoke'):
      math_config.get_config('nonsense')

  def _assert_overridable(self, config, prefix='config'):
    """It has no list and no bare None, which flags cannot override."""
    for name in config:
      value = config.get_ref(name) if config[name] is None else config[name]
      if isinstance(value, ml_collections.ConfigDict):
        self.assertTrue(value.is_locked, f'{prefix}.{name}')
        self._assert_overridable(value, f'{prefix}.{name}')
      else:
        self.assertNotIsInstance(value, list, f'{prefix}.{name}')
        if config[name] is None:
          self.assertIsNot(
              value.get_type(), type(None), f'{prefix}.{name}: placeholder'
          )


class NamesTest(parameterized.TestCase):
  """Names read from our modules exist, even in code that no test runs."""

  @parameterized.parameters('evojax', 'benchmarks', 'configs', 'launch')
  def test_attributes_of_modules_exist(self, folder):
    missing = []
    for path in sorted((ROOT / folder).rglob('*.py')):
      if path.is_relative_to(PACKAGES):
        continue
      tree = ast.parse(path.read_text(), str(path))
      ours = {
          alias.asname or alias.name: f'{node.module}.{alias.name}'
          for node in ast.walk(tree)
          if isinstance(node, ast.ImportFrom)
          for alias in node.names
          if _is_ours(f'{node.module}.{alias.name}')
      }
      # A local name may hide a module.
      bound = {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)} | {
          n.id
          for n in ast.walk(tree)
          if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
      }
      for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ours
            and node.value.id not in bound
            and not hasattr(
                importlib.import_module(ours[node.value.id]), node.attr
            )
        ):
          where = f'{path.relative_to(ROOT)}:{node.lineno}'
          missing.append(f'{where} {ours[node.value.id]}.{node.attr}')
    self.assertEmpty(missing)


if __name__ == '__main__':
  absltest.main()
