"""The tool `python` of the math domain: computation in the box.

The policy writes a program, and the tool replies with its output. Neither the
problem nor the right answer enters the box.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from evojax import records
from evojax.domains import environments
from evojax.domains import texts
from evojax.evidence import schema
from evojax.sandbox import limits as limits_lib
from evojax.sandbox import processes
from evojax.sandbox import shared

NAME = 'python'
SCHEMA = {
    'type': 'function',
    'function': {
        'name': NAME,
        'description': 'Run a Python program and read what it prints.',
        'parameters': {
            'type': 'object',
            'properties': {
                'code': {'type': 'string', 'description': 'The program.'}
            },
            'required': ['code'],
        },
    },
}
ACTIONS = {'none': 0, NAME: 1}
COLUMNS = (
    schema.with_codes('actions', ACTIONS),
    schema.with_codes('arguments', {'none': 0}),
)
# Characters of output that the policy reads; the rest is cut.
MAX_LETTERS = 400
_MAX_CODE = 10_000
_LIMITS = dict(wall_seconds=9.0, cpu_seconds=2.0, memory_bytes=256 << 20)
_ATTEMPTS = 3  # Runs of a program that timed out on a busy machine.


class BoxError(RuntimeError):
  """The box failed, which is not the program's fault."""


def environment() -> environments.ToolEnvironment:
  """Return the environment of one episode."""
  return environments.ToolEnvironment({NAME: run}, ACTIONS)


def run(arguments: Mapping[str, Any]) -> environments.Answer:
  """Run the program in `arguments`, as the policy wrote it.

  Raises:
    BoxError: If the box fails, or the machine is too busy.
  """
  code = arguments.get('code')
  if not isinstance(code, str) or set(arguments) != {'code'}:
    return _wrong('the arguments must be {"code": "a program"}')
  if len(code) > _MAX_CODE:
    return _wrong(f'the program has more than {_MAX_CODE} characters')
  box = shared.open_box(processes.cores())
  limits = dataclasses.replace(box.limits, **_LIMITS)
  source = texts.without_surrogates(code)
  for _ in range(_ATTEMPTS):
    result = box.run(source, limits=limits)
    if not (result.status == 'timeout' and result.contended):
      break
  if result.contended or result.status == records.INFRA_ERROR:
    raise BoxError(result.message or 'the machine is too busy')
  return _answer(result)


def _answer(result: limits_lib.Result) -> environments.Answer:
  printed = result.stdout.decode(errors='replace').strip()
  if len(printed) > MAX_LETTERS:
    printed = printed[:MAX_LETTERS] + '...'
  if result.status == 'ok':
    return environments.Answer(printed or 'nothing was printed')
  why = result.status.replace('_', ' ')  # Such as 'cpu limit'.
  if result.status == 'error':
    raised = result.stderr.decode(errors='replace').strip()
    why = raised.rpartition('\n')[2][:MAX_LETTERS] or why
  return environments.Answer(f'{printed}\nerror: {why}'.strip(), ok=False)


def _wrong(text: str) -> environments.Answer:
  return environments.Answer(f'error: {text}', ok=False)
