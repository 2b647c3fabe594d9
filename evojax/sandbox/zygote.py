"""The process that untrusted code is forked from; see `box` for the other end.

Run as a script. A supervisor outlives it: when the parent is gone, or the
zygote, the supervisor sees to it that nothing is left. The zygote prepares
whatever many runs can share, then answers one request at a time. It is trusted,
and neither runs nor reads what is to be run; its children are not, and do.
"""

import atexit
import contextlib
import errno
import fcntl
import gc
import importlib
import io
import json
import math
import mmap
import os
import resource
import runpy
import select
import signal
import site
import socket
import sys
import threading
import time
import traceback
import types

if __name__ == '__main__':  # There is no `site`.
  sys.path.insert(0, sys.argv[1])

from evojax.sandbox import jail  # noqa: E402
from evojax.sandbox import landlock  # noqa: E402
from evojax.sandbox import linux  # noqa: E402
from evojax.sandbox import seccomp  # noqa: E402
from evojax.sandbox import tree  # noqa: E402
from evojax.sandbox import wire  # noqa: E402

# What programs import most; the rest is read when it is needed.
PRELOAD = (
    'abc bisect bz2 cmath collections collections.abc copy dataclasses datetime'
    ' decimal enum fractions functools hashlib heapq io itertools json lzma'
    ' math numbers operator random re statistics string struct textwrap time'
    ' types typing zlib'
).split()
_WATCH_SECONDS = 0.01  # Between two looks at a directory without a quota.
_STACK_BYTES = 64 << 20
_OPEN_FILES = {'program': 64, 'pure': 16, 'repository': 512}


# ---------------------------------------------------------------- supervisor


def supervise():
  """Starts the zygote; ends it when the parent is gone, and cleans up."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  # Out of the way of what a child puts at 0 to 3.
  control = socket.socket(fileno=fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 10))
  null = os.open(os.devnull, os.O_RDWR)
  os.dup2(null, 0)
  os.dup2(null, 1)
  os.close(null)
  config, _ = wire.receive(control)
  layers = config['layers']
  if sys.platform == 'linux':
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
  own_user_namespace = 'namespaces' in layers and jail.enter_namespaces()
  process = os.fork()
  if not process:
    Zygote(control, config, own_user_namespace).main()
  poll = select.poll()
  poll.register(control, 0)  # Hang-up is told without asking.
  if hasattr(os, 'pidfd_open'):
    poll.register(os.pidfd_open(process), select.POLLIN)
    poll.poll()
  else:
    while not poll.poll(100) and not _has_exited(process):
      pass
  _kill(process)
  # Process 1 of a namespace takes all of it along, and is gone after it.
  os.waitpid(process, 0)
  if 'namespaces' not in layers:
    _end_children()
  if config['scratch']:
    try:
      tree.clear(config['scratch'])
      os.rmdir(config['scratch'])
    except OSError:
      pass  # The parent, if there is one, finds it.
  os._exit(0)


def _kill(process):
  try:
    os.kill(process, signal.SIGKILL)
  except ProcessLookupError:
    pass


def _end_children(everyone=False):
  """Ends all descendants: as a subreaper's, each is a child in the end.

  Args:
    everyone: As process 1 of a namespace: all at once, whoever they are.
  """
  while True:
    try:
      if os.waitpid(-1, os.WNOHANG)[0]:
        continue
    except ChildProcessError:
      return
    found = [-1] if everyone else _children()
    for child in found:
      _kill(child)
    if not found:
      return  # This system does not say whom; it is T2 at best.
    time.sleep(0.001)


def _children():
  try:
    with open(f'/proc/self/task/{threading.get_native_id()}/children') as file:
      return [int(child) for child in file.read().split()]
  except OSError:
    return []


# -------------------------------------------------------------------- zygote


class Zygote:
  """One slot of a box."""

  def __init__(self, control, config, own_user_namespace):
    self._control, self._config = control, config
    self._layers = frozenset(config['layers'])
    self._profile = config['profile']
    self._scratch = config['scratch']
    self._in_user_namespace = own_user_namespace
    self._linux = bool(self._layers & {'uid', 'landlock', 'seccomp'})
    # A user nobody else is: then the kernel counts its processes.
    self._counted = own_user_namespace
    self._entry = self._seccomp = self._proc = None
    self._steps = []

  def main(self):
    """Never returns."""
    try:
      self._prepare()
      wire.send(self._control, {'ready': os.getpid()})
      while True:
        self._answer()
    except (EOFError, BrokenPipeError, ConnectionResetError):
      os._exit(0)
    except BaseException:
      traceback.print_exc()
      sys.stderr.flush()
    finally:
      os._exit(1)

  # ------------------------------------------------------------- once per slot

  def _prepare(self):
    if sys.platform == 'linux':
      linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
      # Its descendants come here, however often they forked.
      linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
      self._proc = os.open('/proc', os.O_PATH | os.O_DIRECTORY)
    self._preload()
    self._memory = _address_space()
    inside = 'namespaces' in self._layers
    if inside and 'root' in self._layers:
      pure = self._profile == 'pure'
      more = self._config['readable']
      jail.build_root(
          jail.readable(self._profile, more),
          jail.hidden(more),
          None if pure else self._quota(),
          not pure,
      )
      self._scratch = None if pure else jail.SCRATCH
    elif inside and self._scratch:
      linux.make_mounts_private()
      linux.mount_tmpfs(self._scratch, self._quota())
    if 'uid' in self._layers:
      # In a user namespace of its own, nobody else is there.
      user = None if self._in_user_namespace else self._config['user']
      jail.become(user)
      self._counted |= user is not None
    if self._scratch:
      os.chdir(self._scratch)
      folders = dict.fromkeys(tree.FOLDERS, self._scratch)
      if self._profile == 'repository':
        folders = {name: f'{self._scratch}/{name}' for name in folders}
        for folder in folders.values():
          os.mkdir(folder)
      os.environ.update(HOME=folders['home'], TMPDIR=folders['tmp'])
      os.environ.update(self._config['environment'])
    # Only this watches a directory that is on a disk of the host's.
    self._watch = self._scratch and 'quota' in self._layers and not inside
    # Nor does the kernel count the threads of a user who is also somebody else.
    self._watch_threads = (
        self._profile == 'program'
        and not self._counted
        and {'seccomp', 'rlimits'} <= self._layers
    )
    if self._linux:
      linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    # What a child does first, and last.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == 'linux':
      self._steps.append(
          linux.prepare(
              'prctl', linux.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0
          )
      )
    if 'landlock' in self._layers:
      rules = landlock.rule_set(
          jail.landlock_rules(
              self._profile,
              self._scratch,
              self._config['readable'],
              own_root={'namespaces', 'root'} <= self._layers,
          )
      )
      self._steps.append(landlock.prepare(rules))
    if 'seccomp' in self._layers:
      rules = seccomp.rules(
          self._profile,
          # What Landlock leaves open; without it all is.
          own_user=self._counted or 'landlock' not in self._layers,
      )
      self._seccomp = seccomp.prepare(seccomp.assemble(rules))
    if 'rlimits' in self._layers:
      for name, value in (
          # A dump of a byte is none, and at 1 alone Linux does not start a
          # program of the host's that would take one either: core(5).
          ('RLIMIT_CORE', 1 if sys.platform == 'linux' else 0),
          ('RLIMIT_STACK', _STACK_BYTES),
          ('RLIMIT_NOFILE', _OPEN_FILES[self._profile]),
          ('RLIMIT_MEMLOCK', 0),
          ('RLIMIT_MSGQUEUE', 0),
      ):
        _set_limit(name, value)
    self._ours = [n for n in sys.modules if n.split('.')[0] == 'evojax']
    gc.collect()
    gc.freeze()  # What the children share stays shared.

  def _preload(self):
    if self._profile == 'program':
      site.setquit()  # exit() is what many programs end with.
      for name in PRELOAD:
        importlib.import_module(name)
    if self._config['entry']:
      sys.path += self._config['path']
      self._entry = runpy.run_path(self._config['entry'])
      if 'warm' in self._entry:
        self._entry['warm']()

  def _quota(self):
    owner = self._config['user'] if 'uid' in self._layers else None
    if owner is None or self._in_user_namespace:
      owner = os.geteuid()
    options = f'mode=0700,uid={owner}'
    if 'quota' not in self._layers:
      return options
    # The directory itself is one of the inodes.
    return (
        f'{options},size={self._config["disk_bytes"]},'
        f'nr_inodes={self._config["files"] + 1}'
    )

  # -------------------------------------------------------------- once per run

  def _answer(self):
    """Answers one request.

    A child can look at the frames that it was forked from: no local variable is
    bound in them before, by this run or the one before.
    """
    # Forked before it is needed: by then it is ready to run.
    process, end = self._fork()
    request, descriptors = wire.receive(self._control)
    wire.send(self._control, self._serve(process, end, request, descriptors))

  def _fork(self):
    """(process, socket) of a child that waits for one request."""
    end, theirs = socket.socketpair()
    process = os.fork()
    if not process:
      end.close()
      self._child(theirs)
    theirs.close()
    return process, end

  def _serve(self, process, end, request, descriptors):
    """Has a child run a request, watches it, says what became of it."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = _cpu_seconds(process)
    request['tasks'] = 0 if self._counted else _tasks_of_user(self._profile)
    start = time.monotonic()
    limits = ('cpu', 'memory', 'output', 'tasks')
    with end:
      wire.send(end, {name: request[name] for name in limits}, descriptors)
    for descriptor in descriptors:
      os.close(descriptor)
    status, waited = self._wait(process, request, start, spent, before)
    wall = time.monotonic() - start
    _, code = os.waitpid(process, 0)
    if 'sweep' in self._layers:
      self._sweep()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        'run': request['run'],
        'status': status,
        'code': os.waitstatus_to_exitcode(code),
        'wall': wall,
        'cpu': max(0.0, sum(after[:2]) - sum(before[:2]) - spent),
        'waited': waited,
    }

  def _wait(self, process, request, start, spent, before):
    """(why it was killed or '', seconds that it had to wait for a core)."""
    watched = 'clock' in self._layers
    wall, cpu = request['wall'], request['cpu']
    poll = select.poll()
    exited = None
    if hasattr(os, 'pidfd_open'):
      exited = os.pidfd_open(process)
      poll.register(exited, select.POLLIN)
    try:
      while True:
        used = _cpu_seconds(process) - spent if watched else 0.0
        left = min(start + wall - time.monotonic(), cpu - used)
        if watched and left <= 0:
          break
        pause = left if watched else wall + 5
        if self._watch or self._watch_threads or exited is None:
          pause = min(pause, _WATCH_SECONDS)
        # A millisecond more: the kernel's clocks tick.
        if poll.poll(pause * 1000 + 1) or _has_exited(process):
          return '', 0.0
        if self._watch and self._is_over_quota():
          _kill(process)
          return 'disk_limit', 0.0
        if self._watch_threads and self._is_crowded(process):
          _kill(process)
          return 'crowded', 0.0
        if not watched and time.monotonic() - start > wall + 5:
          break  # Nothing hangs for ever, even where this layer is off.
    finally:
      if exited is not None:
        os.close(exited)
    # It may have ended while this process had to wait for a core itself.
    if _has_exited(process):
      return '', 0.0
    waited = self._waited_seconds(_cpu_seconds(process), before)
    late = 'cpu_limit' if used >= cpu else 'timeout'
    _kill(process)
    return late, waited

  def _is_over_quota(self):
    """Whether the directory is too full, or too deep to be looked through."""
    size = count = 0
    folders = [self._scratch]
    while folders:
      folder = folders.pop()
      try:
        with os.scandir(folder) as entries:
          for entry in entries:
            size += entry.stat(follow_symlinks=False).st_blocks * 512
            count += 1
            if entry.is_dir(follow_symlinks=False):
              folders.append(entry.path)
      except OSError as error:
        # Else it is gone meanwhile, or shut by whoever made it.
        if error.errno == errno.ENAMETOOLONG:
          return True
      if size > self._config['disk_bytes'] or count > self._config['files']:
        return True
    return False

  def _is_crowded(self, process):
    """Whether a process has more threads than it may have."""
    try:
      folder = os.stat(f'{process}/task', dir_fd=self._proc)
    except OSError:  # It is gone.
      return False
    return folder.st_nlink - 2 > self._config['processes']

  def _waited_seconds(self, used, before):
    """Seconds that a thread of a run was ready and strangers had its core.

    What threads wait for each other is no excuse, nor what processes do: a
    program that has enough of them would never be late. While one waits, its
    core runs another one, for no longer than the rest of `used`, or a stranger.

    Args:
      used: CPU seconds of the process, of threads that have ended as well.
      before: Usage of all that were waited for before the run.
    """
    most = 0.0
    try:
      tasks = list(self._tasks_below())
      if self._profile == 'repository':
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = sum(after[:2]) - sum(before[:2])
        used += sum(map(self._spent, {process for process, _ in tasks}))
      for process, task in tasks:
        text = self._read(f'{process}/task/{task}/schedstat')
        ran, waited = (int(n) / 1e9 for n in text.split()[:2])
        most = max(most, waited - max(0.0, used - ran))
    except (OSError, IndexError, TypeError, ValueError):
      pass  # A kernel that does not say.
    return most

  def _tasks_below(self):
    """(process, thread) of all descendants, as /proc has them."""
    parents = [os.readlink('self', dir_fd=self._proc)]
    while parents:
      parent = parents.pop()
      for task in self._threads(parent):
        children = self._read(f'{parent}/task/{task}/children').split()
        parents += children
        for child in children:
          yield from ((child, thread) for thread in self._threads(child))

  def _threads(self, process):
    folder = os.open(f'{process}/task', os.O_DIRECTORY, dir_fd=self._proc)
    try:
      return os.listdir(folder)
    finally:
      os.close(folder)

  def _spent(self, process):
    """CPU seconds of a process and of those that it has waited for."""
    # Behind its name, which may hold anything.
    fields = self._read(f'{process}/stat').rpartition(')')[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf('SC_CLK_TCK')

  def _read(self, path):
    descriptor = os.open(path, os.O_RDONLY, dir_fd=self._proc)
    try:
      return os.read(descriptor, 1 << 16).decode()
    finally:
      os.close(descriptor)

  def _sweep(self):
    """Ends whatever the run has left running, and empties its directory."""
    _end_children(everyone='namespaces' in self._layers)
    if self._scratch and self._profile == 'program':
      tree.clear(self._scratch)

  # --------------------------------------------------------- the untrusted side

  def _child(self, end):
    """Gives up everything, then runs what it is sent. Never returns."""
    code = 125
    try:
      self._go_first()
      for step in self._steps:
        step()
      try:
        request, descriptors = wire.receive(end)
      except (EOFError, ConnectionResetError):
        os._exit(0)
      *streams, task = descriptors
      for number, stream in enumerate(streams):
        os.dup2(stream, number)
      if 'rlimits' in self._layers:
        self._limit(request)
      with open(task, 'rb') as file:
        run = self._runner(json.loads(file.read()))
      if 'descriptors' in self._layers:
        _close_from(3)
      if self._seccomp is not None:
        self._seccomp()
      code = run()
    except BaseException:
      code = _print_error(None)
    finally:
      os._exit(code)

  def _go_first(self):
    """Where the machine runs out of memory, a run is ended, and nobody else."""
    try:
      score = os.open('self/oom_score_adj', os.O_WRONLY, dir_fd=self._proc)
      os.write(score, b'1000')
      os.close(score)
    except OSError:
      pass  # Not everyone may, or there is no /proc.

  def _limit(self, request):
    """The limits that may differ from run to run."""
    cpu = math.ceil(request['cpu']) + 1  # The clock is finer; this is behind.
    size = max(request['output'] + 1, self._config['disk_bytes'])
    _set_limit('RLIMIT_CPU', cpu)
    _set_limit('RLIMIT_FSIZE', size)
    _set_limit('RLIMIT_AS', self._memory + request['memory'])
    if self._counted or self._profile == 'repository':
      # The zygote and the child are two.
      processes = self._config['processes'] + request['tasks'] + 2
      _set_limit('RLIMIT_NPROC', processes)

  def _runner(self, task):
    """What runs after the last door is shut."""
    if 'command' in task:
      command = task['command']
      folder = os.path.join(self._scratch, 'tree', task['folder'])
      environment = dict(os.environ, **task['environment'])
      return lambda: _execute(command, folder, environment)
    if 'operation' in task:
      operation, scratch = task['operation'], self._scratch
      return lambda: tree.OPERATIONS[operation](scratch, task)
    source = task['program']
    if self._entry is not None:
      call, size = self._entry['call'], os.fstat(0).st_size
      data = mmap.mmap(0, size, prot=mmap.PROT_READ) if size else b''
      return lambda: _call(call, source, memoryview(data))
    for name in self._ours:
      sys.modules.pop(name, None)
    return lambda: _run_program(source)


def _set_limit(name, value):
  """Both the soft and the hard limit; never above the one that holds."""
  kind = getattr(resource, name, None)
  if kind is None:
    return
  hard = resource.getrlimit(kind)[1]
  if hard != resource.RLIM_INFINITY:
    value = min(value, hard)
  try:
    resource.setrlimit(kind, (value, value))
  except (ValueError, OSError):  # macOS does not limit address space.
    if sys.platform == 'linux':
      raise


def _execute(command, folder, environment):
  try:
    os.chdir(folder)
    os.execvpe(command[0], command, environment)
  except OSError as error:
    print(f'{command[0]}: {error.strerror}', file=sys.stderr, flush=True)
    return 126 if error.errno == errno.EACCES else 127


def _call(function, source, data):
  """A pure function: what it returns is written to stdout."""
  answer = function(source, data)
  rest = memoryview(answer).cast('B')
  while rest:
    rest = rest[os.write(1, rest) :]
  return 0


def _run_program(source):
  """Runs a source as `python main.py` would."""
  main = types.ModuleType('__main__')
  main.__file__ = 'main.py'
  sys.modules['__main__'] = main
  sys.argv[:] = ['main.py']
  # It may go as deep as it could without what stands around it.
  sys.setrecursionlimit(sys.getrecursionlimit() + _depth())
  code = 0
  try:
    exec(compile(source, 'main.py', 'exec'), main.__dict__)
  except SystemExit as error:
    code = _exit_code(error)
  except BaseException:
    code = _print_error('main.py')
  try:
    threading._shutdown()  # Waits for threads that are not daemons.
    atexit._run_exitfuncs()
    _flush(sys.stdout)
  except BaseException:
    # A whole traceback: without one it would look as if it were no Python.
    code = code or _print_error(None)
  try:
    # Those that nobody has closed. What fails here is nobody's fault: one that
    # is detached, for example.
    for file in (*gc.get_objects(), sys.__stdout__, sys.stderr):
      if issubclass(type(file), (io.TextIOWrapper, io.BufferedWriter)):
        with contextlib.suppress(Exception):
          _flush(file)
  except BaseException:
    pass
  return code


def _flush(file):
  if file is not None and not getattr(file, 'closed', False):
    file.flush()


def _depth():
  """Of the calls of this process, down to an `exec` of the caller's."""
  depth, frame = 1, sys._getframe(1)
  while frame:
    depth, frame = depth + 1, frame.f_back
  return depth


def _exit_code(error):
  if error.code is None:
    return 0
  if isinstance(error.code, int):
    return error.code & 0xFF
  print(error.code, file=sys.stderr)
  return 1


def _print_error(name):
  """The traceback, from the first line of the program's own; returns 1."""
  kind, error, trace = sys.exc_info()
  while name and trace and trace.tb_frame.f_code.co_filename != name:
    trace = trace.tb_next
  try:
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
  except BaseException:
    pass
  return 1


# ---------------------------------------------------------------------- helpers


def _close_from(first):
  if sys.platform == 'linux':
    linux.close_from(first)
  else:
    os.closerange(first, 1 << 12)


def _has_exited(process):
  """Whether a child has ended; it stays to be waited for."""
  if hasattr(os, 'waitid'):
    options = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process, options) is not None
  # macOS, before Python 3.13.
  event = select.kevent(
      process,
      select.KQ_FILTER_PROC,
      select.KQ_EV_ADD | select.KQ_EV_ONESHOT,
      select.KQ_NOTE_EXIT,
  )
  queue = select.kqueue()
  try:
    return bool(queue.control([event], 1, 0))
  except ProcessLookupError:  # It had ended before.
    return True
  finally:
    queue.close()


def _cpu_seconds(process):
  """Of all threads of a process that has not been waited for."""
  if sys.platform != 'linux':
    return 0.0
  # The kernel's name for another process's clock: CPUCLOCK_SCHED.
  return time.clock_gettime(~process << 3 | 2)


def _address_space():
  """Bytes that the interpreter itself takes."""
  try:
    with open('/proc/self/statm') as file:
      return int(file.read().split()[0]) * resource.getpagesize()
  except OSError:
    return 0


def _tasks_of_user(profile):
  """Threads that this user runs, here and elsewhere."""
  if profile != 'repository' or sys.platform != 'linux':
    return 0
  count, user = 0, os.geteuid()
  for name in os.listdir('/proc') if os.path.isdir('/proc') else ():
    try:
      if name.isdigit() and os.stat(f'/proc/{name}').st_uid == user:
        count += len(os.listdir(f'/proc/{name}/task'))
    except OSError:  # Gone meanwhile.
      continue
  return count


if __name__ == '__main__':
  sys.path.remove(sys.argv[1])
  supervise()
