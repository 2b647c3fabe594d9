"""Messages between the parent of a box, its zygotes and their children.

A message is a JSON object after its length, with file descriptors attached:
stdin, stdout, stderr, and the file with the task. Nothing is pickled.
"""

from collections.abc import Collection, Mapping, Sequence
import json
import socket
import struct
from typing import Any, NamedTuple

_LENGTH = struct.Struct('<I')
_DESCRIPTORS = 4


class Entry(NamedTuple):
  """The code that a 'pure' box calls, and a 'repository' box may call.

  The file is run once per slot, before rights are given up. It defines
  call(source: str, data: memoryview) -> bytes, which is called once per run in
  a fresh process, and optionally warm(), which is called once per slot. In a
  repository it finds the packages of the image, and `call` starts in a folder
  of the tree.
  """

  file: str
  path: Sequence[str] = ()  # Directories to import from, e.g. NumPy's.


class Config(NamedTuple):
  """The setup of one slot: the first message, from parent to supervisor."""

  profile: str  # One of `box.PROFILES`.
  layers: Collection[str]  # The active layers, from `limits.LAYERS`.
  disk_bytes: int  # These three are limits, see `limits.Limits`.
  files: int
  processes: int
  entry: Entry | None  # None for the profile 'program'.
  readable: Sequence[str]  # Host paths that code in the box may read.
  environment: Mapping[str, str]  # Variables for code in the box.
  image: Sequence[str] = ()  # Host paths of its packages, see `image.paths`.
  preload: Sequence[str] = ()  # Image modules that programs find loaded.
  landlock: int = 0  # The kernel's version, see `landlock.version`.
  user: int | None = None  # A user of no other slot; None: the parent's.
  scratch: str | None = None  # The slot's directory, if it has one.
  # True if the user runs nothing but this slot, so that the kernel's count of
  # its processes is the slot's; the supervisor finds out.
  counted: bool = False

  @property
  def own_root(self) -> bool:
    """True if the slot has a file system tree of its own."""
    return {'namespaces', 'root'} <= set(self.layers)


class Request(NamedTuple):
  """One run: from parent to zygote, and on to the child that runs it."""

  run: str  # A random name that the answer repeats; the child never sees it.
  wall_seconds: float
  cpu_seconds: float
  memory_bytes: int
  output_bytes: int
  tasks: int = 0  # Threads that the run's user has elsewhere; zygotes count.
  clear: bool = False  # Empty the slot's directory after the run.


class Answer(NamedTuple):
  """The end of a run."""

  run: str
  status: str  # Why the zygote killed it, e.g. 'timeout'; '' if it did not.
  code: int  # Exit code; negative: minus the signal number.
  wall: float  # Seconds, like the next two.
  cpu: float
  waited: float  # Time in which it was ready but strangers had its core.


def send(
    control: socket.socket,
    message: Mapping[str, Any],
    descriptors: Sequence[int] = (),
) -> None:
  """Send one message; both ends use it."""
  text = json.dumps(message).encode()
  data = _LENGTH.pack(len(text)) + text
  sent = socket.send_fds(control, [data], descriptors)
  # An empty `sendall` would raise EPIPE if the other end has received
  # everything, answered and closed.
  if data[sent:]:
    control.sendall(data[sent:])


def receive(control: socket.socket) -> tuple[Any, list[int]]:
  """Return the next message and its descriptors.

  Raises:
    EOFError: If the other end is closed.
  """
  data, descriptors, wanted = b'', [], _LENGTH.size
  while left := wanted - len(data):
    chunk, found, _, _ = socket.recv_fds(control, left, _DESCRIPTORS)
    descriptors += found
    if not chunk:
      raise EOFError('the other end is closed')
    data += chunk
    if len(data) == _LENGTH.size:
      wanted += _LENGTH.unpack(data)[0]
  return json.loads(data[_LENGTH.size :]), descriptors


def answer(message: Mapping[str, Any]) -> Answer:
  """Return a message as an Answer.

  Raises:
    KeyError, TypeError, ValueError: If the message is not an answer.
  """
  kinds = Answer.__annotations__.items()
  return Answer(**{name: kind(message[name]) for name, kind in kinds})
