"""Checks of the policy's behaviour: certainty, length, format."""

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import rules
from evojax.diagnosis import words
from evojax.diagnosis.checks import blame
from evojax.diagnosis.checks import learning
from evojax.diagnosis.checks import shares
from evojax.harness.library.diagnostics import format as format_lib
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

_SURE = 0.01
_ALIVE = 0.2  # Share of groups whose outcomes differ.
_FORMAT_STEPS = 16
_HARDLY = 0.05  # Share of rollouts below which hardly anything is solved.
_WILD = 2.0  # Entropy, nats per token, of texts that make no sense.
_NEVER_END = 0.97  # Share cut in every step.
_OFTEN_CUT = 0.5  # Share cut from which the longest of a step is at the limit.
_SAME_LENGTH = 0.01  # Relative difference of lengths cut at one limit.
# Share of the initial length below which completions have collapsed: in any
# case, and if less is solved as well.
_SHRUNK, _SHRUNK_AND_WORSE = 0.1, 0.5
_BONUS = 0.01  # Coefficient of a usual entropy bonus.
_WITH_IT = -0.8  # Correlation below which the reward falls with truncation.


def entropy_collapse(run: form.Run) -> findings.Finding | None:
  """Detect a policy that is certain although much is unsolved."""
  solved = shares.solved_late(run)
  if solved > learning.MUCH_SOLVED:
    return None
  found = _same_texts(run)
  try:
    steps, entropy = run.course('entropy')
  except form.NotLogged:
    if found is None:
      raise
    return found
  late = intervals.mean(entropy[-max(len(entropy) // 3, 4) :])
  # The rule's threshold is a mean log-prob, which is minus the entropy.
  least = -rules.RULES['exploration_collapse'].warn[1]
  if late.high > least or (found is None and _explores(run)):
    return None
  change = trends.change_point(entropy)
  fell = change.p < _SURE and change.after < change.before / 2
  # With a small vocabulary, the entropy is low even if the policy learns well.
  if found is None and not fell:
    score = shares.score(run)
    if score is not None and trends.trend(score).low > 0:
      return None
  said, remedies = _explore(run)
  return findings.Finding(
      check='entropy_collapse',
      severity='critical' if late.high < least / 2 else 'warning',
      text=f'the entropy is only {late.value:.2g} nats per token'
      + shares.said_solved(run),
      since=int(steps[change.index]) if fell else None,
      p=change.p if fell else None,
      numbers=(findings.number('entropy, last third', late, 'nats per token'),)
      + (found.numbers if found else ()),
      rows=found.rows if found else (),
      change=said,
      remedies=remedies,
      curves=(('entropy', steps, entropy),),
  )


def _explores(run: form.Run) -> bool:
  """Return whether rollouts of a group still have different outcomes.

  A policy that is certain of most tokens may be uncertain of the decisive ones.
  """
  if 'reward' not in run.rollouts and 'dead' in run.steps:
    _, dead = run.series('dead')
    return float(dead[-max(len(dead) // 3, 1) :].mean()) < 1 - _ALIVE
  if not {'outcome', 'group'} <= set(run.rollouts):
    return False
  late = run.late(run.rollouts.dropna(subset=['outcome']))
  differ = late.groupby('group')['outcome'].nunique() > 1
  return float(differ.mean()) > _ALIVE


def _explore(run: form.Run) -> tuple[str, tuple[records.Remedy, ...]]:
  """Return what restores exploration, in words and as remedies."""
  temperature = run.settings.get('temperature')
  bonus = run.settings.get('entropy_coef')
  word = lambda name: words.word(run.format, name)
  if bonus is not None and bonus < 0:
    change = f'{word("entropy_coef")} {bonus:g} -> 0'
    return change, (records.Remedy(setting='entropy_coef', value=0.0),)
  if temperature is not None and temperature < 0.9:
    change = f'{word("temperature")} {temperature:g} -> 1'
    return change, (records.Remedy(setting='temperature', value=1.0),)
  change = (
      f'{word("clip")}: a higher upper bound; or {word("learning_rate")}: a'
      ' third of it'
  )
  slower = records.Remedy(setting='learning_rate', times=1 / 3)
  if bonus != 0:
    return change, (slower,)
  change += f'; or {word("entropy_coef")} 0 -> {_BONUS:g}'
  return change, (slower, records.Remedy(setting='entropy_coef', value=_BONUS))


def _calm(run: form.Run) -> tuple[str, tuple[records.Remedy, ...]]:
  """Return what lowers the entropy, in words and as remedies."""
  bonus = run.settings.get('entropy_coef')
  word = lambda name: words.word(run.format, name)
  without = f'{word("entropy_coef")} -> 0'
  change = (
      f'lower {word("temperature")} to 1, or {word("learning_rate")}: a third'
      ' of it'
  )
  remedies = (
      records.Remedy(setting='temperature', value=1.0),
      records.Remedy(setting='learning_rate', times=1 / 3),
  )
  if bonus is None:
    return f'{change}, or {without}', remedies
  if bonus <= 0:
    return change, remedies
  none = records.Remedy(setting='entropy_coef', value=0.0)
  return f'{without}, or {change}', (none, *remedies)


def _same_texts(run: form.Run) -> findings.Finding | None:
  """Find groups whose unsolved rollouts are all the same text."""
  if not {'text_id', 'outcome'} <= set(run.rollouts):
    return None
  rows = run.late(run.rollouts.dropna(subset=['outcome']))
  by = rows.groupby('group')
  table = pd.DataFrame(
      {
          'distinct': by['text_id'].nunique() / by.size(),
          'n': by.size(),
          'solved': by['outcome'].mean(),
      }
  )
  table = table[(table['n'] >= 4) & (table['solved'] < 0.1)]
  if len(table) < 8:
    return None
  same = intervals.mean((table['distinct'] <= 2 / table['n']).astype(float))
  if same.low < 0.5:
    return None
  chosen = table.index[table['distinct'] <= 2 / table['n']][:2]
  said, remedies = _explore(run)
  return findings.Finding(
      check='entropy_collapse',
      severity='warning',
      text=f'in {same.value:.0%} of the groups that solve nothing, the rollouts'
      ' are at most two different texts',
      numbers=(
          findings.number(
              'unsolved groups of at most two texts', same, 'share'
          ),
      ),
      rows=tuple(map(int, rows.index[rows['group'].isin(chosen)][:6])),
      change=said,
      remedies=remedies,
  )


def entropy_rising(run: form.Run) -> findings.Finding | None:
  """Detect a policy that becomes less certain while it solves no more."""
  steps, entropy = run.course('entropy')
  line = trends.trend(entropy)
  change = trends.change_point(entropy)
  fifth = max(len(entropy) // 5, 2)
  early, late = entropy[:fifth].mean(), entropy[-fifth:].mean()
  # A policy that writes meaningful text is never so uncertain.
  wild = late > max(_WILD, 3 * early)
  if not wild:
    _, solved = run.course('outcome')
    if line.p > _SURE or trends.trend(solved).high > 0.02:
      return None
  if change.p > _SURE or change.after < max(1.5 * change.before, 0.3):
    return None
  said, remedies = _calm(run)
  return findings.Finding(
      check='entropy_rising',
      severity='warning',
      text=f'the entropy rises from {change.before:.2g} to {change.after:.2g}'
      ' nats per token'
      + ('' if wild else ' while the solved share does not rise'),
      since=int(steps[change.index]),
      p=change.p,
      numbers=(
          findings.number(
              'rise of the entropy',
              line.interval,
              'nats per token',
          ),
      ),
      change=said,
      remedies=remedies,
      curves=(('entropy', steps, entropy),),
  )


def temperature(run: form.Run) -> findings.Finding | None:
  """Detect sampling that is too hot or too cold, or unlike the training."""
  given = run.settings.get('temperature')
  gap = None
  both = {'mean_logprob', 'entropy'} <= set(run.steps) | set(run.rollouts)
  # If both log-probs of the same tokens are logged, `logprob_gap` compares
  # them.
  if both and 'gap' not in set(run.steps) | set(run.rollouts):
    _, logprob = run.course('mean_logprob')
    _, entropy = run.course('entropy')
    n = min(len(logprob), len(entropy))
    # For tokens of the policy itself, the mean log-prob is minus the entropy.
    gap = intervals.mean((-logprob[-n:]) - entropy[-n:])
  if given is None and gap is None:
    raise form.NotLogged(
        'temperature is not known (--set temperature=...), and log-probs and'
        ' entropy are not both logged'
    )
  word = words.word(run.format, 'temperature')
  if given is not None and (given > 1.3 or given < 0.5):
    ruined = given > 1.3 and shares.solved_late(run) < _HARDLY
    return findings.Finding(
        check='temperature',
        severity='critical' if ruined else 'warning',
        text=f'rollouts are sampled at temperature {given:g}',
        numbers=(findings.Number(name='temperature', value=float(given)),),
        change=f'{word} {given:g} -> 1',
        remedies=(records.Remedy(setting='temperature', value=1.0),),
    )
  if (
      gap is not None
      and min(gap.low, gap.high, key=abs)
      and (gap.low > 0.15 or gap.high < -0.15)
  ):
    hot = gap.value > 0
    return findings.Finding(
        check='temperature',
        severity='warning',
        text='sampled tokens are'
        f' {"less" if hot else "more"} likely than tokens that the trained'
        ' policy would sample: sampler and trainer use different temperatures',
        numbers=(
            findings.number('-log-prob minus entropy', gap, 'nats per token'),
        ),
        change=f'{"lower" if hot else "raise"} {word}, in sampler and trainer',
    )
  return None


def shrinks(run: form.Run) -> findings.Finding | None:
  """Detect completions that shrink to a tenth, or to half as less is solved."""
  steps, length = run.course('length')
  first = float(length[: max(len(length) // 8, 1)].mean())
  late = intervals.mean(length[-max(len(length) // 3, 4) :])
  change = trends.change_point(length)
  worse = shares.falls(run) or _falls_from(run, int(steps[change.index]))
  most = _SHRUNK_AND_WORSE if worse else _SHRUNK
  if late.high > most * first or change.p > _SURE:
    return None
  if shares.solved_late(run) > learning.MUCH_SOLVED:
    return None
  # The log of a trainer has the lengths in tokens.
  in_text = 'length' in run.rollouts and 'n_tokens' not in run.rollouts
  rows: tuple[int, ...] = ()
  if 'length' in run.rollouts:
    short = run.late(run.rollouts)
    rows = shares.newest(short, short['length'] <= short['length'].median())
  return findings.Finding(
      check='shrinks',
      severity='warning',
      text=f'completions shrink from {first:.3g} to {round(late.value, 1):.3g}'
      f' {"characters" if in_text else "tokens"}'
      + ', and less is solved' * worse,
      since=int(steps[change.index]),
      p=change.p,
      numbers=(findings.number('length, last third', late),),
      rows=rows,
      change=f'{words.word(run.format, "reward")}: pay nothing for an empty or'
      f' hardly begun answer; or raise {words.word(run.format, "kl_coef")}',
      remedies=blame.remedies(run),
      curves=(('length', steps, length),),
  )


def _falls_from(run: form.Run, step: int) -> bool:
  """Return whether the solved share falls from a step on, if it is logged."""
  try:
    steps, solved = run.course('outcome')
  except form.NotLogged:
    return False
  solved = solved[steps >= step]
  return len(solved) >= form.MIN_STEPS and trends.trend(solved).high < 0


def truncation(run: form.Run) -> findings.Finding | None:
  """Detect many completions that are cut at the token limit."""
  steps, cut = run.course('truncated')
  late = intervals.mean(cut[-max(len(cut) // 3, 4) :])
  if late.low < format_lib.WARN['truncated'][1]:
    return None
  ended = _not_at_a_limit(run, steps, cut, late)
  if ended is not None:
    return ended
  change = trends.change_point(cut)
  rose = change.p < _SURE and change.after > change.before + 0.1
  rows: tuple[int, ...] = ()
  if 'truncated' in run.rollouts:
    late_rows = run.late(run.rollouts)
    rows = tuple(map(int, late_rows.index[late_rows['truncated'] > 0.5][:6]))
  elif 'length' in run.rollouts:
    longest = run.late(run.rollouts).sort_values('length', ascending=False)
    rows = tuple(map(int, longest.index[:6]))
  word = run.limit_name
  limit = run.settings.get('max_tokens')
  advice = f'{word} {limit:g} -> {2 * limit:g}' if limit else f'{word} x 2'
  remedies = [records.Remedy(setting='max_tokens', times=2.0)]
  if cut[: max(len(cut) // 8, 1)].mean() < 0.2 and late.value > 0.8:
    # The completions ended at first, so updates have ruined the policy.
    remedies.insert(0, records.Remedy(setting='learning_rate', times=0.1))
    advice = f'{words.word(run.format, "learning_rate")}: a tenth of it'
  elif cut.min() > _NEVER_END:
    advice = _never_end(run, advice)
  unpaid = _falls_with(run, cut)
  if unpaid:
    advice = (
        f'{advice}; or {words.word(run.format, "reward")}: score cut'
        ' completions like all others, with a penalty that begins near the'
        ' limit'
    )
  return findings.Finding(
      check='truncation',
      severity='critical' if late.low > 0.5 or unpaid else 'warning',
      text=f'{late.value:.0%} of the completions are cut at the limit'
      + (', and the reward falls as more are cut' if unpaid else ''),
      since=int(steps[change.index]) if rose else None,
      p=change.p if rose else None,
      numbers=(findings.number('cut, last third', late, 'share'),),
      rows=rows,
      change=advice,
      remedies=tuple(remedies),
      curves=(('cut at the limit', steps, cut),),
  )


def _not_at_a_limit(
    run: form.Run,
    steps: np.ndarray,
    cut: np.ndarray,
    late: intervals.Interval,
) -> findings.Finding | None:
  """Find completions that count as cut, though not at one limit.

  If a limit cuts many, the longest completion of most steps has the same
  length. Turns of agents have limits of their own.

  Args:
    run: The run.
    steps: The steps.
    cut: Share of the completions that count as cut, by step.
    late: The same in the last third.
  """
  if 'length_high' not in run.steps or run.has_turns:
    return None
  table = run.steps.set_index('step')['length_high'].reindex(steps)
  longest = table[cut > _OFTEN_CUT].dropna().to_numpy()
  if len(longest) < form.MIN_STEPS:
    return None
  if (np.abs(np.diff(longest)) < _SAME_LENGTH * longest[1:]).mean() > 0.5:
    return None
  return findings.Finding(
      check='truncation',
      severity='critical' if late.low > 0.5 else 'warning',
      text=f'{late.value:.0%} of the completions count as cut, but not at one'
      f' limit: the longest of a step has {longest.min():.0f} to'
      f' {longest.max():.0f} tokens',
      numbers=(findings.number('count as cut, last third', late, 'share'),),
      change='the tokens that end a completion: does the trainer know the one'
      " that the model writes (compare the tokenizer's with those of the"
      " model's generation config)? if not, these completions are complete,"
      f' and {run.limit_name} need not change',
      curves=(('count as cut', steps, cut),),
  )


def _never_end(run: form.Run, advice: str) -> str:
  """Return what to change where every completion of a run is cut."""
  rows = run.rollouts
  if run.format != 'evojax' and 'templated' in rows:
    if rows['templated'].mean() < 1 - _NEVER_END:
      return (
          'the chat template is not applied, since prompts are plain texts:'
          f' pass lists of messages; or, for a base model, {advice}'
      )
  return (
      f'{advice}, or, if they would never end (read one), correct the chat'
      ' template of the prompt or the tokens that end a completion'
  )


def _falls_with(run: form.Run, cut: np.ndarray) -> bool:
  """Return whether the reward falls as more completions are cut."""
  try:
    _, reward = run.course('reward')
  except form.NotLogged:
    return False
  n = min(len(reward), len(cut))
  if trends.trend(reward).high >= 0 or trends.trend(cut).low <= 0:
    return False
  return float(np.corrcoef(reward[-n:], cut[-n:])[0, 1]) < _WITH_IT


def unreadable(run: form.Run) -> findings.Finding | None:
  """Detect a grader that finds no answer in what the policy writes."""
  rows = run.rows('format_ok', 'outcome', 'group')
  failed = intervals.mean(1 - rows.groupby('group')['format_ok'].mean())
  if failed.low < 0.9 or rows['outcome'].mean() > _HARDLY:
    return None
  # One of each group, since completions of one prompt look alike.
  wrong = rows[rows['format_ok'] < 0.5].drop_duplicates('group')
  return findings.Finding(
      check='unreadable',
      severity='critical',
      text=f'{failed.value:.0%} of the completions hold no readable answer',
      numbers=(findings.number('share of the completions', failed, 'share'),),
      rows=tuple(map(int, wrong.index[-6:])),
      change=f'{words.word(run.format, "grader")}: accept the format that the'
      ' policy writes, or ask in the prompt for the one that the grader reads',
      remedies=(records.Remedy(setting='grader'),),
  )


def format_bottleneck(run: form.Run) -> findings.Finding | None:
  """Detect unsolved answers that fail by their format, without improvement."""
  rows = run.rows('format_ok', 'outcome')
  late = run.late(rows)
  by = late[late['outcome'] < 0.5].groupby('step')['format_ok'].mean()
  if len(by) < 3 or late['outcome'].mean() > learning.MUCH_SOLVED:
    return None
  failed = intervals.mean(1 - by)
  course = 1 - rows.groupby('step')['format_ok'].mean().to_numpy()
  if len(course) < _FORMAT_STEPS:  # It may still be learned.
    return None
  improving = trends.trend(course).high < 0
  if failed.low < rules.RULES['format_bottleneck'].warn[1] or improving:
    return None
  wrong = late.index[(late['format_ok'] < 0.5) & (late['outcome'] < 0.5)]
  solved = rows.groupby('step')['outcome'].mean()
  learns = trends.trend(solved).low > 0
  return findings.Finding(
      check='format_bottleneck',
      severity='note' if learns else 'warning',
      text=f'{failed.value:.0%} of the unsolved completions hold no readable'
      ' answer',
      numbers=(findings.number('share of the unsolved', failed, 'share'),),
      rows=tuple(map(int, wrong[:6])),
      change=f'{words.word(run.format, "grader")}: accept right answers in'
      f' other formats; or give {words.word(run.format, "weight", "format")} a'
      ' small value',
  )


def hidden_goal(run: form.Run) -> findings.Finding | None:
  """Detect updates that mostly reward something else than solving."""
  rows = run.rows('advantage', 'outcome', 'group')
  rows = run.late(rows, 0.5)
  if np.allclose(rows['advantage'], 0):
    return None
  outcome = form.within(rows, 'outcome')
  advantage = rows['advantage'].to_numpy()
  table = pd.DataFrame(
      {
          'step': rows['step'].to_numpy(),
          'both': advantage * outcome,
          'a': advantage**2,
          'o': outcome**2,
      }
  )
  by = table.groupby('step').sum()
  by = by[(by['a'] > 1e-9) & (by['o'] > 1e-9)]
  if len(by) < 4:
    return None
  r = intervals.mean(by['both'] / np.sqrt(by['a'] * by['o']))
  if r.high > 0.3 or r.high < 0:
    return None  # Below 0 the sign is wrong, which is another finding.
  paid = rows[rows['outcome'] < 0.5].sort_values('advantage', ascending=False)
  return findings.Finding(
      check='hidden_goal',
      severity='warning',
      text='advantages hardly depend on what is solved (correlation'
      f' {r.value:.2f})',
      numbers=(findings.number('correlation of advantage and outcome', r),),
      rows=tuple(map(int, paid.index[:6])),
      change=f'{words.word(run.format, "reward")}: give the outcome a larger'
      ' weight',
      remedies=blame.remedies(run),
  )


CHECKS = (
    hidden_goal,
    entropy_collapse,
    entropy_rising,
    temperature,
    shrinks,
    truncation,
    unreadable,
    format_bottleneck,
)
