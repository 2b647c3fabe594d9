"""Checks of agents: faults of episodes with turns and tools.

They run only if `form.Run.has_turns`. Rewards are compared within groups, so
that a hard problem, which takes more turns, raises no alarm.
"""

import numpy as np
import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import blame
from evojax.diagnosis.checks import learning
from evojax.diagnosis.checks import shares
from evojax.ledger import records
from evojax.stats import intervals
from evojax.stats import trends

# Thresholds of arXiv:2606.03108: an edit in 60 % of the episodes, 15 % of calls
# that fail. The others were chosen on synthetic logs, see BUILD_NOTES.md.
_NO_EDIT = 0.4
_FAILED = 0.15
_REPEATED = 0.2
_LIMITED = 0.15
# If a limit ends at least the first share of the episodes, hardly any others
# are left to compare with. The limit is then a fault only if at most the second
# share of the episodes that it ends is solved.
_MOST, _SOLVED_AT_LIMIT = 0.8, 0.05
_AT_ONCE = 0.3
_MISSING = 0.1
_CREDITED = 0.5
_REPLIES_CUT = 0.4
_CALLED = 0.3  # Calls of an episode, at first, of an agent that uses tools.
_UNLEARNED = 0.15  # Share of these calls that is left if it stops using them.
# Factor by which calls or turns grow, and relative gain of a score that counts
# as no gain.
_GROWN, _NO_GAIN = 1.5, 0.1
_TESTED = 0.5  # Of the episodes with an edit (arXiv:2606.03108).


def _pay(*parts: tuple[str, float]) -> list[records.Remedy]:
  """Return remedies that weight the reward parts shipped for agents."""
  return [
      records.Remedy(setting='weight', part=part, value=weight)
      for part, weight in parts
  ]


def echo_trap(run: form.Run) -> findings.Finding | None:
  """Detect calls that are repeated (RAGEN, arXiv:2504.20073: Echo Trap)."""
  share = shares.Share(run, 'repeated')
  if share.late.low < _REPEATED or share.falling:
    return None
  if shares.solved_late(run) > learning.MUCH_SOLVED:
    return None
  numbers = [findings.number('repeated calls, last third', share.late, 'share')]
  rows = run.rollouts.dropna(subset=['repeated'])
  distinct = (
      [
          float((by.nunique() / by.size()).mean())
          for part in (run.early(rows), run.late(rows))
          for by in [part.groupby('group')['first_call']]
      ]
      if 'first_call' in rows
      else []
  )
  for when, value in zip(('first', 'last'), distinct, strict=bool(distinct)):
    numbers.append(
        findings.Number(
            name=f'distinct first calls of a group, {when} third', value=value
        )
    )
  ends = ''
  if 'out_of_turns' in rows:
    cut = intervals.mean(run.late(rows).groupby('step')['out_of_turns'].mean())
    numbers.append(findings.number('ended by the limit of turns', cut, 'share'))
    if cut.low > 0.3:
      ends = f', and {cut.value:.0%} of the episodes end by the limit of turns'
  remedies = [
      *shares.paid(run, rows, 'repeated'),
      records.Remedy(setting='temperature', value=1.0),
      records.Remedy(setting='grpo.keep', value='reward_variance'),
  ]
  late = run.late(rows)
  return findings.Finding(
      check='echo_trap',
      severity='critical' if share.late.low > 2 * _REPEATED else 'warning',
      text=f'{share.late.value:.0%} of the calls were made before in their'
      f' episode{shares.said_solved(run)}{ends}',
      since=share.since,
      p=share.p,
      numbers=tuple(numbers),
      rows=shares.newest(late, late['repeated'] > 0.4),
      change=shares.change(
          run,
          remedies,
          f'{words.word(run.format, "filter")}; or raise'
          f' {words.word(run.format, "temperature")} to 1',
      ),
      remedies=tuple(remedies),
      curves=(share.curve('repeated calls'),),
  )


def gives_up(run: form.Run) -> findings.Finding | None:
  """Detect episodes without an edit, or that get shorter and solve no more."""
  if shares.solved_late(run) > learning.MUCH_SOLVED or shares.rises(run):
    return None
  if 'edited' not in run.rollouts:
    return _ever_shorter(run)
  rows = run.rows('edited').assign(idle=lambda e: 1 - e['edited'])
  share = shares.Share(run, 'idle', rows)
  if share.late.low < _NO_EDIT or share.falling:
    return None
  numbers = [
      findings.number('episodes without an edit', share.late, 'share'),
  ]
  curves = [share.curve('episodes without an edit')]
  if 'n_turns' in rows:
    turns = shares.Share(run, 'n_turns')
    numbers.append(findings.number('turns, last third', turns.late))
    curves.append(turns.curve('turns'))
  late = run.late(rows)
  remedies = shares.paid(run, rows, 'idle')
  remedies += _pay(('fail_to_pass', 0.3), ('few_turns', -0.1))
  return findings.Finding(
      check='gives_up',
      severity='critical' if share.late.low > 0.6 else 'warning',
      text=f'{share.late.value:.0%} of the episodes end without an edit'
      f'{shares.said_solved(run)}',
      since=share.since,
      p=share.p,
      numbers=tuple(numbers),
      rows=shares.newest(late, late['idle'] > 0.5),
      change=f'{words.word(run.format, "reward")}: no penalty for failed edits,'
      ' and partial credit for tests that now pass',
      remedies=tuple(remedies),
      curves=tuple(curves),
  )


def _ever_shorter(run: form.Run) -> findings.Finding | None:
  """Find turn counts that fall although no more is solved."""
  try:
    turns = shares.Share(run, 'n_turns')
    _, solved = run.course('outcome')
  except form.NotLogged as error:
    raise form.NotLogged(f'{error}; no call edits a file') from error
  change = trends.change_point(turns.values)
  half = change.p < shares.SURE and change.after < 0.6 * change.before
  if not half or turns.line.high > 0 or trends.trend(solved).high > 0.02:
    return None
  late = run.late(run.rollouts) if 'n_turns' in run.rollouts else None
  return findings.Finding(
      check='gives_up',
      severity='warning',
      text=f'turns fall from {change.before:.1f} to {change.after:.1f}, and the'
      ' solved share does not rise',
      since=int(turns.steps[change.index]),
      p=change.p,
      numbers=(findings.number('turns, last third', turns.late),),
      rows=()
      if late is None
      else tuple(map(int, late.sort_values('n_turns').index[: shares.SHOWN])),
      change=f'{words.word(run.format, "reward")}: no penalty for turns',
      remedies=blame.remedies(run),
      curves=(turns.curve('turns'),),
  )


def submits_at_once(run: form.Run) -> findings.Finding | None:
  """Detect submissions before any look at a file and any run of a test."""
  rows = run.rows('submitted', 'looked')
  if not (rows['submitted'] > 0.5).any():
    raise form.NotLogged('no call submits the work')
  tested = rows.get('tested', pd.Series(0.0, rows.index)).fillna(0)
  unseen = (rows['submitted'] > 0.5) & (rows['looked'] < 0.5) & (tested < 0.5)
  rows = rows.assign(unseen=unseen.astype(float))
  share = shares.Share(run, 'unseen', rows)
  solved = shares.solved_late(run)
  if share.late.low < _AT_ONCE or share.falling:
    return None
  if solved > learning.MUCH_SOLVED:
    return None
  gap = shares.gap(rows, 'unseen', 'outcome') if 'outcome' in rows else None
  # Skipping the look is no fault if the policy solves as much without it.
  if gap is not None and gap.high > 0 and solved > 0.5:
    return None
  numbers = [findings.number('submitted unseen', share.late, 'share')]
  if gap is not None:
    numbers.append(findings.number('solved, unseen minus others', gap, 'share'))
  late = run.late(rows)
  remedies = shares.paid(run, rows, 'unseen')
  remedies += _pay(('searched_first', 0.1), ('tested_edit', 0.15))
  return findings.Finding(
      check='submits_at_once',
      severity='critical' if share.late.low > 0.6 else 'warning',
      text=f'{share.late.value:.0%} of the episodes submit without reading a'
      f' file or running a test{shares.said_solved(run)}',
      since=share.since,
      p=share.p,
      numbers=tuple(numbers),
      rows=shares.newest(late, late['unseen'] > 0.5),
      change=shares.change(
          run,
          remedies,
          f'{words.word(run.format, "reward")}: pay for what is solved, not for'
          ' submitting',
      ),
      remedies=tuple(remedies),
      curves=(share.curve('submitted unseen'),),
  )


def turn_limit(run: form.Run) -> findings.Finding | None:
  """Detect a limit of turns or seconds that ends promising episodes."""
  names = [n for n in ('out_of_turns', 'out_of_time') if n in run.rollouts]
  if not names:
    raise form.NotLogged(
        'what ended the episodes is not logged (--set max_turns=...,'
        ' --columns=out_of_turns=...)'
    )
  for name in names:
    if found := _limited(run, name):
      return found
  return None


def _limited(run: form.Run, name: str) -> findings.Finding | None:
  rows = run.rows(name)
  share = shares.Share(run, name, rows)
  if share.late.low < _LIMITED or share.falling:
    return None
  late = run.late(rows)
  cut = late[late[name] > 0.5]
  # Episodes that repeat calls would not be solved with more turns.
  if 'repeated' in cut and cut['repeated'].mean() > 0.3:
    return None
  working = 1.0
  if {'edited', 'looked'} <= set(cut):
    working = float(((cut['edited'] > 0.5) | (cut['looked'] > 0.5)).mean())
  if working < 0.5:
    return None
  numbers = [findings.number('ended by the limit', share.late, 'share')]
  nearly_all = False
  if 'outcome' in rows:
    gap = shares.gap(rows.dropna(subset=['outcome']), name, 'outcome')
    nearly_all = share.late.value >= _MOST
    if gap is not None and gap.high <= 0:
      numbers.append(
          findings.number('solved, these minus others', gap, 'share')
      )
    # Episodes that the limit ends are solved as often as others; or they are
    # nearly all episodes, and solved too often for the limit to be at fault.
    elif not nearly_all or cut['outcome'].mean() > _SOLVED_AT_LIMIT:
      return None
  numbers.append(
      findings.Number(
          name='of these, still working', value=working, unit='share'
      )
  )
  turns = name == 'out_of_turns'
  what, word = (
      ('turns', words.word(run.format, 'max_turns'))
      if turns
      else ('seconds', 'the limit of seconds of an episode')
  )
  return findings.Finding(
      check='turn_limit',
      severity='critical'
      if share.late.low > 0.4 or nearly_all
      else 'warning',
      text=f'{share.late.value:.0%} of the episodes are stopped by the limit of'
      f' {what} while they are still working',
      since=share.since,
      p=share.p,
      numbers=tuple(numbers),
      rows=shares.newest(late, late[name] > 0.5),
      change=f'{word} x 2',
      remedies=(records.Remedy(setting='max_turns', times=2.0),)
      if turns
      else (),
      curves=(share.curve(f'ended by the limit of {what}'),),
  )


def turns_cut(run: form.Run) -> findings.Finding | None:
  """Detect turns that are cut, so that their calls cannot be read."""
  limit = run.settings.get('turn_tokens')
  if not limit:
    raise form.NotLogged(
        'the limit of a turn is not known (--set turn_tokens=...)'
    )
  rows = run.rows('longest_turn')
  rows = rows.assign(cut=(rows['longest_turn'] >= limit).astype(float))
  share = shares.Share(run, 'cut', rows)
  if share.late.low < _LIMITED:
    return None
  late = run.late(rows)
  word = words.word(run.format, 'turn_tokens')
  return findings.Finding(
      check='turns_cut',
      severity='critical' if share.late.low > 0.4 else 'warning',
      text=f'{share.late.value:.0%} of the episodes have a turn that is cut'
      f' after {limit:g} tokens, so that its call cannot be read',
      since=share.since,
      p=share.p,
      numbers=(
          findings.number('episodes with a cut turn', share.late, 'share'),
      ),
      rows=shares.newest(late, late['cut'] > 0.5),
      change=f'{word} {limit:g} -> {2 * limit:g}',
      remedies=(records.Remedy(setting='turn_tokens', times=2.0),),
      curves=(share.curve('episodes with a cut turn'),),
  )


def efficiency_collapse(run: form.Run) -> findings.Finding | None:
  """Detect paid brevity: turns and the solved share both fall."""
  rows = run.rows('n_turns', 'reward', 'outcome', 'group')
  turns = shares.Share(run, 'n_turns', rows)
  solved = shares.Share(run, 'outcome', rows)
  pull = shares.pull(rows, 'reward', 'n_turns')
  if pull is None or pull.high > -0.3:
    return None
  change = trends.change_point(turns.values)
  if change.p > shares.SURE or change.after > 0.8 * change.before:
    return None
  # The finding needs a solved share that does not rise and is not high.
  if solved.line.low > 0 or solved.late.value > learning.MUCH_SOLVED:
    return None
  remedies = shares.paid(run, rows.assign(fewer=-rows['n_turns']), 'fewer')
  late = run.late(rows).sort_values('n_turns')
  return findings.Finding(
      check='efficiency_collapse',
      severity='critical' if solved.line.high < 0 else 'warning',
      text=f'fewer turns earn more at equal outcome: turns fall from'
      f' {change.before:.1f} to {change.after:.1f}, the solved share'
      f' {"falls" if solved.line.high < 0 else "does not rise"}',
      since=int(turns.steps[change.index]),
      p=change.p,
      numbers=(
          findings.number('correlation of reward and turns', pull),
          findings.number('turns, last third', turns.late),
          findings.number(
              'rise of the solved share over the run',
              solved.line.interval,
              'share',
          ),
      ),
      rows=tuple(map(int, late.index[late['outcome'] < 0.5][: shares.SHOWN])),
      change=shares.change(
          run,
          remedies,
          f'{words.word(run.format, "reward")}: pay nothing for fewer turns,'
          ' or only among solved episodes',
      ),
      remedies=tuple(remedies),
      curves=(turns.curve('turns'), solved.curve('solved')),
  )


def malformed_calls(run: form.Run) -> findings.Finding | None:
  """Detect many malformed or failing calls, without improvement."""
  share = shares.Share(run, 'calls_failed')
  if share.late.low < _FAILED or share.falling:
    return None
  rows: tuple[int, ...] = ()
  if 'calls_failed' in run.rollouts:
    late = run.late(run.rollouts)
    rows = shares.newest(late, late['calls_failed'] > 0.3)
  return findings.Finding(
      check='malformed_calls',
      severity='critical' if share.late.low > 0.5 else 'warning',
      text=f'{share.late.value:.0%} of the calls are malformed or fail',
      since=share.since,
      p=share.p,
      numbers=(
          findings.number('failed calls, first fifth', _exactly(share.start)),
          findings.number('failed calls, last third', share.late, 'share'),
      ),
      rows=rows,
      change=f'{words.word(run.format, "learning_rate")}: a third of it; or'
      f' lower {words.word(run.format, "temperature")} to 1',
      remedies=(
          records.Remedy(setting='temperature', value=1.0),
          records.Remedy(setting='learning_rate', times=1 / 3),
          records.Remedy(setting='weight', part='format', value=0.3),
      ),
      curves=(share.curve('failed calls'),),
  )


def calls_unlearned(run: form.Run) -> findings.Finding | None:
  """Detect agents that stop calling their tools."""
  calls = shares.Share(run, 'n_calls')
  late = float(calls.late.value)
  change = trends.change_point(calls.values)
  if calls.start < _CALLED or late > _UNLEARNED * calls.start:
    return None
  if change.p > shares.SURE:
    return None
  rows: tuple[int, ...] = ()
  if 'n_calls' in run.rollouts:
    last = run.late(run.rollouts)
    rows = shares.newest(last, last['n_calls'] < 0.5)
  return findings.Finding(
      check='calls_unlearned',
      # It may solve as much without them.
      severity='note' if shares.rises(run) else 'warning',
      text=f'tool calls fall from {calls.start:.2g} to {late:.2g} per'
      f' episode{shares.said_solved(run)}',
      since=int(calls.steps[change.index]),
      p=change.p,
      numbers=(findings.number('calls, last third', calls.late),),
      rows=rows,
      change=f'{words.word(run.format, "reward")}: add a small part for a call'
      ' if the tools are to be used; or choose problems that need them',
      remedies=blame.remedies(run),
      curves=(calls.curve('calls of an episode'),),
  )


def calls_grow(run: form.Run) -> findings.Finding | None:
  """Detect calls, or turns, that grow by half while no score gains by it."""
  name = next((n for n in ('n_calls', 'n_turns') if _logs(run, n)), 'n_turns')
  share = shares.Share(run, name)
  last = float(share.values[-max(len(share.values) // 5, 2) :].mean())
  if not share.rose or last < _GROWN * max(share.start, 1.0):
    return None
  courses = [values for _, values in shares.scores(run)]
  evaluated = [n for n in ('eval_outcome', 'eval_reward') if n in run.steps]
  courses += [run.series(n)[1] for n in evaluated]
  courses = [values for values in courses if len(values) >= 4]
  lines = [trends.trend(values) for values in courses]
  if not lines:
    raise form.not_logged(['reward'])
  for values, line in zip(courses, lines, strict=True):
    gain = line.rise > _NO_GAIN * abs(float(values.mean()))
    if gain or line.low > 0:
      return None
  if shares.solved_late(run) > learning.MUCH_SOLVED:
    return None
  what = 'calls' if name == 'n_calls' else 'turns'
  return findings.Finding(
      check='calls_grow',
      severity='note',  # They may cost nothing.
      text=f'{what} grow from {share.start:.2g} to {last:.2g} per episode, and'
      f' no score rises{shares.said_solved(run)}',
      since=share.since,
      p=share.p,
      numbers=(findings.number(f'{what}, last third', share.late),),
      change=f'{words.word(run.format, "reward")}: calls that do not help cost'
      ' nothing now; subtract a little for each call, in solved episodes only',
      curves=(share.curve(f'{what} of an episode'),),
  )


def _logs(run: form.Run, name: str) -> bool:
  return name in run.steps or name in run.rollouts


def tests_dropped(run: form.Run) -> findings.Finding | None:
  """Detect agents that stop testing their edits, though they solve no more.

  EvoTrainer (arXiv:2606.03108) calls this laziness: there are fewer tests and
  commands, and the solved share does not rise. If it rises, the agent may need
  fewer tests because it is better.
  """
  rows = run.rows('tested', 'edited', 'n_calls')
  rows = rows[rows['edited'] > 0.5]
  tested = shares.Share(run, 'tested', rows)
  change = trends.change_point(tested.values)
  fewer = change.p < shares.SURE and change.after < 0.6 * change.before
  if not fewer or change.before < _TESTED or tested.late.high > _TESTED:
    return None
  calls = shares.Share(run, 'n_calls', rows)
  before, after = np.split(calls.values, [change.index])
  if after.mean() >= before.mean() or shares.rises(run):
    return None
  solved = shares.solved_late(run)
  if solved > learning.MUCH_SOLVED:
    return None
  rows = rows.assign(untested=1 - rows['tested'])
  remedies = shares.paid(run, rows, 'untested') + _pay(('tested_edit', 0.15))
  late = run.late(rows)
  return findings.Finding(
      check='tests_dropped',
      severity='warning',
      text='among episodes with an edit, the share that tests it falls from'
      f' {change.before:.0%} to {change.after:.0%}, and the solved share does'
      ' not rise'
      + ('' if np.isnan(solved) else f' ({solved:.0%} at the end)'),
      since=int(tested.steps[change.index]),
      p=change.p,
      numbers=(
          findings.number('tested, last third', tested.late, 'share'),
          findings.number('calls, last third', calls.late),
      ),
      rows=shares.newest(late, late['untested'] > 0.5),
      change=shares.change(
          run,
          remedies,
          f'{words.word(run.format, "reward")}: pay nothing for fewer calls,'
          ' or add a small part for a test after the last edit',
      ),
      remedies=tuple(remedies),
      curves=(tested.curve('edits that are tested'),),
  )


def missing_tool(run: form.Run) -> findings.Finding | None:
  """Detect calls of one tool that the agent was not given."""
  rows = run.rows('calls_failed')
  if 'missing_tool' not in rows:  # No reply says that there is no such tool.
    return None
  called = run.late(rows)['missing_tool']
  name = called[called != ''].mode()
  if not len(name):
    return None
  rows = rows.assign(missing=(rows['missing_tool'] == name[0]).astype(float))
  share = shares.Share(run, 'missing', rows)
  # A policy that stops making such calls works around the missing tool.
  if share.late.low < _MISSING:
    return None
  late = run.late(rows)
  return findings.Finding(
      check='missing_tool',
      severity='critical' if share.late.low > 3 * _MISSING else 'warning',
      text=f'{share.late.value:.0%} of the episodes call {name[0]!r}, a tool'
      f' that they do not have{shares.said_solved(run)}',
      since=share.since,
      p=share.p,
      numbers=(findings.number('episodes that call it', share.late, 'share'),),
      rows=shares.newest(late, late['missing'] > 0.5),
      change=f'{words.word(run.format, "tools")}: add {name[0]!r}',
      remedies=(records.Remedy(setting='tools', value=name[0]),),
      curves=(share.curve(f'episodes that call {name[0]}'),),
  )


def replies_cut(run: form.Run) -> findings.Finding | None:
  """Detect replies of tools most of which are cut at a limit."""
  rows = run.rows('replies_cut')
  share = intervals.mean(rows.groupby('step')['replies_cut'].mean())
  if share.low < _REPLIES_CUT:
    return None
  return findings.Finding(
      check='replies_cut',
      severity='warning',
      text=f'{share.value:.0%} of the replies of tools are cut at a limit, so'
      f' that the agent reads only their beginning{shares.said_solved(run)}',
      numbers=(findings.number('replies that are cut', share, 'share'),),
      rows=shares.newest(rows, rows['replies_cut'] >= share.value),
      change=f'{words.word(run.format, "reply_limit")}: raise it',
      remedies=(records.Remedy(setting='reply_limit'),),
  )


def turns_ignored(run: form.Run) -> findings.Finding | None:
  """Detect credit for few of the turns that led to a reward."""
  rows = run.rows('turns_credited', 'n_turns')
  rows = rows[rows['n_turns'] > 1]
  if rows['step'].nunique() < form.MIN_STEPS:
    return None
  share = intervals.mean(rows.groupby('step')['turns_credited'].mean())
  if share.high > _CREDITED:
    return None
  return findings.Finding(
      check='turns_ignored',
      severity='warning',
      text=f'only {share.value:.0%} of the turns get credit where an episode is'
      ' better or worse than its group',
      numbers=(findings.number('turns with credit', share, 'share'),),
      rows=shares.newest(rows, rows['turns_credited'] <= share.value),
      change=f'remove {words.word(run.format, "credit_code")}',
      remedies=(records.Remedy(setting='credit_code'),),
  )


def _exactly(value: float) -> intervals.Interval:
  return intervals.Interval(value, value, value)


CHECKS = (
    efficiency_collapse,
    echo_trap,
    gives_up,
    submits_at_once,
    turn_limit,
    turns_cut,
    missing_tool,
    malformed_calls,
    calls_unlearned,
    calls_grow,
    tests_dropped,
    replies_cut,
    turns_ignored,
)
