"""Tool calls in the text of an answer, in the format of Hermes and Qwen."""

from collections.abc import Sequence
import json
from typing import Any
import uuid

import pydantic_core

from evojax.rollout.server import text as text_lib

_OPEN, _CLOSE = '<tool_call>', '</tool_call>'


class ToolCalls:
  """The tool calls and the content of a growing answer.

  A call is <tool_call>{"name": ..., "arguments": {...}}</tool_call> of an
  offered tool. Everything else, including broken calls, is content; whitespace
  around calls is dropped. The result does not depend on how the answer was
  split.
  """

  def __init__(self, names: Sequence[str]):
    """Start empty; `names` are those of the offered tools."""
    self.content = ''  # Like `calls`, it only grows.
    self.calls: list[dict[str, Any]] = []  # In the format of OpenAI's API.
    self._names = tuple(names)  # A model's name may be unhashable.
    self._read = 0
    self._rest = ''  # Text read but not yet classified.
    self._gap = False  # Whether the rest directly follows a call.

  def push(self, answer: str, *, final: bool) -> None:
    """Read the whole answer so far; if it is final, hold nothing back."""
    self._rest += answer[self._read :]
    self._read = len(answer)
    while True:
      if self._gap:
        self._rest = self._rest.lstrip()
        self._gap = not self._rest
      start = self._rest.find(_OPEN)
      end = self._rest.find(_CLOSE, start)
      if start < 0 or end < 0:
        break
      inside = start + len(_OPEN)
      call = self._parse(self._rest[inside:end])
      if call:
        self.calls.append(call)
        self.content += self._rest[:start].rstrip()
        self._rest = self._rest[end + len(_CLOSE) :]
        self._gap = True
      else:  # A call may begin within a failed one.
        self.content += self._rest[:inside]
        self._rest = self._rest[inside:]
    shown = self._rest
    if not final:
      shown = shown[: text_lib.settled(shown, _OPEN)].rstrip()
    self.content += shown
    self._rest = self._rest[len(shown) :]

  def _parse(self, text: str) -> dict[str, Any] | None:
    call = parse_object(text)
    if call is None:
      return None
    name = call.get('name')
    arguments = call.get('arguments', call.get('parameters', {}))
    if name not in self._names or not isinstance(arguments, dict):
      return None
    try:
      arguments = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except ValueError:  # A number such as 1e999, which becomes infinite.
      return None
    function = {'name': name, 'arguments': arguments}
    call_id = f'call_{uuid.uuid4().hex[:24]}'
    return {'id': call_id, 'type': 'function', 'function': function}


def parse_object(text: str) -> dict[str, Any] | None:
  """Return the JSON object in a text; None if it holds anything else.

  The parser is that of request bodies. Unlike Python's own, it refuses half of
  a surrogate pair, which no answer can hold, and values that are nested so
  deeply that Python cannot process them.
  """
  try:
    found = pydantic_core.from_json(text, allow_inf_nan=False)
  except ValueError:
    return None
  return found if isinstance(found, dict) else None
