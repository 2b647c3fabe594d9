"""Messages from the processes of a run to process 0.

    send('step_000012', files)                      # Process 2.
    files = receive('step_000012', 2, seconds=600)  # Process 0.

Collectives must run in the same order in all processes; see `decisions`.
Threads that work beside the main thread, such as the one that completes
checkpoints, cannot keep that order and send messages instead. A message goes
through jax's key-value store, which process 0 holds and which ends with the
run, so that no message outlives a killed process.
"""

import json
from typing import Any

import jax
from jax._src import distributed

from evojax.runtime import waits

_MESSAGES = 'evojax/messages/'


def _key(topic: str, process: int) -> str:
  return f'{_MESSAGES}{topic}/{process}'


def send(topic: str, value: Any) -> None:
  """Send a JSON value to process 0.

  Args:
    topic: Name of the message. It may be used again once process 0 has received
      the message.
    value: The JSON value.
  """
  key = _key(topic, jax.process_index())
  distributed.global_state.client.key_value_set(key, json.dumps(value))


def receive(topic: str, process: int, *, seconds: float) -> Any:
  """Return the JSON value that a process sends; wait for it.

  Args:
    topic: Name of the message.
    process: Number of the sender.
    seconds: Time limit.

  Raises:
    TimeoutError: If the message does not come in time.
  """
  client, key = distributed.global_state.client, _key(topic, process)
  try:
    with waits.at(f'message of process {process}'):
      text = client.blocking_key_value_get(key, int(seconds * 1000))
  except jax.errors.JaxRuntimeError as error:
    if 'DEADLINE_EXCEEDED' not in str(error):
      raise
    raise TimeoutError(
        f'process {process} has not sent {topic!r} within {seconds:g} s'
    ) from error
  client.key_value_delete(key)
  return json.loads(text)
