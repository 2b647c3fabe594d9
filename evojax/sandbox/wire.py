"""Messages between the parent of a box and its zygotes.

A message is JSON behind its length, with descriptors beside it: stdin, stdout,
stderr, and what is to be run. Nothing is pickled.
"""

import json
import socket
import struct

_LENGTH = struct.Struct('<I')
_DESCRIPTORS = 4


def send(control, message, descriptors=()):
  """One message; both ends use it."""
  text = json.dumps(message).encode()
  data = _LENGTH.pack(len(text)) + text
  sent = socket.send_fds(control, [data], descriptors)
  if data[sent:]:  # By now the other end may have answered and be gone.
    control.sendall(data[sent:])


def receive(control):
  """(message, descriptors); EOFError when the other end is closed."""
  data, descriptors = b'', []
  while len(data) < _LENGTH.size or len(data) < _size(data):
    wanted = _size(data) if len(data) >= _LENGTH.size else _LENGTH.size
    chunk, found, _, _ = socket.recv_fds(
        control, wanted - len(data), _DESCRIPTORS
    )
    descriptors += found
    if not chunk:
      raise EOFError('the other end is closed')
    data += chunk
  return json.loads(data[_LENGTH.size :]), descriptors


def _size(data):
  return _LENGTH.size + _LENGTH.unpack_from(data)[0]
