"""Checks of completions that loop, go on after their end, or change script."""

import bisect
import collections
import re
import zlib

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import languages
from evojax.diagnosis import literals
from evojax.diagnosis import words
from evojax.diagnosis.checks import shares
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

_READ = 2000  # Completions of a run that are read.
_LONG = 200  # Characters from which a text tells whether it repeats itself.
# Size of a compressed text, relative to it, that is one phrase over and over.
# Prose and programs of that length have 0.25 and more.
_LOOP = 0.1
_LEAST = 0.2  # Share of such completions that is a finding.
_KL = 0.01  # A usual coefficient of the KL to the base policy.
_MANY = 4  # Scripts in one completion that is in no language.
_CHINESE, _LATIN = 'Chinese characters', 'Latin'
# First code point, last code point, script. Greek letters are left out, since
# formulas have them in every language.
_BLOCKS = (
    (0x0041, 0x005A, _LATIN),
    (0x0061, 0x007A, _LATIN),
    (0x00C0, 0x024F, _LATIN),
    (0x0400, 0x052F, 'Cyrillic'),
    (0x0530, 0x058F, 'Armenian'),
    (0x0590, 0x05FF, 'Hebrew'),
    (0x0600, 0x077F, 'Arabic'),
    (0x0900, 0x097F, 'Devanagari'),
    (0x0980, 0x09FF, 'Bengali'),
    (0x0A00, 0x0A7F, 'Gurmukhi'),
    (0x0A80, 0x0AFF, 'Gujarati'),
    (0x0B80, 0x0BFF, 'Tamil'),
    (0x0C00, 0x0C7F, 'Telugu'),
    (0x0C80, 0x0CFF, 'Kannada'),
    (0x0D00, 0x0D7F, 'Malayalam'),
    (0x0D80, 0x0DFF, 'Sinhala'),
    (0x0E00, 0x0E7F, 'Thai'),
    (0x0E80, 0x0EFF, 'Lao'),
    (0x1000, 0x109F, 'Burmese'),
    (0x10A0, 0x10FF, 'Georgian'),
    (0x1100, 0x11FF, 'Korean'),
    (0x1200, 0x137F, 'Ethiopic'),
    (0x1780, 0x17FF, 'Khmer'),
    (0x1E00, 0x1EFF, _LATIN),
    (0x3040, 0x30FF, 'Japanese'),
    (0x3400, 0x9FFF, _CHINESE),
    (0xAC00, 0xD7AF, 'Korean'),
)
# A mark that begins a turn, or one that ends a turn before further text.
_END = (
    r'(?:<\|(?:im_end|eot_id|eom_id|endoftext|end_of_text)\|>|<end_of_turn>'
    r'|</s>|<pad>)'
)
_ROLE = re.compile(
    r'<\|(?:im_start|start_header_id|user|assistant)\|>|<start_of_turn>|\[INST\]'
    rf'|{_END}(?:\s|{_END})*(?!{_END})\S'
)
# A word with both letters and digits; other words or numbers may be answers.
_IDENTIFIER = re.compile(r'\b(?=[\w-]*\d)(?=[\w-]*[^\W\d_])[\w-]+')
_SAID = re.compile(r'[^\W\d_]{3,}')
_LEAST_WORDS = 10  # Words of a text that tells how often one is repeated.
_MOSTLY = 0.4  # Share of the words; the commonest one of prose has 0.1.
_ALL_ONE = 0.8  # Share of such completions that all repeat one word.
_OF_PROMPTS = 0.2  # Share of the prompts with a word that they ask for.
_PERIODS, _PAID = 40, 0.3  # Parts of a run, and a correlation within them.
_PROBLEMS = 8  # Fewest different problems that one text cannot answer.
# Shares of completions that are one text, in the last and in the first third.
_ONE, _RARE = 0.8, 0.3
_FEW = 0.05  # Share of completions that counts as none.
_STARTS = [block[0] for block in _BLOCKS]
# Letters of another script are a part of the text from this share of all
# letters on. Names, units and programs have Latin ones in every language.
_SOME, _SOME_LATIN = 0.02, 0.7
_ASKED_LATIN = 0.3  # The same for Latin letters of a prompt.
# Latin words of two letters or more, a few of which are names or formulas.
_LATIN_WORD, _FEW_WORDS = re.compile(r'[A-Za-z\u00c0-\u024f]{2,}'), 4
# Text that is in no language: programs, calls, tags, formulas, addresses.
_NO_LANGUAGE = re.compile(
    r'```.*?(?:```|\Z)|<tool_(call|response)>.*?(?:</tool_\1>|\Z)'
    r'|`[^`\n]*`|</?\w[^<>\n]{0,40}>|\$[^$\n]*\$|\\[A-Za-z]+|\w+://\S+',
    re.DOTALL,
)


def loops(run: form.Run) -> findings.Finding | None:
  """Detect completions that repeat one phrase to the end."""
  if run.has_turns:  # Repeated calls are another finding, see `echo_trap`.
    return None
  rows = shares.thinned(run.rows('completion'), _READ)
  looping = np.array([_repeats(text) for text in rows['completion']], float)
  by = pd.Series(looping, rows.index).groupby(rows['step']).mean()
  late = intervals.mean(by.to_numpy()[-max(len(by) // 3, 1) :])
  if late.low < 0.5:
    return None
  first = float(by.iloc[: max(len(by) // 8, 1)].mean())
  at_first = first > 0.5
  lower = f'{words.word(run.format, "learning_rate")}: a tenth of it'
  return findings.Finding(
      check='loops',
      severity='critical',
      text=f'{late.value:.0%} of the completions repeat one phrase over and'
      ' over' + (', from the first step' if at_first else ''),
      since=None if at_first else shares.since(by),
      numbers=(findings.number('such completions', late, 'share'),),
      rows=tuple(map(int, rows.index[looping > 0.5][-6:])),
      change='check the form of the prompt: the chat template, and the token'
      ' that begins a text (BOS), as the model was trained with them'
      if at_first
      else lower,
      remedies=()
      if at_first
      else (records.Remedy(setting='learning_rate', times=0.1),),
      curves=(('loops', by.index.to_numpy(), by.to_numpy()),),
  )


def _repeats(text: str) -> bool:
  """Return whether a long text is one phrase over and over."""
  if len(text) < _LONG:
    return False
  data = text.encode()
  return len(zlib.compress(data)) < _LOOP * len(data)


def word_paid(run: form.Run) -> findings.Finding | None:
  """Detect completions that become one word, over and over, which is paid.

  `loops` finds exact repetitions of phrases, whatever they are paid.
  """
  rows = shares.thinned(run.rows('completion', 'reward'), _READ)
  if run.has_turns:
    return None
  counts = [
      collections.Counter(_SAID.findall(text.lower()))
      for text in rows['completion']
  ]
  tops = [c.most_common(1)[0] if c else ('', 0) for c in counts]
  total = np.array([c.total() for c in counts])
  times = np.array([n for _, n in tops])
  mostly = (total >= _LEAST_WORDS) & (times >= _MOSTLY * total)
  marked = pd.Series(mostly.astype(float), rows.index)
  by = _by_step(rows, marked)
  late = intervals.mean(by.to_numpy()[-max(len(by) // 3, 4) :])
  since = shares.since(by)
  if late.low < _LEAST or since is None:
    return None
  repeated = [tops[i][0] for i in np.flatnonzero(mostly)]
  said, n = collections.Counter(repeated).most_common(1)[0]
  asked = rows.get('prompt', pd.Series('', rows.index)).str.lower()
  if n < _ALL_ONE * len(repeated):
    return None
  if asked.str.contains(said, regex=False).mean() > _OF_PROMPTS:
    return None
  often = np.array([c[said] for c in counts], float)
  paid = _correlation(often, rows['reward'].to_numpy())
  if paid < _PAID:
    return None
  first = float(by[by.index < since].mean())
  return findings.Finding(
      check='word_paid',
      severity='critical',
      text=f'{late.value:.0%} of the completions are mostly one word, "{said}",'
      f' over and over ({first:.0%} before), and the reward rises with its'
      f' number (correlation {paid:.2f} among completions of the same time)',
      since=since,
      numbers=(findings.number('such completions', late, 'share'),),
      rows=shares.newest(rows, marked > 0),
      change=f'{words.word(run.format, "reward")}: this word is exploited,'
      ' whatever the prompt is: pay nothing for repetitions, bound the score of'
      f' a reward model; or raise {words.word(run.format, "kl_coef")}',
      remedies=(records.Remedy(setting='grader'),),
      curves=(('one word', by.index.to_numpy(), by.to_numpy()),),
  )


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
  """Return the correlation of ranks within parts of a run; rows are in order.

  The result is 0 if so many completions may have this correlation by chance.
  """
  part = np.arange(len(x)) * _PERIODS // len(x)
  ranks = pd.DataFrame({'x': x, 'y': y}).rank()
  ranks -= ranks.groupby(part).transform('mean')
  r = float(ranks['x'].corr(ranks['y']))
  return r if r * np.sqrt(len(x)) > 4 else 0.0


def _by_step(rows: pd.DataFrame, flag: pd.Series) -> pd.Series:
  """Return the share of a flag in each step.

  Raises:
    form.NotLogged: If there are too few steps.
  """
  by = flag.groupby(rows['step']).mean()
  if len(by) < form.MIN_STEPS:
    raise form.too_few(len(by), 'step', what='with completions')
  return by


def roles_written(run: form.Run) -> findings.Finding | None:
  """Detect completions that go on after their end, with the marks of roles."""
  rows = shares.thinned(run.rows('completion'), _READ)
  marked = rows['completion'].str.contains(_ROLE).astype(float)
  by = _by_step(rows, marked)
  late = intervals.mean(by.to_numpy()[-max(len(by) // 3, 4) :])
  since = shares.since(by)
  # Logs of conversations have these marks from the start.
  if late.low < _LEAST or (since is None and run.has_turns):
    return None
  first = float(by.iloc[: max(len(by) // 8, 1)].mean())
  if run.has_turns and first > _FEW:
    return None
  return findings.Finding(
      check='roles_written',
      severity='warning',
      text=f'{late.value:.0%} of the completions go on after the end of their'
      ' turn: they hold the marks of a chat template',
      since=since,
      numbers=(findings.number('such completions', late, 'share'),),
      rows=shares.newest(rows, marked > 0),
      change='do not train on tokens of the chat template after the end of a'
      ' completion; and let the sampler stop at the token that ends a turn',
      curves=(('marks of roles', by.index.to_numpy(), by.to_numpy()),),
  )


def other_language(run: form.Run) -> findings.Finding | None:
  """Detect completions that leave the script or the language of their prompts.

  One used from the first step on is no fault: the task may be translation, or
  the base model may use it. DeepSeek-R1 (arXiv:2501.12948, section 2.3.2)
  reports reasoning in several languages at once as a consequence of rewards
  that only look at the answer.
  """
  rows = shares.thinned(run.rows('prompt', 'completion'), _READ)
  others = [
      foreign(prompt, text)
      for prompt, text in zip(rows['prompt'], rows['completion'], strict=True)
  ]
  marked = pd.Series([float(bool(o)) for o in others], rows.index)
  by = _by_step(rows, marked)
  change = trends.change_point(by)
  third = by.iloc[-max(len(by) // 3, 4) :]
  late = intervals.mean(third.to_numpy())
  rose = change.p < shares.SURE and change.after - change.before > _LEAST
  if late.low < _LEAST or not rose:
    return None
  is_late = rows['step'] >= third.index[0]
  chosen = [o for o, new in zip(others, is_late, strict=True) if new and o]
  many = bool(np.mean([len(o) >= _MANY for o in chosen]) > 0.5)
  scripts = collections.Counter(s for o in chosen for s in o).most_common(2)
  names = [script for script, _ in scripts]
  said = f'hold {" and ".join(names)}, and their prompts do not'
  if names and names[0] in languages.NAMES:
    said = f'are in {names[0]}, and their prompts are not'
  if many:
    said = 'hold letters of many scripts at once, and their prompts do not'
  return findings.Finding(
      check='other_language',
      severity='warning',
      text=f'{late.value:.0%} of the completions {said}'
      + _solved(rows, marked),
      since=int(by.index[change.index]),
      p=change.p,
      numbers=(
          findings.number('such completions, last third', late, 'share'),
          findings.Number(
              name='such completions before', value=change.before, unit='share'
          ),
      ),
      rows=shares.newest(rows, marked > 0),
      change=_advice(run, ruined=many),
      remedies=(
          records.Remedy(setting='learning_rate', times=0.1)
          if many
          else records.Remedy(setting='kl_coef', value=_KL),
      ),
      curves=(('another script', by.index.to_numpy(), by.to_numpy()),),
  )


def _advice(run: form.Run, ruined: bool) -> str:
  """Return what to change, in words of the trainer."""
  if ruined:
    return (
        f'{words.word(run.format, "learning_rate")}: a tenth of it; and'
        f' {words.word(run.format, "temperature")} at most 1'
    )
  return (
      f'{words.word(run.format, "reward")}: add a part for the language of the'
      ' prompt (the share of its words in the completion); or raise'
      f' {words.word(run.format, "kl_coef")}'
  )


def _solved(rows: pd.DataFrame, marked: pd.Series) -> str:
  """Return how many of such completions are right, and of the others."""
  if 'outcome' not in rows:
    return ''
  means = rows['outcome'].groupby(marked > 0).mean()
  if means.isna().any() or len(means) < 2:
    return ''
  return f' ({means[True]:.0%} of them are right, {means[False]:.0%} of others)'


def foreign(prompt: str, completion: str) -> frozenset[str]:
  """Return the scripts of a completion that its prompt does not have.

  Latin letters are named by their language if it is known. They also count if
  the prompt is in another language with Latin letters. Programs have none.

  Args:
    prompt: Text of the prompt. Without letters, nothing is foreign.
    completion: Text of the completion.
  """
  prompt = _NO_LANGUAGE.sub(' ', prompt)
  known = _letters(prompt)
  if not known or literals.is_program(completion):
    return frozenset()
  completion = _NO_LANGUAGE.sub(' ', completion)
  if known[_LATIN] < _ASKED_LATIN * known.total():
    del known[_LATIN]
  if 'Japanese' in known:  # Its texts are mixed of both.
    known[_CHINESE] += 1
  counts = _letters(completion)
  n = sum(counts.values())
  found = {
      script
      for script, count in counts.items()
      if script not in known
      and count >= n * (_SOME_LATIN if script == _LATIN else _SOME)
  }
  if _LATIN in found and len(_LATIN_WORD.findall(completion)) < _FEW_WORDS:
    found.remove(_LATIN)
  if found == {_LATIN}:
    return frozenset({languages.of(completion) or _LATIN})
  if not found and _LATIN in known:
    asked, said = languages.of(prompt), languages.of(completion)
    return frozenset({said} if said and asked not in (None, said) else ())
  return frozenset(found)


def _letters(text: str) -> collections.Counter[str]:
  """Return the number of letters of each script of _BLOCKS, or their ratio."""
  counts: collections.Counter[str] = collections.Counter()
  if text.isascii():  # Most texts are; one letter stands for all.
    counts.update([_LATIN] * any(map(str.isalpha, text)))
    return counts
  for character, count in collections.Counter(text).items():
    at = bisect.bisect_right(_STARTS, ord(character)) - 1
    if at >= 0 and ord(character) <= _BLOCKS[at][1]:
      counts[_BLOCKS[at][2]] += count
  return counts


def one_text(run: form.Run) -> findings.Finding | None:
  """Detect one text that answers every problem, and is paid more than others.

  Identifiers of the prompt do not count: an action names what it acts on.
  """
  rows = shares.thinned(run.rows('prompt', 'completion', 'reward'), _READ)
  if rows['prompt'].nunique() < _PROBLEMS:
    raise form.too_few(rows['prompt'].nunique(), 'problem', _PROBLEMS)
  texts = zip(rows['prompt'], rows['completion'], strict=True)
  masked = pd.Series([_masked(*both) for both in texts], rows.index)
  late = run.late(rows)
  same = (masked == masked[late.index].mode()[0]).astype(float)
  by = _by_step(rows, same)
  share = float(same[late.index].mean())
  if share < _ONE or same[run.early(rows).index].mean() > _RARE:
    return None
  paid = float(rows['reward'][same > 0].mean())
  others = float(rows['reward'][same == 0].mean())
  if not paid > others:
    return None
  return findings.Finding(
      check='one_text',
      severity='warning',
      text=f'{share:.0%} of the completions are one text, whatever the problem'
      f' is, and earn {paid:.2g} where others earn {others:.2g}',
      since=shares.since(by),
      numbers=(
          findings.Number(name='such completions', value=share, unit='share'),
      ),
      rows=shares.newest(rows, same > 0),
      change=f'{words.word(run.format, "reward")}: check what it pays for this'
      ' text, such as a default where an action cannot be used, or the most'
      ' frequent label; it must not be more than an honest attempt earns',
      remedies=(records.Remedy(setting='grader'),),
      curves=(('one text', by.index.to_numpy(), by.to_numpy()),),
  )


def _masked(prompt: str, completion: str) -> str:
  """Return a completion without the identifiers that its prompt has, too."""
  known = set(_IDENTIFIER.findall(prompt))
  return _IDENTIFIER.sub(lambda m: '' if m[0] in known else m[0], completion)


CHECKS = (loops, word_paid, roles_written, other_language, one_text)
