"""Fields of requests: those that are declared, refused and ignored.

A field that would change the answer but is not supported is refused by name,
with a remedy, unless its value has no effect: null, false, 0, empty, or the
default. A misspelled name of a declared field, or one that belongs in another
object, is refused, too: otherwise the default would silently be used. Any other
undeclared field is ignored, and logged once per name.
"""

from collections.abc import Mapping
import difflib
import functools
import logging
from typing import Any, ClassVar

import pydantic

from evojax.rollout.server import errors

_LOG = logging.getLogger(__name__)
_SHOWN_NAME = 60  # Characters of a field's name in a message.
# Number of names of ignored fields that are logged; clients can invent many.
_MOST_LOGGED = 100
_logged: set[str] = set()
_ALIKE = 0.8  # difflib's ratio from which a name counts as a misspelling.
# Most unknown names of an object that are compared with the declared ones;
# each comparison takes about 20 microseconds.
_MOST_COMPARED = 8
# Fields in which null has a meaning: as many tokens as fit.
_NULLABLE = frozenset(('max_new_tokens',))
# Refused field -> its values without effect, besides null, false, 0 and empty
# ones.
_NEUTRAL = {
    'response_format': ({}, {'type': 'text'}),
    'modalities': ([], ['text']),
    'function_call': ('none', 'auto'),
    'tool_choice': ('none', 'auto'),
    'type': ('text',),
    'beam_width': (0, 1),
    'prompt_logprobs': (),
    'truncate_prompt_tokens': (),
    'add_generation_prompt': (True,),
    'add_special_tokens': (True,),
}


class Model(pydantic.BaseModel):
  """A body, or an object within one."""

  model_config = pydantic.ConfigDict(
      strict=True, allow_inf_nan=False, protected_namespaces=()
  )
  where: ClassVar[str] = ''  # Prefix of the names of its fields.
  # Refused field -> the reason, and what to do instead.
  refused: ClassVar[Mapping[str, str]] = {}
  # Field that has an effect in another object only -> where it belongs.
  misplaced: ClassVar[Mapping[str, str]] = {}

  @pydantic.model_validator(mode='before')
  @classmethod
  def _sift(cls, fields: Any) -> Any:
    """Return the fields that are declared, without those set to null.

    Clients send null for fields that they do not set.

    Raises:
      ApiError: 400 for a field that is refused, misplaced or misspelled.
    """
    if not isinstance(fields, dict):
      return fields
    kept, unknown = {}, {}
    for name, value in fields.items():
      if value is None and name not in _NULLABLE:
        continue
      if name in cls.refused and not _asks_nothing(name, value):
        raise errors.bad_request(cls.where + name, cls.refused[name])
      if name in cls.model_fields:
        kept[name] = value
      elif name not in cls.refused:
        unknown[name] = value
    for i, (name, value) in enumerate(unknown.items()):
      problem = cls.misplaced.get(name, '')
      if not problem and i < _MOST_COMPARED and len(name) <= _SHOWN_NAME:
        problem = _misspelled(cls, name)
      if problem and value is not None:
        raise errors.bad_request(cls.where + name, problem)
      _log_ignored(cls.where + name)
    return kept


@functools.lru_cache(1024)  # Clients send the same names again and again.
def _misspelled(model: type[Model], name: str) -> str:
  """Return an error if an undeclared field resembles a declared one, or ''."""
  alike = difflib.get_close_matches(name, model.model_fields, 1, _ALIKE)
  return f'not a field; is `{alike[0]}` meant?' if alike else ''


def _asks_nothing(name: str, value: Any) -> bool:
  """Return whether a value of a refused field has no effect."""
  if name in _NEUTRAL:
    return value in _NEUTRAL[name]
  if isinstance(value, list):  # One value per prompt.
    return not any(value)
  return not value


def _log_ignored(field: str) -> None:
  """Log once that a field is ignored."""
  field = field[:_SHOWN_NAME]
  if field in _logged or len(_logged) >= _MOST_LOGGED:
    return
  _logged.add(field)
  _LOG.warning(
      'requests hold %r, which is ignored: it is unknown or has no effect'
      ' here. Later ones are not logged%s.',
      field,
      ', nor are other fields' if len(_logged) >= _MOST_LOGGED else '',
  )
