"""Create a Python environment with the pinned packages, or reuse it.

    python launch/environment.py [--dry_run] NAME [SET ...]

This prints the path of the environment's Python; all other output goes to
stderr. --dry_run prints the path without creating the environment. NAME '' is
<checkout>/.venv, 'test' is <checkout>/.venv-test. A SET is a file
requirements/SET.txt; 'accelerator' is the file for the detected hardware. With
EVOJAX_ENVIRONMENTS=DIR, environments are in DIR/NAME-HASH instead, where many
checkouts share them.

The hash of an environment's pins is in its stamp file, which is written last.
An environment that is incomplete, or whose pins have changed, is created again.
Only the standard library is used; packages are installed by uv if possible,
otherwise by pip.
"""

import contextlib
import errno
import fcntl
import hashlib
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent
ACCELERATORS = ('cpu', 'cuda12', 'cuda13', 'tpu')
# Sets that are installed without base.txt, since they need other versions of
# its packages.
ALONE = ('sglang', 'sglang_cpu', 'sglang_jax')
# Sets that do not list all dependencies, which differ between builds.
OPEN = ('sglang', 'torch')
UV = 'uv==0.13.8'
STAMP = 'evojax-pins'

_GOOGLE = '0x1ae0'  # PCI vendor, also of Google's network cards and disks.
# TPU v3, v4, v5p, v5e, v6e, 7x; see jax/_src/hardware_utils.py.
_TPUS = ('0x0027', '0x005e', '0x0062', '0x0063', '0x006f', '0x0076')


def detect_accelerator(pci: pathlib.Path) -> str:
  """Return the accelerator that jax can use here, one of ACCELERATORS.

  Args:
    pci: /sys/bus/pci/devices, which lists vendor and device ids.

  Raises:
    ValueError: If EVOJAX_ACCELERATOR is not one of ACCELERATORS.
  """
  wanted = os.environ.get('EVOJAX_ACCELERATOR')
  if wanted:
    if wanted not in ACCELERATORS:
      raise ValueError(f'EVOJAX_ACCELERATOR={wanted} is not in {ACCELERATORS}')
    return wanted
  if os.environ.get('JAX_PLATFORMS') == 'cpu':
    return 'cpu'
  for device in pci.glob('*'):
    with contextlib.suppress(OSError):
      vendor = (device / 'vendor').read_text().strip()
      if vendor == _GOOGLE:
        if (device / 'device').read_text().strip() in _TPUS:
          return 'tpu'
  return _detect_cuda()


def _detect_cuda() -> str:
  """Return 'cuda12' or 'cuda13' by the driver's version; 'cpu' without GPU."""
  try:
    query = subprocess.run(
        ['nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader'],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
  except (OSError, subprocess.SubprocessError):
    return 'cpu'
  version = re.match(r'\d+', query.stdout.strip())
  if version is None:
    return 'cpu'
  # CUDA 13 needs driver 580, CUDA 12 needs 525.
  return 'cuda13' if int(version[0]) >= 580 else 'cuda12'


def requirement_files(sets: list[str]) -> list[pathlib.Path]:
  """Return the files of the sets, after base.txt unless a set is in ALONE.

  Raises:
    ValueError: If a set has no file.
  """
  files = []
  if not set(sets) & set(ALONE):
    files.append(ROOT / 'requirements' / 'base.txt')
  for name in sets:
    if name == 'accelerator':
      name = detect_accelerator(pathlib.Path('/sys/bus/pci/devices'))
    if name != 'cpu':  # base.txt is all that a CPU needs.
      files.append(ROOT / 'requirements' / f'{name}.txt')
  missing = [str(file) for file in files if not file.is_file()]
  if missing:
    raise ValueError(f'no such set of requirements: {missing}')
  return files


def pins_hash(files: list[pathlib.Path]) -> str:
  """Return a hash of the files' names and contents, and of this script."""
  digest = hashlib.sha256()
  for file in [pathlib.Path(__file__), *files]:
    digest.update(f'{file.name}\n'.encode() + file.read_bytes())
  return digest.hexdigest()


def environment_path(name: str, pins: str) -> pathlib.Path:
  """Return the directory of the environment."""
  shared = os.environ.get('EVOJAX_ENVIRONMENTS')
  if shared:
    directory = pathlib.Path(shared).expanduser().absolute()
    directory.mkdir(parents=True, exist_ok=True)
    return directory / f'{name or "run"}-{pins[:12]}'
  return ROOT / ('.venv-' + name if name else '.venv')


def _say(text: str) -> None:
  print(f'[evojax] {text}', file=sys.stderr, flush=True)


@contextlib.contextmanager
def _lock(path: pathlib.Path):
  """Lock the creation of an environment; wait while another process does it."""
  with path.with_name(path.name + '.lock').open('w') as file:
    os.set_inheritable(file.fileno(), True)
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      _say(f'another process is making {path}; waiting for it')
      fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _works(python: pathlib.Path) -> bool:
  """Return True if the interpreter runs and is new enough."""
  check = 'import sys; sys.exit(sys.version_info < (3, 11))'
  try:
    return subprocess.run([python, '-c', check], check=False).returncode == 0
  except OSError:
    return False


def _run(python: pathlib.Path, *arguments: str | pathlib.Path) -> None:
  """Run a module of the environment; its errors go to stderr."""
  subprocess.run(
      [python, '-m', *arguments],
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      check=True,
      # The child inherits the lock, so that an installer that outlives this
      # process still holds it.
      close_fds=False,
  )


def _install(python: pathlib.Path, files: list[pathlib.Path]) -> None:
  """Install the packages that the files list, by uv if possible.

  The files list every package, so dependencies are not resolved; files of OPEN
  are the exception.
  """
  pip = ('pip', '--disable-pip-version-check', 'install', '--quiet')
  open_ = [file for file in files if file.stem in OPEN]
  pins = [a for file in files if file not in open_ for a in ('-r', file)]
  _run(python, 'ensurepip')
  if pins:
    try:
      _run(python, *pip, UV)
      _run(
          python,
          'uv',
          'pip',
          'install',
          '--quiet',
          '--no-deps',
          # Otherwise the first run would compile and print the warnings of
          # packages' sources.
          '--compile-bytecode',
          '--python',
          python,
          *pins,
      )
    except subprocess.CalledProcessError:
      _say('uv cannot install here; pip takes some minutes')
      _run(python, *pip, '--no-deps', *pins)
  for file in open_:
    _run(
        python,
        *pip,
        '--retries',
        '0',
        '--no-warn-conflicts',  # sglang_cpu omits many packages on purpose.
        '-c',
        files[0],
        '-r',
        file,
    )


def _make(path: pathlib.Path, files: list[pathlib.Path]) -> None:
  """Create the environment; its stamp still says that it is incomplete.

  Raises:
    ValueError: If the path or this Python cannot be used.
  """
  python, stamp = path / 'bin' / 'python', path / STAMP
  if stamp.exists():  # Created by evojax, and outdated or incomplete.
    shutil.rmtree(path)
  if path.exists() and not _works(python):
    raise ValueError(
        f'{path} was not made by evojax and holds no Python >= 3.11; move it'
        ' away'
    )
  if not path.exists():
    if importlib.util.find_spec('ensurepip') is None:
      raise ValueError(
          f'{sys.executable} cannot make virtual environments; on Debian and'
          ' Ubuntu: apt install python3-venv'
      )
    path.mkdir()
    stamp.write_text('incomplete')
    venv.EnvBuilder(symlinks=True).create(path)
    (path / '.gitignore').write_text('*\n')
  stamp.write_text('incomplete')
  _install(python, files)


def _python_of(
    name: str, sets: list[str]
) -> tuple[pathlib.Path, list[pathlib.Path], str]:
  """Return an environment's Python, its requirement files, and their hash."""
  files = requirement_files(sets)
  pins = pins_hash(files)
  return environment_path(name, pins) / 'bin' / 'python', files, pins


def ensure(name: str, sets: list[str]) -> pathlib.Path:
  """Return the Python of a complete environment; create it if needed.

  Args:
    name: Name of the environment; '' is the one that runs evojax.
    sets: See `requirement_files`.

  Raises:
    ValueError: If a set does not exist, or this Python cannot be used.
    OSError: If the environment cannot be written.
    subprocess.CalledProcessError: If a package cannot be installed.
  """
  python, files, pins = _python_of(name, sets)
  path = python.parents[1]
  stamp = path / STAMP

  def complete() -> bool:
    return stamp.is_file() and stamp.read_text() == pins and _works(python)

  if complete():
    return python
  with _lock(path):
    if complete():
      return python
    start = time.monotonic()
    names = ', '.join(file.stem for file in files)
    _say(f'making {path} ({names}); the first time takes a minute or two')
    _make(path, files)
    temporary = stamp.with_suffix('.tmp')
    temporary.write_text(pins)
    temporary.replace(stamp)
    _say(f'{path} is ready after {time.monotonic() - start:.0f} s')
  return python


def main(arguments: list[str]) -> int:
  """Print the path of the environment's Python; return the exit status."""
  dry_run = arguments[:1] == ['--dry_run']
  name, *sets = arguments[dry_run:]
  try:
    print(_python_of(name, sets)[0] if dry_run else ensure(name, sets))
  except subprocess.CalledProcessError:
    _say(
        'error: a package cannot be installed, see above; the same command'
        ' tries again'
    )
    return 1
  except (ValueError, OSError) as error:
    _say(f'error: {error}')
    if getattr(error, 'errno', 0) in (errno.EACCES, errno.EPERM, errno.EROFS):
      _say(
          'make the checkout writable, or keep environments elsewhere with'
          ' EVOJAX_ENVIRONMENTS=DIR'
      )
    return 1
  except KeyboardInterrupt:
    return 130
  return 0


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
