"""The devices of this process and the host memory beside them."""

import collections
import ctypes
import functools
import os

import jax

_COMPILED = '/jax/core/compile/backend_compile_duration'


def describe() -> str:
  """Return one line that says what this process computes on."""
  kinds = collections.Counter(
      f'{device.platform} ({device.device_kind})' for device in jax.devices()
  )
  listed = ', '.join(f'{count} x {name}' for name, count in kinds.items())
  return (
      f'devices: {listed}; {os.cpu_count()} host cores, jax {jax.__version__}'
  )


@functools.cache  # One listener per process.
def trim_memory_after_compiling() -> None:
  """Return the compiler's freed memory to the system after each compilation.

  glibc keeps what XLA frees, a few hundred megabytes after a train step; its
  temporaries would come on top of that. Elsewhere this does nothing.
  """
  trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)
  if trim is None:
    return

  def listen(event: str, duration: float, **_) -> None:
    # Small programs leave little behind; a trim for each would cost more.
    if event == _COMPILED and duration > 0.1:
      trim(0)

  jax.monitoring.register_event_duration_secs_listener(listen)
