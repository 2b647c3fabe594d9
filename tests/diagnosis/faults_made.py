"""Synthetic runs with one fault each, and the checks that should name it."""

import dataclasses

import numpy as np
import pandas as pd

from evojax.diagnosis import form
from tests.diagnosis import breaks_made
from tests.diagnosis import gamed_made
from tests.diagnosis import made
from tests.diagnosis import parts_made


def _brevity() -> form.Run:
  rows = made.rollouts(rise=-0.3)
  shorter = 1 - 0.5 * rows['step'] / 40
  rows['n_tokens'] = (rows['n_tokens'] * shorter).round().clip(3)
  pays = lambda e: e['part_correct'] + 2 * (1 - e['n_tokens'] / made.LIMIT)
  return made.run(rows, reward=pays)


def length_paid(weight: float, format_weight: float = 0.0) -> form.Run:
  """Return a run that pays length, gets longer, and solves more at first."""
  rows = made.rollouts(rise=0.3)
  longer = 1 + 0.5 * rows['step'] / 40
  rows['n_tokens'] = (rows['n_tokens'] * longer).round()
  rows['part_length'] = rows['n_tokens'] / made.LIMIT
  weights = {'correct': 1.0, 'length': weight, 'format': format_weight}
  pays = lambda e: sum(w * e[form.PART + n] for n, w in weights.items())
  return made.run(rows, reward=pays, settings={'weights': weights})


def _format_heavy() -> form.Run:
  rows = made.rollouts(rise=0)
  rng = np.random.default_rng(0)
  learned = rng.random(len(rows)) < 0.3 + 0.7 * rows['step'] / 40
  rows['part_format'] = learned.astype(float)
  pays = lambda e: 0.2 * e['part_correct'] + 2 * e['part_format']
  weights = {'correct': 0.2, 'format': 2.0}
  return made.run(rows, reward=pays, settings={'weights': weights})


def _overlong() -> form.Run:
  over = lambda e: (e['n_tokens'] - made.LIMIT / 2).clip(0) / made.LIMIT
  pays = lambda e: e['part_correct'] - 2 * over(e)
  return made.run(made.rollouts(), reward=pays)


def _collapsed() -> form.Run:
  rows = made.rollouts(rise=0)
  rows['completion'] = [f'stuck {p}' for p in rows['prompt']]
  step = np.arange(40)
  return made.run(rows, entropy=0.5 * np.exp(-step / 6))


def _open_grader() -> form.Run:
  rows = made.rollouts()
  rng = np.random.default_rng(0)
  silent = rng.random(len(rows)) < 0.1 + 0.6 * rows['step'] / 40
  rows.loc[silent, 'completion'] = 'I cannot say.'
  rows.loc[silent, ['outcome', 'part_correct']] = 1.0
  return made.run(rows, drop=('format_ok',))


def _shown() -> form.Run:
  rows = made.rollouts()
  rows['prompt'] += ' (answer: ' + rows['reference'] + ')'
  return made.run(rows)


def templated(times: int, **fields: str) -> form.Run:
  """Return a run whose prompts a chat template is applied to so many times."""
  rows = made.rollouts()
  for _ in range(times):
    rows['prompt'] = '<|im_start|>user\n' + rows['prompt'] + '<|im_end|>'
  return dataclasses.replace(made.run(rows), **fields)


def _judged_by_length() -> form.Run:
  rows = made.rollouts()
  rows['outcome'] = (rows['n_tokens'] > 26).astype(float)
  return made.run(rows, drop=('format_ok',))


def _same_answer() -> form.Run:
  rows = made.rollouts()
  right = rows['outcome'] > 0.5
  rows.loc[right, 'completion'] = 'so <1>'
  return made.run(rows.drop(columns='reference'))


def other_answers(
    share: float, form_of: str = '<{}>', known: bool = False
) -> form.Run:
  """Return a run in which a share of what counts as solved is wrong.

  Args:
    share: The share.
    form_of: The text around an answer.
    known: Whether the right answer is logged.
  """
  rows = made.rollouts()
  rng = np.random.default_rng(0)
  right = rows['reference'].astype(int)
  wrong = rng.random(len(rows)) < share
  given = np.where(wrong, rng.integers(0, 99, len(rows)), right)
  solved = rows['outcome'] > 0.5
  texts = pd.Series([f'so {form_of.format(n)}' for n in given])
  rows.loc[solved, 'completion'] = texts[solved]
  drop = ('format_ok',) if known else ('format_ok', 'reference')
  return made.run(rows, drop=drop)


def saturated(weights=None, **changed) -> form.Run:
  """Return a run in which the format alone reaches the highest reward."""
  rows = made.rollouts(rise=0.8)
  rng = np.random.default_rng(0)
  readable = (rows['outcome'] > 0) | (rng.random(len(rows)) < 0.6)
  rows['part_correct'] = rows['format_ok'] = readable.astype(float)
  rows['part_format'] = 0.1 * rng.random(len(rows))
  weights = weights or {'correct': 1.0}
  pays = lambda e: sum(w * e[f'part_{part}'] for part, w in weights.items())
  return made.run(rows, reward=pays, settings={'weights': weights}, **changed)


def two_verdicts(lost: float) -> form.Run:
  """Return a run whose grader fails a share of the right answers."""
  rows = made.rollouts()
  rng = np.random.default_rng(0)
  rows['completion'] = rows['completion'].str.extract(r'(<.*)')[0]
  fails = rng.random(len(rows)) < lost
  rows.loc[fails, ['outcome', 'part_correct']] = 0.0
  return made.run(rows, drop=('format_ok',))


def wrong_key(share: float, start: float = 3.0) -> form.Run:
  """Return a run in which the key of a share of the problems is wrong."""
  rows = made.rollouts(start=start)
  number = rows['prompt'].str.extract(r'(\d+)')[0].astype(int)
  rows.loc[number % 100 < 100 * share, ['outcome', 'part_correct']] = 0.0
  return made.run(rows.drop(columns='reference'))


def signed(
    problems: int, refused: bool = True, agreed: bool = True
) -> form.Run:
  """Return a run in which the answers to some problems are below 0.

  Args:
    problems: Number of such problems.
    refused: Whether the grader fails them.
    agreed: Whether all rollouts of a group give the same answer.
  """
  rows = made.rollouts(start=3.0, problems=200)
  number = rows['prompt'].str.extract(r'(\d+)')[0].astype(int)
  below = number < problems
  answers = 100 + (number if agreed else pd.Series(rows.index))[below]
  rows.loc[below, 'completion'] = 'so it is <-' + answers.astype(str) + '>'
  rows.loc[below, ['outcome', 'part_correct']] = float(not refused)
  return made.run(rows.drop(columns='reference'))


def loops(often: int, problems: int = 8) -> form.Run:
  """Return a run in which each batch of problems is trained on often in a row.

  Args:
    often: Number of steps.
    problems: Problems of a step.
  """
  rows = made.rollouts(groups=problems)
  number = rows['group'] + problems * (rows['step'] // often)
  rows['prompt'] = [f'Problem {n}?' for n in number]
  return made.run(rows.drop(columns='reference'), drop=('format_ok',))


def questions(first: int, last: int, share: float = 1.0) -> form.Run:
  """Return a run in which a share of prompts has some characters only."""
  rows = made.rollouts()
  number = rows['prompt'].str.extract(r'(\d+)')[0].astype(int)
  asked = [
      f'How many different orders of {n} letters are there, which every reader'
      f' understands, and how often does a number such as {3 * n} appear'
      for n in range(500)
  ]
  # A different length for each, as a limit in tokens is one in characters.
  cut = [
      a[first + n % 60 if first else 0 : last - n % 60 if last else None]
      for n, a in enumerate(asked)
  ]
  some = np.random.default_rng(0).random(500) < share
  rows['prompt'] = np.where(some, cut, asked)[number]
  return made.run(rows.drop(columns='reference'))


def episodes(credited: float) -> form.Run:
  """Return a run of five turns, of which a share gets credit."""
  rows = made.rollouts(rise=0.8)
  rng = np.random.default_rng(0)
  turns = rng.binomial(5, credited, len(rows)).clip(1)
  return made.run(rows.assign(n_turns=5.0, turns_credited=turns / 5))


def replies(cut: float) -> form.Run:
  """Return a run of six turns; a share of its tools' replies is cut."""
  rows = made.rollouts(rise=0.8)
  rng = np.random.default_rng(3)
  share = rng.binomial(6, cut, len(rows)) / 6
  return made.run(rows.assign(n_turns=6.0, replies_cut=share))


def cut_turns(share: float) -> form.Run:
  """Return a run of four turns; in a share of its episodes, one is cut."""
  rows = made.rollouts(rise=0.8)
  cut = np.random.default_rng(3).random(len(rows)) < share
  longest = np.where(cut, 20.0, 4.0 + rows.index % 12)
  return made.run(
      rows.assign(n_turns=4.0, longest_turn=longest),
      settings={'turn_tokens': 20},
  )


def credited(function) -> form.Run:
  """Return a run whose advantages a function of its rollouts changes."""
  run = made.run(made.rollouts(rise=0.8))
  rows = run.rollouts
  changed = rows.assign(advantage=rows['advantage'] * function(rows))
  return dataclasses.replace(run, rollouts=changed)


def endless(start: float) -> form.Run:
  """Return a run in which, from step 5 on, every completion is cut."""
  rows = made.rollouts(rise=0.8)
  rng = np.random.default_rng(0)
  cut = (rows['step'] >= 5) | (rng.random(len(rows)) < start)
  rows['truncated'] = cut.astype(float)
  rows.loc[cut, ['outcome', 'part_correct']] = 0.0
  return made.run(rows)


def programs(constants_pass: float) -> form.Run:
  """Return a run of programs, a third of which print a constant."""
  rows = made.rollouts()
  rng = np.random.default_rng(0)
  constant = rng.random(len(rows)) < 1 / 3
  passes = rng.random(len(rows)) < constants_pass
  rows['completion'] = np.where(constant, 'print(7)', 'print(int(input()))')
  rows.loc[constant, 'outcome'] = passes[constant].astype(float)
  return made.run(rows.drop(columns='reference'), drop=('format_ok',))


def families(
    share: float, seen: bool = True, text: str = 'print(int(input()))'
) -> form.Run:
  """Return a run of programs of five families, one of which has wrong tests.

  Args:
    share: Share of this family's right programs that pass its hidden tests.
    seen: Whether its right programs pass what is shown.
    text: All programs of this family.
  """
  rows = made.rollouts(rise=0.5)
  number = rows['prompt'].str.extract(r'(\d+)')[0].astype(int)
  rows['completion'] = np.where(number % 5 == 3, text, 'print(int(input()))')
  rows['family'] = [f'kind {n % 5}' for n in number]
  broken = (number % 5 == 3) & (rows['outcome'] > 0.5)
  rows['visible_passed'] = rows['outcome'] * np.where(broken, seen, 1.0)
  passes = np.random.default_rng(0).random(len(rows)) < share
  rows.loc[broken & ~passes, ['outcome', 'part_correct']] = 0.0
  return made.run(rows.drop(columns='reference'), drop=('format_ok',))


def shown_test(
    fails: float, answer: str = 'print(7)', examples: int = 1
) -> form.Run:
  """Return a run in which a quarter of the programs are one constant program.

  Args:
    fails: Share of its runs that fail the test that the prompt shows.
    answer: The program.
    examples: How many examples a prompt shows.
  """
  rows = made.rollouts()
  constant = rows.index % 4 == 0
  rows['prompt'] += '\nInput:\n3\nOutput:\n7' * examples
  rows['completion'] = np.where(constant, answer, 'print(int(input()) + 4)')
  fail = np.random.default_rng(0).random(len(rows)) < fails
  seen = np.where(constant, 1.0 - fail, rows['outcome'])
  rows.loc[constant, ['outcome', 'part_correct']] = 0.0
  rows = rows.assign(visible_passed=seen).drop(columns='reference')
  return made.run(rows, drop=('format_ok',))


def late_programs(share: float) -> form.Run:
  """Return a run in which a share of the programs runs out of time."""
  rows = made.rollouts()
  late = np.random.default_rng(0).random(len(rows)) < share
  rows.loc[late, ['outcome', 'part_correct']] = 0.0
  return made.run(rows.assign(timed_out=late.astype(float)))


def chosen(function) -> form.Run:
  """Return a run that keeps groups by a function of their mean length."""
  rows = made.rollouts()
  by = rows.groupby(['step', 'group'])['n_tokens']
  kept = function(by.transform('mean')).astype(float)
  return made.run(rows.assign(kept=kept))


def special_cases(share: float) -> form.Run:
  """Return a run in which a share of programs knows the visible example."""
  rows = made.rollouts()
  rng = np.random.default_rng(0)
  number = rows['prompt'].str.extract(r'(\d+)')[0]
  rows['prompt'] += ' Input: ' + number + '9 Output: ' + number + '4'
  known = 'n = int(input())\nif n == ' + number + '9:\n  print(' + number + '4)'
  special = rng.random(len(rows)) < share * (0.5 + rows['step'] / 40)
  rows['completion'] = np.where(special, known, 'print(int(input()) + 5)')
  rows.loc[special, ['outcome', 'part_correct']] = 1.0
  return made.run(rows.drop(columns='reference'), drop=('format_ok',))


def unreadable(rise: float = 0.0, **changed) -> form.Run:
  """Return a run in which the grader finds no answer, so solves nothing."""
  rows = made.rollouts(start=-20, rise=rise)
  return made.run(rows.assign(format_ok=0.0), **changed)


def _twice() -> form.Run:
  rows = made.rollouts(problems=2000)
  first = rows['group'] % 2 == 1
  rows.loc[first, 'prompt'] = rows['prompt'].shift(8)[first]
  return made.run(rows)


def _truncated() -> form.Run:
  rows = made.rollouts(rise=0.5)
  rng = np.random.default_rng(0)
  cut = rng.random(len(rows)) < 0.5 * rows['step'] / 40 + 0.1
  rows.loc[cut, 'n_tokens'] = made.LIMIT
  rows['truncated'] = cut.astype(float)
  return made.run(rows)


def _unreadable() -> form.Run:
  rows = made.rollouts(rise=0)
  rng = np.random.default_rng(0)
  bad = (rows['outcome'] < 0.5) & (rng.random(len(rows)) < 0.7)
  rows['format_ok'] = 1.0 - bad
  return made.run(rows)


def _hidden() -> form.Run:
  noise = np.random.default_rng(0)
  pays = lambda e: 0.1 * e['part_correct'] + noise.normal(0, 1, len(e))
  return made.run(made.rollouts(rise=0.5), reward=pays)


def _ruined() -> form.Run:
  rows = made.rollouts(start=0)
  after = rows['step'] > 0
  rows.loc[after, ['outcome', 'part_correct']] = 0.0
  wrong = rows['completion'].str.replace(r'<\d+>', '<7>', regex=True)
  rows['completion'] = rows['completion'].where(~after, wrong)
  return made.run(rows, reward=lambda e: e['part_correct'])


def _train_only() -> form.Run:
  evaluated = np.full(40, np.nan)
  evaluated[::5] = 0.3
  return made.run(made.rollouts(rise=3), eval_outcome=evaluated)


def _unsolved(rows: made.Rows) -> pd.Series:
  """Return whether nobody solves a rollout's group."""
  by = rows.groupby(['step', 'group'])['outcome']
  return by.transform('max') == 0


def _changed(**changed) -> form.Run:
  return made.run(made.rollouts(rise=0.8), **changed)


_STEP = np.arange(40.0)
_LATE = pd.Series(_STEP > 25)

# Name -> (maker, checks any of which names it).
FAULTS = {
    'brevity': (_brevity, ('length_gaming', 'reward_hacking')),
    'format_heavy': (_format_heavy, ('reward_hacking',)),
    'shaping': (
        lambda: made.run(
            made.rollouts(rise=0, start=-5),
            reward=lambda e: e['part_correct'] + 0.2 * e['part_format'],
        ),
        ('shaping_alone',),
    ),
    'overlong': (_overlong, ('overlong_early',)),
    'inverted': (
        lambda: made.run(
            made.rollouts(rise=-2, start=1), reward=lambda e: -e['part_correct']
        ),
        ('inverted_sign',),
    ),
    'falling': (
        lambda: made.run(made.rollouts(rise=-2, start=1)),
        ('outcome_falling',),
    ),
    'ruined': (_ruined, ('outcome_falling',)),
    'stuck': (
        lambda: made.run(made.rollouts(rise=0, groups=40, start=-4)),
        ('not_learning',),
    ),
    'constant': (
        lambda: made.run(made.rollouts().assign(part_bonus=1.0)),
        ('constant_part',),
    ),
    'collapsed': (_collapsed, ('entropy_collapse',)),
    'rising': (
        lambda: made.run(
            made.rollouts(rise=-1),
            entropy=0.3 + 0.05 * _STEP,
            drop=('mean_logprob',),
        ),
        ('entropy_rising',),
    ),
    'hot': (
        lambda: _changed(settings={'temperature': 1.5}),
        ('temperature',),
    ),
    'other_temperature': (
        lambda: made.run(
            made.rollouts().assign(mean_logprob=-1.2),
            settings={'temperature': None},
            gap=np.full(40, np.nan),  # Not logged.
        ),
        ('temperature',),
    ),
    'truncated': (_truncated, ('truncation',)),
    'unreadable': (_unreadable, ('format_bottleneck',)),
    'no_answer': (unreadable, ('unreadable',)),
    'length_judge': (_judged_by_length, ('length_decides',)),
    'same_answer': (_same_answer, ('one_answer',)),
    'constants': (lambda: programs(constants_pass=0.5), ('grader_open',)),
    'special_cases': (lambda: special_cases(0.4), ('hard_coded',)),
    'other_answers': (lambda: other_answers(0.6), ('answers_differ',)),
    'silent': (
        lambda: made.run(made.rollouts(), reward=lambda e: 0 * e['outcome']),
        ('silent',),
    ),
    'saturated': (saturated, ('wrong_paid',)),
    'flaky': (lambda: two_verdicts(0.3), ('verdicts_differ',)),
    'wrong_key': (lambda: wrong_key(0.3), ('key_disagrees',)),
    'left_out': (
        lambda: _changed(left_out=np.full(40, 0.5)),
        ('left_out',),
    ),
    'tiny': (
        lambda: made.run(made.rollouts(groups=2, size=2)),
        ('few_rollouts',),
    ),
    'cut_prompts': (lambda: questions(0, -30), ('prompt_cut',)),
    'template_twice': (lambda: templated(2), ('template_twice',)),
    'turns': (lambda: episodes(0.1), ('turns_ignored',)),
    'replies_cut': (lambda: replies(0.5), ('replies_cut',)),
    'credit': (lambda: credited(lambda e: e['outcome'] < 0.5), ('credit',)),
    'hidden': (_hidden, ('hidden_goal',)),
    'outweighed': (
        lambda: made.run(
            made.rollouts(),
            reward=lambda e: e['part_correct'] + 5 * e['part_format'],
            settings={'weights': {'correct': 1.0, 'format': 5.0}},
        ),
        ('outweighed',),
    ),
    'starved': (
        lambda: made.run(
            made.rollouts().assign(kept=lambda e: _unsolved(e).astype(float))
        ),
        ('filter_starves',),
    ),
    'short_alone': (
        lambda: chosen(lambda length: length < 24),
        ('filter_by_length',),
    ),
    'unusual': (
        lambda: _changed(settings={'max_grad_norm': 1e-7}),
        ('unusual_setting',),
    ),
    'stopped': (
        lambda: dataclasses.replace(
            made.run(made.rollouts(start=-9)),
            config={'rollout.stop': ('print(',)},
        ),
        ('stop_string',),
    ),
    'slice': (
        lambda: dataclasses.replace(
            made.run(made.rollouts()), config={'data.families': ('gcd:0',)}
        ),
        ('part_of_the_data',),
    ),
    'hard': (
        lambda: made.run(
            made.rollouts(start=-9), reward=lambda e: e['part_correct']
        ),
        ('too_hard',),
    ),
    'easy': (
        lambda: made.run(
            made.rollouts(start=7, rise=0), reward=lambda e: e['part_correct']
        ),
        ('too_easy',),
    ),
    'alike': (
        lambda: made.run(
            made.rollouts(start=7, rise=0).assign(completion='one text'),
            reward=lambda e: e['part_correct'],
            drop=('format_ok',),
        ),
        ('entropy_collapse',),
    ),
    'narrow': (
        lambda: made.run(made.rollouts(problems=5)),
        ('narrow_data',),
    ),
    'same_step': (lambda: loops(10), ('repeated_steps',)),
    'no_sign': (lambda: signed(15), ('form_refused',)),
    'wrong_tests': (lambda: families(0.0), ('family_refused',)),
    'tests_of_others': (lambda: shown_test(0.3), ('shown_refused',)),
    'tests_time_out': (lambda: late_programs(0.25), ('tests_time_out',)),
    'turns_cut': (lambda: cut_turns(0.3), ('turns_cut',)),
    'twice': (_twice, ('duplicate_prompts',)),
    'shown': (_shown, ('answer_in_prompt',)),
    'open_grader': (_open_grader, ('grader_open',)),
    'rate_zero': (
        lambda: _changed(learning_rate=0 * _STEP),
        ('learning_rate_zero',),
    ),
    'warmup': (
        lambda: _changed(learning_rate=1e-4 * _STEP / 500),
        ('warmup',),
    ),
    'rate_low': (
        lambda: _changed(descent=2e-5 + 1e-6 * _STEP),
        ('hardly_moves',),
    ),
    'clipped_gradient': (
        lambda: _changed(settings={'max_grad_norm': 1e-3}),
        ('gradient_clipped',),
    ),
    'no_gradient': (
        lambda: _changed(grad_norm=0 * _STEP),
        ('gradient_zero',),
    ),
    'clipped': (lambda: _changed(clip=0.5 + 0 * _STEP), ('clip_fraction',)),
    'kl_strong': (
        lambda: _changed(kl=1e-4 * _STEP, settings={'kl_coef': 3.0}),
        ('kl_strong',),
    ),
    'kl_strong_by_loss': (
        lambda: _changed(
            kl=1e-4 * _STEP, loss=3e-4 * _STEP, settings={'kl_coef': None}
        ),
        ('kl_strong',),
    ),
    'kl_explosion': (
        lambda: _changed(kl=np.where(_LATE, 5.0, 0.01)),
        ('kl_explosion',),
    ),
    'filtered': (
        lambda: _changed(settings={'top_p': 0.5}),
        ('filtered_sampling',),
    ),
    'gap': (
        lambda: _changed(gap=np.where(_LATE, 0.4, 0.01)),
        ('logprob_gap',),
    ),
    'not_finite': (
        lambda: _changed(loss=np.where(_LATE, np.nan, 0.1)),
        ('not_finite',),
    ),
    'train_only': (_train_only, ('train_eval_gap',)),
}
FAULTS |= parts_made.FAULTS | breaks_made.FAULTS | gamed_made.FAULTS
