import base64
import concurrent.futures
import hashlib
import html.parser
import json
import pathlib
import random
import re
import tempfile

from absl.testing import absltest
from absl.testing import parameterized
import numpy as np

from evojax.ledger import chain
from evojax.ledger import parting
from evojax.ledger import records
from evojax.ledger import rows as rows_lib
from evojax.report import page
from evojax.runtime import numerals
from tests.report import curves_test
from tests.report import synthetic

_POLICY = 'Content-Security-Policy'
_VOID = {'meta', 'link', 'img', 'br', 'hr', 'input', 'base'}


class _Page(html.parser.HTMLParser):
  """Elements in order as dicts: tag, attributes, all text inside."""

  def __init__(self, text: str):
    super().__init__()
    self.elements: list[dict] = []
    self._open: list[dict] = []
    self.feed(text)
    assert not self._open, [e['tag'] for e in self._open]

  def handle_starttag(self, tag, attrs):
    element = {'tag': tag, 'attrs': dict(attrs), 'text': ''}
    self.elements.append(element)
    if tag not in _VOID:
      self._open.append(element)

  def handle_endtag(self, tag):
    assert self._open and self._open[-1]['tag'] == tag, (tag, self.getpos())
    self._open.pop()

  def handle_data(self, data):
    for element in self._open:
      element['text'] += data

  def find(self, tag, class_='', **attrs):
    """Return the elements with a tag, a class and attributes."""
    return [
        e
        for e in self.elements
        if e['tag'] == tag
        and (not class_ or class_ in e['attrs'].get('class', '').split())
        and all(e['attrs'].get(k) == v for k, v in attrs.items())
    ]


def _build(workdir) -> tuple[str, _Page]:
  text = page.build(workdir).read_text()
  return text, _Page(text)


def _payloads(workdir) -> list[dict]:
  lines = (workdir / 'ledger.jsonl').read_text().splitlines()
  return [json.loads(line)['payload'] for line in lines]


class PageTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    cls._root = tempfile.TemporaryDirectory()
    cls.addClassCleanup(cls._root.cleanup)
    cls.workdir = synthetic.write(pathlib.Path(cls._root.name, 'run'))
    cls.text, cls.page = _build(cls.workdir)

  def test_returns_the_file_and_leaves_nothing_else(self):
    path = page.build(self.workdir)
    self.assertEqual(path, self.workdir / 'report.html')
    hidden = [p.name for p in self.workdir.iterdir() if p.name[0] == '.']
    self.assertEmpty(hidden)

  def test_self_contained(self):
    for element in self.page.elements:
      for name, value in element['attrs'].items():
        self.assertNotIn(name, ('src', 'srcset', 'poster', 'data', 'action'))
        self.assertFalse(name.startswith('on'), element)
        if name in ('href', 'xlink:href'):
          self.assertRegex(value, '^#')
    style = self.page.find('style')[0]['text']
    self.assertNotRegex(style, r'url\(|@import|https?:')
    script = self.page.find('script')[0]['text']
    self.assertNotRegex(script, r'https?:|fetch|import|innerHTML')
    self.assertEmpty(self.page.find('link'))
    self.assertLess(len(self.text.encode()), 3_000_000)

  def test_links_have_targets(self):
    ids = {e['attrs'].get('id') for e in self.page.elements}
    links = {e['attrs']['href'][1:] for e in self.page.find('a')}
    self.assertContainsSubset(links, ids)
    self.assertContainsSubset({'base', 'trial-0', 'trial-5'}, links)

  def test_policy_allows_this_script_alone(self):
    (policy,) = self.page.find('meta', **{'http-equiv': _POLICY})
    (script,) = self.page.find('script')
    digest = hashlib.sha256(script['text'].encode()).digest()
    expected = f"'sha256-{base64.b64encode(digest).decode()}'"
    directives = dict(
        d.split(None, 1) for d in policy['attrs']['content'].split(';')
    )
    self.assertEqual(directives['default-src'], "'none'")
    self.assertEqual(directives['script-src'], expected)

  def test_decision_numbers_are_the_ledgers(self):
    rows = _payloads(self.workdir)
    verdicts = [r for r in rows if r['step'] == 'verify']
    standings = [r['standings'] for r in rows if r['step'] == 'race']
    limits = {s['trial']: s['detectable'] for found in standings for s in found}
    self.assertLen(verdicts, 6)
    for verdict in verdicts:
      number = verdict['trial']
      shown = self._values(number)
      expected = {n: verdict[n] for n in synthetic.NUMBERS}
      expected['mde'] = limits.get(number)
      self.assertCountEqual(
          [float(v) for v in shown.values()],
          [v for v in expected.values() if v is not None],
      )
      if verdict['effect'] is not None:
        self.assertEqual(shown['effect'], repr(verdict['effect']))
        self.assertEqual(shown['e-value'], repr(verdict['e_value']))
        self.assertEqual(
            shown['standard error'], repr(verdict['standard_error'])
        )

  def _values(self, trial):
    """Return name -> exact value in the decision of a trial."""
    block = self._between('dl', {'data-trial': str(trial)})
    names = [e['text'] for e in block if e['tag'] == 'dt']
    values = [e['attrs'].get('data-value') for e in block if e['tag'] == 'dd']
    self.assertEqual(len(names), len(values))
    return {n: v for n, v in zip(names, values) if v is not None}

  def _between(self, tag, attrs):
    """Return the elements inside the one with these attributes."""
    index = next(
        i
        for i, e in enumerate(self.page.elements)
        if e['tag'] == tag and attrs.items() <= e['attrs'].items()
    )
    end = next(
        i
        for i in range(index + 1, len(self.page.elements))
        if self.page.elements[i]['tag'] not in ('div', 'dt', 'dd')
    )
    return self.page.elements[index + 1 : end]

  def test_decision_is_written_in_points(self):
    written = {
        'effect': '+1.23 pt',  # 100 * 0.01234.
        'low': '−0.50 pt',
        'pairs': '4',
        'e_value': '12.3',
        'perturbed_error': '0.30 pt',
    }
    numbers = {
        'effect': 0.01234,
        'low': -0.005,
        'pairs': 4,
        'e_value': 12.34,
        'perturbed_error': 0.003,
    }
    rows = synthetic.make_rows(self._path('points'), trials=1, evidence=False)
    verify = next(data for step, data, _ in rows if step == 'verify')
    verify |= numbers
    synthetic.write_ledger(self._path('points') / 'ledger.jsonl', rows)
    _, found = _build(self._path('points'))
    cells = {e['attrs'].get('data-value'): e['text'] for e in found.find('dd')}
    for name, text in written.items():
      self.assertEqual(cells[repr(numbers[name])], text, name)

  def _path(self, name):
    return pathlib.Path(self._root.name, name)

  def test_table_has_every_trial_and_its_numbers(self):
    rows = _payloads(self.workdir)
    cells = [e for e in self.page.find('td') if 'data-name' in e['attrs']]
    realised = [
        e['text'].strip()
        for e in cells
        if e['attrs']['data-name'] == 'measured'
    ]
    expected = []
    for row in rows:
      if row['step'] != 'verify':
        continue
      if row['effect'] is None:
        expected.append('–')
      else:
        values = [f'{100 * row[n]:+.1f}' for n in ('effect', 'low', 'high')]
        text = '{} [{}, {}]'.format(*values).replace('-', '−')
        expected.append(re.sub(r'[+−]0\.0', '0.0', text))
    self.assertEqual(realised, expected)

  def test_device_seconds_of_a_trial_are_the_sum_of_its_rows(self):
    lines = (self.workdir / 'ledger.jsonl').read_text().splitlines()
    seconds = {}
    for line in lines:
      row = json.loads(line)
      # Each round tested one change.
      key = row['payload'].get('trial')
      if row['payload']['step'] == 'race':
        key = row['payload']['standings'][0]['trial']
      spent = row['measured']['device_seconds']
      seconds[key] = seconds.get(key, 0) + spent
    shown = [
        e['text']
        for e in self.page.find('td', 'seconds')
        if 'data-unit' in e['attrs']
    ]
    expected = [f'{seconds[n]:,.0f}' for n in range(6)]
    self.assertEqual(shown[1:], expected)

  def test_verdict_in_one_sentence(self):
    (verdict,) = self.page.find('p', 'verdict')
    self.assertEqual(
        verdict['text'],
        '3 of 6 changes kept (3 with the horizon not checked); on sealed'
        ' problems the race takes the base policy from 33.1 % to 59.2 %'
        ' [56.6, 61.8], against 48.7 % for a run of the seed harness alone'
        ' and 60.2 % for one of the reference recipe.',
    )
    self.assertIn('not run', self.text)  # random was not passed in.

  def test_what_a_reader_looks_for_is_there(self):
    for wanted in (
        'DAPO, arXiv:2503.14476',  # Source of a hypothesis.
        'reward part overlong: constant',  # The reason of a refusal.
        '+def keep(e, state):',  # A line in the diff of a source.
        'largest |advantage|',  # A label of a rollout.
        'A shelf holds 17 jars.',
        'Solved only by the candidate',  # Flips.
        'failed',  # A diagnostic without a value.
        'not identifiable',  # A backtest without a result.
        'device-seconds per point of the kept changes',
        'What the kept changes did: v0 → v5',  # v5 includes all of them.
        'grpo.aggregation',  # One of them.
        '<dt>decided</dt><dd>3 of 5</dd>',
    ):
      self.assertIn(wanted, self.text.replace('&#39;', "'"), wanted)

  def test_overlay_shows_the_configs_value_as_before(self):
    row = re.search(
        r'optim\.learning_rate</code></td><td>.*?</tr>', self.text, re.DOTALL
    )[0]
    self.assertIn('1e-4 (config)', row)
    self.assertIn('3e-4', row)

  def test_hostile_text_stays_text(self):
    workdir = self._path('hostile')
    text = synthetic.HOSTILE + '\ud800'
    rows = synthetic.make_rows(workdir, trials=2, text=synthetic.HOSTILE)
    for step, data, _ in rows:
      if step == 'hypothesize':
        data['source'] = text
      if step == 'design':
        data['delta']['factor'] = data['delta']['intervention_class'] = text
        data['delta']['changes'] = [[text, text, text]]
      if step == 'diagnose':
        data['alerts'] = [text]
        for measure in data['measures']:
          for name in ('name', 'layer', 'unit', 'level'):
            measure[name] += text
      if step == 'trial':
        for arm in data['arms']:
          arm['why'] = arm['status'] = text
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    source, found = _build(workdir)
    self.assertLen(found.find('script'), 1)
    self.assertEmpty(found.find('img'))
    self.assertNotIn('alert(1)', found.find('script')[0]['text'])
    for raw in ('\x1b', '\u202e', '\ud800'):
      self.assertNotIn(raw, source)
    for element in found.elements:
      self.assertFalse(any(a.startswith('on') for a in element['attrs']))
    read = [e['text'] for e in found.find('pre', 'completion')]
    self.assertNotEmpty(read)
    visible = (
        '</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>'
        r'\x1b[31m\u202e{{ 7 * 7 }} & "quoted" ' + "'text'"
    )
    for completion in read:
      self.assertIn(visible, completion)

  def test_any_moment_of_a_run(self):
    workdir = self._path('moments')
    rows = synthetic.make_rows(workdir, trials=1, evidence=False)
    rows += synthetic.end_rows(rows)
    for count in range(1, len(rows) + 1):
      synthetic.write_ledger(workdir / 'ledger.jsonl', rows[:count])
      with self.subTest(rows[count - 1][0]):
        _, found = _build(workdir)
        self.assertNotEmpty(found.find('p', 'verdict')[0]['text'])

  @parameterized.parameters(*range(12))
  def test_a_missing_field_is_named(self, seed):
    """Rows are read strictly: the page never shows unwritten values."""
    workdir = self._path(f'missing{seed}')
    rows = synthetic.make_rows(workdir, trials=1, evidence=False)
    rows += synthetic.end_rows(rows)
    rng = random.Random(seed)

    step, data, _ = rng.choice(rows)
    field = rng.choice(sorted(data))
    del data[field]
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    name = records.STEPS[step].__name__
    message = rf'ledger\.jsonl: row \d+ .* {name}\.{field} is missing'
    with self.assertRaisesRegex(ValueError, message):
      page.build(workdir)
    self.assertFalse((workdir / 'report.html').exists())

  def test_any_row_may_be_missing(self):
    workdir = self._path('rows')
    rows = synthetic.make_rows(workdir, trials=1, evidence=False)
    rows += synthetic.end_rows(rows)
    for step in dict.fromkeys(step for step, _, _ in rows):
      rest = [row for row in rows if row[0] != step]
      synthetic.write_ledger(workdir / 'ledger.jsonl', rest)
      with self.subTest(step):
        _build(workdir)

  def test_failed_and_running_arms(self):
    workdir = self._path('arms')
    rows = synthetic.make_rows(workdir, trials=1, evidence=False)
    at = next(i for i, row in enumerate(rows) if row[0] == 'race')
    arms = rows[at][1]['arms']
    arms[-1] |= {'status': 'crash', 'why': 'reward.py: line 3', 'outcome': []}
    arms[0] |= {'outcome': [0.5]}  # It was interrupted.
    rows = rows[: at + 1]
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    text, found = _build(workdir)
    self.assertIn('crash: reward.py: line 3', text)
    chips = [e['text'] for e in found.find('span', 'running')]
    self.assertIn('running', chips)
    (verdict,) = found.find('p', 'verdict')
    self.assertStartsWith(verdict['text'], 'Stopped; the same command')
    (shown,) = found.find('p', 'state')
    self.assertIn('1 of 1 rounds, last row: race', shown['text'])

  def test_a_change_without_an_effect_is_no_effect_of_0(self):
    workdir = self._path('collapsed')
    rows = synthetic.make_rows(workdir, trials=1, evidence=False)
    verify = next(data for step, data, _ in rows if step == 'verify')
    verify |= dict(status='discard', version='', reasons=['collapse'])
    verify |= dict.fromkeys(('effect', 'low', 'high', 'e_value'))
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    text, found = _build(workdir)
    self.assertLen(found.find('text', 'cross'), 1)
    self.assertNotIn('class="dot discard"', text)

  def test_a_change_that_goes_on_is_not_counted(self):
    workdir = self._path('going on')
    rows = synthetic.make_rows(workdir, trials=2, evidence=False)
    last = max(i for i, row in enumerate(rows) if row[0] == 'race')
    for step, data, _ in rows:
      if step == 'verify':
        data |= dict(status='discard', version='')
    rows = [row for row in rows[: last + 1] if row[0] != 'promote']
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    _, found = _build(workdir)
    (verdict,) = found.find('p', 'verdict')
    self.assertEndsWith(verdict['text'], ': 0 of 1 change kept.')
    self.assertIn('changes tried1', found.find('dl', 'facts')[0]['text'])

  def test_ended_without_seal(self):
    workdir = self._path('ended')
    rows = synthetic.make_rows(workdir, trials=2, evidence=False)
    head = synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    summary = {'ended': 'budget', 'ledger_head': head}
    (workdir / 'summary.json').write_text(json.dumps(summary))
    _, found = _build(workdir)
    verdict = found.find('p', 'verdict')[0]['text']
    self.assertStartsWith(verdict, 'Ended (budget) without sealed scores: 1')
    # The run continued afterwards, so the summary no longer applies to it.
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows[:-1])
    _, found = _build(workdir)
    self.assertStartsWith(found.find('p', 'verdict')[0]['text'], 'Stopped')

  def test_goodput(self):
    workdir = self._path('goodput')
    synthetic.write(workdir, trials=1, evidence=False)
    facts = lambda: _build(workdir)[1].find('dl', 'facts')[0]['text']
    self.assertNotIn('goodput', facts())  # As in runs of older versions.
    summary = json.loads((workdir / 'summary.json').read_text())
    summary['time'] = dict(goodput=0.75, restarts=2, lost_seconds=300.0)
    (workdir / 'summary.json').write_text(json.dumps(summary))
    self.assertIn('goodput75.0 %', facts())
    self.assertIn('lost, with 2 restarts5 min', facts())

  def test_torn_ledger(self):
    workdir = self._path('torn')
    synthetic.write(workdir, trials=1, evidence=False, final=False)
    ledger = workdir / 'ledger.jsonl'
    data = ledger.read_bytes()
    whole = data[: data[:-1].rindex(b'\n') + 1]
    rows = whole.count(b'\n')
    for end in (1, 40, len(data) - len(whole) - 1):
      with self.subTest(end):
        ledger.write_bytes(whole + data[len(whole) : len(whole) + end])
        _, found = _build(workdir)
        (notice,) = found.find('p', 'notice')
        self.assertIn(f'last {end:,} bytes', notice['text'])
    # A changed byte in the middle ends the valid prefix there.
    lines = data.splitlines(keepends=True)
    lines[rows // 2] = lines[rows // 2].replace(b'"step"', b'"stop"')
    ledger.write_bytes(b''.join(lines))
    _, found = _build(workdir)
    left = sum(map(len, lines[rows // 2 :]))
    (notice,) = found.find('p', 'notice')
    self.assertIn(f'last {left:,} bytes', notice['text'])

  def test_two_hundred_versions(self):
    workdir = self._path('many')
    synthetic.write(workdir, trials=200, evidence=False)
    text, found = _build(workdir)
    self.assertLen(found.find('details', 'version'), 201)
    (table,) = found.find('table', 'versions')
    self.assertIn('trial 199', table['text'])
    # One mark of the tree links to each trial, like the table.
    links = [e['attrs']['href'] for e in found.find('a')]
    for number in range(200):
      self.assertGreaterEqual(links.count(f'#trial-{number}'), 2, number)
    self.assertIn(f'here for {page.MAX_READABLE} of', text)
    self.assertLess(len(text.encode()), 6_000_000)

  def test_no_trials(self):
    workdir = self._path('none')
    synthetic.write(workdir, trials=0, final=False)
    text, found = _build(workdir)
    self.assertIn('No change has been tried yet', text)
    self.assertIn('no change', found.find('p', 'verdict')[0]['text'])

  def test_tokens_of_each_trial(self):
    arms = {}
    for row in _payloads(self.workdir):
      if row['step'] == 'trial':
        own = {a['folder']: a['sampled_tokens'] for a in row['arms']}
        new = {f: n for f, n in own.items() if f not in arms}
        arms |= dict.fromkeys(new, 0) | {f'trial {row["trial"]}': new}
    expected = {
        numerals.tokens(sum(new.values()))
        for name, new in arms.items()
        if name.startswith('trial ')
    }
    shown = {
        e['text']
        for e in self.page.find('td')
        if e['attrs'].get('data-name') == 'tokens'
    }
    self.assertContainsSubset(expected, shown)

  def test_quiet_measures_are_folded(self):
    workdir = self._path('quiet')
    rows = synthetic.make_rows(workdir, trials=1, evidence=False)
    measures = next(data for s, data, _ in rows if s == 'diagnose')['measures']
    for one in measures:
      one |= {'level': 'ok', 'warn': None, 'critical': None}
    limit = {'value': 0.5, 'warn': ['>', 0.3]}
    measures[0] |= limit | {'level': 'warn', 'name': 'loud'}
    why = 'It alerts only below 40 % solved, and 52.0 % is solved.'
    measures[1] |= limit | {'name': 'held_one', 'status': why}
    # From before reasons were stored.
    measures[2] |= limit | {'name': 'old_one'}
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    text, found = _build(workdir)
    section = text[text.index('id="layers"') : text.index('id="each"')]
    shown, *folds = section.split('<details')
    self.assertIn('<span>loud</span>', shown)
    self.assertNotIn('held_one', shown)
    fold = next(fold for fold in folds if 'held_one' in fold)
    summary = fold[: fold.index('</summary>')]
    self.assertIn('old_one 0.5 <span class="limit-warn">(beyond its', summary)
    self.assertIn(why, fold)
    self.assertIn('Another condition of it is not met.', fold)
    self.assertLen(found.find('b', 'level-held'), 2)
    self.assertLen(found.find('b', 'level-warn'), 1)

  def test_measures_are_explained(self):
    workdir = self._path('explained')
    rows = synthetic.make_rows(workdir, trials=1, evidence=False)
    named = next(data for s, data, _ in rows if s == 'diagnose')['measures']
    named[0] |= {'name': 'weak_signal', 'level': 'warn'}
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    text, _ = _build(workdir)
    self.assertIn('groups with both solved and unsolved completions', text)

  def test_findings_are_listed_once(self):
    with tempfile.TemporaryDirectory() as folder:
      workdir = pathlib.Path(folder)
      synthetic.write(workdir, trials=3, evidence=False)
      text = page.build(workdir).read_text()
    found = text.count('rollouts are sampled at temperature &lt;3&gt;')
    self.assertEqual(found, 1)
    self.assertIn('<b>warning</b>: rollouts are sampled', text)

  @parameterized.parameters(True, False)
  def test_rollouts_beside_reward_hacking(self, alert):
    workdir = self._path(f'hacked{alert}')
    rows = synthetic.make_rows(workdir, trials=1)
    diagnosis = next(data for s, data, _ in rows if s == 'diagnose')
    if alert:
      diagnosis['measures'][0] |= {'name': 'reward_hacking', 'level': 'warn'}
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    perturbed = workdir / 'rounds/000/r000-t000-0-perturbed'
    rng = np.random.default_rng(0)
    synthetic.write_evidence(perturbed, 'dev', rng=rng, share=0.2)
    _, found = _build(workdir)
    beside, own = found.find('details', 'gamed')
    self.assertEqual('open' in beside['attrs'], alert)
    self.assertIn('highest reward but wrong', beside['text'])
    self.assertIn('earned at least as much as the median right', own['text'])
    self.assertIn('wrong on a perturbed problem', own['text'])

  def test_curves_of_the_line_of_training(self):
    workdir = self._path('curves')
    rows = synthetic.make_rows(workdir, trials=1, evidence=False)
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    for folder in ('v0', 'r000-t000-0', 'r001-t001-0', 'final'):
      steps = [dict(step=n, reward=n / 10, entropy=0.5) for n in (1, 2)]
      for row in steps:
        row |= {'seconds/rollout': 1.0, 'seconds/update': 3.0}
      curves_test.write(workdir / 'arms' / folder, steps)
      if folder != 'r001-t001-0':
        (workdir / 'arms' / folder / 'arm.json').touch()
    _, found = _build(workdir)
    section = found.find('section', id='training')[0]['text']
    shown = 'reward', 'entropy', 'search', 'from the base policy', '75.0 %'
    for name in shown:
      self.assertIn(name, section)
    self.assertIn('arms/r001-t001-0, going on', section)
    # v0 and the kept candidate, with two updates each.
    titles = [e['text'] for e in found.find('title')]
    self.assertIn('trained on through the search: 0.1 to 0.2', titles)
    self.assertIn('at step 2', found.find('p', 'state')[0]['text'])

  def test_nothing_kept_is_said(self):
    workdir = self._path('kept nothing')
    rows = synthetic.make_rows(workdir, trials=2, evidence=False)
    for step, data, _ in rows:
      if step == 'verify':
        data['status'], data['version'] = 'discard', ''
    rows += synthetic.end_rows(rows)
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    compared = workdir / 'sealed/reference/compared.json'
    compared.parent.mkdir(parents=True)
    compared.write_text('{"workdir": "/runs/mine"}')
    text, found = _build(workdir)
    self.assertIn('raced (nothing kept)</td>', text)
    self.assertIn('reference (mine)</td>', text)
    self.assertIn('compared, reference (mine), minus the raced one', text)
    self.assertNotIn('retrained from base', text)
    verdict = found.find('p', 'verdict')[0]['text']
    self.assertStartsWith(verdict, '0 of 2 changes kept')
    self.assertIn(
        'Nothing was kept: of 2 changes, 1 was ahead, but not shown to be so on'
        ' perturbed problems; 1 was not shown to be better',
        verdict,
    )
    self.assertIn('retrained from base</td>', self.text)

  def test_legends_hold_what_is_drawn(self):
    line = lambda class_: 'key line ' + class_ + '"'
    self.assertIn(line('lineage'), self.text)
    self.assertIn('class="key mark discard"', self.text)
    # The run kept a change, but has no shadow and nothing goes on.
    self.assertNotIn(line('shadow'), self.text)
    self.assertNotIn('class="key mark running"', self.text)

  def test_what_keeps_a_change_is_said(self):
    self.assertIn('the evidence of all its pairs for a gain', self.text)

  def test_a_diagnosis_and_nothing_to_propose_is_no_trial(self):
    workdir = self._path('idle')
    rows = synthetic.make_rows(workdir, trials=1, evidence=False)
    diagnosis = next(data for step, data, _ in rows if step == 'diagnose')
    rows.append(('diagnose', diagnosis | {'trial': 1}, {}))
    nothing = records.Hypothesize(trial=1, version='v1')
    rows.append(('hypothesize', rows_lib.to_json(nothing), {}))
    synthetic.write_ledger(workdir / 'ledger.jsonl', rows)
    _, found = _build(workdir)
    self.assertLen(found.find('details', 'version'), 2)

  def test_where_another_run_parts(self):
    rows = chain.read(self.workdir / 'ledger.jsonl')[:4]
    other = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    ledger = chain.Ledger(other / 'ledger.jsonl')
    for n, row in enumerate(rows):
      data = dict(row['payload'])
      del data['n'], data['step']
      if n == 3:
        data['version'] = '<b>v9</b>'
      ledger.append(row['payload']['step'], data, row['measured'])
    found = parting.find(self.workdir, other)
    self.assertEqual(found.rows, 3)
    text = page.build(self.workdir, partings=[found]).read_text()
    self.assertIn('first 3 rows', text)
    self.assertIn('&lt;b&gt;v9&lt;/b&gt;', text)
    sealed = parting.Parting('other', 7, sealed=True)
    text = page.build(self.workdir, partings=[sealed]).read_text()
    self.assertIn('All 7 rows before the seal are equal', text)
    self.assertNotIn('id="partings"', page.build(self.workdir).read_text())

  def test_no_ledger(self):
    empty = self._path('empty')
    empty.mkdir()
    with self.assertRaisesRegex(ValueError, 'no ledger.jsonl, .* no metrics'):
      page.build(empty)
    with self.assertRaisesRegex(ValueError, 'there is no directory .*absent;'):
      page.build(self._path('absent'))
    for data in (b'', b'{"hash": '):
      (empty / 'ledger.jsonl').write_bytes(data)
      with self.assertRaisesRegex(ValueError, 'holds no whole row'):
        page.build(empty)
    self.assertFalse((empty / 'report.html').exists())


class LiveTest(absltest.TestCase):

  def test_two_processes_at_once(self):
    with concurrent.futures.ProcessPoolExecutor(2) as pool:
      paths = list(pool.map(page.build, [self.workdir] * 20))
    self.assertEqual(set(paths), {self.page})
    self.assertEndsWith(self.page.read_text(), '</html>')
    self.assertEmpty(list(self.workdir.glob('.report*')))

  def setUp(self):
    super().setUp()
    root = self.enterContext(tempfile.TemporaryDirectory())
    self.workdir = synthetic.write(
        pathlib.Path(root, 'run'), trials=0, final=False
    )
    self.page = self.workdir / 'report.html'
    self.now = 0.0
    self.built = []

  def _live(self, seconds) -> page.Live:
    """Return live pages that take `seconds` each to build."""

    def build(workdir, **options):
      self.built.append((self.now, options))
      self.now += seconds
      return workdir

    self.enterContext(absltest.mock.patch.object(page, 'build', build))
    return page.Live(self.workdir, clock=lambda: self.now)

  def test_at_most_a_hundredth_of_the_time(self):
    for seconds, pages in ((0.001, 201), (0.5, 21)):
      self.now, self.built = 0.0, []
      live = self._live(seconds)
      while self.now < 1001:
        live.update()
        if self.now < 4.9:  # A build that is stopped changes no page.
          self.assertEmpty(self.built)
        self.now += 0.1
      self.assertBetween(len(self.built), pages - 3, pages + 3)
      self.assertLessEqual(len(self.built) * seconds, 0.0101 * 1001 + seconds)
      # The page knows when the next one is due.
      wait = self.built[-1][1]['next_seconds']
      self.assertEqual(wait, max(5.0, 100 * seconds))

  def test_an_error_is_an_end(self):
    with self.assertRaises(KeyboardInterrupt):
      with page.Live(self.workdir, clock=lambda: self.now) as live:
        live.update()
        self.now = 5.0
        live.update()
        self.assertIn('data-state="running"', self.page.read_text())
        raise KeyboardInterrupt
    self.assertIn('data-state="stopped"', self.page.read_text())

  def test_a_run_that_was_refused_leaves_nothing(self):
    with self.assertRaises(ValueError):
      with page.Live(self.workdir, clock=lambda: self.now) as live:
        live.update()
        raise ValueError
    self.assertFalse(self.page.exists())

  def test_no_page_is_no_reason_to_stop(self):
    (self.workdir / 'ledger.jsonl').write_text('torn')
    live = page.Live(self.workdir, clock=lambda: self.now)
    live.update()
    self.now = 5.0
    with self.assertLogs(level='WARNING') as logged:
      live.update()
    self.assertIn('no page of', logged.output[0])


if __name__ == '__main__':
  absltest.main()
