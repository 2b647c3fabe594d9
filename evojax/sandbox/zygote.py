"""The process that untrusted code is forked from: one slot of a box.

It prepares whatever runs can share, then answers one request at a time. It is
trusted and neither runs nor reads the task; its children do, see `child`.
"""

import gc
import importlib
import os
import runpy
import signal
import site
import socket
import sys
import time
import traceback
from typing import NoReturn

from evojax.sandbox import child
from evojax.sandbox import image
from evojax.sandbox import jail
from evojax.sandbox import linux
from evojax.sandbox import processes
from evojax.sandbox import programs
from evojax.sandbox import tree
from evojax.sandbox import watch
from evojax.sandbox import wire

# The modules that programs import most often; others are loaded on demand.
PRELOAD = (
    'abc bisect bz2 cmath collections collections.abc copy dataclasses datetime'
    ' decimal enum fractions functools hashlib heapq io itertools json lzma'
    ' math numbers operator random re statistics string struct textwrap time'
    ' types typing zlib'
).split()


class Zygote:
  """One slot of a box; see `Box` for the other end."""

  def __init__(self, control: socket.socket, config: wire.Config):
    """Store the connection to the box, and the setup of the slot."""
    self._control, self._config = control, config

  def main(self) -> NoReturn:
    """Prepare the slot, then answer requests until the parent hangs up."""
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

  def _prepare(self) -> None:
    layers, proc = self._config.layers, None
    if sys.platform == 'linux':
      linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
      # Descendants become children of this process, even after several forks.
      linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
      proc = os.open('/proc', os.O_PATH | os.O_DIRECTORY)
    entry = self._preload()
    base_bytes = processes.address_space()
    self._enter()
    if {'uid', 'landlock', 'seccomp'} & set(layers):
      linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    # A child starts with these handlers, and a program may rely on them.
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    self._child = child.Child(self._config, entry, base_bytes, proc)
    self._watch = watch.Watch(self._config, proc)
    gc.collect()
    gc.freeze()  # Pages that the children share stay shared.

  def _preload(self) -> dict[str, object] | None:
    """Import what runs need; return the names that the entry defines."""
    if self._config.profile == 'program':
      site.setquit()  # Many programs end with exit().
      programs.open_stdin_by_name()  # First, as a module may store `open`.
      sys.meta_path.append(image.Finder(self._config.image))
      for name in (*PRELOAD, *self._config.preload):
        importlib.import_module(name)
      # Landlock may prevent a program from listing the library again.
      for finder in filter(None, sys.path_importer_cache.values()):
        finder.invalidate_caches = lambda: None
    if self._config.profile == 'repository':
      sys.meta_path.append(image.Finder(self._config.image))
    if self._config.entry is None:
      return None
    file, path = self._config.entry
    sys.path += path
    entry = runpy.run_path(file)
    if 'warm' in entry:
      entry['warm']()
    return entry

  def _enter(self) -> None:
    """Enter the tree, the user and the directory that runs see."""
    config, scratch = self._config, self._config.scratch
    if config.own_root:
      scratch = jail.build_root(config, self._quota())
      self._config = config._replace(scratch=scratch)
    elif 'namespaces' in config.layers and scratch:
      linux.make_mounts_private()
      linux.mount_tmpfs(scratch, self._quota())
    if 'uid' in config.layers:
      jail.become(config.user)
    if scratch:
      os.chdir(scratch)
      folders = dict.fromkeys(tree.FOLDERS, scratch)
      if config.profile == 'repository':
        folders = {name: f'{scratch}/{name}' for name in folders}
        self._make_folders(scratch)
        os.environ.update(PYTHONPATH=f'{scratch}/image')
      os.environ.update(HOME=folders['home'], TMPDIR=folders['tmp'])
      os.environ.update(config.environment)

  def _make_folders(self, scratch: str) -> None:
    """Make the folders of a repository, and a folder of links to packages."""
    for name in (*tree.FOLDERS, 'image'):
      os.mkdir(f'{scratch}/{name}')
    for path in self._config.image:
      os.symlink(path, f'{scratch}/image/{os.path.basename(path)}')

  def _quota(self) -> str:
    """Return the mount options of the directory's file system."""
    config = self._config
    owner = os.geteuid() if config.user is None else config.user
    options = f'mode=0700,uid={owner}'
    if 'quota' in config.layers:
      # The directory itself takes one of the inodes.
      options += f',size={config.disk_bytes},nr_inodes={config.files + 1}'
    return options

  # -------------------------------------------------------------- once per run

  def _answer(self) -> None:
    """Answer one request.

    A child can inspect the frames that it was forked from. At that time they
    hold no local variables, neither of its own run nor of the previous one.
    """
    # Forked in advance, so that it is ready when a request comes.
    process, end = self._fork()
    message, descriptors = wire.receive(self._control)
    answer = self._serve(process, end, wire.Request(**message), descriptors)
    wire.send(self._control, answer._asdict())

  def _fork(self) -> tuple[int, socket.socket]:
    """Return a child that waits for one request, and its socket."""
    end, theirs = socket.socketpair()
    process = os.fork()
    if not process:
      end.close()
      self._child.main(theirs)
    theirs.close()
    return process, end

  def _serve(
      self,
      process: int,
      end: socket.socket,
      request: wire.Request,
      descriptors: list[int],
  ) -> wire.Answer:
    """Let a child run a request, watch it, and return how it ended."""
    config, tasks = self._config, 0
    children = processes.children_seconds()
    spent = processes.cpu_seconds(process)
    if config.profile == 'repository' and not config.counted:
      tasks = processes.tasks_of_user()
    before = watch.Usage(time.monotonic(), spent, children)
    with end:
      # The child cannot reveal a name that it does not know.
      shown = request._replace(run='', tasks=tasks)
      wire.send(end, shown._asdict(), descriptors)
    for descriptor in descriptors:
      os.close(descriptor)
    status, waited = self._watch.wait(process, request, before)
    processes.kill(process)  # Does nothing if it has ended.
    wall = time.monotonic() - before.start
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if 'sweep' in config.layers:
      # End everything that the run left running, and empty its directory.
      processes.end_children(everyone='namespaces' in config.layers)
      repository = config.profile == 'repository'
      if config.scratch and (request.clear or config.profile == 'program'):
        tree.clear(config.scratch)
      if repository and request.clear:
        self._make_folders(config.scratch)
    used = processes.children_seconds() - before.children - before.process
    return wire.Answer(request.run, status, code, wall, max(0.0, used), waited)
