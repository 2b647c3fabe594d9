"""One level of a family: a statement with parameters, programs and inputs."""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import itertools
import random
from typing import Any

from evojax.domains.coding.families import inputs

Value = inputs.Value
Parameters = inputs.Parameters

# Relation in a program -> its wordings in a statement.
RELATIONS: Mapping[str, tuple[str, str]] = {
    '>': ('greater than', 'above'),
    '<': ('less than', 'below'),
    '>=': ('at least', 'not below'),
    '<=': ('at most', 'not above'),
}
# Text in a program -> the same text with an off-by-one error.
_PAIRS = (('>', '>='), ('<', '<='), ('n', 'n + 1'))
_OFF = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}


@dataclasses.dataclass(frozen=True)
class Level:
  """Templates in which '{k}' stands for the parameter k.

  In `statement` a value is replaced by its wording, if `words` has one. In
  programs '{rel_off}' is '{rel}' with an off-by-one error.
  """

  parameters: Mapping[str, Sequence[Value]]  # Name -> its values.
  statement: str
  grammar: inputs.Grammar
  program: str  # The right program.
  # (old, new) text in `program`; the replacement makes it off by one.
  off_by_one: Sequence[str]
  # (old, new) text in `program`; the replacement makes it ignore an edge case.
  edge: Sequence[str]
  words: Mapping[str, Mapping[Value, Sequence[str]]] = dataclasses.field(
      default_factory=dict
  )
  where: str = 'True'  # A Python expression that the parameters must satisfy.

  def __post_init__(self):
    for name in ('off_by_one', 'edge'):
      old, new = getattr(self, name)
      if old not in self.program or old == new:
        raise ValueError(
            f'{name}={(old, new)!r} changes nothing in {self.program!r}'
        )

  @functools.cached_property
  def contents(self) -> tuple[Parameters, ...]:
    """All choices of parameters; each is a distinct problem."""
    products = itertools.product(*self.parameters.values())
    found = (dict(zip(self.parameters, p, strict=True)) for p in products)
    where = compile(self.where, '<where>', 'eval')
    # The expression is ours, like the programs: no policy can write it.
    return tuple(p for p in found if eval(where, {}, p))  # pylint: disable=eval-used

  def programs(self, parameters: Parameters) -> dict[str, str]:
    """Return the texts of the programs 'right', 'off_by_one' and 'edge'."""
    fields = {**parameters}
    fields |= {f'{k}_off': _OFF[v] for k, v in parameters.items() if v in _OFF}
    texts = {
        'right': self.program,
        'off_by_one': self.program.replace(*self.off_by_one),
        'edge': self.program.replace(*self.edge),
    }
    return {name: text.format_map(fields) for name, text in texts.items()}

  def ask(self, parameters: Parameters, wording: int) -> str:
    """Return the statement and the input's grammar, in one of WORDINGS ways."""
    fields = dict(parameters)
    for name, words in {'rel': {}, **self.words}.items():
      value = fields.get(name)
      if synonyms := words.get(value) or RELATIONS.get(value):
        fields[name] = synonyms[wording % len(synonyms)]
    task = self.statement.format_map(fields)
    given = self.grammar.wordings[wording % 2]
    return f'{given} {task}' if wording % 4 < 2 else f'{task} {given}'

  def inputs(self, parameters: Parameters, rng: random.Random) -> inputs.Inputs:
    """Draw inputs; numbers near the parameters are frequent."""
    return self.grammar.draw(parameters, rng)


def parse(table: Mapping[str, Any]) -> Level:
  """Return the level that a table in a family's TOML file describes.

  The keys are the fields of `Level`. The values of a parameter are a list, a
  range such as '-9..-1' (both ends included), or a string of letters, each of
  which is a value. The grammar is a table: 'form' names a function of `inputs`,
  and the other keys are its arguments. A line break in a statement is a space.

  Raises:
    TypeError: If a field is unknown or missing.
    ValueError: If an edit changes nothing.
  """
  grammar = dict(table['grammar'])
  form = getattr(inputs, grammar.pop('form'))
  fields = {
      'parameters': {k: _values(v) for k, v in table['parameters'].items()},
      'statement': ' '.join(table['statement'].split()),
      'grammar': form(**grammar),
  }
  return Level(**table | fields)


def _values(described: str | Sequence[Value]) -> tuple[Value, ...]:
  """Return the values that the description of a parameter stands for."""
  if '..' not in described:
    return tuple(described)
  first, last = described.split('..')
  return tuple(range(int(first), int(last) + 1))


# Ways to word a statement: synonyms alternate, the input comes first or last.
WORDINGS = 4
