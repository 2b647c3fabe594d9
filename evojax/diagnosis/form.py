"""The common form of a run: a table of rollouts and a table of steps.

Every reader makes a `Run`, and every check takes one. Data that a trainer did
not log is missing: a check that needs it raises `NotLogged`, and the diagnosis
reports this.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import pathlib
import re
from typing import Any, TypeVar
import weakref

import numpy as np
import pandas as pd

from evojax.diagnosis import calls
from evojax.diagnosis import columns
from evojax.diagnosis import literals
from evojax.diagnosis import words
from evojax.runtime import numerals

# Columns of rollouts; `part_<name>` is a reward part before its weight.
ROLLOUT = {
    'step': 'training step that used the rollout',
    'group': 'rollouts with equal numbers in a step answer the same prompt',
    'prompt': 'text',
    'templated': '1: its prompt is messages, or has the marks of roles',
    'completion': 'text',
    'reference': 'the right answer, text',
    'reward': 'the reward used in training, weighted',
    'outcome': 'solved: 1, not: 0',
    'advantage': 'group-relative',
    'n_tokens': 'sampled tokens',
    'truncated': '1: cut at the limit',
    'mean_logprob': 'nats per token',
    'gap': '|trainer - sampler| log-prob, nats per token',
    'format_ok': '1: the answer could be read',
    'error': '1: grading failed',
    'crashed': '1: a run of its program ended in an error',
    'failing': '1: a test that the grader ran on the result fails',
    'timed_out': '1: its program ran out of time, and passed no test',
    'family': 'kind of the problem',
    'kept': '1: entered the update',
    # Columns of episodes with tools; `calls` finds them in the completion.
    'n_turns': 'turns of the policy',
    'n_calls': 'calls of tools',
    'calls_failed': 'share of calls that were malformed or failed',
    'repeated': 'share of calls made again, with nothing edited in between',
    'turns_credited': 'share of its turns with an advantage, if one has it',
    'first_call': 'a number that identifies the first call',
    'all_calls': 'a number that identifies the sequence of calls',
    'edited': '1: some call changed a file',
    'changed': '1: files differ from how they were at the start',
    'looked': '1: some call looked at files',
    'tested': '1: tests were run after the last edit',
    'submitted': '1: the work was handed in',
    'history': '1: some call read the history of the repository',
    'tests_touched': '1: some call changed a test',
    'copied': '1: an edit wrote lines from a reply that showed no source',
    'hard_coded': '1: an edit or a program answers one literal with another',
    'visible_passed': '1: the last run of the visible tests passed',
    'missing_tool': 'the first tool called that the agent was not given, text',
    'replies_cut': 'share of the replies of tools that say that they are cut',
    'longest_turn': 'sampled tokens of its longest turn',
    'out_of_turns': '1: the limit of turns ended it',
    'out_of_time': '1: the limit of seconds ended it',
}
STEP = {
    'step': 'training step',
    'reward': 'mean',
    'outcome': 'share solved',
    'eval_outcome': 'share solved of an evaluation',
    'eval_reward': 'mean reward of an evaluation, if that is not a share',
    'entropy': 'nats per token',
    'mean_logprob': 'nats per token',
    'kl': 'to the reference, nats per token',
    'kl_coef': 'coefficient of the penalty for that KL',
    'kl_update': 'KL of the update to the policy of the rollouts, nats',
    'clip': 'share of tokens outside the clip bounds',
    'left_out': 'share of tokens outside the bounds of the sampler ratio',
    'grad_norm': 'before clipping',
    'descent': 'fall of the loss by an update, to first order',
    'learning_rate': '',
    'loss': '',
    'advantage_mean': 'mean of the tokens',
    'advantage_low': 'lowest of a token',
    'advantage_high': 'highest of a token',
    'advantage_size': 'mean absolute value',
    'length': 'mean tokens of a completion',
    'length_low': 'tokens of the shortest completion',
    'length_high': 'tokens of the longest completion',
    'truncated': 'share cut at the limit',
    'dead': 'share of groups with equal rewards',
    'spread': 'largest standard deviation of a reward part over the batch',
    'ratio': 'of trainer to sampler probabilities, mean of the tokens',
    'ratio_high': 'the largest of these',
    'gap': '|trainer - sampler| log-prob, nats per token',
    'gap_high': 'the largest of these, of a token',
    'explained': 'share of the variance of returns that the critic explains',
    'value': "mean of the critic's values",
    'return': 'mean',
    'staleness': 'steps between a rollout and the one that uses it',
    'n_turns': 'mean turns of an episode',
    'n_calls': 'mean calls of an episode',
    'calls_failed': 'share of calls that were malformed or failed',
}
# Settings that checks use; `words` has the trainers' names for them.
SETTINGS = (
    'learning_rate', 'warmup_steps', 'total_steps', 'temperature', 'kl_coef',
    'entropy_coef', 'max_tokens', 'max_grad_norm', 'clip_low', 'clip_high',
    'max_turns', 'turn_tokens', 'top_p', 'top_k', 'min_p', 'repetition_penalty',
)  # fmt: skip
PART = 'part_'
EVALUATION = 'evaluation_'  # Followed by the trainer's name of the score.
# Columns that contain texts.
TEXTS = ('prompt', 'completion', 'reference', 'family', 'missing_tool')
# Role markers as chat templates write them, with or without special tokens.
_ROLES = re.compile(
    r'<[|｜]|\[INST\]|<start_of_turn>|\b(?:user|human|assistant):'
    r'|^(?:system|user|assistant|model)\s*$',
    re.IGNORECASE | re.MULTILINE,
)
_LONGEST = 4000  # Characters of a text that are kept.
_PROGRAMS = 0.3  # Share of programs from which completions are searched.
_EVALUATED = 'eval_', EVALUATION
MIXED = 'with solved and unsolved rollouts'
numeric = columns.numeric
MIN_STEPS = 8  # With fewer steps, no check judges a trend over time.


class NotLogged(Exception):
  """A check cannot tell, because data that it needs was not logged.

  Attributes:
    names: What was not logged, by names that --columns takes, or 'evaluation'.
  """

  def __init__(self, why: str, names: Iterable[str] = ()):
    super().__init__(why)
    self.names = tuple(names)


class FormatError(ValueError):
  """A directory or a file does not have the format of a reader."""


# Tables have no truth value, so runs are compared by identity.
@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """One training run, as far as it was logged."""

  path: pathlib.Path
  format: str  # A name of `readers.FORMATS`.
  rollouts: pd.DataFrame  # Columns of ROLLOUT and parts; may have no rows.
  # Columns of STEP, means of parts, and scores of evaluations (EVALUATION and
  # their name); one row per step, ascending; may have no rows.
  steps: pd.DataFrame
  # Known values of SETTINGS, and 'weights': part -> weight.
  settings: Mapping[str, Any]
  notes: tuple[str, ...] = ()  # Unreadable files, and guesses.
  # For evojax's own runs: dotted path -> value, under the newest harness.
  config: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # Columns of STEP that were logged, and are never a finite number.
  never_finite: tuple[str, ...] = ()

  @property
  def parts(self) -> list[str]:
    """Names of the logged parts of the reward."""
    return [c[len(PART) :] for c in self.rollouts if c.startswith(PART)]

  @property
  def part_columns(self) -> list[str]:
    """Columns of all parts, including those of which only means are logged."""
    both = [*self.rollouts.columns, *self.steps.columns]
    return list(dict.fromkeys(c for c in both if c.startswith(PART)))

  @property
  def limit_name(self) -> str:
    """The trainer's own name for the setting that limits completions."""
    most = self.config.get('rollout.max_tokens')
    # Training has the limit of evaluations, unless its own is lower.
    if most and not 0 < self.config.get('rollout.token_limit', 0) < most:
      return 'rollout.max_tokens'
    return words.word(self.format, 'max_tokens')

  @property
  def has_turns(self) -> bool:
    """True if episodes have several turns or call tools."""
    return any(
        name in table and table[name].max() > most
        for table in (self.rollouts, self.steps)
        for name, most in (('n_turns', 1), ('n_calls', 0))
    )

  @property
  def n_steps(self) -> int:
    """Number of steps of which more is known than an evaluation.

    The policy is often evaluated before its first step.
    """
    trained = [c for c in self.steps if not c.startswith(_EVALUATED)]
    known = self.steps[trained]
    found = {*known['step'][known.notna().sum(axis=1) > 1]}
    found.update(self.rollouts.get('step', ()))
    return len(found) or len(self.timeline)

  @property
  def timeline(self) -> np.ndarray:
    """The steps for which anything is known, ascending."""
    both = [
        table['step'] for table in (self.rollouts, self.steps) if len(table)
    ]
    return np.unique(np.concatenate(both)) if both else np.zeros(0, np.int64)

  def rows(self, *columns: str) -> pd.DataFrame:
    """Return the rollouts for which all the columns are known.

    Raises:
      NotLogged: If there are none.
    """
    missing = [c for c in columns if c not in self.rollouts]
    found = self.rollouts if missing else self.rollouts.dropna(subset=columns)
    if not len(self.rollouts):  # Their means may be known.
      raise NotLogged('rollouts are not logged', columns)
    if missing or not len(found):
      raise not_logged(missing or columns)
    return found

  def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return steps and means of a quantity, from rollouts or the trainer's log.

    Raises:
      NotLogged: If neither has it.
    """
    if name in self.rollouts:
      mean = self.rollouts.groupby('step')[name].mean().dropna()
    elif name in self.steps:
      mean = self.steps.set_index('step')[name].dropna()
    else:
      raise not_logged([name])
    return mean.index.to_numpy(), mean.to_numpy(np.float64)

  def course(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return `series` with at least MIN_STEPS steps.

    Raises:
      NotLogged: If it is not logged, or has too few steps.
    """
    steps, values = self.series(name)
    if len(steps) < MIN_STEPS:
      what = f'of {name}' if len(steps) < self.n_steps else ''
      raise too_few(len(steps), 'step', what=what)
    return steps, values

  def setting(self, name: str) -> float:
    """Return a setting.

    Raises:
      NotLogged: If it is not known.
    """
    if self.settings.get(name) is None:
      raise NotLogged(f'{name} is not known: --set {name}=...')
    return float(self.settings[name])

  def late(self, rows: pd.DataFrame, share: float = 1 / 3) -> pd.DataFrame:
    """Return the rows of the last part of the run, by steps."""
    steps = np.unique(rows['step'])
    return rows[rows['step'] >= steps[int(len(steps) * (1 - share))]]

  def early(self, rows: pd.DataFrame, share: float = 1 / 3) -> pd.DataFrame:
    """Return the rows of the first part of the run, by steps."""
    steps = np.unique(rows['step'])
    last = steps[min(int(np.ceil(len(steps) * share)), len(steps)) - 1]
    return rows[rows['step'] <= last]


_Result = TypeVar('_Result')


def once(function: Callable[[Run], _Result]) -> Callable[[Run], _Result]:
  """Return a function that computes its result once for each run.

  Several checks share the result, so none of them may change it.
  """
  known: weakref.WeakKeyDictionary[Run, _Result] = weakref.WeakKeyDictionary()

  @functools.wraps(function)
  def shared(run: Run) -> _Result:
    if run not in known:
      known[run] = function(run)
    return known[run]

  return shared


def not_logged(names: Iterable[str]) -> NotLogged:
  """Return the exception for names that --columns takes."""
  names = list(names)
  verb = 'is' if len(names) == 1 else 'are'
  return NotLogged(f'{", ".join(names)} {verb} not logged', names)


def too_few(
    count: int, noun: str, needed: int = MIN_STEPS, what: str = ''
) -> NotLogged:
  """Return the exception for too small a count; `what` follows the noun."""
  found = f'{numerals.counted(count, noun)} {what}'.rstrip()
  return NotLogged(f'{found}, {needed} needed')


def within(rows: pd.DataFrame, column: str) -> np.ndarray:
  """Return a column minus its group means; group numbers are run-wide."""
  values = rows[column]
  return (values - values.groupby(rows['group']).transform('mean')).to_numpy()


class View:
  """Rollouts in the form that a harness's diagnostics take: arrays [P, G]."""

  def __init__(self, rows: pd.DataFrame):
    group = pd.factorize(rows['group'])[0]
    sample = rows.groupby('group').cumcount().to_numpy()
    shape = int(group.max()) + 1, int(sample.max()) + 1
    self._put = lambda values, empty: _filled(
        shape, group, sample, values, empty
    )
    self._rows = rows
    self.valid = self._put(np.ones(len(rows), bool), False)

  def __getattr__(self, name: str) -> np.ndarray:
    if name.startswith('_') or name not in self._rows:
      raise AttributeError(name)
    values = self._rows[name].to_numpy(np.float64)
    if name in ('outcome', 'truncated', 'format_ok'):
      return self._put(values > 0.5, False)
    return self._put(values, np.nan)


def _filled(shape, group, sample, values, empty) -> np.ndarray:
  array = np.full(shape, empty, values.dtype)
  array[group, sample] = values
  return array


# ------------------------------------------------------------------- making one


def text_of(value: Any) -> str:
  """Return a prompt or completion as text; most roles of messages are dropped.

  Tool calls and their replies are written in Qwen3's format.
  """
  if isinstance(value, str):
    return value
  if isinstance(value, Mapping):
    text = text_of(value.get('content', value.get('text', '')))
    if value.get('role') == 'tool':
      return f'<tool_response>{text}</tool_response>'
    return '\n'.join(filter(None, (text, calls.as_text(value))))
  if isinstance(value, (list, tuple, np.ndarray)):
    return '\n'.join(text_of(v) for v in value)
  if isinstance(value, float) and abs(value) < columns.EXACT:
    # Integers become floats if another value of their column is missing.
    return str(int(value)) if value.is_integer() else str(value)
  return '' if pd.isna(value) else str(value)


def make(
    path: pathlib.Path,
    format_: str,
    rollouts: pd.DataFrame,
    steps: pd.DataFrame,
    settings: Mapping[str, Any],
    notes: Iterable[str] = (),
    config: Mapping[str, Any] | None = None,
) -> Run:
  """Return a run with clean tables: finite numbers, steps in order.

  Args:
    path: The directory or file of the logs.
    format_: Name of their format.
    rollouts: Any columns of ROLLOUT and parts; others are dropped.
    steps: Any columns of STEP, parts and scores of evaluations; others are
      dropped.
    settings: Settings by name; unknown ones are None or missing.
    notes: Remarks of the reader.
    config: Dotted path -> value, for evojax's own runs.
  """
  known = lambda c: c in ROLLOUT or c.startswith(PART)
  # A column without any value was not logged; one of empty texts was.
  rollouts = rollouts[
      [c for c in rollouts if known(c) and rollouts[c].notna().any()]
  ].copy()
  notes = list(notes)
  if 'completion' in rollouts and 'n_calls' not in rollouts:
    found = calls.table([calls.read(v) for v in rollouts['completion']])
    if 'prompt' in rollouts and not len(found.columns):
      found = _programs(rollouts)
    for name in found:
      if name not in rollouts:
        rollouts[name] = found[name].to_numpy()
  if 'prompt' in rollouts and 'templated' not in rollouts:
    rollouts['templated'] = rollouts['prompt'].map(_templated)
  for name in rollouts:
    if name in TEXTS:
      rollouts[name] = rollouts[name].map(text_of)
    elif name != 'group':
      given, rollouts[name] = rollouts[name], columns.numbers(rollouts[name])
      if given.notna().any() and rollouts[name].isna().all():
        example = f'{given.dropna().iloc[0]!r:.60}'
        notes.append(f'no {name} of a rollout is a number: one is {example}')
  if 'outcome' in rollouts:
    rollouts = _with_solved(rollouts, notes)
  if len(rollouts):
    rollouts = _complete(rollouts, settings, notes)
  known = lambda c: c in STEP or c.startswith((PART, EVALUATION))
  given = steps.get('step')
  logged = steps[[c for c in steps if known(c)]]
  steps = logged.apply(columns.numbers)
  if 'step' in steps:
    if len(steps) and steps['step'].isna().all():
      first = f'{given.iloc[0]!r:.60}'
      notes.append(f'no step is a number below 2^53: the first is {first}')
    steps = columns.merged(steps.dropna(subset=['step']))
    steps['step'] = steps['step'].astype(np.int64)
  else:
    steps = pd.DataFrame({'step': np.zeros(0, np.int64)})
  never = [c for c in steps if len(steps) and steps[c].isna().all()]
  steps = steps.drop(columns=never)
  examples = {name: columns.unread(logged[name]) for name in never}
  unread = {name: v for name, v in examples.items() if v is not None}
  notes += [
      f'no {name} of a step is a number: one is {value!r:.60}'
      for name, value in unread.items()
  ]
  never = [c for c in never if c not in unread]
  settings = {k: v for k, v in settings.items() if v is not None}
  return Run(
      path,
      format_,
      rollouts,
      steps,
      settings,
      tuple(notes),
      config or {},
      tuple(never),
  )


def tells_solved(values: np.ndarray) -> bool:
  """Return whether a score is all or nothing, so that it tells what is solved.

  Such a score has two values, for example -1 and 1, or 0 and 2: one of at most
  0 for wrong answers, and one of at least 1 for right ones (less may be paid
  for the form alone). If its only value is below 0, nothing is solved.
  """
  low, high = np.min(values), np.max(values)
  if low == high:
    return bool(high < 0)
  return len(np.unique(values)) == 2 and bool(low <= 0 and high >= 1)


def _with_solved(rollouts: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
  """Return rollouts whose outcomes are shares: 1 is solved, 0 is not.

  Outcomes on another scale become 0 and 1 if they are all or nothing, and are
  left out otherwise, with a note.
  """
  values = rollouts['outcome'].dropna().to_numpy()
  if not len(values) or (values.min() >= 0 and values.max() <= 1):
    return rollouts
  if tells_solved(values):
    right = (rollouts['outcome'] == values.max()) & (values.max() > 0)
    solved = right.astype(float).where(rollouts['outcome'].notna())
    return rollouts.assign(outcome=solved)
  notes.append(
      f'the outcome is not used, since it has values from {values.min():g} to'
      f' {values.max():g}: it must be 0 or 1, a share between them, or one of'
      ' two values, such as -1 and 1'
  )
  return rollouts.drop(columns='outcome')


def _templated(prompt: Any) -> float:
  """Return 1 if a prompt is messages, or a text with role markers; else 0."""
  return float(not isinstance(prompt, str) or bool(_ROLES.search(prompt)))


def _programs(rollouts: pd.DataFrame) -> pd.DataFrame:
  """Return which programs have special cases for examples in their prompts.

  The table has no columns if few completions are programs.
  """
  texts = [text_of(value) for value in rollouts['completion']]
  if np.mean([literals.is_program(text) for text in texts] or [0]) < _PROGRAMS:
    return pd.DataFrame()
  found = [
      float(literals.knows_examples(text, text_of(prompt)))
      for text, prompt in zip(texts, rollouts['prompt'], strict=True)
  ]
  return pd.DataFrame({'hard_coded': found})


def _complete(
    rollouts: pd.DataFrame, settings: Mapping[str, Any], notes: list[str]
) -> pd.DataFrame:
  """Return ordered rollouts, with run-wide group numbers and with lengths."""
  if 'step' not in rollouts:
    raise FormatError(
        'the rollouts have no step: name its column with --columns=step=NAME'
    )
  rollouts = rollouts.dropna(subset=['step'])
  if (parts := rollouts['step'][rollouts['step'] % 1 != 0]).size:
    raise FormatError(
        f'a rollout has the step {parts.iloc[0]:g}, which is not a whole'
        ' number: --columns=step=NAME names the column that counts updates'
    )
  rollouts = rollouts.sort_values('step', kind='stable', ignore_index=True)
  rollouts['step'] = rollouts['step'].astype(np.int64)
  rollouts = columns.grouped(rollouts, notes)
  if 'completion' in rollouts:
    rollouts['text_id'] = pd.util.hash_array(
        rollouts['completion'].to_numpy(object)
    )
    rollouts['characters'] = rollouts['completion'].str.len().astype(float)
  if 'prompt' in rollouts:
    rollouts['prompt_id'] = pd.util.hash_array(
        rollouts['prompt'].to_numpy(object)
    )
  for name in TEXTS:
    if name in rollouts:
      rollouts[name] = rollouts[name].map(_cut)
  length = 'n_tokens' if 'n_tokens' in rollouts else 'characters'
  if length in rollouts:
    rollouts['length'] = rollouts[length]
  limit = settings.get('max_tokens')
  if limit and 'truncated' not in rollouts and 'n_tokens' in rollouts:
    rollouts['truncated'] = (rollouts['n_tokens'] >= limit).astype(float)
  limit = settings.get('max_turns')
  if limit and 'out_of_turns' not in rollouts and 'n_turns' in rollouts:
    handed_in = rollouts.get('submitted', pd.Series(0.0, rollouts.index))
    late = (rollouts['n_turns'] >= limit) & (handed_in < 0.5)
    rollouts['out_of_turns'] = late.astype(float)
  return rollouts.dropna(axis=1, how='all')


def _cut(text: str) -> str:
  """Return a text of bounded length, made of its head and its tail."""
  if len(text) <= _LONGEST:
    return text
  half = _LONGEST // 2
  return f'{text[:half]} [...] {text[-half:]}'
