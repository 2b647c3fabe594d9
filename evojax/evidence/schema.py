"""The declaration of evidence columns; `columns.toml` lists those of every run.

A row is one rollout. Each column declares its name, dtype, shape, unit,
meaning, nullability, code table, the stage that fills it and who may read it.
The Parquet schema, the validation of rows, the access rules of views and
`COLUMNS.md` are all derived from this declaration.

`python -m evojax.evidence.schema` writes `COLUMNS.md`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json
import pathlib
import re
import tomllib

import pyarrow as pa

# The order in which they are filled.
STAGES = ('identity', 'sample', 'grade', 'reward', 'update')
READERS = ('reward', 'filter', 'diagnostic', 'report')
DTYPES = ('bool', 'int32', 'int64', 'float32', 'float64', 'string')
SHAPES = {
    '': 'one value',
    'A': 'one value per turn, or none at all for one turn without a tool',
    'Lp': 'one value per prompt token',
    'Lc': 'one value per token after the prompt',
}
PART_PREFIX = 'part_'
# Attribute names of a view, which no column may have; see views.View.
RESERVED = ('codes', 'columns', 'max_tokens', 'valid')

_OBSERVERS = ('diagnostic', 'report')
# Fields of a column that a file's metadata store as plain text.
_TEXTS = ('dtype', 'shape', 'unit', 'doc', 'stage')
_NAME = re.compile(r'[a-z][a-z0-9_]*')


@dataclasses.dataclass(frozen=True)
class Column:
  """One evidence column.

  Raises:
    ValueError: If a field has an invalid value, or a column that neither stage
      sample nor stage grade fills is open to rewards or filters.
  """

  name: str  # Lower case; reward parts are 'part_<name>'.
  dtype: str  # One of DTYPES, the type of a single value.
  doc: str = ''
  shape: str = ''  # Key of SHAPES; any but '' means a list.
  unit: str = ''
  nullable: bool = False
  # Name -> code, for integer columns that hold codes.
  codes: Mapping[str, int] | None = dataclasses.field(default=None, hash=False)
  stage: str = 'grade'  # One of STAGES.
  # Subset of READERS. By default, columns of the stages sample and grade are
  # open to everyone, others to diagnostics and reports.
  readers: tuple[str, ...] | None = None
  # If False, only reports see the column in a run from a seed_blind.
  blind: bool = True
  # Whether it describes what a completion does, and not how good it is. Columns
  # of stage sample always do. `evolve.search` compares completions by these.
  behaviour: bool = False

  @property
  def is_behaviour(self) -> bool:
    return self.behaviour or self.stage == 'sample'

  def __post_init__(self):
    for field, value, allowed in (
        ('dtype', self.dtype, DTYPES),
        ('shape', self.shape, tuple(SHAPES)),
        ('stage', self.stage, STAGES),
    ):
      if value not in allowed:
        raise ValueError(
            f'column {self.name!r}: {field}={value!r} is not one of {allowed}'
        )
    open_stage = self.stage in ('sample', 'grade')
    if self.readers is None:
      readers = READERS if open_stage else _OBSERVERS
      object.__setattr__(self, 'readers', readers)
    unknown = set(self.readers) - set(READERS)
    codes = self.codes or {}
    for wrong, why in (
        (
            not _NAME.fullmatch(self.name),
            'a name is lower case letters, digits and underscores',
        ),
        (self.name in RESERVED, f'the names {RESERVED} are taken by views'),
        (unknown, f'readers {sorted(unknown)} are not in {READERS}'),
        (
            not open_stage and set(self.readers) - set(_OBSERVERS),
            f'stage={self.stage!r} is not open to rewards and filters; they'
            ' read what was sampled and graded',
        ),
        (
            self.codes is not None and self.dtype not in ('int32', 'int64'),
            f'codes need an integer dtype, not {self.dtype!r}',
        ),
        (
            len(set(codes.values())) != len(codes),
            f'two names share a code: {dict(codes)}',
        ),
    ):
      if wrong:
        raise ValueError(f'column {self.name!r}: {why}')


# The same names as in records.EPISODE_ENDS.
FINISH_REASON = {'stop': 0, 'length': 1, 'abort': 2, 'turns': 3, 'seconds': 4}
# Tiers of sandbox.limits.TIERS; 'none' if no untrusted code was run.
SANDBOX_TIER = {'none': 0, 'T0': 1, 'T1': 2, 'T2': 3}

_CODES = {'finish_reason': FINISH_REASON, 'sandbox_tier': SANDBOX_TIER}
# Tables of columns.toml whose names differ from their stage.
_GROUPS = {
    'grading': dict(stage='grade', readers=_OBSERVERS),
    'text': dict(stage='sample', readers=_OBSERVERS),
}


def _core() -> tuple[Column, ...]:
  """Return the columns of every run, from `columns.toml`."""
  path = pathlib.Path(__file__).with_name('columns.toml')
  return tuple(
      Column(
          name,
          codes=_CODES.get(name),
          **fields,
          **_GROUPS.get(table, {'stage': table}),
      )
      for table, columns in tomllib.loads(path.read_text()).items()
      for name, fields in columns.items()
  )


CORE = _core()


def with_codes(name: str, codes: Mapping[str, int]) -> Column:
  """Return a core column with the code table of a domain.

  Args:
    name: 'grade_status', 'actions' or 'arguments'.
    codes: Name -> code.
  """
  column = next(column for column in CORE if column.name == name)
  return dataclasses.replace(column, codes=codes)


def codes_of(columns: Sequence[Column], name: str) -> dict[str, int]:
  """Return the code table of a column; empty if there is none."""
  found = (c.codes for c in columns if c.name == name)
  return dict(next(found, None) or {})


def part(name: str) -> Column:
  """Return the column of one reward part, before weighting."""
  return Column(
      PART_PREFIX + name,
      'float32',
      doc=f'Reward part {name!r} before its weight.',
      nullable=True,
      stage='reward',
  )


def declare(
    domain_columns: Sequence[Column] = (),
    parts: Sequence[str] = (),
    *,
    blind: bool = False,
) -> tuple[Column, ...]:
  """Return the columns of a run: of the core, the domain and reward parts.

  Args:
    domain_columns: A domain's columns. Core columns whose codes depend on the
      domain come from `with_codes`.
    parts: Names of the reward parts.
    blind: Whether to hide the columns that a blind run must discover itself.

  Raises:
    ValueError: If a name is declared twice, or a domain column is filled by a
      stage other than sample or grade.
  """
  columns = {column.name: column for column in CORE}
  for column in (*domain_columns, *map(part, parts)):
    declared = columns.get(column.name)
    if declared and (
        column.codes is None
        or declared != dataclasses.replace(column, codes=None)
    ):
      raise ValueError(f'column {column.name!r} is declared twice')
    columns[column.name] = column
  for column in domain_columns:
    if column.name.startswith(PART_PREFIX):
      raise ValueError(
          f'column {column.name!r}: names that start with {PART_PREFIX!r} are'
          ' for reward parts'
      )
    if column.stage not in ('sample', 'grade'):
      raise ValueError(
          f'column {column.name!r}: a domain fills the stages sample and'
          f' grade, not {column.stage!r}'
      )
  return tuple(
      dataclasses.replace(column, readers=('report',))
      if blind and not column.blind
      else column
      for column in columns.values()
  )


def arrow_type(column: Column) -> pa.DataType:
  """Return the Arrow type of a column: a list type if it has a shape."""
  value = pa.type_for_alias(column.dtype)
  return pa.list_(pa.field('item', value, False)) if column.shape else value


def to_arrow_schema(columns: Sequence[Column]) -> pa.Schema:
  """Return an Arrow schema whose metadata hold the full declaration."""

  def field(column):
    metadata = {name: getattr(column, name) for name in _TEXTS}
    metadata['codes'] = json.dumps(column.codes)
    metadata['readers'] = ','.join(column.readers)
    kind = arrow_type(column)
    return pa.field(column.name, kind, column.nullable, metadata)

  return pa.schema(map(field, columns))


def from_arrow_schema(schema: pa.Schema) -> tuple[Column, ...]:
  """Return the declaration that a Parquet file was written with."""

  def column(field):
    text = {k.decode(): v.decode() for k, v in field.metadata.items()}
    return Column(
        field.name,
        nullable=field.nullable,
        codes=json.loads(text['codes']),
        readers=tuple(filter(None, text['readers'].split(','))),
        **{name: text[name] for name in _TEXTS},
    )

  return tuple(map(column, schema))


def document(columns: Sequence[Column]) -> str:
  """Return a Markdown table of the columns, one row each."""
  lines = [
      '| column | type | unit | null | filled by | read by | meaning |',
      '| --- | --- | --- | --- | --- | --- | --- |',
  ]
  for c in columns:
    kind = f'{c.dtype}[{c.shape}]' if c.shape else c.dtype
    null = 'yes' if c.nullable else ''
    readers = 'everyone' if c.readers == READERS else ', '.join(c.readers)
    codes = ', '.join(
        f'{code} {name}' for name, code in (c.codes or {}).items()
    )
    doc = c.doc + (f' Codes: {codes}.' if codes else '')
    doc = doc.replace('|', r'\|')
    cells = f'`{c.name}`', kind, c.unit, null, c.stage, readers, doc
    lines.append('| ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines) + '\n'


def core_document() -> str:
  """Return the contents of `COLUMNS.md`."""
  shapes = '\n'.join(
      f'- `[{shape}]`: {meaning}' for shape, meaning in SHAPES.items() if shape
  )
  return f"""# Evidence columns

One row per rollout, one Parquet file per training or evaluation step:
`<workdir>/evidence/<split>/step_000012.parquet`. Read them with
`pandas.read_parquet`. A domain adds columns of its own, a run adds one
`part_<name>` (float32, before its weight) per reward part; every file carries
this declaration in the metadata of its fields.

Written by `python -m evojax.evidence.schema`; edit the declaration there.

{document(CORE)}
Lists:

{shapes}
"""


if __name__ == '__main__':
  pathlib.Path(__file__).with_name('COLUMNS.md').write_text(core_document())
