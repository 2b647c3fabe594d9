"""Tests for the declaration of evidence columns."""

import dataclasses
import pathlib

from absl.testing import absltest
from absl.testing import parameterized
import pyarrow as pa

from evojax.evidence import schema
from evojax.sandbox import limits


def column(name: str) -> schema.Column:
  return next(c for c in schema.CORE if c.name == name)


class ColumnTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ('dtype', {'dtype': 'float16'}, 'float16'),
      ('shape', {'shape': 'B'}, "shape='B'"),
      ('stage', {'stage': 'eval'}, "stage='eval'"),
      ('reader', {'readers': ('rewards',)}, "'rewards'"),
      ('dotted_name', {'name': 'part.outcome'}, 'part.outcome'),
      ('upper_case_name', {'name': 'Steps'}, 'Steps'),
      ('name_of_a_view_attribute', {'name': 'valid'}, 'taken by views'),
      ('float_codes', {'dtype': 'float32', 'codes': {'a': 0}}, 'integer dtype'),
      ('shared_code', {'codes': {'a': 0, 'b': 0}}, 'share a code'),
  )
  def test_refuses(self, change, message):
    with self.assertRaisesRegex(ValueError, message):
      schema.Column(**({'name': 'x', 'dtype': 'int32'} | change))

  def test_every_tier_of_the_box_has_a_code(self):
    self.assertEqual(set(schema.SANDBOX_TIER), {'none', *limits.TIERS})

  @parameterized.parameters('identity', 'reward', 'update')
  def test_only_what_was_sampled_or_graded_opens_to_rewards(self, stage):
    self.assertEqual(
        schema.Column('x', 'int32', stage=stage).readers,
        ('diagnostic', 'report'),
    )
    for reader in ('reward', 'filter'):
      with self.assertRaisesRegex(ValueError, 'not open to rewards'):
        schema.Column('x', 'int32', stage=stage, readers=(reader,))

  @parameterized.parameters(
      'problem_id',
      'seed',
      'split',
      'grade_seconds',
      'graded',
      'sandbox_tier',
      'step',
      'version',
      'reward',
      'advantage',
      'kept',
      'staleness',
      'sampler_trainer_logprob_gap',
      'tokens',
      'prompt',
      'completion',
  )
  def test_core_column_is_closed_to_rewards_and_filters(self, name):
    self.assertNoCommonElements(column(name).readers, ('reward', 'filter'))

  @parameterized.parameters(
      'outcome',
      'partial',
      'grade_status',
      'n_tokens',
      'n_turns',
      'truncated',
      'finish_reason',
      'mean_logprob',
      'actions',
      'arguments',
      'action_ok',
  )
  def test_core_column_is_open_to_everyone(self, name):
    self.assertEqual(column(name).readers, schema.READERS)


class DeclareTest(parameterized.TestCase):

  def test_core_then_domain_then_parts(self):
    domain = (
        schema.with_codes('grade_status', {'ok': 0, 'no_answer': 1}),
        schema.Column('format_ok', 'bool'),
    )
    columns = schema.declare(domain, ('outcome', 'format'))
    names = [c.name for c in columns]
    self.assertEqual(
        names,
        [c.name for c in schema.CORE]
        + ['format_ok', 'part_outcome', 'part_format'],
    )
    status = columns[names.index('grade_status')]
    self.assertEqual(status.codes, {'ok': 0, 'no_answer': 1})

  @parameterized.named_parameters(
      ('core_name', schema.Column('outcome', 'bool'), 'declared twice'),
      (
          'other_dtype',
          schema.Column('grade_status', 'int64', codes={'ok': 0}),
          'declared twice',
      ),
      (
          'core_codes',
          schema.Column('finish_reason', 'int32', codes={'stop': 1}),
          'declared twice',
      ),
      (
          'reward_stage',
          schema.Column('x', 'int32', stage='reward'),
          'sample and grade',
      ),
      ('part_name', schema.Column('part_x', 'float32'), 'for reward parts'),
  )
  def test_refuses_domain_column(self, bad, message):
    with self.assertRaisesRegex(ValueError, message):
      schema.declare((bad,))

  def test_part_of_the_name_of_a_part_is_refused_twice(self):
    with self.assertRaisesRegex(ValueError, "'part_a' is declared twice"):
      schema.declare((), ('a', 'a'))


class ArrowTest(absltest.TestCase):

  def test_declaration_survives_the_arrow_schema(self):
    columns = schema.declare(
        (schema.with_codes('actions', {'ls': 0, 'submit': 7}),), ('outcome',)
    )
    # Serialised and read back, as in a file.
    arrow = pa.ipc.read_schema(schema.to_arrow_schema(columns).serialize())
    back = schema.from_arrow_schema(arrow)
    for one, other in zip(columns, back, strict=True):
      self.assertEqual(dataclasses.asdict(one), dataclasses.asdict(other))

  def test_types(self):
    types = {f.name: f for f in schema.to_arrow_schema(schema.CORE)}
    self.assertEqual(types['n_tokens'].type, pa.int32())
    self.assertFalse(types['n_tokens'].nullable)
    self.assertTrue(types['advantage'].nullable)
    self.assertEqual(types['sampler_logprobs'].type.value_type, pa.float32())
    self.assertEqual(types['action_ok'].type.value_type, pa.bool_())
    self.assertEqual(types['mean_logprob'].metadata[b'unit'], b'nats/token')


class DocumentTest(absltest.TestCase):

  def test_columns_md_is_what_the_declaration_says(self):
    written = pathlib.Path(schema.__file__).with_name('COLUMNS.md').read_text()
    self.assertEqual(
        written,
        schema.core_document(),
        'run `python -m evojax.evidence.schema`',
    )

  def test_every_column_has_a_row_with_its_meaning(self):
    lines = schema.document(schema.CORE).splitlines()
    self.assertLen(lines, 2 + len(schema.CORE))
    for line, each in zip(lines[2:], schema.CORE, strict=True):
      self.assertStartsWith(line, f'| `{each.name}` |')
      self.assertNotEmpty(each.doc)
      # Seven cells; a bar inside the meaning is escaped.
      self.assertEqual(line.replace(r'\|', '').count('|'), 8)
    codes = 'Codes: 0 stop, 1 length, 2 abort, 3 turns, 4 seconds.'
    self.assertIn(codes, '\n'.join(lines))


if __name__ == '__main__':
  absltest.main()
