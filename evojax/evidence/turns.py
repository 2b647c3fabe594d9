"""The turns of an episode, read from its evidence row, to be shown."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from evojax.evidence import schema

# What `of` reads; older evidence lacks the texts.
COLUMNS = ('turn_texts', 'observations', 'actions', 'action_ok')


@dataclasses.dataclass(frozen=True)
class Turn:
  """One turn, as a reader sees it."""

  text: str  # What the policy wrote.
  observation: str  # What it was answered; after the last turn, for nobody.
  action: str = ''  # Name of the tool that it called; '' without a tool.
  ok: bool = True  # The call was well formed and did not fail.


def of(row: Mapping[str, Any], actions: Mapping[int, str]) -> list[Turn]:
  """Return the turns of a row; none for an episode of one plain turn.

  Args:
    row: Column -> value.
    actions: Code of `actions` -> name.
  """
  values = [row.get(name) for name in COLUMNS]
  # A missing column reads as None, or as NaN in a data frame.
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
  """Return code -> name of the tools of a declaration."""
  codes = schema.codes_of(columns, 'actions')
  return {code: name for name, code in codes.items()}
