import dataclasses
import json
import pathlib
import tempfile

from absl.testing import absltest
from absl.testing import parameterized

from evojax.ledger import chain
from evojax.ledger import records
from evojax.ledger import rows as rows_lib

ARM = dict(
    folder='arms/v0.control-0',
    seed=1,
    harness='aa',
    start='s',
    end='e',
    status='done',
    why='',
    updates=2,
    outcome=(0.25, 0.5),
    sampled_tokens=12,
)
VERSION = dict(
    version='v0',
    parent=None,
    harness='aa',
    folder='arms/v0',
    checkpoint='arms/v0/checkpoints/step_000002',
    start='s',
    end='e',
    updates=2,
    outcome=(0.25, 0.5),
    sampled_tokens=12,
)
DELTA = records.Delta(
    sha256='d',
    factor='data.families',
    kind='recipe',
    intervention_class='data',
    before='aa',
    changes=(('data.families', (), ('gcd:0', 'lcm:1')), ('x', None, 1.5)),
    text='data.families',
)
ESTIMATE = records.Estimate(value=0.5, standard_error=0.1, low=0.3, high=0.7)
EXAMPLES = (
    records.Open(
        config={'a': {'b': (1, 2.5, None)}},
        config_sha256='c',
        harness='aa',
        proposer='rules',
        jax='0.10',
        forked='',
    ),
    records.Train(**VERSION, prompts=4, group_size=2),
    records.Diagnose(
        round=0,
        trial=0,
        version='v0',
        measures=(
            records.Measure(
                'truncated',
                'behaviour',
                'fraction',
                0.2,
                ('>', 0.15),
                None,
                'warn',
            ),
            records.Measure(
                'x', 'score', '', None, None, None, 'failed', 'hang', ('clip',)
            ),
        ),
        alerts=('truncated',),
    ),
    records.Hypothesize(trial=0, version='v0'),
    records.Hypothesize(
        trial=0, version='v0', proposer='rules', expected=(-0.01, 0.02)
    ),
    records.Design(trial=0, harness='bb', delta=DELTA),
    records.Admit(trial=0, reasons=('constant',)),
    records.Backtest(
        trial=0,
        key='k',
        statistics={'kept_groups': 1.0, 'replayed_effect': 'not identifiable'},
        predicted=None,
    ),
    records.Race(
        round=0,
        version='v0',
        start='s',
        scored_by='rollouts',
        arms=(
            records.RacedArm(
                **ARM,
                role='incumbent',
                trial=None,
                pair=0,
                score=0.5,
                dev='rounds/000/r000-incumbent-0',
            ),
        ),
        standings=(
            records.Standing(
                trial=0,
                index=1,
                rounds=1,
                differences=(0.01, 0.03),
                errors=(0.01, 0.01),
                pairs=2,
                effect=0.02,
                standard_error=0.01,
                low=-0.1,
                high=0.14,
                e_value=2.0,
                threshold=20.0,
                detectable=None,
            ),
        ),
        queue=(
            records.Queued(
                trial=0, predicted=(-0.01, 0.02), enters=True, reason='best'
            ),
        ),
    ),
    records.Verify(trial=0, version='', status='crash', reasons=('child-0',)),
    records.Verify(
        trial=0, version='v1', status='keep', reasons=(), effect=0.02, pairs=4
    ),
    records.Audit(trial=0, round=1, differences=(0.1,), errors=(0.1,)),
    records.Shadow(
        trial=0,
        round=1,
        look=1,
        harness='aa',
        checkpoint='shadows/t000/checkpoints/step_000002',
        end='e',
        folder='arms/r001-shadow-0',
        differences=(0.1,),
        errors=(0.1,),
        decision='go_on',
        reason='+10.0 points',
    ),
    records.Promote(
        **VERSION | {'version': 'v1', 'parent': 'v0'},
        round=0,
        outer_learning_rate=3.0,
        sources=(
            records.Source(folder='arms/a', harness='aa', end='e', weight=1.0),
        ),
    ),
    records.Accumulate(
        trial=0,
        skill='',
        validity=records.Validity(
            intervention_class='data',
            proposer='rules',
            predicted=0.01,
            replayed=None,
            realised=0.02,
            sign_agrees=True,
            replay_sign_agrees=None,
        ),
    ),
    records.Retrain(**ARM, version='final'),
    records.Seal(salt='salt', seed=3),
    records.Final(
        harness='aa',
        version='v1',
        problems=16,
        samples=4,
        scores={'base': ESTIMATE, 'random': None},
        gains={},
        evolved_over={'base': ESTIMATE},
        compute={'evolved': records.Tokens(training=5, total=9)},
    ),
    records.Stop(reason='budget'),
)


def _row(record, **change):
  """The row of a record as the chain returns it, with other values."""
  payload = {
      'n': 0,
      'step': record.STEP,
      **rows_lib.to_json(record),
      **change,
  }
  return {'hash': 'h', 'payload': payload, 'measured': {'seconds': 1.5}}


def _at(value, path):
  """The container of the last key of a path, and that key."""
  for key in path[:-1]:
    value = value[key]
  return value, path[-1]


class RecordsTest(parameterized.TestCase):

  def test_every_step_has_an_example(self):
    self.assertEqual({type(e) for e in EXAMPLES}, {*records.STEPS.values()})

  @parameterized.parameters(*EXAMPLES)
  def test_a_row_on_disk_is_the_record(self, record):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'ledger.jsonl')
      written = rows_lib.append(
          chain.Ledger(path, 'T1'),
          record,
          records.Measured(seconds=2.0, device_seconds=16.0),
      )
      (line,) = chain.read(path)
    self.assertEqual(line, written)
    row = rows_lib.parse(line)
    self.assertEqual(row.record, record)
    self.assertEqual((row.n, row.sandbox, row.hash), (0, 'T1', line['hash']))
    self.assertEqual(row.measured.device_seconds, 16.0)
    self.assertEqual(line['payload']['schema'], record.VERSION)

  def test_a_row_that_could_not_be_read_again_is_not_written(self):
    with tempfile.TemporaryDirectory() as folder:
      path = pathlib.Path(folder, 'ledger.jsonl')
      ledger = chain.Ledger(path, '')
      measured = records.Measured(seconds=2.0, device_seconds=16.0)
      rows_lib.append(ledger, EXAMPLES[0], measured)
      before = path.read_bytes()
      wrong = dataclasses.replace(EXAMPLES[2], round=True)
      with self.assertRaisesRegex(rows_lib.RecordError, 'round = True is no'):
        rows_lib.append(ledger, wrong, measured)
      self.assertEqual(path.read_bytes(), before)

  @parameterized.parameters(0.5, 3, True, False, 'read', None)
  def test_values_of_remedies(self, value):
    remedy = records.Remedy(setting='history', value=value)
    finding = records.Finding(
        check='history_leak', severity='critical', text='', remedies=(remedy,)
    )
    made = dataclasses.replace(EXAMPLES[2], findings=(finding,))
    again = rows_lib.from_json(records.Diagnose, rows_lib.to_json(made))
    self.assertEqual(again, made)
    self.assertIs(type(again.findings[0].remedies[0].value), type(value))

  def test_an_arm_is_json_too(self):
    arm = records.Arm(**ARM)
    text = json.dumps(rows_lib.to_json(arm))
    self.assertEqual(rows_lib.from_json(records.Arm, json.loads(text)), arm)

  def test_overlay_values_are_tuples_again(self):
    read = rows_lib.parse(_row(EXAMPLES[5])).record.delta.changes
    self.assertEqual(read[0], ('data.families', (), ('gcd:0', 'lcm:1')))

  @parameterized.named_parameters(
      ('unknown', ('new',), 1, r'Race\.new is unknown'),
      ('unknown_nested', ('arms', 0, 'new'), 1, r'arms\[0\]\.new is unknown'),
      (
          'text',
          ('standings', 0, 'low'),
          '0.1',
          r"standings\[0\]\.low = '0\.1' is not of type float",
      ),
      ('bool', ('round',), True, 'round = True is not of type int'),
      ('null', ('start',), None, 'start = None is not of type str'),
      (
          'nested',
          ('arms', 0, 'seed'),
          1.5,
          r'arms\[0\]\.seed = 1\.5 is not of type int',
      ),
      (
          'element',
          ('arms', 0, 'outcome', 1),
          None,
          r'outcome\[1\] = None is not of type float',
      ),
      ('list', ('arms',), {}, r'arms = {} is not of type tuple'),
      ('record', ('arms', 0), [], r'arms\[0\] = \[\] is not of type RacedArm'),
  )
  def test_wrong_values_are_named(self, path, value, message):
    row = _row(EXAMPLES[8])
    container, key = _at(row['payload'], path)
    container[key] = value
    message = f'row 0 of the ledger: .*{message}'
    with self.assertRaisesRegex(rows_lib.RecordError, message):
      rows_lib.parse(row)

  @parameterized.named_parameters(
      ('required', 8, ('start',)),
      ('default', 9, ('effect',)),
      ('nested', 8, ('arms', 0, 'why')),
      ('nested_default', 2, ('measures', 0, 'calls_for')),
  )
  def test_missing_fields_are_named(self, example, path):
    """Also those with a default, which is for writers alone."""
    row = _row(EXAMPLES[example])
    container, key = _at(row['payload'], path)
    del container[key]
    message = rf'{path[-1]} is missing'
    with self.assertRaisesRegex(rows_lib.RecordError, message):
      rows_lib.parse(row)

  def test_versions_that_nobody_here_knows(self):
    for schema in (99, -1, '1', None):
      with self.assertRaisesRegex(
          rows_lib.RecordError, 'schema=.* is not one of 0 to 1'
      ):
        rows_lib.parse(_row(EXAMPLES[-1], schema=schema))
    with self.assertRaisesRegex(rows_lib.RecordError, "step='ride' is not one"):
      rows_lib.parse(_row(EXAMPLES[-1], step='ride'))

  def test_rows_without_a_version_are_upgraded(self):
    """Field by field, what the tree of 2026-11-21 wrote."""
    design = _row(EXAMPLES[5])
    delta = design['payload']['delta']
    delta['klass'] = delta.pop('intervention_class')
    train = _row(EXAMPLES[1])
    train['payload']['arm'] = train['payload'].pop('folder')
    for index, row in ((5, design), (1, train)):
      del row['payload']['schema']
      self.assertEqual(rows_lib.parse(row).record, EXAMPLES[index])
    nothing = {
        'hash': '',
        'measured': {},
        'payload': {
            'n': 4,
            'step': 'hypothesize',
            'trial': 2,
            'proposer': '',
            'version': 'v1',
        },
    }
    self.assertEqual(
        rows_lib.parse(nothing).record,
        records.Hypothesize(trial=2, version='v1'),
    )

  def test_a_queue_before_places_could_be_hopeless(self):
    (race,) = (r for r in EXAMPLES if isinstance(r, records.Race))
    row = _row(race, schema=3)
    for place in row['payload']['queue']:
      del place['hopeless']
    self.assertEqual(rows_lib.parse(row).record, race)

  def test_a_trial_of_one_change_is_a_round(self):
    """Rows of both versions that there were of it."""
    scored = dict(role='control', scores='trials/003/control-0')
    control = rows_lib.to_json(records.Arm(**ARM)) | scored
    child = control | dict(role='child', scores='trials/003/child-0')
    for arm in (control, child):
      del arm['schema']
    payload = dict(n=7, step='trial', schema=1, trial=3, start='s', dev_seed=5)
    payload |= dict(alpha=0.1, mde=0.02, children=1, refused='')
    new = payload | {'arms': [control, control, child]}
    old = payload | {'arms': [{**a} for a in new['arms']]}
    del old['schema']
    for arm in old['arms']:
      arm['trained'], arm['arm'] = arm.pop('folder'), arm.pop('scores')
    for fields in (new, old):
      race = rows_lib.parse(
          {'hash': '', 'measured': {}, 'payload': fields}
      ).record
      self.assertIsInstance(race, records.Race)
      self.assertEqual((race.round, race.scored_by), (3, 'dev'))
      self.assertEqual(
          [(a.trial, a.pair, a.role) for a in race.arms],
          [(None, 0, 'incumbent'), (None, 1, 'incumbent'), (3, 0, 'candidate')],
      )
      self.assertEqual(race.arms[2].dev, 'trials/003/child-0')
      (standing,) = race.standings
      self.assertEqual((standing.trial, standing.detectable), (3, 0.02))

  def test_an_old_row_that_is_none_is_an_error_too(self):
    row = _row(EXAMPLES[5])
    del row['payload']['schema'], row['payload']['delta']
    with self.assertRaisesRegex(
        rows_lib.RecordError, "Design of version 0: KeyError.'delta'"
    ):
      rows_lib.parse(row)

  def test_a_record_is_never_changed(self):
    with self.assertRaises(dataclasses.FrozenInstanceError):
      EXAMPLES[0].harness = 'bb'

  def test_find_gives_the_last_that_matches(self):
    rows = [
        dataclasses.replace(rows_lib.parse(_row(e)), n=n)
        for n, e in enumerate(EXAMPLES)
    ]
    find = lambda *args, **match: rows_lib.find(rows, *args, **match)
    self.assertEqual(find(records.Verify).version, 'v1')
    self.assertEqual(find(records.Verify, status='crash'), EXAMPLES[9])
    self.assertIsNone(find(records.Verify, trial=1))
    # A promoted version is a version, as the trained one is.
    self.assertEqual(find(records.Version, version='v0'), EXAMPLES[1])
    self.assertEqual(find(records.Version).version, 'v1')


if __name__ == '__main__':
  absltest.main()
