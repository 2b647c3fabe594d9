"""The queue's order, from predictions worked out by hand."""

from absl.testing import absltest
from absl.testing import parameterized

from evojax.evolve import prospects
from evojax.evolve import ranking
from evojax.ledger import history as history_lib
from evojax.ledger import records
from tests.ledger import samples


def trial(number, replay, expected=(-0.02, 0.02), effect=None, **options):
  """A backtested trial of a class; `repairs` is the severity of a fault."""
  remedy = records.Remedy(setting='weight', part='length', value=0.0)
  severity = options.get('repairs', '')
  finding = samples.record(
      records.Finding, severity=severity, remedies=(remedy,)
  )
  delta = samples.record(
      records.Delta,
      intervention_class=options.get('name', 'loss'),
      changes=(('reward.weights.length', -2.0, 0.0),),
  )
  return history_lib.Trial(
      index=number,
      number=number,
      seconds={},
      diagnose=samples.record(
          records.Diagnose, findings=(finding,) if severity else ()
      ),
      hypothesize=samples.record(
          records.Hypothesize,
          expected=expected,
          trigger=options.get('trigger', ''),
      ),
      design=samples.record(records.Design, delta=delta),
      backtest=samples.record(
          records.Backtest,
          predicted=replay,
          statistics=options.get('statistics', {}),
      ),
      verify=effect
      and samples.record(records.Verify, effect=effect, low=-1.0, high=1.0),
  )


def chance_of(chances):
  """A function that returns chances one by one."""
  following = iter(chances)
  return lambda predicted: next(following, None)


def queue(waiting, past=(), **options):
  """The queue, by default with two places and without any limit."""
  options = {
      'places': 2,
      'ordinary': 9,
      'chance_of': chance_of(()),
      'least_chance': prospects.LEAST_CHANCE,
      'is_paid': lambda entering: True,
      'waits': False,
      **options,
  }
  return ranking.queue(waiting, [*past, *waiting], **options)


def order(waiting, past=(), chances=(), **options):
  """The trials in the queue; negative if they wait (0 must enter)."""
  found = queue(waiting, past, chance_of=chance_of(chances), **options)
  return [q.trial if q.enters else -q.trial for q in found]


class QueueTest(parameterized.TestCase):

  def test_a_prediction_by_hand(self):
    # The hypothesis is a 90 % interval: 0.02 x 1.96 / 1.6449 = 0.02383. Each
    # half is widened by 1.96 x 0.02 = 0.0392. The replay's
    # sqrt(0.03^2 + 0.0392^2) = 0.04936 weighs 1 / 0.04936^2 = 410.4, the
    # hypothesis's sqrt(0.02383^2 + 0.0392^2) = 0.04588 weighs 475.2; so the
    # middle is 0.05 x 410.4 / 885.6 = 0.02317, the half 885.6^-0.5 = 0.0336.
    repair = trial(0, (0.02, 0.08), repairs='warning')
    low, high = ranking.predicted(repair, [])
    self.assertAlmostEqual(low, 0.02317 - 0.0336, places=4)
    self.assertAlmostEqual(high, 0.02317 + 0.0336, places=4)
    # Half of what others predict is expected, and 1.96 x 0.015 = 0.0294: the
    # halves are sqrt(0.015^2 + 0.0294^2) = 0.033006 and, with 0.011915,
    # 0.031722, the weights 917.9 and 993.7.
    low, high = ranking.predicted(trial(0, (0.02, 0.08)), [])
    self.assertAlmostEqual(low, 0.025 * 917.9 / 1911.6 - 0.02287, places=4)
    self.assertAlmostEqual(high, 0.025 * 917.9 / 1911.6 + 0.02287, places=4)

  def test_without_a_replay_the_hypothesis_stands_alone(self):
    low, high = ranking.predicted(trial(0, None, (0.0, 0.04)), [])
    self.assertAlmostEqual(low, 0.01 - 0.03172, places=5)
    self.assertAlmostEqual(high, 0.01 + 0.03172, places=5)

  def test_what_a_replay_may_show(self):
    # The replay shows 0.02 give or take 0.03; the quantiles of ten equal shares
    # are at 1/10, ..., 9/10. Half of what it shows counts, +- 0.0294, with a
    # weight of 0.0294^-2 = 1156.9. The hypothesis alone is 0.01 +- 0.03172,
    # as above, with the weight 993.7.
    look = lambda **options: ranking.outlooks(
        'loss', (0.0, 0.04), [], **options
    )
    found = look(replays=True)
    self.assertLen(found, 9)
    for (low, high), shown in (
        (found[0], 0.02 - 1.2816 * 0.03),
        (found[4], 0.02),
        (found[8], 0.02 + 1.2816 * 0.03),
    ):
      middle = (0.01 * 993.7 + shown / 2 * 1156.9) / (993.7 + 1156.9)
      self.assertAlmostEqual((low + high) / 2, middle, places=4)
      half = (993.7 + 1156.9) ** -0.5
      self.assertAlmostEqual((high - low) / 2, half, places=4)
    # It is what `predicted` says after such a replay.
    replayed = trial(0, (0.02 + 1.2816 * 0.03,) * 2, (0.0, 0.04))
    for one, other in zip(
        ranking.predicted(replayed, []), found[8], strict=True
    ):
      self.assertAlmostEqual(one, other, places=5)
    (only,) = look(replays=False)
    self.assertEqual(only, ranking.predicted(trial(0, None, (0.0, 0.04)), []))

  def test_where_replays_mispredicted_they_move_little(self):
    # Replays of this class promised 10 points, and nothing was gained.
    past = [trial(n, (0.08, 0.12), effect=1e-9) for n in range(4)]
    look = lambda past: ranking.outlooks(
        'loss', (0.0, 0.04), past, replays=True
    )
    apart = lambda found: sum(found[8]) - sum(found[0])
    self.assertLess(apart(look(past)), apart(look([])) / 4)

  def test_a_replay_without_any_difference_bounds_what_repairs_nothing(self):
    bounded = dict(statistics=dict(replayed_low=-0.03, replayed_high=0.03))
    silent = trial(0, None, (0.0, 0.04), **bounded)
    # Halves of sqrt(0.015^2 + 0.0294^2) = 0.033006 around 0 and of 0.031722
    # around 0.01 weigh 917.9 and 993.7.
    low, high = ranking.predicted(silent, [])
    self.assertAlmostEqual(low, 0.01 * 993.7 / 1911.6 - 0.02287, places=4)
    self.assertAlmostEqual(high, 0.01 * 993.7 / 1911.6 + 0.02287, places=4)
    # One whose replay gains a little comes first.
    better = trial(1, (-0.02, 0.04), (0.0, 0.04))
    self.assertEqual(order([silent, better]), [1, 0])
    # A repair may need more updates than a replay has.
    repair = trial(0, None, (0.0, 0.04), repairs='warning', **bounded)
    alone = trial(0, None, (0.0, 0.04), repairs='warning')
    self.assertEqual(
        ranking.predicted(repair, []), ranking.predicted(alone, [])
    )
    missing = dict.fromkeys(bounded['statistics'], 'not identifiable')
    other = trial(0, None, (0.0, 0.04), statistics=missing)
    self.assertAlmostEqual(sum(ranking.predicted(other, [])), 0.02)

  def test_the_best_predictions_enter_first(self):
    waiting = [trial(1, (-0.03, 0.03)), trial(2, (0.0, 0.06)), trial(3, None)]
    # Middles: 0, above 0, 0: equal predictions by number.
    self.assertEqual(order(waiting), [2, 1, -3])
    self.assertEqual(order(waiting[::-1]), [2, 1, -3])
    self.assertEqual(order(waiting, places=0), [-2, -1, -3])

  def test_what_could_hardly_be_proven_leaves_its_place_to_others(self):
    waiting = [trial(1, (0.02, 0.08)), trial(2, (-0.03, 0.03)), trial(3, None)]
    self.assertEqual(order(waiting, chances=(0.19, 0.2)), [-1, 2, 3])
    # An unknown chance keeps nobody out, and who waits uses up no entry.
    self.assertEqual(
        order(waiting, ordinary=1, chances=(0.1, None)), [-1, 2, -3]
    )
    places = queue(waiting, chance_of=chance_of((0.19,)))
    self.assertRegex(places[0].reason, r'predicted \+.*ability 0\.19 < 0\.20$')
    self.assertEqual([place.hopeless for place in places], [True, False, False])

  def test_what_repairs_nothing_waits_while_the_policy_learns_fast(self):
    repair = trial(2, (-0.03, 0.03), repairs='warning')
    mine = trial(4, (-0.03, 0.03), trigger='inbox/mine.json')
    waiting = [trial(1, (0.02, 0.08)), repair, trial(3, None), mine]
    self.assertEqual(order(waiting, waits=True), [4, 2, -1, -3])
    self.assertEndsWith(queue(waiting, waits=True)[2].reason, 'learns fast')

  def test_what_is_not_paid_waits_and_leaves_its_place_to_others(self):
    waiting = [trial(n, (0.02, 0.08)) for n in (1, 2, 3)]
    asked = []

    def is_paid(entering):
      asked.append([t.number for t in entering])
      return asked[-1] != [1]

    found = order(waiting, ordinary=1, is_paid=is_paid)
    self.assertEqual(found, [-1, 2, -3])
    # Nobody is asked about candidates that have no place.
    self.assertEqual(asked, [[1], [2]])
    places = queue(waiting, places=1, is_paid=lambda entering: False)
    self.assertTrue(places[0].reason.endswith('the tokens do not pay for'))
    self.assertFalse(places[0].hopeless)

  def test_what_mispredicts_loses_weight(self):
    # Replays of the class 'loss' promised 10 points three times, and these lost
    # 10: sums 0.0009 - 0.03 over 0.0009 + 0.03, so the slope is 0.
    past = [trial(n, (0.09, 0.11), effect=-0.1) for n in (5, 6, 7)]
    waiting = [
        trial(1, (0.08, 0.12)),
        trial(2, (0.0, 0.04), name='clip'),
    ]
    self.assertEqual(order(waiting, places=1), [1, -2])
    self.assertEqual(order(waiting, past, places=1), [2, -1])
    low, high = ranking.predicted(waiting[0], past)
    self.assertAlmostEqual((low + high) / 2, 0.0)
    # Another class is affected less: its slope is half way from 0.5 to 0.
    middle = lambda past: sum(ranking.predicted(waiting[1], past)) / 2
    self.assertGreater(middle(past), 0.0)
    self.assertLess(middle(past), middle([]))
    # Repairs say nothing about it.
    of_repairs = [
        trial(n, (0.09, 0.11), effect=-0.1, repairs='warning')
        for n in (5, 6, 7)
    ]
    self.assertEqual(middle(of_repairs), middle([]))

  def test_the_users_changes_then_predictions(self):
    waiting = [
        trial(1, (0.3, 0.4)),
        trial(2, (-0.2, -0.1), trigger='inbox/b.json'),
        trial(3, (-0.2, -0.1), trigger='inbox/c.json'),
        trial(5, (0.1, 0.2)),
    ]
    self.assertEqual(order(waiting, places=3), [2, 3, 1, -5])
    found = queue(waiting, places=3)
    self.assertEqual(found[0].reason, 'was left in the inbox')
    self.assertStartsWith(found[2].reason, 'predicted +')

  def test_repairs_enter_before_what_repairs_nothing(self):
    waiting = [
        trial(1, (0.3, 0.4)),
        trial(2, (0.0, 0.1), repairs='warning'),
        trial(3, (0.1, 0.2), repairs='warning'),
        trial(4, (-0.4, -0.3), trigger='inbox/b.json'),
        trial(5, (0.4, 0.5), repairs='note'),
    ]
    self.assertEqual(order(waiting, places=4), [4, 3, 2, 5, -1])
    # The last entry is for critical faults; who repairs needs no chance.
    found = order(waiting, places=4, ordinary=1, chances=(0.1, 0.1))
    self.assertEqual(found, [4, 3, -2, -5, -1])
    places = queue(waiting, places=4)
    self.assertStartsWith(places[1].reason, 'repairs a fault, predicted +')

  def test_the_repair_of_a_critical_fault_enters_alone(self):
    waiting = [
        trial(1, (0.3, 0.4)),
        trial(2, (0.3, 0.4), trigger='inbox/b.json'),
        trial(3, (-0.4, -0.3), repairs='critical'),
        trial(4, (-0.4, -0.3), repairs='critical'),
    ]
    self.assertEqual(order(waiting, places=3), [3, -4, -2, -1])
    found = queue(waiting, places=3)
    self.assertEqual(found[0].reason, 'repairs a critical fault')
    self.assertTrue(found[2].reason.endswith('inbox, waits for that repair'))
    # If it cannot enter, it keeps nobody out.
    paid = lambda entering: entering[0].number < 3
    self.assertEqual(order(waiting, is_paid=paid), [-3, -4, 2, 1])

  @parameterized.parameters((0, [-1, -2]), (1, [1, -2]))
  def test_the_last_entry_is_for_a_repair(self, ordinary, others):
    waiting = [trial(1, (0.1, 0.2)), trial(2, (0.0, 0.1))]
    self.assertEqual(order(waiting, places=3, ordinary=ordinary), others)
    waiting.append(trial(3, None, repairs='critical'))
    found = order(waiting, places=3, ordinary=ordinary)
    self.assertEqual(found, [3, -1, -2])


if __name__ == '__main__':
  absltest.main()
