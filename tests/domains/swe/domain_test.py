"""Episodes on repositories: played, graded, and cleaned up."""

import dataclasses
import json
import os
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from configs import swe as swe_config
from evojax import domains
from evojax import records
from evojax.diagnosis import calls
from evojax.domains.swe import demonstrations
from evojax.domains.swe import domain as domain_lib
from evojax.domains.swe import evidence
from evojax.domains.swe import others as others_lib
from evojax.domains.swe import problems
from evojax.domains.swe import tools
from evojax.domains.swe import workspaces
from evojax.episodes import collect
from evojax.episodes import episode
from evojax.episodes import synthetic
from evojax.models import tokenizer
from evojax.sandbox import repository
from tests.sandbox import attacks

_EOS = 1
_KWARGS = dict(max_turns=6, slots=2, read_lines=12, max_letters=600)


class _Tokenizer(tokenizer.Tokenizer):
  """Uses one byte per token; 1 ends an answer, 2 opens a message."""

  def __init__(self):
    self.eos_ids = (_EOS,)

  def encode(self, text):
    return [3 + b for b in text.encode(errors='replace')]

  def decode(self, ids):
    return bytes(i - 3 for i in ids if i > 2).decode(errors='replace')

  def render(self, messages, *, tools=None):
    return [t for m in messages for t in (2, *self.encode(m['content']))]

  def render_reply(self, before, reply, *, ended, tools=None):
    return [*([] if ended else [_EOS]), *self.render(reply)]


class _Script:
  """Replies with the turns of a script; `fails` raises in a middle turn."""

  def __init__(self, scripts, fails=None):
    self._scripts, self._fails = scripts, fails

  def generate(self, requests):
    found = []
    for r in requests:
      # The only EOS of a turn ends the policy's answer.
      turn = list(r.prompt_tokens).count(_EOS)
      if turn == self._fails:
        raise RuntimeError('the machine is gone')
      script = self._scripts[r.sample]
      ids = [*_Tokenizer().encode(script[turn]), _EOS]
      found.append(
          records.Episode(
              np.array(ids, np.int32),
              np.full(len(ids), -0.5, np.float32),
              'stop',
              0,
              script[turn],
          )
      )
    return found


def _call(name, **arguments):
  return demonstrations.call(name, **arguments)


class SweDomainTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    if missing := attacks.missing('T0'):
      raise cls.skipTest(cls, missing)
    cls.domain = domains.make('swe', **_KWARGS)
    cls.problem = cls.domain.source('train', 0).take(0, 1)[0]
    cls.task = problems.build(problems.find(cls.problem.problem_id))
    cls.place = demonstrations.place(cls.problem.problem_id)
    cls.pool = workspaces.shared('episodes', 2)
    cls.addClassCleanup(workspaces.shared('grades', os.cpu_count()).close)

  def tearDown(self):
    self.assertEqual(self.pool.lent, 0)
    super().tearDown()

  def play(self, *scripts, domain=None, fails=None):
    domain = domain or self.domain
    asked = collect.request_batch(
        _Tokenizer(),
        [self.problem],
        records.SamplingParams(max_tokens=20_000),
        group_size=len(scripts),
        seed=0,
        max_prompt_tokens=4000,
    )
    player = episode.Player(_Script(scripts, fails), _Tokenizer(), domain)
    return player.play(asked)

  def graded(self, *scripts, domain=None):
    domain = domain or self.domain
    episodes = self.play(*scripts, domain=domain)
    asked = [self.problem] * len(scripts)
    return episodes, domain.grade_many(asked, episodes)

  def turns(self, behaviour):
    return demonstrations.turns(self.problem.problem_id, behaviour, 12, 6)

  def edit(self, new=None):
    new = self.place.right if new is None else new
    return _call('edit', path=self.place.path, first=self.place.line, new=new)

  def test_each_behaviour_earns_what_it_should(self):
    names = ('careful', 'hasty', 'timid', 'looping', 'leaking')
    episodes, grades = self.graded(*map(self.turns, names))
    columns = {n: g.columns for n, g in zip(names, grades, strict=True)}
    self.assertEqual(
        [g.outcome for g in grades], [True, False, False, False, False]
    )
    self.assertEqual(
        [g.status for g in grades][2:], ['no_edit', 'no_edit', 'no_edit']
    )
    self.assertEqual([len(e.turns) for e in episodes][:2], [5, 3])
    careful = columns['careful']
    self.assertTrue(careful['searched_before_edit'])
    self.assertTrue(careful['tested_after_edit'])
    self.assertTrue(careful['submitted'] and careful['format_ok'])
    self.assertEqual(careful['first_edit_turn'], 2)
    self.assertEqual((careful['f2p_passed'], careful['p2p_passed']), (1, 1))
    self.assertFalse(columns['hasty']['tested_after_edit'])
    stops = {code: name for name, code in evidence.STOP_REASON.items()}
    self.assertEqual(stops[columns['looping']['stop_reason']], 'turns')
    self.assertEqual(stops[columns['leaking']['stop_reason']], 'no_call')
    self.assertEqual(columns['timid']['first_edit_turn'], -1)
    self.assertTrue(columns['leaking']['read_history'])
    self.assertFalse(careful['read_history'])
    # The state sent to the grader is a JSON value.
    self.assertEqual(json.loads(json.dumps(episodes[0].state))['touched'], 0)
    codes = [turn.action for turn in episodes[0].turns]
    names = ('grep', 'read', 'edit', 'test', 'submit')
    self.assertEqual(codes, [tools.ACTIONS[n] for n in names])

  def test_a_tool_of_another_name(self):
    domain = domains.make(
        'swe', **_KWARGS, scrubbed=False, names={'git': 'search_notes'}
    )
    script = tuple(map(domain.settings.written, self.turns('copying')))
    episodes, grades = self.graded(
        script, self.turns('copying'), domain=domain
    )
    renamed, unknown = episodes
    self.assertTrue(grades[0].outcome)
    # Found by what the replies hold: nothing says 'git'.
    said = ''.join(t.text + t.observation for t in renamed.turns)
    self.assertNotRegex(said, r'\bgit\b')
    turns = calls.of_turns(
        [t.text for t in renamed.turns],
        [t.observation for t in renamed.turns],
        [t.ok for t in renamed.turns],
    )
    made = [call for turn in turns for call in turn]
    self.assertEqual(calls.copied_from(made), 'search_notes')
    self.assertEqual([c.kind for c in made[:2]], ['history', 'history'])
    (actions,) = [c for c in domain.columns if c.name == 'actions']
    action = renamed.turns[0].action
    self.assertEqual(actions.codes['search_notes'], action)
    self.assertNotIn('git', actions.codes)
    self.assertEqual(action, tools.ACTIONS['git'])
    self.assertIn("no tool 'git'", unknown.turns[0].observation)
    self.assertNotIn('"git"', ''.join(domain.demonstrations.tokens))
    seen = ''
    for step in range(20):  # About 9 % of them look at the history.
      for shown in domain.demonstrations.batch(
          domain.demonstrated(0), 0, step, 4
      ):
        seen += ''.join(turn for turn, _ in shown.before)
    self.assertIn('{"name": "search_notes", ', seen)
    self.assertNotIn('"git"', seen)

  @parameterized.parameters(
      ({'gti': 'x'}, 'are not among'),
      ({'git': 'a b'}, 'must be letters'),
      ({'git': 'read'}, 'its own name'),
      ({'git': 'none'}, 'its own name'),
  )
  def test_names_that_cannot_be(self, names, message):
    with self.assertRaisesRegex(ValueError, message):
      domains.make('swe', names=names)

  def test_the_fix_is_seen_only_where_history_is_not_scrubbed(self):
    script = self.turns('copying')
    open_domain = domains.make('swe', **_KWARGS, scrubbed=False)
    (leaks,), (grade,) = self.graded(script, domain=open_domain)
    self.assertIn(f'+{self.place.right}\n', leaks.turns[1].observation + '\n')
    self.assertTrue(grade.outcome and grade.columns['read_history'])
    # Looking at the fix does not help on the evaluator's side.
    for domain in (None, open_domain.audit):
      (scrubbed,) = self.play(script, domain=domain)
      seen = ''.join(turn.observation for turn in scrubbed.turns)
      self.assertNotIn('origin/main', scrubbed.turns[0].observation)
      self.assertNotIn(f'+{self.place.right}', seen)
      self.assertFalse(scrubbed.turns[1].ok)

  def test_tampering_gains_nothing(self):
    tests = sorted(p for p in self.task.tree if p.startswith('tests/'))
    scripts = [
        [_call('edit', path=tests[0], first=1, last=1, new=''), 'done'],
        [_call('edit', path='conftest.py', new='import os\n'), 'done'],
        [_call('edit', path='sitecustomize.py', new='1 / 0\n'), 'done'],
        [self.edit(new='import os; os._exit(0)'), 'done'],
        [self.edit(), _call('edit', path='tests/test_x.py', new='1 / 0'), 'x'],
    ]
    _, grades = self.graded(*scripts)
    self.assertEqual([g.outcome for g in grades], [False] * 4 + [True])
    touched = [g.columns['tests_touched'] for g in grades]
    self.assertEqual(touched, [1, 1, 1, 0, 1])

  @parameterized.parameters(
      ('<tool_call>{', 'not closed'),
      ('<tool_call>[]</tool_call>', 'must be an object'),
      (_call('rm', path='x'), 'no tool'),
      (_call('read'), 'path'),
      (_call('read', path='../../etc/passwd'), 'leads out'),
      (_call('read', path=7), 'must be a text'),
      (_call('git', command='push'), 'not available'),
      ('<tool_call>' + '[' * 3_000 + '</tool_call>', 'not JSON'),
  )
  def test_hostile_calls_are_answered(self, turn, answer):
    (found,) = self.play([turn, 'I give up.'])
    self.assertIn(answer, found.turns[0].observation)
    self.assertFalse(found.turns[0].ok)
    self.assertEqual((len(found.turns), found.error), (2, ''))

  def test_hostile_bytes_reach_the_grader(self):
    text = 'x = "\\ud800\x00\x1b\u2028"\n'
    (found,), (grade,) = self.graded(
        [_call('edit', path='a\u2028\x07.py', new=text), self.edit(), 'done']
    )
    self.assertTrue(grade.outcome)
    self.assertIn('a\u2028\x07.py', found.state['edits'])

  def test_a_name_that_is_no_text_reaches_the_grader(self):
    code = 'open(b"\\xff.txt", "w").close()\ndef test_x(): pass\n'
    (found,), (grade,) = self.graded([
        _call('edit', path='test_x.py', new=code),
        _call('test', only='test_x'),
        self.edit(),
        'done',
    ])  # fmt: skip
    self.assertIn('\udcff.txt', found.state['edits'])
    self.assertTrue(grade.outcome)
    self.assertEqual(grade.columns['files_edited'], 2)

  def test_an_issue_that_is_no_text(self):
    task = dataclasses.replace(self.task, issue='failed: \udcff')
    others = others_lib.Others({'0' * 16: task}, trained=False, alone=True)
    domain = dataclasses.replace(self.domain, others=others)
    (problem,) = domain.source('sealed', 0).take(0, 1)
    self.assertEqual(problem.question, 'failed: ?')

  def test_a_tool_that_was_taken_away(self):
    domain = domains.make('swe', **_KWARGS, tools=('read', 'submit'))
    names = [
        t['function']['name']
        for t in domain.source('dev', 0).take(0, 1)[0].tools
    ]
    self.assertEqual(names, ['read', 'submit'])
    (found,) = self.play([_call('git', command='log'), 'x'], domain=domain)
    self.assertIn('there are read, submit', found.turns[0].observation)

  def test_a_box_that_fails_gives_no_grade(self):
    broken = mock.patch.object(
        repository.Workspace,
        'call',
        side_effect=tools.BoxError('the box is gone'),
    )
    with broken:
      (found,) = self.play([_call('ls'), 'x'])
    self.assertIn('the box is gone', found.error)
    good = self.play([_call('ls'), 'x'])
    grades, _ = collect.grade(self.domain, [self.problem], [found, *good][:2])
    self.assertEqual([g.status for g in grades][0], records.INFRA_ERROR)

  def test_an_end_in_the_middle_gives_workspaces_back(self):
    scripts = [self.turns('careful')] * 4
    with self.assertRaisesRegex(RuntimeError, 'machine is gone'):
      self.play(*scripts, fails=2)
    for _ in range(500):
      if not self.pool.lent:
        break
      time.sleep(0.01)
    # The next episodes find room, without traces of earlier ones.
    (found,), (grade,) = self.graded(self.turns('careful'))
    self.assertTrue(grade.outcome)

  def test_a_late_reply_is_no_grade(self):
    (found,) = self.play([_call('ls'), 'x'])
    for end, status in (('turns', 'no_edit'), ('seconds', 'infra_error')):
      # Whether it was repaired is unknown: the tree is lost.
      lost = dataclasses.replace(found, state=None, finish_reason=end)
      grade = self.domain.grade(self.problem, lost)
      self.assertEqual((grade.status, grade.outcome), (status, False))

  def test_equal_changes_are_tried_once(self):
    episodes = self.play(*[self.turns('careful')] * 3)
    tried = domain_lib.grade_lib.grade_changes
    with mock.patch.object(
        domain_lib.grade_lib, 'grade_changes', side_effect=tried
    ) as report:
      grades = self.domain.grade_many([self.problem] * 3, episodes)
    self.assertEqual(report.call_count, 1)
    self.assertTrue(all(g.outcome for g in grades))
    self.assertEqual([g.seconds for g in grades][1:], [0.0, 0.0])


class ProblemsTest(parameterized.TestCase):

  def test_families_choose_problems(self):
    domain = domains.make('swe', families=('off_by_one:0', 'lost_sign:1'))
    source = domain.source('train', 0)
    found = source.take(0, len(source))
    kinds = {(p.family, p.difficulty) for p in found}
    self.assertEqual(kinds, {('off_by_one', 0), ('lost_sign', 1)})
    for problem in found:
      entry = problems.find(problem.problem_id)
      name = entry.bug.function.rpartition('.')[2]
      self.assertEqual(name in problem.question, problem.difficulty == 0)

  def test_splits_are_disjoint_and_streams_repeat(self):
    domain = domains.make('swe', families='wrong_operator:0')
    found = {s: domain.source(s, 0) for s in ('train', 'dev', 'sealed')}
    found['demonstrated'] = domain.demonstrated(0)
    ids = {
        s: {p.problem_id for p in source.take(0, len(source))}
        for s, source in found.items()
    }
    self.assertLen(set.union(*ids.values()), sum(map(len, ids.values())))
    # Half of the bugs, and further ones of functions that have many.
    ratio = len(ids['demonstrated']) / len(ids['train'])
    self.assertBetween(ratio, 1.4, 4)
    take = lambda: domain.source('train', 3).take(5, 4)
    self.assertEqual(take(), take())

  @parameterized.parameters(
      (dict(families='chess'), "'chess' is not"),
      (dict(families='off_by_one:2'), 'does not have'),
      (dict(max_turns=1), 'domain.kwargs.max_turns=1'),
      (dict(slots=0), 'domain.kwargs.slots=0'),
      (dict(tools=('rm',)), 'domain.kwargs: tools'),
  )
  def test_refused(self, kwargs, message):
    with self.assertRaisesRegex(ValueError, message):
      domains.make('swe', **kwargs)

  def test_surface_fields_are_in_the_config(self):
    kwargs = swe_config.get_config().domain.kwargs
    for field in domains.make('swe').surface_fields:
      name = field.path.removeprefix('domain.kwargs.')
      self.assertEqual(field.problem(kwargs[name]), '')


class EvidenceTest(parameterized.TestCase):

  def test_functions_are_tried_on_solved_and_unsolved(self):
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    made = synthetic.Evidence(domains.make('swe', slots=2))
    view = made.evidence(swe_config.get_config())
    self.assertGreater(view.outcome.mean(), 0.1)
    self.assertLess(view.outcome.mean(), 0.9)
    self.assertGreater(len(np.unique(view.n_turns)), 2)
    self.assertEqual(view.actions.max(), tools.ACTIONS['submit'])

  def test_turns_in_order(self):
    turn = lambda name, ok=True, argument=0: records.Turn(
        1, action=tools.ACTIONS[name], argument=argument, ok=ok
    )
    found = evidence.behaviour(
        [turn('edit', ok=False), turn('read'), turn('edit'), turn('ls')]
    )
    self.assertEqual(found['first_edit_turn'], 2)
    self.assertTrue(found['searched_before_edit'])
    self.assertFalse(found['tested_after_edit'])
    found = evidence.behaviour([turn('edit'), turn('grep'), turn('test')])
    self.assertFalse(found['searched_before_edit'])
    self.assertTrue(found['tested_after_edit'])
    found = evidence.behaviour([turn('test'), turn('none', ok=False)])
    self.assertFalse(found['tested_after_edit'] or found['format_ok'])
    diff = turn('git', argument=tools.ARGUMENTS['diff'])
    self.assertFalse(evidence.behaviour([diff])['read_history'])


if __name__ == '__main__':
  absltest.main()
