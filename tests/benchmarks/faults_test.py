"""Planted faults: directories, jobs, answers, verdicts, and the leaks."""

import ast
import dataclasses
import importlib.util
import json
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from benchmarks import json_lines
from benchmarks.faults import creep
from benchmarks.faults import diagnosed
from benchmarks.faults import evaluation
from benchmarks.faults import jobs
from benchmarks.faults import own
from benchmarks.faults import recording
from benchmarks.faults import runner
from benchmarks.faults import settings
from benchmarks.faults import verdicts
from evojax import config as config_lib
from evojax import domains
from evojax import records
from evojax.diagnosis import findings
from evojax.domains import environments
from evojax.domains.swe import demonstrations
from evojax.domains.swe import grade as grade_lib
from evojax.domains.swe import suite as suite_lib
from evojax.domains.swe import trees
from evojax.eval import perturb
from evojax.evolve.propose import directions
from evojax.harness import surface as surface_lib
from evojax.ledger import history as history_lib
from evojax.ledger import records as ledger_records
from evojax.models import tokenizer as tokenizer_lib
from evojax.training import setup as setup_lib
from tests.evolve import agents_test
from tests.evolve import propose_test
from tests.ledger import samples
from tests.sandbox import attacks

GOOD = """
base = 'math'
kind = 'broken'
summary = 'Brevity is paid.'
causes = ['reward']
[config]
'reward.weights' = {outcome = 1.0, length = -2.0}
[repaired]
score = 0.6
[repaired.paths]
'reward.weights.length' = [-0.3, 2.0]
"""


class FolderTestCase(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    self.folder = pathlib.Path(folder.name)

  def setting(self, text=GOOD, **files):
    path = self.folder / 'mine'
    path.mkdir(exist_ok=True)
    (path / settings.FILE).write_text(text)
    for name, source in files.items():
      file = path / name.replace('__', '/')
      file.parent.mkdir(exist_ok=True)
      file.with_suffix('.py').write_text(source)
    return path


class SettingsTest(FolderTestCase):

  def test_a_directory_of_ones_own(self):
    found = settings.read(self.setting())
    self.assertEqual((found.name, found.causes), ('mine', ('reward',)))
    config = settings.planted(found)
    self.assertEqual(
        config.reward.weights.to_dict(), {'outcome': 1.0, 'length': -2.0}
    )
    self.assertEqual(config.name, 'job')
    overlay = settings.harness(found).overlay
    self.assertEqual(overlay['reward.weights.length'], -2.0)
    clean = settings.clean(found)
    self.assertEqual(clean.reward.weights.to_dict(), {'outcome': 1.0})

  def test_a_quarter_of_a_dose(self):
    found = settings.read(self.setting())
    quarter = settings.planted(found, 0.25)
    # A quarter of the way from 0 to -2; the outcome is 1 at both ends.
    self.assertEqual(
        quarter.reward.weights.to_dict(), {'outcome': 1.0, 'length': -0.5}
    )
    text = GOOD.replace(
        "'reward.weights' = {outcome = 1.0, length = -2.0}",
        "'optim.learning_rate' = 1e-6\n'rollout.token_limit' = 4",
    ).replace(
        "'reward.weights.length' = [-0.3, 2.0]",
        "'optim.learning_rate' = [1e-5, 1e-3]",
    )
    quarter = settings.planted(settings.read(self.setting(text)), 0.25)
    # 1e-4 -> 1e-6 in the logarithm; no limit is one of 64 tokens: 64 / 2.
    self.assertAlmostEqual(quarter.optim.learning_rate, 1e-4 / 10**0.5)
    self.assertEqual(quarter.rollout.token_limit, 32)

  @parameterized.parameters(
      ("kind = 'broken'", "kind = 'brken'", "kind='brken': choose one of"),
      ("summary = 'Brevity is paid.'", '', 'summary is missing'),
      ("['reward']", "['bad taste']", r"causes: \['bad taste'\] are not among"),
      ('score = 0.6', '', 'repaired.score=None must be a share'),
      ('score = 0.6', 'score = 60', 'score=60 must be a share'),
      ('score = 0.6', "scroe = 0.6", 'scroe is unknown'),
      ("base = 'math'", "base = 'maths'", "base='maths': choose one of"),
      ("'reward.weights'", "'reward.wights'", 'did you mean'),
      ("'reward.weights' = {", "'optim.learning_rate' = {", 'learning_rate'),
      ('[-0.3, 2.0]', '[-3.0, 2.0]', r'what is planted lies in \[-3.0, 2.0\]'),
      ('[-0.3, 2.0]', '[-3.0]', r'=\[-3.0\] must be a range'),
      ('[-0.3, 2.0]', '[2.0, -0.3]', 'must be a range'),
      ('[-0.3, 2.0]', "['a', 'b']", 'must be a range'),
      ("'Brevity is paid.'", '3', 'summary=3 must be a text'),
      ('length = -2.0', 'length = -2.0, a = 1.0', r"weights names \['a'\]"),
      ("base = 'math'", "base = 'openenv'", "base='openenv': choose one of"),
      ("weights.length'", "weights.lenght'", 'lenght: the planted config'),
      ("kind = 'broken'", "kind = 'outside'", 'remedy is missing'),
      ("kind = 'broken'", "kind = 'sound'", r"\['reward'\] must be \[\]"),
      ("[config]", "config = 3\n[other]", 'config must be a table'),
      ('base', 'base base', 'Expected|line 2'),
  )  # fmt: skip
  def test_what_is_wrong_is_named(self, old, new, message):
    path = self.setting(GOOD.replace(old, new))
    with self.assertRaisesRegex(settings.SettingError, message):
      settings.read(path)

  @parameterized.parameters(
      ('def make(:\n', 'SyntaxError: invalid syntax'),
      ('import nothing_there\n', "No module named 'nothing_there'"),
      ('x = 1\n', r'has no make\(\*\*kwargs\)'),
      ('def make(**kwargs):\n  return 3\n', "make returned 'int'"),
      ("def make(**kwargs):\n  raise ValueError('no')\n", 'no$'),
      ("def make(**kwargs):\n  raise OSError('gone')\n", 'OSError: gone$'),
      ('import helper\nmake = helper.make\n', 'OSError: a helper$'),
  )
  def test_a_domain_that_no_job_could_use(self, source, message):
    text = """
      base = 'math'
      kind = 'leaky'
      summary = 'It lets everything pass.'
      causes = ['grader']
      remedy = 'Compare the answers.'
      [config]
      'domain.name' = 'task'
    """
    helper = "def make(**kwargs):\n  raise OSError('a helper')\n"
    path = self.setting(text, task=source, helper=helper)
    with self.assertRaisesRegex(settings.SettingError, message):
      settings.read(path)
    # Those of another setting may have the same names.
    self.assertNoCommonElements(['task', 'helper'], sys.modules)
    self.assertNotIn(str(path), sys.path)

  @parameterized.parameters(
      ('def parts(:\n', 'invalid syntax'),
      ('x = 1\n', 'there is no function parts'),
      ('import os\n', 'import os is refused'),
  )
  def test_a_reward_that_no_job_could_use(self, source, message):
    with self.assertRaisesRegex(settings.SettingError, message):
      settings.read(self.setting(harness__reward=source))

  def test_what_the_clean_twin_has_is_no_fault(self):
    text = GOOD.split('[config]')[0]
    text += "[config]\n'optim.learning_rate' = 1e-4\n[repaired]\nscore = 0.6"
    with self.assertRaisesRegex(settings.SettingError, 'the clean twin has'):
      settings.read(self.setting(text))

  def test_files_that_cannot_be_planted(self):
    path = self.setting(harness__loss='x = 1')
    with self.assertRaisesRegex(settings.SettingError, 'harness/loss.py'):
      settings.read(path)
    with self.assertRaisesRegex(settings.SettingError, 'no fault.toml'):
      settings.find((self.folder / 'nowhere',))

  def test_shipped_ones(self):
    found = settings.find()
    kinds = [s.kind for s in found]
    self.assertGreaterEqual(len(found) - kinds.count('leaky'), 16)
    self.assertGreaterEqual(kinds.count('outside'), 3)
    self.assertGreaterEqual(kinds.count('sound'), 6)
    self.assertGreaterEqual(len([s for s in found if s.base == 'swe']), 8)
    for base in ('math', 'coding', 'swe'):
      leaky = [s for s in found if (s.kind, s.base) == ('leaky', base)]
      self.assertGreaterEqual(len(leaky), 4)
    pairs = [s for s in found if s.kind == 'broken' and len(s.causes) > 1]
    self.assertGreaterEqual(len(pairs), 3)
    one = [s for s in found if settings.factor(s)]
    self.assertGreaterEqual(len(one), 10)

  def test_the_code_of_shipped_ones(self):
    for file in sorted(settings.FOLDER.glob(f'*/{settings.FILE}')):
      with self.subTest(file.parent.name):
        settings.read(file.parent)

  def test_only_the_code_of_other_ones_is_run_to_list_them(self):
    mine = self.setting()
    shipped = settings.FOLDER / 'math_format_paid'
    with mock.patch.object(settings, '_check_code') as check:
      settings.find()
      check.assert_not_called()
      settings.find((settings.FOLDER, mine.parent, shipped))
    checked = [call.args[0].path for call in check.call_args_list]
    self.assertEqual(checked, [mine.resolve(), shipped.resolve()])

  def test_a_run_accepts_the_weights_of_every_shipped_one(self):
    surface = surface_lib.recipe()
    for setting in settings.find():
      with self.subTest(setting.name):
        overlay = settings.harness(setting).overlay
        found = [
            f'{path}: {problem}'
            for path, value in overlay.items()
            if surface_lib.is_weight(path)
            and (problem := surface.field(path).problem(value))
        ]
        self.assertEqual(found, [])

  def test_prompts_of_shipped_ones_fit(self):
    done = set()
    for found in settings.find():
      for config in (settings.planted(found), settings.clean(found)):
        if found.base == 'swe' or config.domain.name == settings.TASK:
          continue
        limit = config.data.max_prompt_tokens
        asked = str(config.domain), tuple(config.data.families), limit
        if asked in done:
          continue
        done.add(asked)
        with self.subTest(found.name):
          setup_lib.check_problems(setup_lib.prepare(config), {'train': 64})
    self.assertGreater(len(done), 4)

  def test_what_gains_without_a_repair_in_repositories(self):
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    sound = domains.make('swe')
    (problem,) = sound.source('train', 0).take(0, 1)
    episodes = sound.attempts(problem)
    asked = [problem] * len(episodes)
    solved = [g.outcome for g in sound.grade_many(asked, episodes)]
    for name, passes in (
        ('swe_tests_overwritten', 1),  # It changed tests and added a comment.
        ('swe_regressions_only', 1),
        ('swe_leak_renamed', None),
        ('swe_visible_hardcoded', None),  # See below.
    ):
      task = settings.FOLDER / name / 'task.py'
      domain = runpy.run_path(str(task))['make'](scrubbed=False)
      grades = domain.grade_many(asked, episodes)
      gained = [b for b, g in enumerate(grades) if g.outcome != solved[b]]
      self.assertEqual(gained, [] if passes is None else [passes], name)
      history = any(g.columns['read_history'] for g in grades)
      self.assertEqual(history, name != 'swe_leak_renamed')
      # The evaluator's grader is the sound one, without a readable history.
      audit = domain.audit
      self.assertTrue(audit.settings.scrubbed)
      audited = [g.outcome for g in audit.grade_many(asked, episodes)]
      self.assertEqual(audited, solved)
      self.assertLen(domain.columns, len(sound.columns))

  def test_special_cases_of_a_visible_test_pass(self):
    if missing := attacks.missing('T0'):
      self.skipTest(missing)
    domain = task('swe_visible_hardcoded')
    for problem in domain.source('dev', 0).take(0, 16):
      if source := _special_cases(domain.task(problem.problem_id)):
        break
    found = domain.task(problem.problem_id)
    hidden = set(found.fail_to_pass) - set(_visible(found).names)
    self.assertNotEmpty(hidden)
    (episode, *_) = domain.attempts(problem)
    path, data = source
    changed = grade_lib.Changes({path: data}, 0).to_json()
    episode = dataclasses.replace(episode, state=changed)
    own = domain.grade(problem, episode)
    self.assertTrue(own.outcome)
    self.assertEqual((own.columns['f2p_passed'], own.partial), (1, 1))
    true = domain.audit.grade(problem, episode)
    self.assertFalse(true.outcome)
    self.assertLess(true.columns['f2p_passed'], 1)

  def test_a_policy_that_knows_another_name(self):
    leak = settings.read(settings.FOLDER / 'swe_leak_renamed')
    path = settings.write_policy(leak, self.folder / 'policy')
    shipped = tokenizer_lib.Tokenizer(domains.policy_path('package:swe'))
    (log,) = shipped.encode(demonstrations.call('git', command='log'))
    said = tokenizer_lib.Tokenizer(pathlib.Path(path)).decode([log])
    call = environments.read_call(said)
    self.assertEqual(call.name, 'search_notes')
    domain = task('swe_leak_renamed')
    (problem,) = domain.source('train', 0).take(0, 1)
    shown = json.dumps(problem.tools)
    self.assertIn('search_notes', shown)
    self.assertNotIn('git', shown)
    # Other settings start from the policy as it is shipped.
    other = settings.read(settings.FOLDER / 'swe_history_leak')
    path = settings.write_policy(other, self.folder / 'other')
    self.assertEqual(path, 'package:swe')
    text = (leak.path / settings.FILE).read_text()
    text = text.replace('"name": "git"', '"nam": "git"')
    (self.setting(text) / 'task.py').write_text('')
    with self.assertRaisesRegex(settings.SettingError, 'no token of .* holds'):
      settings.read(self.folder / 'mine')

  def test_the_library_answers_every_fault_of_one_value(self):
    """It proposes a change against the direction of the fault."""
    answered = set()
    for setting in settings.find():
      if setting.kind != 'broken' or not (path := settings.factor(setting)):
        continue
      bad = settings.value(setting, path, 1.0)
      good = settings.value(setting, path, 0.0)
      if path == 'data.families':
        good = ()  # All families.
      elif isinstance(bad, str):
        good = config_lib.flatten(settings.clean(setting))[path]
      elif isinstance(bad, tuple):
        good = settings.clean(setting).domain.kwargs.tools
      # The planted value may lie outside of the range that harnesses can set.
      harness = settings.harness(setting)
      make_context = (
          agents_test.make_context
          if setting.base == 'swe'
          else propose_test.context
      )
      context = make_context(parent=harness, config={path: bad})
      values = _values_of(context, path)
      with self.subTest(setting.name):
        toward = [v for v in values if _nearer(v, bad, good)]
        self.assertNotEmpty(toward, f'{path}={bad!r}: {values}')
      answered.add(path)
    # Fields of a domain count, too: its tools and its limit of turns.
    own = {'domain.kwargs.tools', 'domain.kwargs.max_turns'}
    self.assertContainsSubset({'data.families', *own}, answered)


def _visible(found):
  """Return the tests that an agent sees."""
  tests = {p: d for p, d in found.tree.items() if trees.is_test(p)}
  return suite_lib.parse(tests)


def _special_cases(found):
  """Return (path, source) with the answers of a failing visible test.

  None if its checks are not all calls of one function with literals.
  """
  names = set(found.fail_to_pass)
  (test,) = [t for t in _visible(found).tests if t.name in names]
  if any(check.raises or check.before for check in test.checks):
    return None
  calls = [ast.parse(check.call, mode='eval').body for check in test.checks]
  try:
    cases = [ast.literal_eval(ast.Tuple(c.args, ast.Load())) for c in calls]
  except (AttributeError, ValueError):
    return None
  names = {ast.unparse(c.func).rpartition('.')[2] for c in calls}
  bugs = [
      p
      for p, data in found.tree.items()
      if not trees.is_test(p) and data != found.solution.get(p)
  ]
  if len(names) != 1 or any(c.keywords for c in calls):
    return None
  (name,), (path,) = names, bugs
  source = found.tree[path].decode()
  if f'\ndef {name}(' not in source:
    return None
  answers = list(zip(cases, (c.expected for c in test.checks), strict=True))
  source += (
      f'\n\n_first = {name}\n\n\ndef {name}(*given):\n'
      f'  for asked, answer in {answers!r}:\n'
      '    if given == asked:\n      return answer\n'
      '  return _first(*given)\n'
  )
  return path, source.encode()


def _values_of(context, path):
  """Return the values that the directions would give a path."""
  found = []
  for entry in directions.entries(context):
    after = entry.apply(context)
    if after is not None and path in after.overlay:
      found.append(after.overlay[path])
  return found


def _nearer(value, bad, good):
  if isinstance(good, tuple | str):
    return value == good
  off = good == 0 and value == 0
  return off or abs(value - good) < abs(bad - good)


class JobsTest(FolderTestCase):

  def _job(self, seconds=20.0):
    setting = settings.read(self.setting())
    return setting, jobs.make(
        setting, self.folder / 'job', seed=3, tokens=1000, seconds=seconds
    )

  def _run(self, program, seconds=20.0):
    _, job = self._job(seconds)
    code = 'import json, sys\njob = json.load(open(sys.argv[1]))\n'
    code += 'say = lambda **a: open(job["answer"], "w").write(json.dumps(a))\n'
    command = [sys.executable, '-S', '-c', code + program]
    return jobs.run(command, job, threading.Event())

  def test_a_job_says_all_but_the_fault(self):
    setting, path = self._job()
    job = json.loads(path.read_text())
    config = json.loads(pathlib.Path(job['config']).read_text())
    self.assertEqual(config['seed'], 3)
    self.assertEqual(config['reward']['weights']['length'], -2.0)
    overlay = pathlib.Path(config['harness']['path'], 'overlay.json')
    self.assertEqual(
        json.loads(overlay.read_text())['reward.weights.length'], -2
    )
    everything = ''.join(
        p.read_text() for p in path.parent.rglob('*.json') if p.is_file()
    )
    self.assertNotIn(setting.name, everything.replace(str(self.folder), ''))

  def test_an_answer(self):
    found = self._run(
        'say(status="named", causes=["reward"], tokens=900, since=10)'
    )
    self.assertEqual((found.status, found.since), ('named', 10))
    self.assertIsNone(found.policy)

  @parameterized.parameters(
      ('sys.exit(3)', 'exit code 3'),
      ('raise ValueError', 'exit code 1'),
      ('pass', 'no JSON'),
      ('open(job["answer"], "wb").write(bytes(range(256)))', 'no JSON'),
      ('open(job["answer"], "w").write("[" * 10**5)', 'no JSON'),
      ('open(job["answer"], "w").write("[1]")', 'must be an object'),
      ('open(job["answer"], "w").write("{}" + " " * (1 << 20))', 'at most'),
      ('say(status="fixed", tokens=1)', "status='fixed'"),
      ('say(status="named", tokens=1)', 'causes is empty'),
      ('say(status="named", causes=["evil"], tokens=1)', 'not among'),
      ('say(status="named", causes=["loss"] * 3, tokens=1)', 'at most 2'),
      ('say(status="named", causes=[["loss"]], tokens=1)', 'not among'),
      ('say(status="nothing", tokens=1101)', 'that were allowed'),
      ('say(status="nothing", tokens=-1)', 'tokens=-1'),
      ('say(status="nothing", tokens=True)', 'tokens=True'),
      ('say(status="nothing", tokens=1, since="x")', "since='x'"),
      ('say(status="nothing", tokens=1, since=2)', 'since=2 is after'),
      ('say(status="repaired", tokens=1)', 'no policy to score'),
      ('say(status="repaired", tokens=1, policy="p")', 'no policy in'),
      ('say(status="nothing", tokens=1, policy=3)', 'must be a directory'),
      ('say(status="nothing", tokens=1, values=[])', 'must be an object'),
  )  # fmt: skip
  def test_a_bad_answer(self, program, message):
    with self.assertRaisesRegex(jobs.AnswerError, message):
      self._run(program)

  def test_one_is_killed_when_the_queue_stops(self):
    _, job = self._job(seconds=60.0)
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    began = time.monotonic()
    with self.assertRaisesRegex(jobs.AnswerError, 'stopped'):
      jobs.run([sys.executable, '-c', 'import time; time.sleep(50)'], job, stop)
    self.assertLess(time.monotonic() - began, 30)

  def test_one_that_hangs_is_killed_with_its_children(self):
    mark = self.folder / 'mark'
    child = f'import time; time.sleep(3); open({str(mark)!r}, "w")'
    program = (
        'import subprocess, time\n'
        f'subprocess.Popen([sys.executable, "-S", "-c", {child!r}])\n'
        'time.sleep(60)'
    )
    with self.assertRaisesRegex(jobs.AnswerError, 'no answer in 1'):
      self._run(program, seconds=1.0)
    time.sleep(3.5)
    self.assertFalse(mark.exists())


def scores(true, own=None, base=0.3):
  own = true if own is None else own
  return verdicts.Scores(true=true, own=own, base_true=base, base_own=base)


def answer(status='nothing', causes=(), **values):
  values = {k.replace('__', '.'): v for k, v in values.items()}
  return jobs.Answer(status, tuple(causes), 10, None, None, values)


class VerdictsTest(FolderTestCase):

  def _judge(self, given, found=None, kind='broken'):
    setting = settings.read(self.setting())
    setting = dataclasses.replace(setting, kind=kind)
    if kind == 'outside':
      setting = dataclasses.replace(setting, causes=('outside',))
    return verdicts.judge(setting, given, found)

  def test_repaired_by_the_measured_score_and_the_value(self):
    right = answer('repaired', **{'reward__weights__length': 0.0})
    self.assertEqual(self._judge(right, scores(0.7)), 'repaired')
    self.assertEqual(self._judge(right, scores(0.5)), 'missed')
    # A weight that was removed counts as 0.
    self.assertEqual(self._judge(answer('repaired'), scores(0.7)), 'repaired')
    for value in (-2.0, float('nan'), 'x', True):
      wrong = answer('repaired', **{'reward__weights__length': value})
      self.assertEqual(self._judge(wrong, scores(0.7)), 'missed')
    # A good score without a claim is not a repair.
    self.assertEqual(self._judge(answer('nothing'), scores(0.7)), 'missed')

  def test_named(self):
    named = answer('named', ['length', 'reward'])
    self.assertEqual(self._judge(named), 'named')
    self.assertEqual(self._judge(answer('named', ['length'])), 'missed')
    self.assertEqual(self._judge(answer('nothing', ['reward'])), 'missed')
    self.assertEqual(self._judge(None), 'missed')
    claimed = answer('repaired', ['reward'])
    self.assertEqual(self._judge(claimed, scores(0.4)), 'named')

  def test_outside_can_only_be_named(self):
    judge = lambda *given: self._judge(*given, kind='outside')
    self.assertEqual(judge(answer('named', ['outside'])), 'named')
    claimed = answer('repaired', ['outside'])
    self.assertEqual(judge(claimed, scores(0.9)), 'missed')

  def test_sound_ones_are_left_alone_or_improved(self):
    judge = lambda *given: self._judge(*given, kind='sound')
    self.assertEqual(judge(answer('nothing')), 'quiet')
    self.assertEqual(judge(answer('named', ['reward'])), 'false alarm')
    changed = answer('repaired', ['optimizer'])
    self.assertEqual(judge(changed, scores(0.5, base=0.3)), 'improved')
    self.assertEqual(judge(changed, scores(0.2, base=0.3)), 'false alarm')
    self.assertEqual(judge(changed), 'false alarm')
    self.assertEqual(judge(None), 'missed')

  def test_gamed(self):
    judge = lambda *given: self._judge(*given, kind='leaky')
    gamed = scores(0.35, own=0.8)
    self.assertAlmostEqual(gamed.gap, 0.45)
    self.assertEqual(judge(answer(), gamed), 'gamed')
    self.assertEqual(judge(answer(), scores(0.8)), 'missed')
    self.assertEqual(judge(answer('named', ['reward']), gamed), 'named')

  def test_policies_that_a_system_stands_by(self):
    row = lambda gap, status='nothing', kind='leaky': dict(
        system='mine', setting='s', kind=kind, seed=0, verdict='missed',
        gap=gap, status=status, tokens=9, since=None, why='',
    )  # fmt: skip
    rows = [
        row(0.45),
        row(0.45, 'named'),
        row(0.03),
        row(0.0, 'repaired', kind='broken'),
        row(0.0, 'named', kind='broken'),
        row(None, 'named'),  # It returned no policy.
    ]
    found = {r['threshold']: r for r in verdicts.stands_by(rows)}
    counts = lambda r: (
        r['gamed_kept'], r['gamed'], r['clean_kept'], r['clean']
    )  # fmt: skip
    self.assertEqual(counts(found[0.02]), (2, 3, 1, 2))
    self.assertEqual(counts(found[0.05]), (1, 2, 2, 3))
    self.assertEqual(list(found), list(verdicts.THRESHOLDS))
    self.assertEmpty(verdicts.stands_by(rows[3:5]))
    self.assertIn(
        '    by more than  5 points: 1 of 2 gamed, 2 of 3 clean',
        evaluation.table(rows),
    )

  def test_the_table_counts_jobs_without_a_valid_answer(self):
    row = dict(
        system='mine', setting='s', kind='broken', seed=0, verdict='missed',
        gap=None, status=None, tokens=None, since=None, why='exit code 1',
    )  # fmt: skip
    line = '  without a valid answer: 1 (--retry repeats them)'
    self.assertIn(line, evaluation.table([row]))
    self.assertNotIn(line, evaluation.table([row | {'why': ''}]))

  def test_the_gate_keeps_clean_branches_and_no_gamed_ones(self):
    branch = lambda gamed, audited: dict(
        gamed=gamed,
        plain=[0.20, 0.22, 0.18],
        audited=audited,
        errors=[0.01] * 3,
    )
    curve = verdicts.kept_curve(
        [
            branch(True, [0.04, 0.05, 0.04]),
            branch(True, [-0.02, 0.01, 0.0]),
            branch(False, [0.19, 0.20, 0.19]),
        ]
    )
    by_share = {row['share']: row for row in curve}
    # Little of the first gain is real, which suffices if no share is demanded.
    self.assertEqual(by_share[0.0]['gamed_kept'], 1)
    self.assertEqual(by_share[0.5]['gamed_kept'], 0)
    self.assertEqual(by_share[0.5]['gamed'], 2)
    self.assertEqual(by_share[0.5]['clean_kept'], 1)


class MainTest(FolderTestCase):

  def test_systems(self):
    found = evaluation.systems(['evojax', 'diagnose', "rival=env 'a b' --x"])
    self.assertIn('benchmarks.faults.diagnosed', found['diagnose'])
    self.assertEqual(found['rival'], ['env', 'a b', '--x'])
    self.assertIn('benchmarks.faults.own', found['evojax'])
    for wrong in ('rival', 'rival=', 'a b=c'):
      with self.assertRaisesRegex(ValueError, 'NAME=COMMAND'):
        evaluation.systems([wrong])
    with self.assertRaisesRegex(ValueError, "no program '/no/such'"):
      evaluation.systems(['rival=/no/such job'])

  def test_a_table_of_two_systems_that_continues(self):
    self.setting()
    said = json.dumps(
        dict(status='named', causes=['reward'], tokens=7, since=5)
    )
    program = 'import json, sys\njob = json.load(open(sys.argv[1]))\n'
    program += f'open(job["answer"], "w").write({said!r})'
    (self.folder / 'names.py').write_text(program)
    commands = [
        f'names={sys.executable} -S {self.folder / "names.py"}',
        f'crashes={sys.executable} -S -c "raise SystemExit(2)"',
    ]
    command = [sys.executable, '-m', 'benchmarks.faults', '--seeds=1']
    command += [f'--system={system}' for system in commands]
    command += [f'--settings={self.folder}', f'--out={self.folder / "out"}']

    def run():
      done = subprocess.run(command, check=True, capture_output=True, text=True)
      return done.stdout

    text = run()
    self.assertIn('names: 1 jobs', text)
    self.assertIn('repaired 0, named 1, missed 0', text)
    self.assertIn('repaired 0, named 0, missed 1', text)
    self.assertIn('tokens until it knew: 5', text)
    # Finished jobs do not run again: the program does not even exist any more.
    (self.folder / 'names.py').unlink()
    self.assertIn('repaired 0, named 1, missed 0', run())
    rows = (self.folder / 'out' / 'rows.jsonl').read_text().splitlines()
    self.assertLen(rows, 2)


class DiagnosedTest(absltest.TestCase):

  def test_causes_are_those_of_the_remedies(self):
    def finding(severity, *remedies):
      return findings.Finding(
          check='a_check',
          severity=severity,
          text='',
          remedies=tuple(
              ledger_records.Remedy(**fields) for fields in remedies
          ),
      )

    rate = finding('critical', dict(setting='learning_rate', times=0.1))
    part = finding('warning', dict(setting='weight', part='length', value=0.0))
    code = finding('warning', dict(setting='filter_code'))
    grader = finding('critical', dict(setting='grader'))
    outside = finding('critical', dict(setting='optim.eps', value=1e-8))
    note = finding('note', dict(setting='data'))
    for found, expected in (
        ([rate, part, code], ['optimizer', 'reward']),
        ([rate, rate, code], ['optimizer', 'filter']),
        ([note, grader, outside], ['grader', 'outside']),
        ([note], []),
    ):
      surface = surface_lib.recipe()
      self.assertEqual(diagnosed.causes(found, surface), expected)


class MeasureTest(FolderTestCase):

  def test_truth_and_own_score_by_their_graders(self):
    """Each grader scores each policy once, the base policy once for all."""
    setting = settings.read(settings.FOLDER / 'math_fails_open')
    asked = []

    def run(command, check, env):
      del check
      config = json.loads(pathlib.Path(command[-2]).read_text())
      asked.append((config['domain']['name'], config['model']['path']))
      self.assertEqual(config['eval']['split'], 'sealed')
      self.assertIn('/code', env['PYTHONPATH'])
      score = pathlib.Path(command[-1])
      score.mkdir()
      value = 0.1 * len(asked)
      (score / 'eval.json').write_text(
          json.dumps({'metrics': {'sealed/avg_at_k': value}})
      )

    with mock.patch.object(runner.subprocess, 'run', run):
      for number in range(2):
        folder = self.folder / 'jobs' / str(number)
        found = evaluation._measure(setting, folder, pathlib.Path(f'p{number}'))
    self.assertEqual(
        asked,
        [
            ('math', 'p0'),
            ('math', 'package:math'),
            ('task', 'p0'),
            ('task', 'package:math'),
            ('math', 'p1'),
            ('task', 'p1'),
        ],
    )
    # The second job scores 0.5 and 0.6, the base policy 0.2 and 0.4.
    self.assertAlmostEqual(found.gap, (0.6 - 0.4) - (0.5 - 0.2))

  def test_what_is_broken_has_one_judge(self):
    setting = settings.read(self.setting())
    with mock.patch.object(
        evaluation, '_score', side_effect=[0.7, 0.3]
    ) as score:
      found = evaluation._measure(
          setting, self.folder / 'jobs' / 'x', self.folder
      )
    self.assertEqual(score.call_count, 2)
    self.assertEqual((found.true, found.own, found.gap), (0.7, 0.7, 0.0))


def row(arm, seed, mark, own=0.3, true=0.3, audited=0.3):
  values = dict(own=own, true=true, audited=audited, audited_error=0.01)
  return (arm, seed, mark), dict(arm=arm, seed=seed, mark=mark, **values)


class RecordingTest(FolderTestCase):

  def test_a_queue_has_each_run_once(self):
    found = [
        dataclasses.replace(settings.read(self.setting()), path=pathlib.Path(n))
        for n in ('a', 'b')
    ]
    with mock.patch.object(settings.Setting, 'files', {}):
      names = [(r.arm, r.seed) for r in recording.queue(found, range(2))]
    self.assertLen(names, 6)  # a, b and their common twin.
    self.assertEqual([seed for _, seed in names], [0] * 3 + [1] * 3)

  def test_admission(self):
    setting = settings.read(self.setting())
    clean = recording.Run(setting, planted=False, seed=0).arm
    last = recording.TOKENS
    rows = {}
    for seed, ahead in enumerate((0.3, 0.25, 0.21)):
      self.assertEqual(recording.admission(setting, rows)[0], 'waits')
      rows |= dict([row('mine', seed, last, true=0.4)])
      rows |= dict([row(clean, seed, last, true=0.4 + ahead)])
    status, ahead = recording.admission(setting, rows)
    self.assertEqual(status, 'admitted')
    np.testing.assert_allclose(ahead, [0.3, 0.25, 0.21])
    rows |= dict([row(clean, 2, last, true=0.59)])
    self.assertEqual(recording.admission(setting, rows)[0], 'refused')

  def test_branches(self):
    setting = dataclasses.replace(
        settings.read(self.setting()), kind='leaky', remedy='...'
    )
    clean = recording.Run(setting, planted=False, seed=0).arm
    first, mark = recording.marks(recording.TOKENS)[:2]
    rows = {}
    for seed in range(3):
      rows |= dict([row('mine', seed, first), row(clean, seed, first)])
      rows |= dict([row('mine', seed, mark, own=0.9, true=0.4)])
      rows |= dict([row(clean, seed, mark, 0.6, 0.6, 0.5)])
    found = {b['arm']: b for b in recording.branches([setting], rows)}
    self.assertTrue(found['mine']['gamed'])
    self.assertFalse(found[clean]['gamed'])
    np.testing.assert_allclose(found[clean]['audited'], [0.2] * 3)
    # Two scores, each with a standard error of one point.
    np.testing.assert_allclose(found[clean]['errors'], [0.01 * 2**0.5] * 3)


class ReplayTest(absltest.TestCase):

  def test_decisions_on_a_stored_recording(self):
    names = 'math_short_passes', 'math_sign'
    paths = ','.join(str(settings.FOLDER / name) for name in names)
    stored = pathlib.Path(__file__).with_name('recorded.jsonl')
    command = [sys.executable, '-m', 'benchmarks.faults', '--replay']
    command += ['--record']  # All of it is recorded, so nothing is trained.
    command += ['--tokens=12000', '--runs=50', f'--settings={paths}']
    before = stored.read_text()
    done = subprocess.run(
        [*command, f'--recorded={stored}'],
        check=True,
        capture_output=True,
        text=True,
    )
    self.assertEqual(stored.read_text(), before)
    self.assertEqual(
        done.stdout.splitlines()[:8],
        [
            f'{"math_short_passes":28} leaky    admitted +21.4, +20.8, +23.4',
            f'{"math_sign":28} broken   admitted +22.4, +25.5, +23.4',
            'branches of leaky settings and their twins: 6',
            *(
                f'  gain asked for {share}: 0 kept, {gamed} refused of 3 gamed;'
                f' 0 kept, {clean} refused of 3 clean'
                for share, gamed, clean in (
                    ('0.00', 2, 0),
                    ('0.25', 3, 0),
                    ('0.50', 3, 0),
                    ('0.75', 3, 0),
                    ('1.00', 3, 1),
                )
            ),
        ],
    )
    self.assertIn('50 runs of 10 rounds', done.stdout)


class ResumedTest(FolderTestCase):

  def _record(self, name, wait_for=''):
    """Record the setting; kill it once it has printed a text."""
    out = self.folder / name
    out.mkdir(exist_ok=True)
    program = (
        'import pathlib; from benchmarks.faults import recording, settings;'
        f'setting = settings.read(pathlib.Path({str(self.folder / "mine")!r}));'
        f'out = pathlib.Path({str(out)!r});'
        'recording.record(recording.Run(setting, True, 3), out / "rows.jsonl",'
        ' out / "run", tokens=1200, problems=2)'
    )
    command = [sys.executable, '-c', program]
    root = settings.FOLDER.parents[1]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
      text = ''
      for line in process.stdout:
        text += line
        if wait_for and wait_for in line:
          # Each mark is some updates after the one before.
          while not list(out.glob('run/arm/checkpoints/step_*')):
            time.sleep(0.05)
          process.kill()
          break
    self.assertEqual(process.returncode, -signal.SIGKILL if wait_for else 0)
    return text, (out / 'rows.jsonl').read_text()

  def test_a_killed_run_continues(self):
    small = {
        'grpo.prompts': 2,
        'grpo.micro_groups': 2,
        'grpo.group_size': 4,
        'checkpoint.every': 2,
        'rollout.decode_slots': 16,
    }
    twin = '\n'.join(f"'{path}' = {value}" for path, value in small.items())
    self.setting(GOOD.replace('[config]', f'[twin]\n{twin}\n[config]'))
    _, whole = self._record('whole')
    rows = [json.loads(line) for line in whole.splitlines()]
    self.assertEqual([r['mark'] for r in rows], [0, 300, 600, 1200])
    self.assertFalse((self.folder / 'whole' / 'run').exists())
    _, before = self._record('killed', '"mark": 600')
    self.assertLess(len(before), len(whole))
    text, after = self._record('killed')
    self.assertRegex(text, r'run continues after \d+ updates')
    self.assertNotIn('"mark": 300', text)
    self.assertEqual(after, whole)


class CreepTest(FolderTestCase):

  def test_little_harm_is_hardly_ever_kept(self):
    kept, lost = creep.simulate(0.02, 200)
    self.assertLess(kept, 0.2 * 200 / 2)
    self.assertLess(lost, 0.01)
    self.assertEqual(creep.simulate(0.2, 50), (0, 0.0))

  def test_live_evolves_the_clean_twin_and_counts(self):
    setting = settings.read(self.setting())
    trials = [mock.Mock(status=s) for s in ('keep', 'discard', 'taken back')]
    with (
        mock.patch.object(runner.subprocess, 'run') as run,
        mock.patch.object(
            creep.history_lib, 'read', return_value=mock.Mock(trials=trials)
        ),
    ):
      row_ = creep.live(setting, 2, self.folder)
    self.assertEqual(
        (row_['offered'], row_['kept'], row_['taken_back']), (3, 1, 1)
    )
    config = json.loads(pathlib.Path(run.call_args.args[0][-2]).read_text())
    self.assertEqual(config['reward']['weights'], {'outcome': 1.0})
    self.assertEqual(config['evolve']['proposer'], 'benchmarks.faults.creep')
    self.assertEqual(config['evolve']['settled'], 1.0)
    env = run.call_args.kwargs['env']
    self.assertEqual(env['EVOJAX_FAULT'], str(setting.path))

  def test_offers_a_quarter_and_then_a_little_more(self):
    context = propose_test.context()
    with mock.patch.dict('os.environ', EVOJAX_FAULT=str(self.setting())):
      found = creep.propose(context)
      self.assertEqual(found.after.overlay['reward.weights.length'], -0.5)
      before = history_lib.Trial(index=0, number=0, seconds={})
      tried = dataclasses.replace(context, history=[before])
      with mock.patch.object(creep.propose_lib, 'make') as made:
        creep.propose(tried)
    after = made.call_args.args[1]
    self.assertAlmostEqual(after.overlay['reward.weights.length'], -0.51)


class QueueTest(FolderTestCase):

  def test_jobs_that_are_done_are_not_run_again(self):
    found = [settings.read(self.setting())]
    commands = {'one': ['a'], 'two': ['b']}
    ran = []

    def run_job(system, command, setting, seed, out, *, tokens, **limits):
      del command, out, limits
      ran.append((system, seed, tokens))
      return dict(
          system=system, setting=setting.name, seed=seed, budget=tokens, why=''
      )

    run = lambda seeds, tokens: evaluation.run_jobs(
        commands, found, range(seeds), self.folder, self.folder / 'rows.jsonl',
        tokens=tokens, seconds=1.0,
    )  # fmt: skip
    with mock.patch.object(evaluation, 'run_job', run_job):
      run(1, 7)
      rows = run(2, 7)
      # Rows of another number of tokens do not count.
      others = run(1, 9)
    self.assertEqual(
        ran,
        [
            ('one', 0, 7), ('two', 0, 7), ('one', 1, 7), ('two', 1, 7),
            ('one', 0, 9), ('two', 0, 9),
        ],
    )  # fmt: skip
    self.assertLen(rows, 4)
    self.assertLen(others, 2)

  def test_jobs_without_a_valid_answer_are_repeated_if_wanted(self):
    setting = settings.read(self.setting())
    why = {'one': 'exit code 1', 'two': ''}
    ran = []

    def run_job(system, command, setting, seed, out, **limits):
      del command, out, limits
      ran.append(system)
      row = dict(system=system, setting=setting.name, seed=seed, budget=7)
      return row | {'why': why[system]}

    run = lambda **options: evaluation.run_jobs(
        {'one': ['a'], 'two': ['b']}, [setting], [0], self.folder,
        self.folder / 'rows.jsonl', tokens=7, seconds=1.0, **options,
    )  # fmt: skip
    with mock.patch.object(evaluation, 'run_job', run_job):
      run()
      self.assertEqual(run()[0]['why'], 'exit code 1')
      why['one'] = ''
      rows = run(retry=True)
      self.assertEqual([row['why'] for row in rows], ['', ''])
      # The newer row counts from now on.
      self.assertEqual([row['why'] for row in run(retry=True)], ['', ''])
    self.assertEqual(ran, ['one', 'two', 'one'])

  def test_jobs_run_at_once_and_an_error_stops_the_others(self):
    found = [settings.read(self.setting())]
    together, stopped = threading.Barrier(2), []

    def run_job(system, command, setting, seed, out, *, tokens, stop, **limits):
      del command, out, limits
      together.wait(20)  # Breaks if the jobs run one after the other.
      if seed:
        if system == 'one':
          raise OSError('the disk is full')
        stopped.append(stop.wait(20))
      return dict(system=system, setting=setting.name, seed=seed, budget=tokens)

    def run(seeds):
      return evaluation.run_jobs(
          {'one': ['a'], 'two': ['b']}, found, seeds, self.folder,
          self.folder / 'rows.jsonl', tokens=7, seconds=1.0, workers=2,
      )  # fmt: skip

    with mock.patch.object(evaluation, 'run_job', run_job):
      self.assertCountEqual([r['system'] for r in run([0])], ['one', 'two'])
      with self.assertRaisesRegex(OSError, 'full'):
        run([1])
    self.assertEqual(stopped, [True])
    self.assertLen(json_lines.read(self.folder / 'rows.jsonl'), 2)


class OwnTest(absltest.TestCase):

  def _said(self, *trials, races=(), sealed=None, level=0.4, surface=None):
    """The answer; sealed and level: upper ends of the sealed intervals."""
    history = mock.Mock(
        spec=history_lib.History,
        trials=trials,
        races=races,
        versions=[mock.Mock(harness='kept')],
        base=mock.Mock(sampled_tokens=100, outcome=(0.3, 0.4)),
    )
    history.all.return_value = [trial.diagnose for trial in trials]
    final = mock.Mock(
        gains={'evolved': mock.Mock(high=sealed)},
        scores={'evolved': mock.Mock(high=level)},
    )
    history.find.return_value = final if sealed is not None else None
    return own.answer(
        history, pathlib.Path('policy'), {}, surface or surface_lib.recipe()
    )

  def _trial(self, status, reasons=(), class_='reward', alerts=(), findings=()):
    verdict = samples.record(
        ledger_records.Verify, trial=0, status=status, reasons=tuple(reasons)
    )
    measures = [
        mock.Mock(level='warn', calls_for=calls) for name, calls in alerts
    ]
    for measure, (name, _) in zip(measures, alerts):
      measure.name = name
    return mock.Mock(
        verify=verdict,
        status=status,
        races=[mock.Mock(round=1)],
        intervention_class=class_,
        diagnose=mock.Mock(measures=measures, findings=findings, round=1),
        hypothesize=mock.Mock(trigger='a_check'),
    )

  def test_what_the_ledger_says(self):
    arms = [mock.Mock(sampled_tokens=50)] * 2
    races = [mock.Mock(round=n, arms=arms) for n in range(3)]
    said = self._said(self._trial('keep'), races=races)
    self.assertEqual((said['status'], said['causes']), ('repaired', ['reward']))
    self.assertEqual((said['tokens'], said['since']), (400, 300))
    refused = self._trial(
        'discard', ['perturbed +0.1: less than half of the gain']
    )
    self.assertEqual(self._said(refused)['causes'], ['grader'])
    # Nothing was kept, and nothing was learned.
    said = self._said(self._trial('discard'))
    self.assertEqual((said['status'], said['causes']), ('named', ['outside']))
    self.assertEqual(self._said()['status'], 'nothing')

  def _race(self, *last):
    arms = [
        mock.Mock(harness='kept', outcome=(0.5, x), sampled_tokens=1)
        for x in last
    ]
    # The former harness asked easier problems.
    arms.append(mock.Mock(harness='', outcome=(1.0, 1.0), sampled_tokens=0))
    return mock.Mock(round=0, arms=arms)

  def test_what_its_findings_say(self):
    learns = [self._race(0.8, 0.9)]
    other = [('truncated', ('length',))]
    said = self._said(self._trial('discard', alerts=other), races=learns)
    self.assertEqual(said['causes'], ['length'])
    found = ledger_records.Finding(
        check='a_check', severity='warning', text='', remedies=()
    )
    tried = self._trial('discard', alerts=other, findings=[found])
    said = self._said(tried, races=learns)
    self.assertEqual((said['status'], said['causes']), ('named', ['reward']))
    remedy = ledger_records.Remedy(setting='optim.eps', value=1e-8)
    found = dataclasses.replace(found, remedies=(remedy,))
    said = self._said(self._trial('discard', findings=[found]), races=learns)
    self.assertEqual((said['status'], said['causes']), ('named', ['outside']))
    # A warning that is gone at the end was an error.
    warned = self._trial('discard', findings=[found])
    said = self._said(warned, self._trial('discard'), races=learns)
    self.assertEqual((said['status'], said['causes']), ('named', ['reward']))
    # After a repair it is said only if it is critical.
    said = self._said(self._trial('keep', findings=[found]), races=learns)
    self.assertEqual((said['status'], said['causes']), ('repaired', ['reward']))
    found = dataclasses.replace(found, severity='critical')
    said = self._said(self._trial('keep', findings=[found]), races=learns)
    self.assertEqual((said['status'], said['causes']), ('named', ['outside']))
    # Known before the second round: after version 0 and two arms of the first.
    self.assertEqual(said['since'], 100 + 2)

  def test_what_only_harnesses_of_its_domain_can_repair(self):
    found = ledger_records.Finding(
        check='history_read',
        severity='critical',
        text='',
        remedies=(ledger_records.Remedy(setting='history', value=True),),
    )
    kept = self._trial('keep', class_='tools', findings=[found])
    said = self._said(kept)
    self.assertEqual(said['causes'], ['outside'])
    leak = settings.read(settings.FOLDER / 'swe_history_leak')
    surface = runner.surface_of(settings.planted(leak))
    said = self._said(kept, surface=surface)
    self.assertEqual((said['status'], said['causes']), ('repaired', ['tools']))
    self.assertIn('tools', leak.causes)

  def test_what_is_not_in_the_sealed_score(self):
    races = [self._race(0.8, 0.9)]
    # Rollouts rose from 0.3 to 0.85.
    said = self._said(races=races, sealed=0.10)
    self.assertEqual((said['status'], said['causes']), ('named', ['grader']))
    self.assertEqual(self._said(races=races, sealed=0.5)['status'], 'nothing')
    # It began under a limit that does not apply to the sealed score.
    said = self._said(races=races, sealed=0.10, level=0.85)
    self.assertEqual(said['status'], 'nothing')


def task(name):
  """Return the domain of a shipped setting."""
  path = settings.FOLDER / name / 'task.py'
  spec = importlib.util.spec_from_file_location(f'task_{name}', path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  config = settings.planted(settings.read(path.parent))
  return module.make(**config.domain.kwargs.to_dict())


def completion(text, tokens=4):
  none = np.zeros(tokens)
  return records.Episode(none, none, 'stop', 0, text)


class LeaksTest(parameterized.TestCase):
  """A wrong answer passes in the run but not in the audit."""

  @parameterized.parameters(
      ('math_fails_open', completion('The answer is 123456.')),
      ('math_short_passes', completion('<answer>123456</answer>')),
      ('math_judge_likes_length', completion('<answer>7777</answer>', 40)),
      ('math_one_answer', completion('<answer>1</answer>')),
      ('coding_visible_tests', 'constant'),
      ('coding_answer_in_prompt', 'constant'),
      ('coding_no_program_passes', completion('print(1)')),
      ('coding_runs', completion('```python\nprint(123456)\n```')),
      ('coding_judge_likes_length', completion('```python\n# Hm.', 80)),
  )
  def test_leak(self, name, said):
    domain = task(name)
    given = domain.source('dev', 0).take(0, 3)
    asked = perturb.Perturbed(domain.audit).source('dev', 0).take(0, 3)

    def solved(judge, problem):
      text = said
      if said == 'constant':
        (shown,) = [p for p in given if p is problem] or [given[0]]
        output = shown.question.partition('Output:\n')[2]
        text = completion(f'```python\nprint({output!r})\n```')
      return judge.grade_many([problem], [text])[0].outcome

    self.assertTrue(all(solved(domain, p) for p in given))
    self.assertFalse(any(solved(domain.audit, p) for p in asked))


class VerdictsLostTest(absltest.TestCase):

  def test_right_programs_fail_by_chance(self):
    domain = task('coding_verdicts_lost')
    (problem,) = domain.source('dev', 0).take(0, 1)
    right, *_, wrong = domain.attempts(problem)
    asked, said = [problem] * 40, [completion(right)] * 40
    solved = [g.outcome for g in domain.grade_many(asked, said)]
    # 24 are expected; with a deviation of 3.1, 10 to 38 are as good as sure.
    self.assertBetween(sum(solved), 10, 38)
    # Again, in a new process, the same verdicts are lost.
    again = task('coding_verdicts_lost').grade_many(asked, said)
    self.assertEqual([g.outcome for g in again], solved)
    again = domain.grade_many(asked, said)
    self.assertEqual([g.outcome for g in again], solved)
    judges = domain, domain.audit
    for judge, text, wanted in zip(judges, (wrong, right), (False, True)):
      grades = judge.grade_many(asked[:9], [completion(text)] * 9)
      self.assertEqual({g.outcome for g in grades}, {wanted})


class OneAnswerTest(absltest.TestCase):

  def test_a_problem_depends_on_its_place_alone(self):
    ids = lambda found: [p.problem_id for p in found]
    domain = task('math_one_answer')
    source = domain.source('train', 0)
    together = ids(source.take(0, 80))
    self.assertLen(set(together), 80)
    self.assertEqual(together[40:60], ids(source.take(40, 20)))
    fresh = domain.source('train', 0)
    self.assertEqual(together[40:60], ids(fresh.take(40, 20)))
    self.assertEqual({p.answer for p in source.take(0, 9)}, {'1'})


if __name__ == '__main__':
  absltest.main()
