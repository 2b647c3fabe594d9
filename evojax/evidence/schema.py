"""The one declaration of every evidence column.

A row is one rollout. Each column says its name, dtype, shape, unit, meaning,
nullability, code table, the stage that fills it and who may read it; the
Parquet schema, the validation of rows, the access rules of views and
`COLUMNS.md` all follow from here.

`COLUMNS.md` is written by `python -m evojax.evidence.schema`.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import json
import pathlib
import re

import pyarrow as pa

# In the order in which they are filled.
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
# Attributes of a view: see views.View.
RESERVED = ('codes', 'columns', 'max_tokens', 'valid')

_OBSERVERS = ('diagnostic', 'report')
# Fields of a column that the metadata of a file hold as they are.
_TEXTS = ('dtype', 'shape', 'unit', 'doc', 'stage')
_NAME = re.compile(r'[a-z][a-z0-9_]*')


@dataclasses.dataclass(frozen=True)
class Column:
  """One evidence column.

  Raises:
    ValueError: If a field has a value outside its table, or a column that is
      not filled by the stages sample and grade is opened to rewards or filters.
  """

  name: str  # Lower case; reward parts are 'part_<name>'.
  dtype: str  # One of DTYPES, of a single value.
  doc: str = ''
  shape: str = ''  # Key of SHAPES; other than '' is a list.
  unit: str = ''
  nullable: bool = False
  # Name -> code, for integer columns that hold codes.
  codes: Mapping[str, int] | None = dataclasses.field(default=None, hash=False)
  stage: str = 'grade'  # One of STAGES.
  # Subset of READERS. By default everyone for what was sampled and graded,
  # diagnostics and reports for the rest.
  readers: tuple[str, ...] | None = None
  # False: in a run from a seed_blind, only reports see the column.
  blind: bool = True

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


FINISH_REASON = {'stop': 0, 'length': 1, 'abort': 2}
# Those of sandbox.limits.TIERS, and none: nothing untrusted was run.
SANDBOX_TIER = {'none': 0, 'T0': 1, 'T1': 2, 'T2': 3}

# Columns by the stage that fills them; `Column` itself is one of a grade.
_identity = functools.partial(Column, stage='identity')
_sampled = functools.partial(Column, stage='sample')
_rewarded = functools.partial(Column, stage='reward', nullable=True)

CORE = (
    _identity(
        'problem_id',
        'string',
        'Hash of the normalised problem text, 16 hex digits.',
    ),
    _identity('family', 'string', 'Generator or data-set tag of the problem.'),
    _identity('group', 'int32', 'Index of the prompt within the step, 0..P-1.'),
    _identity(
        'sample', 'int32', 'Index of the completion within its group, 0..G-1.'
    ),
    _identity(
        'version',
        'string',
        'Content hash of the harness that trains; for an evaluation, of'
        " the one that trained the policy. 'seed' where there was none.",
    ),
    _identity(
        'policy_version',
        'int32',
        'Optimizer updates behind the weights that sampled this row.',
        unit='updates',
    ),
    _identity('step', 'int32', 'Training step that wrote the row.'),
    _identity('split', 'string', 'train, dev or sealed.'),
    _identity('seed', 'int64', 'Seed of the sampler for this row.'),
    _sampled(
        'n_tokens',
        'int32',
        'Sampled tokens, a final end-of-sequence token included.',
        unit='tokens',
    ),
    _sampled(
        'n_turns',
        'int32',
        'Assistant turns of the episode; 1 without tools.',
        unit='turns',
    ),
    _sampled('truncated', 'bool', 'The sampling limit cut the last turn.'),
    _sampled(
        'finish_reason', 'int32', 'Why sampling ended.', codes=FINISH_REASON
    ),
    _sampled(
        'mean_logprob',
        'float32',
        'Mean sampler log-prob of the sampled tokens, 0 if there are none.',
        unit='nats/token',
    ),
    _sampled(
        'turn_tokens',
        'int32',
        'Sampled tokens of each turn: its action.',
        shape='A',
        unit='tokens',
        nullable=True,
    ),
    _sampled(
        'observation_tokens',
        'int32',
        'Tokens of the observation after each action, not trained on.',
        shape='A',
        unit='tokens',
        nullable=True,
    ),
    _sampled(
        'actions',
        'int32',
        "Tool that each turn calls, a code of the domain's.",
        shape='A',
    ),
    _sampled(
        'arguments',
        'int32',
        "Class of each call's arguments, a code of the domain's.",
        shape='A',
    ),
    _sampled(
        'action_ok',
        'bool',
        'The call was well formed and did not fail.',
        shape='A',
    ),
    Column(
        'outcome',
        'bool',
        'Solved. Owned by the evaluator; no harness can write it. False'
        ' where graded is.',
    ),
    Column(
        'partial',
        'float32',
        'Partial credit; equals outcome where a domain has none.',
        unit='0..1',
    ),
    Column(
        'grade_status', 'int32', "How grading went; the table is the domain's."
    ),
    Column(
        'graded',
        'bool',
        'The evaluator could judge the row. Where it could not, for a '
        'reason outside of the completion, the row counts nowhere.',
        # A view leaves the others out: what it shows is graded.
        readers=_OBSERVERS,
    ),
    Column(
        'sandbox_tier',
        'int32',
        'Tier of the box that untrusted code of the row ran in.',
        codes=SANDBOX_TIER,
        # It is the machine's: a reward that read it could not be replayed.
        readers=_OBSERVERS,
    ),
    Column(
        'grade_seconds',
        'float32',
        'Wall time of grading the row.',
        unit='s',
        # Time differs between runs: a reward that read it could not be
        # replayed, and would pay for a slow machine.
        readers=_OBSERVERS,
    ),
    _rewarded(
        'reward',
        'float32',
        'Weighted sum of the parts: the value that trained the policy.',
    ),
    _rewarded(
        'advantage',
        'float32',
        'Group-relative advantage, the mean over turns; null in '
        'evaluations.',
    ),
    _rewarded(
        'turn_advantages',
        'float32',
        'Advantage of each turn; empty for one turn and in evaluations.',
        shape='A',
    ),
    _rewarded(
        'kept', 'bool', 'The row entered the update; null in evaluations.'
    ),
    Column(
        'sampler_trainer_logprob_gap',
        'float32',
        'Mean |old_logprobs - sampler_logprobs| over the sampled tokens; '
        'null until the update, and where the row did not enter it.',
        unit='nats/token',
        nullable=True,
        stage='update',
    ),
    # Tokens and text hold the problem itself: a reward that read them could
    # learn single problems by heart, so they are for looking at.
    _sampled(
        'prompt_tokens',
        'int32',
        'Token ids of the rendered prompt.',
        shape='Lp',
        readers=_OBSERVERS,
    ),
    _sampled(
        'tokens',
        'int32',
        'Token ids after the prompt: actions and observations in turn.',
        shape='Lc',
        readers=_OBSERVERS,
    ),
    _sampled(
        'sampler_logprobs',
        'float32',
        'Sampler log-prob of each token, softmax(logits / T).',
        shape='Lc',
        unit='nats',
        readers=_OBSERVERS,
    ),
    _sampled(
        'prompt', 'string', 'Text of the last user message.', readers=_OBSERVERS
    ),
    _sampled(
        'completion',
        'string',
        'Sampled text without special tokens.',
        readers=_OBSERVERS,
    ),
)


def with_codes(name: str, codes: Mapping[str, int]) -> Column:
  """Return a core column with the code table of a domain.

  Args:
    name: 'grade_status', 'actions' or 'arguments'.
    codes: Name -> code.
  """
  column = next(column for column in CORE if column.name == name)
  return dataclasses.replace(column, codes=codes)


def part(name: str) -> Column:
  """Return the column of one reward part, before its weight."""
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
  """Return the columns of a run: core, domain and reward parts.

  Args:
    domain_columns: A domain's columns; those of the core whose codes are the
      domain's come from `with_codes`.
    parts: Names of the reward parts.
    blind: True hides the columns that a blind run has to discover by itself.

  Raises:
    ValueError: If a name is declared twice or a domain column is filled by
      another stage than sample or grade.
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


def value_type(column: Column) -> pa.DataType:
  """Return the Arrow type of a single value of the column."""
  return pa.bool_() if column.dtype == 'bool' else getattr(pa, column.dtype)()


def arrow_type(column: Column) -> pa.DataType:
  """Return the Arrow type of a column, a list where it has a shape."""
  value = value_type(column)
  return pa.list_(pa.field('item', value, False)) if column.shape else value


def to_arrow_schema(columns: Sequence[Column]) -> pa.Schema:
  """Return an Arrow schema whose metadata hold the whole declaration."""

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
  for column in columns:
    kind = f'{column.dtype}[{column.shape}]' if column.shape else column.dtype
    doc = column.doc
    if column.codes:
      table = ', '.join(f'{code} {name}' for name, code in column.codes.items())
      doc = f'{doc} Codes: {table}.'
    everyone = column.readers == READERS
    cells = (
        f'`{column.name}`',
        kind,
        column.unit,
        'yes' if column.nullable else '',
        column.stage,
        'everyone' if everyone else ', '.join(column.readers),
        doc.replace('|', r'\|'),
    )
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
