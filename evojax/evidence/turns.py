"""The turns of an episode, read from its evidence row for display."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from evojax.evidence import schema

# Columns that `of` reads; older evidence lacks the texts.
COLUMNS = ('turn_texts', 'observations', 'actions', 'action_ok')


@dataclasses.dataclass(frozen=True)
class Turn:
  """One turn, as a reader sees it."""

  text: str  # Output of the policy.
  observation: str  # The environment's reply; the policy never reads the last.
  action: str = ''  # Name of the called tool; '' without a tool.
  ok: bool = True  # Whether the call was well formed and succeeded.


def of(row: Mapping[str, Any], actions: Mapping[int, str]) -> list[Turn]:
  """Return the turns of a row; [] for an episode of one turn without tools.

  Args:
    row: Column -> value.
    actions: Code of `actions` -> name.
  """
  values = [row.get(name) for name in COLUMNS]
  # A missing column reads as None, or as NaN from a data frame.
  known = [list(v) if hasattr(v, '__len__') else [] for v in values]
  texts, answers, codes, ok = known
  return [
      Turn(
          text,
          answer,
          actions.get(int(codes[i]), str(codes[i])) if codes else '',
          bool(ok[i]) if ok else True,
      )
      for i, (text, answer) in enumerate(zip(texts, answers, strict=True))
  ]


def names(columns: Sequence[schema.Column]) -> dict[int, str]:
  """Return code -> tool name, from a declaration."""
  codes = schema.codes_of(columns, 'actions')
  return {code: name for name, code in codes.items()}
