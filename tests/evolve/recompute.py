"""Recomputes standings, shadows and pairs of a run's races from its evidence.

    python tests/evolve/recompute.py WORKDIR

Reads the ledger and the evidence of all arms, and shares no code with the
package, so that a wrong decision there cannot confirm itself here. Exits with 0
if all numbers agree to 1e-9, otherwise with 1, listing the differences.
"""

import json
import math
import pathlib
import sys

import numpy as np
import pandas as pd
from scipy import optimize
from scipy import stats

TOLERANCE = 1e-9


def groups(file: pathlib.Path) -> pd.Series:
  """Return mean outcomes of a step's graded groups, by group and problem."""
  columns = ['group', 'problem_id', 'outcome', 'graded']
  frame = pd.read_parquet(file, columns=columns)
  frame = frame[frame['graded']]
  outcome = frame['outcome'].astype('float64')
  return outcome.groupby([frame['group'], frame['problem_id']]).mean()


def scores(
    workdir: pathlib.Path, arm: dict, by: str, first: int, whole: bool = False
) -> pd.Series:
  """Return the mean outcomes by which an arm is compared, with problems.

  Of an update only the `first` groups count; those after them replace groups
  that the arm's own filter dropped.
  """
  if by == 'dev':
    folder = workdir / arm['dev'] / 'evidence' / 'dev'
    return pd.concat({'dev': groups(max(folder.glob('step_*.parquet')))})
  folder = workdir / arm['folder'] / 'evidence' / 'train'
  files = sorted(folder.glob('step_*.parquet'))
  counted = files if whole else files[len(files) // 2 :]
  found = pd.concat({file.stem: groups(file) for file in counted})
  return found[found.index.get_level_values('group') < first]


def is_scored(arm: dict, by: str) -> bool:
  """Return whether an arm ended, or collapsed after sampling its score."""
  done, collapsed = arm['status'] == 'done', arm['status'] == 'collapse'
  return done or (collapsed and by == 'rollouts')


def gain(candidate: pd.Series, incumbent: pd.Series) -> tuple[float, float]:
  """Return the difference of two means and its standard error."""
  each = candidate.index, incumbent.index
  steps = [set(index.get_level_values(0)) for index in each]
  if steps[0] == steps[1]:  # The same problems: only those of both count.
    apart = (candidate - incumbent).dropna()
    return float(apart.mean()), float(apart.std() / math.sqrt(len(apart)))
  square = candidate.var() / len(candidate) + incumbent.var() / len(incumbent)
  return float(candidate.mean() - incumbent.mean()), math.sqrt(square)


def pooled(groups_: list[list[float]]) -> float:
  """Return the standard deviation of differences within their groups."""
  rest = [d - np.mean(found) for found in groups_ for d in found]
  degrees = sum(len(found) - 1 for found in groups_ if found)
  return math.sqrt(np.sum(np.square(rest)) / degrees) if degrees else 0.0


def capped(
    found: list[float], margin: float, errors: list[float]
) -> list[float]:
  """Return differences; large gains are cut if a loss is tested.

  Gains over 5 points, or over two errors if these are more, count as that.
  """
  most = max(0.05, 2 * math.sqrt(np.mean(np.square(errors))))
  return [min(d, most) for d in found] if margin else list(found)


def is_steady(found: list[float]) -> bool:
  """Return whether gains hardly rise, or are all small and none is a loss."""
  least, most = np.minimum.accumulate(found), 0.0125 * (len(found) - 2)
  small = all(0 <= gain <= 2 * most for gain in found)
  return small or np.max(found - least) <= most


def p_above(
    bound: float, found: list[float], errors: list[float], least: float
) -> float:
  """Return the p-value of the hypothesis that differences are <= a bound."""
  mean, count = np.mean(found) - bound, len(found)
  spread = np.std(found, ddof=1) / math.sqrt(count)
  if mean > 0:
    floors = np.maximum(errors, least)
    spread = max(spread, math.sqrt(np.mean(np.square(floors)) / count))
  return stats.t(count - 1).sf(mean / spread) if spread else float(mean <= 0)


def e_value(
    found: list[float],
    errors: list[float],
    least: float,
    before: float,
    level: float,
    last: bool,
    margin: float,
) -> float:
  """Return the e-value of a candidate after a round of pairs."""
  p = p_above(-margin, capped(found, margin, errors), errors, least)
  if margin and not is_steady(found):  # Then it has to show a gain of 2 points.
    p = max(p, p_above(0.02, found, errors, least))
  target = 1 / (level * before) if before else math.inf
  if last:
    return 1 / level if p <= 1 / target else 0.0
  whole = lambda x: x * (1 - math.log(x)) - 1 / target
  cut = optimize.brentq(whole, 1e-300, 1.0, xtol=1e-300, rtol=1e-14)
  return 1 / level if p <= cut else before * target * cut / p


def level_of(index: int, promised: dict, kept: int) -> float:
  share = (1 / index) / sum(1 / i for i in range(1, promised['entries'] + 1))
  return promised['false_discovery_rate'] * share * (kept + 1)


def account(rows: list[dict], race: dict) -> tuple[float, float, float]:
  """Return what evolve.tokens leaves for a round and those after it.

  Args:
    rows: The rows of the ledger.
    race: The round.

  Returns:
    The tokens that are left, the tokens of an update, and the completions of
    the score of an arm, relative to those of an update.
  """
  config = next(row['config'] for row in rows if row['step'] == 'open')
  e, grpo = config['evolve'], config['grpo']
  score = e['problems'] * e['samples'] / (grpo['prompts'] * grpo['group_size'])
  longest = lambda arms: max(
      arm['sampled_tokens'] / max(arm['updates'], 1) for arm in arms
  )
  base = next(row for row in rows if row['step'] == 'train')
  spent, last, now = base['sampled_tokens'], [base], 0
  raced = 0.0  # Tokens of an update in the last round that had candidates.
  for row in rows:
    if row['step'] == 'diagnose':
      now = row['round']
    if row['step'] == 'backtest' and now < race['round']:
      spent += row['sampled_tokens']
    if row['step'] == 'race' and row['round'] < race['round']:
      last = row['arms']
      spent += sum(arm['sampled_tokens'] for arm in last)
      raced = longest(last) if row['standings'] else raced
      if row['scored_by'] == 'dev':
        spent += len(last) * score * longest(last)
    if row['step'] == 'audit' and row['round'] < race['round']:
      spent += 2 * len(row['differences']) * score * longest(last)
  # Completions may grow by a tenth in the first round.
  update = max(longest(last) * (1.1 if last == [base] else 1), raced)
  rollout = config['rollout']
  if last == [base] and (rollout['token_limit'] or not update):
    most = rollout['max_tokens'] * grpo['prompts'] * grpo['group_size']
    update = max(update, most / 2)
  return e['tokens'] - spent, update, score


def is_last_paid(rows: list[dict], race: dict, e: dict) -> bool:
  """Return whether the tokens pay for no candidate in a further round."""
  if not e['tokens']:
    return False
  left, update, score = account(rows, race)
  arm = e['updates'] + score * (race['scored_by'] == 'dev')
  harness = e['pairs'] * update * arm
  # Enough is left for the perturbed scores of a candidate.
  left -= 2 * e['pairs'] * score * update
  return left < (len(race['standings']) + 3) * harness


def paid_pairs(rows: list[dict], race: dict, e: dict) -> int:
  """Return how many pairs of a round the tokens pay for.

  With candidates they are at least three; 0 if the tokens do not pay for these.
  """
  left, update, score = account(rows, race)
  harnesses = len({(arm['role'], arm['trial']) for arm in race['arms']})
  if harnesses == 1:
    # Only the incumbent's own arms of the last round say how long they are.
    arms, head = [], ''
    for row in rows:
      if row['step'] == 'race' and row['round'] < race['round']:
        arms = row['arms']
      if row['step'] == 'promote' and (row['round'] or 0) < race['round']:
        head = row['harness'] if row['round'] is not None else head
    if own := [arm for arm in arms if arm['harness'] == head]:
      update = max(a['sampled_tokens'] / max(a['updates'], 1) for a in own)
    return min(e['pairs'], math.floor(left / (e['updates'] * update)))
  # Once all candidates are known, the replays of the round count, too.
  now = -1
  for row in rows:
    now = row['round'] if row['step'] == 'diagnose' else now
    if row['step'] == 'backtest' and now == race['round']:
      left -= row['sampled_tokens']
  arm = e['updates'] + score * (race['scored_by'] == 'dev')
  paid = math.floor(left / update / (harnesses * arm + 2 * score))
  if paid < 3 and race['standings']:
    return 0
  return min(e['pairs'], max(paid, 3))


def margin_of(findings: list[dict], changes: list[list]) -> float:
  """Return the loss that a change must exclude, 0 if it must show a gain."""
  critical = [f for f in findings if f['severity'] == 'critical']
  wanted = [remedy for f in critical for remedy in f['remedies']]
  for path, _, after in changes:
    for remedy in wanted:
      part = f'reward.weights.{remedy["part"]}'
      if remedy['setting'] == 'weight' and path == part:
        if after == remedy['value']:
          return 0.02
      if (remedy['setting'], path, after) in (
          ('max_tokens', 'rollout.token_limit', 0),
          ('data', 'data.families', []),
      ):
        return 0.02
  return 0.0


def of_shadow(
    workdir: pathlib.Path, race: dict, trial: int, first: int
) -> dict:
  """Return the policy's lead over a shadow, from all updates of a round."""
  found = {
      (arm['role'], arm['pair']): scores(
          workdir, arm, race['scored_by'], first, whole=True
      )
      for arm in race['arms']
      if arm['role'] == 'incumbent'
      or (arm['role'], arm['trial']) == ('shadow', trial)
      if is_scored(arm, race['scored_by'])
  }
  both = [
      (found['incumbent', i], found['shadow', i])
      for role, i in sorted(found)
      if role == 'shadow' and ('incumbent', i) in found
  ]
  found = [gain(policy, other) for policy, other in both]
  return dict(
      differences=[difference for difference, _ in found],
      errors=[error for _, error in found],
  )


def same(stored: object, value: object) -> bool:
  stored = np.atleast_1d(np.array(stored, np.float64))
  value = np.atleast_1d(np.array(value, np.float64))
  return stored.shape == value.shape and np.allclose(
      stored, value, rtol=TOLERANCE, atol=TOLERANCE
  )


def margins_of(
    findings: dict[int, tuple[int, list]], changes: list, trial: int
) -> list[tuple[int, float]]:
  """Return the round and the margin of each diagnosis since a trial began."""
  return [
      (number, margin_of(found, changes))
      for diagnosed, (number, found) in findings.items()
      if diagnosed >= trial
  ]


def is_last(
    rows: list[dict],
    race: dict,
    rounds: int,
    margins: list[tuple[int, float]],
) -> bool:
  """Return whether a candidate bets all its evidence in a round."""
  config = next(row['config'] for row in rows if row['step'] == 'open')
  e = config['evolve']
  # All is bet in the round in which the fault becomes critical, too.
  late = any(m for number, m in margins if number <= race['round'])
  early = rounds > 1 and any(m for n, m in margins if n < race['round'])
  return (
      rounds >= e['patience']
      or race['round'] + 1 >= e['rounds']
      or is_last_paid(rows, race, e)
      or (late and not early)
  )


def unpaid(rows: list[dict], race: dict, e: dict) -> list[str]:
  """Return a sentence if a round has other pairs than its tokens pay for."""
  own = [arm for arm in race['arms'] if arm['role'] == 'incumbent']
  # A chain ends with an arm that fails.
  if not e['tokens'] or any(arm['status'] != 'done' for arm in own):
    return []
  paid = paid_pairs(rows, race, e)
  if len(own) == paid:
    return []
  return [
      f'round {race["round"]}: {len(own)} pairs in the ledger, and the tokens'
      f' pay for {paid}'
  ]


def pairs_of(arms: dict, trial: int) -> list[int]:
  """Return the pairs in which both arms have a score."""
  return [i for t, i in arms if t == trial and (None, i) in arms]


def gains(arms: dict, trial: int) -> tuple[list[float], list[float]]:
  """Return candidate minus incumbent for every such pair, and the errors."""
  pairs = pairs_of(arms, trial)
  found = [gain(arms[trial, i], arms[None, i]) for i in pairs]
  # A pair with fewer than two graded problems has no spread.
  found = [(d, error) for d, error in found if not math.isnan(error)]
  return [difference for difference, _ in found], [error for _, error in found]


def compare(workdir: pathlib.Path) -> list[str]:
  """Return a sentence for every number that differs."""
  lines = (workdir / 'ledger.jsonl').read_text().splitlines()
  rows = [json.loads(line)['payload'] for line in lines]
  promised = next(row['config'] for row in rows if row['step'] == 'open')
  first, promised = promised['grpo']['prompts'], promised['evolve']
  known: dict[int, dict] = {}  # Trial -> results of its earlier rounds.
  kept: set[int] = set()  # Trials whose change can no longer be undone.
  every: list[list[float]] = []  # Differences of each candidate in each round.
  findings: dict[int, tuple[int, list]] = {}
  changes: dict[int, list] = {}
  compared, differences = 0, []
  race: dict = {}

  def check(row: dict, numbers: dict, of: dict) -> None:
    for name, value in numbers.items():
      if not same(of[name], value):
        differences.append(
            f'round {row["round"]}, trial {of["trial"]}: {name} is'
            f' {of[name]!r} in the ledger and {np.array(value).tolist()} from'
            ' the evidence'
        )

  for row in rows:
    if row['step'] == 'diagnose':
      findings[row['trial']] = row['round'], row['findings']
    if row['step'] == 'design':
      changes[row['trial']] = row['delta']['changes']
    # A harness that cannot catch up leaves no shadow; its change is final.
    if row['step'] == 'verify' and row['status'] == 'keep' and row['pairs']:
      kept.add(row['trial'])
    if row['step'] == 'shadow':
      move = kept.add if row['decision'] == 'keep' else kept.discard
      move(row['trial'])
      if row['look']:
        check(row, of_shadow(workdir, race, row['trial'], first), row)
        compared += 1
    if row['step'] != 'race':
      continue
    race = row
    differences += unpaid(rows, row, promised)
    arms = {
        (arm['trial'], arm['pair']): scores(
            workdir, arm, row['scored_by'], first
        )
        for arm in row['arms']
        if arm['role'] != 'shadow' and is_scored(arm, row['scored_by'])
    }
    for standing in row['standings']:
      every.append(gains(arms, standing['trial'])[0])
    for standing in row['standings']:
      trial = standing['trial']
      state = known.setdefault(
          trial,
          dict(e=1.0, d=[], s=[], rounds=0, index=len(known) + 1),
      )
      d, s = gains(arms, trial)
      state['rounds'] += 1
      state['d'] += d
      state['s'] += s
      numbers = dict(
          index=state['index'],
          rounds=state['rounds'],
          pairs=len(state['d']),
          differences=d,
          errors=s,
      )
      if len(d) > 1:
        level = level_of(state['index'], promised, len(kept))
        margins = margins_of(findings, changes.get(trial, []), trial)
        margin = max((margin for _, margin in margins), default=0.0)
        state['e'] = e_value(
            d,
            s,
            pooled([capped(found, margin, s) for found in every]),
            state['e'],
            level,
            is_last(rows, row, state['rounds'], margins),
            margin,
        )
        count, mean = len(state['d']), np.mean(state['d'])
        noise = math.sqrt(np.mean(np.square(state['s'])) / count)
        spread = np.std(state['d'], ddof=1) / math.sqrt(count)
        standard_error = max(spread, noise, pooled(every) / math.sqrt(count))
        degrees = sum(max(len(pairs) - 1, 0) for pairs in every)
        half = stats.t(max(count - 1, degrees)).ppf(0.975) * standard_error
        numbers |= dict(
            effect=mean,
            standard_error=standard_error,
            low=mean - half,
            high=mean + half,
            e_value=state['e'],
            threshold=1 / level,
        )
      compared += 1
      check(row, numbers, standing)
  print(f'{compared} comparisons recomputed, {len(differences)} differences')
  return differences


if __name__ == '__main__':
  found = compare(pathlib.Path(sys.argv[1]))
  print(*found, sep='\n')
  sys.exit(bool(found))
