"""Predicates in which two sides of the rollouts differ."""

from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.domains.swe import evidence
from evojax.evidence import schema
from evojax.evidence import views
from evojax.evolve import predicates
from evojax.harness import language
from evojax.harness import run
from evojax.harness import spec

GROUPS, SIZE = 80, 8
DECLARED = schema.declare(evidence.COLUMNS)
EDIT, TEST, SHOW = (
    schema.codes_of(DECLARED, name)[label]
    for name, label in (
        ('actions', 'edit'),
        ('actions', 'test'),
        ('arguments', 'show'),
    )
)
GIT = schema.codes_of(DECLARED, 'actions')['git']


def view(seed=0, groups=GROUPS, columns=DECLARED, **values):
  """Return rollouts of agents whose behaviour has nothing to do with `outcome`.

  Args:
    seed: Seed of the random values.
    groups: Number of groups.
    columns: The declaration.
    **values: Columns with other values, [groups * SIZE].
  """
  rng = np.random.default_rng(seed)
  n = groups * SIZE
  turns = rng.integers(1, 7, n).astype(np.int32)
  rows = dict(
      group=np.repeat(np.arange(groups, dtype=np.int32), SIZE),
      sample=np.tile(np.arange(SIZE, dtype=np.int32), groups),
      graded=np.ones(n, bool),
      outcome=rng.random(n) < 0.4,
      n_tokens=rng.integers(20, 90, n).astype(np.int32),
      n_turns=turns,
      mean_logprob=-rng.random(n).astype(np.float32),
      finish_reason=rng.integers(0, 4, n).astype(np.int32),
      truncated=rng.random(n) < 0.2,
      actions=[rng.integers(0, 6, t).astype(np.int32) for t in turns],
      arguments=[rng.integers(0, 3, t).astype(np.int32) for t in turns],
      action_ok=[rng.random(t) < 0.9 for t in turns],
      files_edited=rng.integers(0, 3, n).astype(np.int32),
      submitted=rng.random(n) < 0.5,
      stop_reason=rng.integers(0, 6, n).astype(np.int32),
  )
  return views.View(
      rows | values,
      columns,
      prompts=groups,
      group_size=SIZE,
      max_tokens=100,
      reader='diagnostic',
  )


def mined(e, columns=DECLARED):
  """Return what tells the solved from the unsolved rollouts of a group."""
  units = np.broadcast_to(np.arange(len(e.valid))[:, None], e.valid.shape)
  known = predicates.terms(e, columns)
  solved, unsolved = e.valid & e.outcome, e.valid & ~e.outcome
  return predicates.mine(known, solved, unsolved, units)


def measure(found, e):
  """Return what the written diagnostic measures, run in the box."""
  path, text = predicates.source(found, 'Why.', ('<', 0.5), False)
  functions = run.Functions(spec.Harness({}, {path: text}))
  return functions.measure(predicates.name_of(found.predicate), e)


class TermsTest(parameterized.TestCase):

  def test_what_is_written_is_what_was_compared(self):
    """Each term holds where its text does, and its text passes the gate."""
    e = view()
    found = predicates.terms(e, DECLARED)
    self.assertGreater(len(found), 30)
    names = [term.name for term in found]
    self.assertLen(set(names), len(names))
    columns = [c.name for c in DECLARED]
    for one in (*found, found[0] & found[5]):
      whole = predicates.Found(one, 0.0, 0.0, 0, 0.0)
      path, text = predicates.source(whole, 'Why.', ('<', 0.5), False)
      self.assertEmpty(language.reasons(path, text, columns), one.text)
      scope = {}
      exec(text, scope)  # pylint: disable=exec-used
      written = scope[predicates.name_of(one)](e)
      np.testing.assert_array_equal(written, one.there, one.text)

  def test_a_name_of_a_tool_cannot_end_the_docstring(self):
    name = 'a"""\\\nimport os'
    actions = schema.with_codes('actions', {name: 1, 'other': 2})
    columns = tuple(actions if c.name == 'actions' else c for c in DECLARED)
    calls = [np.array([1 + i % 2], np.int32) for i in range(GROUPS * SIZE)]
    known = predicates.terms(view(columns=columns, actions=calls), columns)
    (term,) = [t for t in known if t.text == '(e.actions == 1).any(2)']
    found = predicates.Found(term, 0.9, 0.1, 20, 0.0)
    path, text = predicates.source(found, term.means, ('<', 0.5), False)
    self.assertEmpty(language.reasons(path, text, [c.name for c in columns]))
    self.assertEqual(predicates.read(path, text).text, term.text)

  def test_neither_the_grade_nor_certainty_is_a_term(self):
    text = ' '.join(t.text for t in predicates.terms(view(), DECLARED))
    for name in ('outcome', 'f2p_passed', 'partial', 'mean_logprob', 'reward'):
      self.assertNotIn(name, text)
    for name in ('n_tokens', 'files_edited', 'stop_reason', 'arguments'):
      self.assertIn(name, text)

  def test_a_blind_run_makes_no_terms_of_what_it_may_not_read(self):
    for blind, count in ((False, 1), (True, 0)):
      columns = schema.declare(evidence.COLUMNS, blind=blind)
      read = np.arange(GROUPS * SIZE) % 3 == 0
      e = view(columns=columns, read_history=read)
      names = [term.name for term in predicates.terms(e, columns)]
      self.assertEqual(names.count('read_history'), count)

  def test_nothing_graded_has_no_terms(self):
    e = view(graded=np.zeros(GROUPS * SIZE, bool))
    self.assertEmpty(predicates.terms(e, DECLARED))
    self.assertIsNone(mined(e))


class MineTest(parameterized.TestCase):

  def _planted(self, there, *, solved=0.8, other=0.1, seed=0, **values):
    """Return rollouts that are solved more often where `there` is true."""
    rng = np.random.default_rng(seed + 100)
    share = np.where(there, solved, other)
    return view(seed, outcome=rng.random(len(share)) < share, **values)

  def _turns(self, which, use=None):
    """Return actions and arguments with a call where `which` is true."""
    actions = [np.array([EDIT], np.int32)] * len(which)
    arguments = [np.array([0], np.int32)] * len(which)
    for i in np.flatnonzero(which):
      actions[i] = np.array([EDIT, use[0]], np.int32)
      arguments[i] = np.array([0, use[1]], np.int32)
    return dict(actions=actions, arguments=arguments)

  def test_the_planted_call_is_found(self):
    for tool, use, means in (
        (TEST, 0, "actions has 'test'"),
        # All read the history, and some look at the fix.
        (GIT, SHOW, "'git' with 'show'|'show'|'git'"),
    ):
      rng = np.random.default_rng(1)
      which = rng.random(GROUPS * SIZE) < 0.5
      found = mined(self._planted(which, **self._turns(which, (tool, use))))
      self.assertRegex(found.predicate.means, means)
      self.assertGreater(found.one, found.other + 0.4)
      self.assertLess(found.p, 1e-6)
      self.assertGreaterEqual(found.units, predicates.LEAST_UNITS)

  def test_a_length_is_found(self):
    tokens = np.random.default_rng(2).integers(20, 90, GROUPS * SIZE)
    short = tokens <= 30
    found = mined(self._planted(short, n_tokens=tokens.astype(np.int32)))
    self.assertIn('n_tokens >=', found.predicate.text)
    self.assertLess(found.one, found.other)

  def test_what_is_done_comes_before_what_is_left_out(self):
    """The solved edit, and they submit a little less often than they edit."""
    rng = np.random.default_rng(9)
    which = rng.random(GROUPS * SIZE) < 0.5
    edited = which & (rng.random(len(which)) < 0.93)
    found = mined(
        self._planted(
            which, solved=0.9, submitted=~which, files_edited=edited * 1
        )
    )
    self.assertEqual(found.predicate.text, 'e.files_edited >= 1')

  def test_two_terms_are_joined_only_if_neither_is_enough(self):
    rng = np.random.default_rng(3)
    first, second = (rng.random(GROUPS * SIZE) < 0.5 for _ in range(2))
    edited = first.astype(np.int32)
    both = dict(files_edited=edited, submitted=second)
    found = mined(self._planted(first & second, **both))
    self.assertEqual(
        found.predicate.means, 'files_edited >= 1 files and submitted'
    )
    found = mined(self._planted(first, **both))
    self.assertEqual(found.predicate.means, 'files_edited >= 1 files')

  def test_noise_is_rarely_found(self):
    """Hundreds of predicates are compared, and the test is of one."""
    found = [mined(view(seed)) for seed in range(100)]
    self.assertLessEqual(sum(f is not None for f in found), 3)

  def test_the_first_half_alone_would_find_noise(self):
    with mock.patch.multiple(
        predicates, _LEAST_T=1.5, _LEAST_GAP=0.0, LEVEL=1.0
    ):
      found = [mined(view(seed)) for seed in range(20)]
    self.assertGreater(sum(f is not None for f in found), 5)

  def test_what_easy_problems_share_is_no_difference(self):
    """Whole groups edit files and are easy; within a group nothing differs."""
    easy = np.repeat(np.arange(GROUPS) % 2 == 0, SIZE)
    e = self._planted(easy, solved=0.7, files_edited=easy.astype(np.int32))
    found = mined(e)
    if found is not None:
      self.assertNotIn('files_edited', found.predicate.text)

  def test_few_groups_tell_nothing(self):
    which = np.random.default_rng(4).random(20 * SIZE) < 0.5
    rng = np.random.default_rng(5)
    e = view(
        groups=20,
        outcome=rng.random(20 * SIZE) < np.where(which, 0.9, 0.1),
        submitted=which,
    )
    self.assertIsNone(mined(e))

  def test_the_order_of_a_groups_rollouts_does_not_matter(self):
    which = np.random.default_rng(6).random(GROUPS * SIZE) < 0.5
    e = self._planted(which, submitted=which)
    sample = np.tile(np.arange(SIZE, dtype=np.int32)[::-1], GROUPS)
    turned = self._planted(which, submitted=which, sample=sample)
    one, other = mined(e), mined(turned)
    self.assertEqual(one.predicate.text, other.predicate.text)
    self.assertEqual(one.p, other.p)


class SpreadTest(absltest.TestCase):

  def test_only_what_solved_completions_came_to_do_explains_a_gain(self):
    """All that is solved was always submitted; files came to be edited."""
    rng = np.random.default_rng(8)
    n = GROUPS * SIZE
    solved = rng.random(n) < 0.4
    new = np.arange(n) >= n // 2
    edited = np.where(new & solved, 0.9, 0.2) > rng.random(n)
    e = view(
        outcome=solved,
        submitted=solved | (rng.random(n) < 0.3),
        files_edited=edited.astype(np.int32),
    )
    now = new.reshape(e.valid.shape)
    known = predicates.terms(e, DECLARED)
    found = predicates.spread(
        known, e.outcome & now, e.outcome & ~now, ~e.outcome & now
    )
    names = [term.name for term in found]
    self.assertIn('files_edited_1', names)
    self.assertNotIn('submitted', names)
    # The unsolved ones came to do it as well: then it does not set them apart.
    both = np.where(new, 0.9, 0.2) > rng.random(n)
    e = view(outcome=solved, files_edited=both.astype(np.int32))
    known = [t for t in predicates.terms(e, DECLARED) if t.name[:5] == 'files']
    found = predicates.spread(
        known, e.outcome & now, e.outcome & ~now, ~e.outcome & now
    )
    units = np.broadcast_to(np.arange(GROUPS)[:, None], e.valid.shape)
    sides = e.outcome & now, ~e.outcome & now
    self.assertIsNone(predicates.mine(found, *sides, units))

  def test_few_solved_groups_tell_nothing(self):
    e = view()
    known = predicates.terms(e, DECLARED)
    few = np.zeros_like(e.valid)
    few[:5] = True
    self.assertEmpty(predicates.spread(known, e.valid, few, e.valid))


class SourceTest(absltest.TestCase):

  def test_the_diagnostic_measures_share_and_gap(self):
    which = np.zeros(GROUPS * SIZE, bool)
    which[::2] = True  # Samples 0, 2, 4, 6 of every group.
    outcome = np.zeros(GROUPS * SIZE, bool)
    outcome[::4] = True  # Samples 0 and 4 solve.
    e = view(submitted=which, outcome=outcome)
    found = mined(e)
    self.assertEqual(found.predicate.name, 'submitted')
    self.assertEqual((found.one, round(found.other, 3)), (1.0, 0.333))
    # Solved: 2 of 2 in every group; unsolved: 2 of 6.
    measured = measure(found, e)
    self.assertEqual(measured['found_submitted'], 0.5)
    self.assertAlmostEqual(measured['found_submitted_gap'], 2 / 3)

  def test_a_critical_one_calls_for_what_it_depends_on(self):
    known = {t.name: t for t in predicates.terms(view(), DECLARED)}
    for name, classes in (
        ('actions_edit', ('tools',)),
        ('submitted', ()),
        ('truncated', ('length',)),
    ):
      found = predicates.Found(known[name], 0.9, 0.1, 20, 0.0)
      for critical in (True, False):
        path, text = predicates.source(found, 'Why.', ('>', 0.5), critical)
        files = {path: text}
        functions = run.Functions(spec.Harness({}, files))
        meta = functions.meta(f'found_{name}')
        self.assertEqual(meta['CALLS_FOR'], classes if critical else ())
        written = predicates.read(path, text)
        self.assertEqual(written.critical, critical)
        self.assertEqual(written.text, known[name].text)
        self.assertFalse(written.below)
        table = meta['CRITICAL' if critical else 'WARN']
        self.assertEqual(table, {f'found_{name}': ('>', 0.5)})

  def test_groups_without_both_have_no_gap(self):
    which = np.arange(GROUPS * SIZE) % 2 == 0
    e = view(submitted=which, outcome=np.ones(GROUPS * SIZE, bool))
    known = predicates.terms(e, DECLARED)
    one = next(term for term in known if term.name == 'submitted')
    found = predicates.Found(one, 1.0, 0.0, 12, 0.0)
    self.assertEqual(measure(found, e), {'found_submitted': 0.5})
    nothing = view(graded=np.zeros(GROUPS * SIZE, bool))
    self.assertEmpty(measure(found, nothing))


if __name__ == '__main__':
  absltest.main()
