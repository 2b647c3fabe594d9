"""Checkpoints: one atomic, verified directory per step.

    <directory>/step_000012/state/       arrays, written by Orbax
    <directory>/step_000012/meta.json    metadata, shapes and dtypes by path,
                                         and the speed of an earlier save
    <directory>/step_000012/SHA256SUMS   hash of every file, for `sha256sum -c`

A step is written as `step_000012.tmp`, made durable, and renamed: a directory
without the suffix is complete. An object store cannot rename directories; there
`mirror` makes all files of a step valid at once. Orbax does not checksum array
data, so a file that is damaged later would silently give wrong numbers;
therefore a restore checks the hashes.

Arrays are saved as OCDBT databases, one per process, which process 0 merges in
their shared directory. If a run of several processes saves to an object store,
there is no shared directory. The arrays are then Zarr files, one per chunk:
each process uploads the chunks that it writes, process 0 uploads all other
files, and a restore downloads and checks in each process only what it needs,
see `chunks`. Both formats can be restored by any number of processes.
"""

from collections.abc import Callable, Collection, Mapping
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import time
from typing import Any

from absl import logging
import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint._src.metadata import array_metadata_store

from evojax.runtime import chunks
from evojax.runtime import copies
from evojax.runtime import decisions
from evojax.runtime import durable
from evojax.runtime import messages
from evojax.runtime import mirror
from evojax.runtime import save_parts
from evojax.runtime import sharding
from evojax.runtime import waits

PyTree = Any

_STEP = re.compile(r'step_(\d{6,})')
_UNFINISHED = '.tmp'
_SUMS = 'SHA256SUMS'
# Limit for all processes to write, hash and upload their files: Orbax's default
# of ten minutes is too short for a large checkpoint on a slow disk. Dead
# processes are detected by `peers`, not by this limit.
_BARRIER_SECONDS = 3600
# Assumed speed of each process that writes, before a run's first save: that of
# a slow network disk.
_BYTES_PER_SECOND = 100e6
# Key in meta.json: the speed of each process in the last save before this one.
_SPEED = 'bytes_per_second'


class CheckpointError(ValueError):
  """A checkpoint cannot be written or restored; the message says what to do."""


def _form(leaf: Any) -> dict[str, Any]:
  """Return a leaf's shape and dtype; typed keys have dtypes like 'key<fry>'."""
  return {'shape': list(leaf.shape), 'dtype': str(leaf.dtype)}


def _is_device_array(leaf: Any) -> bool:
  return isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct))


def _flatten(tree: PyTree) -> dict[str, Any]:
  """Return {"params/embed": leaf, ...}; Python numbers become NumPy arrays."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {
      jax.tree_util.keystr(path, simple=True, separator='/'): (
          leaf if _is_device_array(leaf) else np.asarray(leaf)
      )
      for path, leaf in leaves
  }


def _digest(path: pathlib.Path) -> str:
  with path.open('rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def _sums(
    folder: pathlib.Path, counts: Callable[[str], bool] = lambda name: True
) -> dict[str, str]:
  """Return relative path -> SHA-256 of every file except SHA256SUMS.

  Args:
    folder: Directory of a step.
    counts: Takes a relative path; returns True if the file is wanted.
  """
  found = (path for path in sorted(folder.rglob('*')) if path.is_file())
  paths = [path for path in found if path != folder / _SUMS]
  named = {str(path.relative_to(folder)): path for path in paths}
  named = {name: path for name, path in named.items() if counts(name)}
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    return dict(zip(named, pool.map(_digest, named.values()), strict=True))


def _gather(
    folder: pathlib.Path, final: pathlib.Path
) -> tuple[dict[str, str], dict[str, int]] | None:
  """Return the files of all processes in process 0, None in the others.

  Each process hashes the files that it has written. Without a shared directory,
  it also uploads them.

  Args:
    folder: Directory in which this process has written the step.
    final: Directory of the complete step.

  Returns:
    SHA-256 of all files by name, in the order of their paths, and the sizes of
    those that other processes have uploaded.

  Raises:
    OSError: If another process sends no hashes in time, or an upload fails.
  """
  # In a shared directory, Orbax writes to a separate folder per process.
  own = lambda index: f'state/ocdbt.process_{index}/'
  copy = mirror.divided(final)
  if index := jax.process_index():
    counts = lambda name: name.startswith(own(index))
    if copy:  # All write the files at the top of `state`; 0 uploads its own.
      counts = lambda name: name.count('/') > 1
    sums = _sums(folder, counts)
    sizes = copy.send(folder, sums, final) if copy else {}
    messages.send(final.name, [sums, sizes])
    return None
  others = range(1, jax.process_count())
  not_here = tuple(map(own, others))
  sums = _sums(folder, lambda name: not name.startswith(not_here))
  uploaded = {}
  for other in others:
    found, sizes = messages.receive(final.name, other, seconds=_BARRIER_SECONDS)
    sums |= found
    uploaded |= sizes
  # A lost chunk would be read as zeros, or be detected only by a restore.
  if missing := chunks.missing(folder, sums):
    raise OSError(f'no process has written {missing[0]}')
  paths = sorted(map(pathlib.Path, sums))
  return {str(path): sums[str(path)] for path in paths}, uploaded


def _damage(path: pathlib.Path, wanted: Mapping[str, Any]) -> str:
  """Return a text that describes the damage to a step; '' if it is intact.

  All processes call it together. In a shared directory, process 0 checks all
  files; without one, each process downloads and checks those that it needs.

  Args:
    path: Directory of the step.
    wanted: Arrays to restore, by name.
  """
  mine, copy = '', mirror.divided(path)
  if jax.process_index() == 0 or copy:
    is_needed = lambda name: True
    if copy:
      copies.fetch(path, lambda name: not chunks.is_chunk(name))
      is_needed = chunks.needed(path, wanted)
    mirror.fetch(path, is_needed)
    mine = _local_damage(path, is_needed)
  found = sharding.all_gather(mine.encode())
  return next((text.decode() for text in found if text), '')


def _local_damage(path: pathlib.Path, counts: Callable[[str], bool]) -> str:
  """Return the damage to those files of a step that count."""
  try:
    lines = (path / _SUMS).read_text().splitlines()
  except (OSError, UnicodeDecodeError):
    return f'{_SUMS} cannot be read'
  written = {line[66:]: line[:64] for line in lines}  # 64 digits, 2 blanks.
  try:
    found = _sums(path, counts)
  except OSError as error:
    return f'cannot be read: {error}'
  for name, digest in written.items():
    if counts(name) and found.get(name) != digest:
      wrong = 'not what was written' if name in found else 'missing'
      return f'{name} is {wrong}'
  return '' if written else f'{_SUMS} is empty'


def steps_in(directory: pathlib.Path) -> dict[int, pathlib.Path]:
  """Return a directory's checkpoints by step, ascending; none is checked."""
  names = os.listdir(directory) if directory.is_dir() else ()
  found = {
      int(m[1]): directory / m[0] for n in names if (m := _STEP.fullmatch(n))
  }
  return dict(sorted(found.items()))


def restore(path: pathlib.Path, abstract_state: PyTree) -> PyTree:
  """Restore one checkpoint of another run; all processes call it together.

  Args:
    path: Directory of a step.
    abstract_state: See `Checkpointer.restore_latest`.

  Raises:
    CheckpointError: If it is damaged or does not match `abstract_state`.
  """
  step = _STEP.fullmatch(path.name)
  if step is None or not decisions.decide(path.is_dir):
    raise CheckpointError(f'{path} is not the directory of a checkpoint')
  source = Checkpointer(path.parent, every=1, keep=1)
  if damage := _damage(path, _flatten(abstract_state)):
    raise CheckpointError(
        f'checkpoint {path} is damaged: {damage}; restore it from a copy'
    )
  return source._restore(int(step[1]), abstract_state)[0]


def _make_orbax(divided: bool) -> ocp.AsyncCheckpointer:
  """Return a checkpointer of Orbax.

  Args:
    divided: True if the processes have no shared directory. Then each writes
      its shards and a copy of the metadata to a directory of its own.
  """
  if not divided:
    return ocp.AsyncCheckpointer(
        ocp.PyTreeCheckpointHandler(), timeout_secs=_BARRIER_SECONDS
    )
  every_process = ocp.options.MultiprocessingOptions(primary_host=None)
  # A store of its own: Orbax sets `primary_host` of the global one, for all
  # checkpointers.
  arrays = ocp.type_handlers.ArrayHandler(
      array_metadata_store=array_metadata_store.Store()
  )
  return ocp.AsyncCheckpointer(
      ocp.PyTreeCheckpointHandler(
          use_ocdbt=False,
          use_zarr3=True,  # Metadata of the older format are hidden files.
          multiprocessing_options=every_process,
          type_handler_registry=ocp.type_handlers.create_type_handler_registry(
              (np.ndarray, ocp.type_handlers.NumpyHandler()),
              (jax.Array, arrays),
          ),
      ),
      timeout_secs=_BARRIER_SECONDS,
      multiprocessing_options=every_process,
      # Otherwise a process would begin to write once any process has created
      # its directory, and would later delete what it found in its own.
      async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
  )


class Checkpointer:
  """Saves and restores the state of a run.

  All processes of a run call `save`, `wait` and `restore_latest` together. They
  share the directory, and process 0 owns it; in an object store each has a copy
  of it, see `mirror`.
  """

  def __init__(
      self,
      directory: str | os.PathLike[str],
      *,
      every: int,
      keep: int,
      retained: Collection[int] = (),
  ):
    """Check the arguments; do not touch the disk.

    Args:
      directory: The directory that holds the step directories.
      every: Steps between checkpoints, >= 1.
      keep: Number of newest checkpoints that are kept, >= 1.
      retained: Steps whose checkpoints are kept in addition.

    Raises:
      ValueError: If every or keep is < 1.
    """
    if every < 1 or keep < 1:
      raise ValueError(
          f'checkpoint.every={every}, checkpoint.keep={keep}: both are >= 1'
      )
    self.directory = pathlib.Path(os.path.abspath(directory))
    self._every, self._keep = every, keep
    self._retained = frozenset(retained)
    self._damaged: set[int] = set()  # Steps that this process found damaged.
    # Bytes of the process that wrote most, and seconds until all was durable,
    # in the run's last save.
    self._measured, self._is_measured = (_BYTES_PER_SECOND, 1.0), False
    self._began = 0.0  # When the last save began, on the monotonic clock.
    self._divided = mirror.divided(self.directory) is not None
    self._orbax = _make_orbax(self._divided)
    self._pool = concurrent.futures.ThreadPoolExecutor(1, 'checkpoint')
    self._pending: concurrent.futures.Future[None] | None = None

  def due(self, step: int) -> bool:
    """Return True if a checkpoint is due after `step` finished steps."""
    return step % self._every == 0

  def path_of(self, step: int) -> pathlib.Path:
    """Return the directory of a step."""
    return self.directory / f'step_{step:06d}'

  def steps(self) -> list[int]:
    """Return the steps that have a directory, ascending; none is checked."""
    return list(steps_in(self.directory))

  def estimate(self, state: PyTree) -> tuple[int, float]:
    """Return the bytes of a state, and the seconds until a save is durable.

    The processes write their parts in parallel, each at the speed of the last
    save; before the first save of this start, at the speed recorded in the
    restored checkpoint, or else at 100 MB/s. The remaining time of a save in
    progress is included. Only the result in process 0 is valid, since the
    others do not measure the whole save.
    """
    flat = _flatten(state)
    size = sum(x.nbytes for x in flat.values())
    wrote, seconds = self._measured
    wanted, waits = save_parts.largest(flat) / wrote * seconds, 0.0
    if self._pending is not None and not self._pending.done():
      waits = max(0.0, self._began + wanted - time.monotonic())
    return size, waits + wanted

  def save(self, step: int, state: PyTree, metadata: Mapping[str, Any]) -> None:
    """Start to save; return once the state is copied and may be donated.

    Args:
      step: Number of finished steps; an older checkpoint of it is replaced.
      state: Pytree of jax arrays (typed keys included), NumPy arrays and
        numbers.
      metadata: JSON values saved with the state: config hash, versions, ...

    Raises:
      CheckpointError: If this or the previous save failed. Older checkpoints
        are intact.
    """
    self.wait()
    flat = _flatten(state)
    final = self.path_of(step)
    temporary = final.with_name(final.name + _UNFINISHED)
    meta = {
        'step': step,
        'metadata': dict(metadata),
        'leaves': {path: _form(leaf) for path, leaf in flat.items()},
    }
    if self._is_measured:
      wrote, seconds = self._measured
      meta[_SPEED] = wrote / seconds
    size, self._began = sum(x.nbytes for x in flat.values()), time.monotonic()
    if self._divided:
      self._make_room(temporary, save_parts.local(flat))
    elif jax.process_index() == 0:
      self._make_room(temporary, size)
    try:
      self._orbax.save(temporary / 'state', args=ocp.args.PyTreeSave(flat))
    except (OSError, ValueError, RuntimeError) as error:
      raise self._save_error(final, error) from error
    # The interpreter joins this thread at exit; therefore the checkpoint is
    # finished even if the program does not call `wait`.
    self._pending = self._pool.submit(
        self._commit, temporary, final, meta, save_parts.largest(flat)
    )

  def wait(self) -> None:
    """Block until the last save is complete and durable.

    Raises:
      CheckpointError: If it failed.
    """
    pending, self._pending = self._pending, None
    if pending is not None:
      pending.result()

  def restore_latest(
      self, abstract_state: PyTree
  ) -> tuple[PyTree, dict[str, Any]] | None:
    """Restore the newest intact checkpoint.

    Args:
      abstract_state: The state's structure. A jax array or ShapeDtypeStruct is
        restored to its sharding (without one, to the first local device), a
        NumPy array or number as a NumPy array.

    Returns:
      The state and {'step': ..., 'metadata': ...}; None if there is no
      checkpoint at all.

    Raises:
      CheckpointError: If none of the checkpoints is intact, or the newest
        intact one holds another state than `abstract_state`.
    """
    self.wait()
    step, problems = self._newest_intact(_flatten(abstract_state))
    if problems and step is None:
      raise CheckpointError(
          f'no checkpoint in {self.directory} is intact{problems}\nRestore one'
          ' from a copy, or start again in a new --workdir; the run does not'
          ' start from scratch by itself'
      )
    return None if step is None else self._restore(step, abstract_state)

  def _restore(
      self, step: int, abstract_state: PyTree
  ) -> tuple[PyTree, dict[str, Any]]:
    """Return state and metadata of an intact step."""
    meta = json.loads((self.path_of(step) / 'meta.json').read_text())
    wanted = _flatten(abstract_state)
    self._check_structure(step, meta.pop('leaves'), wanted)
    speed = meta.pop(_SPEED, 0.0)
    if speed and not self._is_measured:
      self._measured, self._is_measured = (speed, 1.0), True
    local = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    forms = {
        path: ocp.ArrayRestoreArgs(sharding=leaf.sharding or local)
        if _is_device_array(leaf)
        else ocp.RestoreArgs(restore_type=np.ndarray)
        for path, leaf in wanted.items()
    }
    arrays = self._orbax.restore(
        self.path_of(step) / 'state',
        args=ocp.args.PyTreeRestore(restore_args=forms),
    )
    treedef = jax.tree.structure(abstract_state)
    return jax.tree.unflatten(treedef, [arrays[path] for path in wanted]), meta

  def _make_room(self, temporary: pathlib.Path, size: int) -> None:
    """Create the directory; remove what killed saves have left.

    Raises:
      CheckpointError: If the disk has less than `size` bytes left.
    """
    try:
      self.directory.mkdir(parents=True, exist_ok=True)
      for leftover in self.directory.glob('step_*' + _UNFINISHED):
        shutil.rmtree(leftover)
      temporary.mkdir()
    except OSError as error:
      raise self._save_error(temporary, error) from error
    # A save that fills the disk would make writes of evidence fail, too.
    free = shutil.disk_usage(self.directory).free
    if free < size:
      raise CheckpointError(
          f'a checkpoint in {self.directory} needs {size:,} bytes, {free:,} are'
          ' free. Free space there or lower --config.checkpoint.keep, then run'
          ' the same command again: it resumes from the last checkpoint'
      )

  def _save_error(
      self, path: pathlib.Path, error: BaseException
  ) -> CheckpointError:
    return CheckpointError(
        f'checkpoint {path} could not be written: {error}\nOlder checkpoints'
        ' are intact. Make sure that the disk has room and is writable, then'
        ' run the same command again: it resumes from the last checkpoint'
    )

  def _commit(
      self,
      temporary: pathlib.Path,
      final: pathlib.Path,
      meta: dict[str, Any],
      part: int,
  ) -> None:
    """Complete a save in a thread: hash, rename, delete old steps.

    Args:
      temporary: Directory in which the step is written.
      final: Directory of the complete step.
      meta: Content of meta.json.
      part: The most bytes that one process saves.
    """
    try:
      with waits.at(f'checkpoint {meta["step"]}'):
        self._orbax.wait_until_finished()
        if jax.process_index() == 0:
          # A filter's state may hold infinities, which strict JSON lacks.
          path = temporary / 'meta.json'
          durable.write_json(path, meta, indent=1, allow_nan=True)
        found = _gather(temporary, final)
      if found is None:  # Only process 0 continues.
        if self._divided:  # All of it is in the store.
          shutil.rmtree(temporary)
        return
      sums, uploaded = found
      sums = ''.join(f'{digest}  {name}\n' for name, digest in sums.items())
      durable.write_atomic(temporary / _SUMS, sums.encode())
      # Orbax syncs its files, but not the directories that hold their names.
      for folder in (p for p in temporary.rglob('*') if p.is_dir()):
        durable.sync_directory(folder)
      with mirror.adding(self.directory, uploaded):
        if final.exists():
          self._remove(final)
        os.rename(temporary, final)
        durable.sync_directory(self.directory)
      self._damaged.discard(meta['step'])
      mirror.publish(self.directory)  # In an object store, durable from here.
      self._measured = max(1, part), time.monotonic() - self._began
      self._is_measured = True
      self._delete_old()
      mirror.publish(self.directory)
    except (OSError, ValueError, RuntimeError) as error:
      # Other processes may still write there; without the directory, their
      # saves would fail with misleading messages. The next save deletes it.
      if self._divided or jax.process_count() == 1:
        shutil.rmtree(temporary, ignore_errors=True)
      raise self._save_error(final, error) from error

  def _remove(self, path: pathlib.Path) -> None:
    """Delete a step; a kill never leaves a directory that looks complete."""
    trash = path.with_name(path.name + '.old' + _UNFINISHED)
    os.rename(path, trash)
    durable.sync_directory(self.directory)
    shutil.rmtree(trash)

  def _delete_old(self) -> None:
    # Damaged steps do not count; otherwise they could displace the last intact
    # one.
    intact = [step for step in self.steps() if step not in self._damaged]
    for step in self.steps():
      if step < min(intact[-self._keep :]) and step not in self._retained:
        self._remove(self.path_of(step))

  def _newest_intact(self, wanted: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the newest intact step, if any, and the damage of newer ones.

    All processes call it together.

    Args:
      wanted: Arrays to restore, by name.
    """
    # One process alone tells the user.
    warn = logging.warning if jax.process_index() == 0 else lambda *_: None
    for leftover in sorted(self.directory.glob('step_*' + _UNFINISHED)):
      warn(
          'checkpoint %s was cut off while it was written; it is ignored',
          leftover,
      )
    problems = ''
    for step in reversed(decisions.decide(self.steps)):
      path = self.path_of(step)
      if not (damage := _damage(path, wanted)):
        return step, problems
      self._damaged.add(step)
      problems += f'\n  {path}: {damage}'
      warn('checkpoint %s is damaged (%s); an older one is used', path, damage)
    return None, problems

  def _check_structure(
      self,
      step: int,
      saved: Mapping[str, dict[str, Any]],
      wanted: Mapping[str, Any],
  ) -> None:
    """Raise CheckpointError if shapes or dtypes differ, with their paths."""
    made = {path: _form(leaf) for path, leaf in wanted.items()}
    shown = lambda form: '{dtype}{shape}'.format(**form) if form else '(absent)'
    lines = [
        f'{path}: saved {shown(saved.get(path))}, wanted'
        f' {shown(made.get(path))}'
        for path in made | saved
        if saved.get(path) != made.get(path)
    ]
    if lines:
      first = ''.join(f'\n  {line}' for line in lines[:20])
      more = f'\n  ... and {len(lines) - 20} more' if len(lines) > 20 else ''
      raise CheckpointError(
          f'the state in checkpoint {self.path_of(step)} differs from that of'
          f' this config:{first}{more}\nUse the config it was saved with'
          ' (config.json in its workdir), or a new --workdir'
      )
