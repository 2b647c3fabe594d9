"""Common names for the metrics and columns that trainers log."""

from collections.abc import Collection, Sequence
import re

import numpy as np
import pandas as pd

from evojax.diagnosis import form
from evojax.diagnosis import meanings

# Common name of a step's metric -> names in logs, in order of preference. A
# prefix such as 'train/' is ignored.
METRICS = {
    'reward': (
        'reward',
        'critic/rewards/mean',
        'reward/mean',
        'reward/overall',
        'rewards/sum',
        'reward/all/mean',
        'reward/avg_raw_reward',
        'rollout/reward_mean',
        'rollout/raw_reward',
        'objective/scores',
        'env/reward_mean',
        'critic/score/mean',
    ),
    'outcome': (
        'rewards/correct/mean',
        'rewards/accuracy_reward/mean',
        'rewards/accuracy_reward',
        'objective/verifiable_correct_rate',
    ),
    'eval_outcome': ('eval_rewards/correct/mean', 'eval_reward'),
    'entropy': (
        'entropy',
        'actor/entropy',
        'entropy/mean',
        'entropy/all/mean',
        'policy/policy_entropy',
        'policy/entropy_avg',
        'actor/entropy_loss',
    ),
    'kl': (
        'kl',
        'actor/kl_loss',
        'kl/mean',
        'critic/kl',
        'kl_loss',
        'kl_penalty',
    ),
    'kl_coef': ('actor/kl_coef', 'critic/kl_coeff'),
    'kl_update': (
        'actor/ppo_kl',
        'policy/approxkl_avg',
        'ppo_kl',
        'rl/kl_new_old',
    ),
    'clip': (
        'clip_ratio/region_mean',
        'clip_ratio',
        'actor/pg_clipfrac',
        'policy/ppo_clip_ratio',
        'policy/clipfrac_avg',
        'ppo/policy/clipfrac',
        'pg_clipfrac',
        'rl/clamp_log_ratio_new_old_indicator',
    ),
    'grad_norm': (
        'grad_norm',
        'actor/grad_norm',
        'optim/grad_norm',
        'policy/raw_grad_norm',
    ),
    'learning_rate': (
        'learning_rate',
        'actor/lr',
        'optim/lr',
        'policy/policy_lr',
        'lr-pg_0',
        'ppo/learning_rate',
        'lr',
    ),
    'loss': (
        'loss',
        'actor/pg_loss',
        'loss/mean',
        'policy/final_loss',
        'loss/policy_avg',
        'ppo/loss/total',
    ),
    'advantage_mean': (
        'critic/advantages/mean',
        'advantages/mean',
        'loss/avg_raw_advantages',
        'rl/advantage',
    ),
    'advantage_low': (
        'critic/advantages/min',
        'advantages/min',
        'rl/min_advantage',
    ),
    'advantage_high': (
        'critic/advantages/max',
        'advantages/max',
        'rl/max_advantage',
    ),
    'advantage_size': ('loss/avg_raw_advantages_abs',),
    'length': (
        'completions/mean_length',
        'response_length/mean',
        'seq_len/mean',
        'generate/avg_num_tokens',
        'rollout/response_len_mean',
        'rollout/response_len/mean',
        'mean_gen_tokens_per_sample',
        'tokens/responses_len_mean',
        'val/sequence_lengths',
        'completion_length',
    ),
    'length_low': ('completions/min_length', 'response_length/min'),
    'length_high': ('completions/max_length', 'response_length/max'),
    'truncated': (
        'completions/clipped_ratio',
        'response_length/clip_ratio',
        'is_truncated/mean',
        'is_truncated/all/mean',
        'rollout/trunc_ratio',
        'rollout/truncated_ratio',
    ),
    'dead': (
        'frac_reward_zero_std',
        'rollout/zero_std_group_ratio',
        'solve_none',
    ),
    'gap': (
        'sampling/sampling_logp_difference/mean',
        'training/rollout_probs_diff_mean',
        'mismatch_kl/mean',
        'mismatch_kl/all/mean',
        'policy/rollout_train_logprobs_abs_diff_mean',
        'debug/vllm_vs_local_logprob_diff_mean',
        'rollout_logprob_abs_diff',  # After the prefix 'train_'.
        'rollout_corr/kl',
        'rollout_correction/kl',
    ),
    'gap_high': (
        'sampling/sampling_logp_difference/max',
        'debug/vllm_vs_local_logprob_diff_max',
    ),
    'ratio': (
        'sampling/importance_sampling_ratio/mean',
        'rl/ratio_new_old',
    ),
    'ratio_high': ('sampling/importance_sampling_ratio/max',),
    'explained': (
        'critic/vf_explained_var',
        'vf_explained_var',
        'explained_variance',
        'ppo/val/var_explained',
    ),
    'value': ('critic/values/mean', 'mean_value', 'ppo/val/mean'),
    'return': ('critic/returns/mean', 'mean_return', 'ppo/returns/mean'),
    'n_turns': (
        'num_turns/mean',
        'num_turns/all/mean',
        'env/number_of_actions/mean',
    ),
    'n_calls': ('tools/call_frequency', 'tool_call_counts/mean'),
    'calls_failed': ('tools/failure_frequency',),
}
# The mean of exp |gap| of a token, instead of the gap.
_GAP_FACTOR = 'token_mult_prob_error'
# The share of valid actions; `calls_failed` is the rest.
_VALID = ('episode/valid_action_ratio', 'env/ratio_of_valid_action')
_STEP = (
    'step',
    'global_step',
    'train/global_step',
    'training/global_step',
    '_step',
)
# Mean scores of evaluations in verl, one per data set, by the kind of score.
_HELD_OUT = re.compile(r'val-core/.+/(acc|reward|score)/mean@\d+')
_PREFIXES = ('train/', 'train_')
# Means of reward functions, before their weights, under both names that TRL
# gave them, and their standard deviations over a batch.
_PART_MEAN = re.compile(r'(rewards|reward|reward_metrics)/([^/]+)(?:/mean)?')
# Names that are not those of parts, and words in the names of other metrics
# that some trainers log below `reward/`.
_TOTALS = {'max', 'mean', 'min', 'overall', 'std', 'sum', 'total'}
_NO_PARTS = {'advantage', 'advantages', 'all', 'avg', 'kl', 'pass', 'raw'}
_CHOSEN = 'rewards/chosen'
_PART_STD = re.compile(r'rewards/[^/]+/std')
# Words in the names of columns that tell whether a completion is right, and
# words that give such names another meaning.
_OUTCOME = (
    r'outcome', r'acc|accurac(?:y|ies)|accurate', r'(?:is)?correct\w*',
    r'(?:is)?solved?', r'exact\w*', r'pass(?:e[sd])?',
)  # fmt: skip
_OTHERS = re.compile(
    r'format\w*|not|non|no|never|in|wrong\w*|fail\w*|err(?:or)?s?'
)
_JUDGES = ('answer', 'number', 'success')
# The same in the names of parts that look at the form, and not at answers.
_FORM = re.compile(r'format|(?<![a-z])tags?(?![a-z])|xml')
_OF_ANSWERS = re.compile(r'acc|answer|correct|judge|match|score|solve|success')
_MOST_SHARE = 1.01  # Means in float16 may be slightly above 1.
_WORD = re.compile(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+')
_REFERENCE = (
    'gts',
    'ground_truth',
    'answer',
    'solution',
    'reference',
    'target',
)


def _bare(name: str) -> str:
  for prefix in _PREFIXES:
    name = name.removeprefix(prefix)
  return name.replace('/train/', '/')  # As in rewards/train/sum.


def common(
    log: pd.DataFrame,
    notes: list[str] | None = None,
    given: Collection[str] = (),
    *,
    trainer_known: bool = False,
) -> pd.DataFrame:
  """Return the metrics of steps under their common names.

  Args:
    log: One row per step, under the names of a trainer.
    notes: If given, it gets the metrics that are not what their names say.
      Unless the trainer is known, metrics that no list has are recognised by
      the words of their names, and the notes say which.
    given: Common names that --columns gave to columns of the log.
    trainer_known: Whether the lists have all names of the trainer.
  """
  bare = {}
  for name in log:
    bare.setdefault(_bare(str(name)), name)
  counters = [log[bare[_bare(n)]] for n in _STEP if _bare(n) in bare]
  if not counters:
    return pd.DataFrame()
  found = {'step': _filled(*counters)}
  for name, candidates in METRICS.items():
    chosen = next((bare[c] for c in candidates if c in bare), None)
    if chosen is not None:
      found[name] = log[chosen]
  found |= {n: log[n] for n in given if n in form.STEP and n in log}
  if 'eval_outcome' not in found:
    found |= _held_out(log)
  guessed: dict[str, str] = {}
  if notes is not None and not trainer_known:
    guessed = {
        meaning: name
        for meaning, name in meanings.best(log).items()
        if meaning not in found
    }
    found |= {meaning: log[name] for meaning, name in guessed.items()}
  others = _no_shares(found)
  if notes is not None:
    notes += [
        f'the metric {name!r} is read as {meaning} (--columns={meaning}=...)'
        for meaning, name in guessed.items()
        if meaning in found
    ]
    notes += others
  if 'gap' not in found and _GAP_FACTOR in bare:
    factor = form.numeric(log[bare[_GAP_FACTOR]])
    found['gap'] = np.log(factor.clip(lower=1.0))
  valid = next((bare[name] for name in _VALID if name in bare), None)
  if valid is not None and _is_share(log[valid]):
    found.setdefault('calls_failed', 1.0 - form.numeric(log[valid]))
  for name, column in part_means(log).items():
    found[form.PART + name] = log[column]
  for name in map(str, log):
    if meanings.is_evaluation(name):
      found[form.EVALUATION + name] = log[name]
  if _CHOSEN in bare:  # DPO logs the KL of a completion, not of a token.
    found.pop('kl', None)
  spreads = [c for name, c in bare.items() if _PART_STD.fullmatch(name)]
  if spreads:
    spread = log[spreads].apply(form.numeric)
    found['spread'] = spread.max(axis=1)
  return pd.DataFrame(found)


def _filled(step: pd.Series, *others: pd.Series) -> pd.Series:
  """Return a step counter, with gaps filled from other counters that agree.

  An evaluation before training has no step of the trainer, only W&B's own.
  """
  for other in others:
    both = step.notna() & other.notna()
    if both.any() and (step[both] == other[both]).all():
      step = step.where(step.notna(), other)
  return step


def _no_shares(found: dict[str, pd.Series]) -> list[str]:
  """Drop shares with impossible values; return a note for each.

  An outcome outside [0, 1] is not a solved share; such a score of an evaluation
  counts as a reward. Other shares above 1 are percentages or counts. Other
  values below 0 are kept, since a check explains them.
  """
  said = []
  for name in ('clip', 'truncated', 'dead', 'left_out'):
    if name not in found:
      continue
    known = form.numeric(found[name])
    if known.max() > _MOST_SHARE and known.min() >= 0:
      said.append(
          f'{found.pop(name).name!r} is not a share: it has values above 1, as'
          ' percentages and counts have'
      )
  for name in ('outcome', 'eval_outcome'):
    if name not in found or _is_share(found[name]):
      continue
    values = found.pop(name)
    said.append(f'{values.name!r} is not a share: it has values outside [0, 1]')
    if name == 'eval_outcome':
      found.setdefault('eval_reward', values)
  return said


def _held_out(log: pd.DataFrame) -> dict[str, pd.Series]:
  """Return the mean over verl's evaluations, whose scores may be below 0."""
  kinds: dict[str, list[str]] = {}
  for column in log:
    if match := _HELD_OUT.fullmatch(str(column)):
      kinds.setdefault(match[1], []).append(column)
  for kind in ('acc', 'reward', 'score'):
    if kind in kinds:
      scores = log[kinds[kind]].apply(form.numeric)
      mean = scores.mean(axis=1)
      return {'eval_outcome' if _is_share(mean) else 'eval_reward': mean}
  return {}


def _is_share(values: pd.Series) -> bool:
  """Return whether all values lie in [0, 1]; a score may have another scale."""
  known = form.numeric(values).dropna()
  return bool(known.between(0, 1).all())


def part_means(log: pd.DataFrame) -> dict[str, str]:
  """Return part of the reward -> column of its mean, before weighting.

  Training on preferences (DPO, KTO) has none: its rewards are those of texts
  that no policy sampled.
  """
  found: dict[str, str] = {}
  if _CHOSEN in {_bare(str(column)) for column in log}:
    return found
  for column in log:
    match = _PART_MEAN.fullmatch(_bare(str(column)))
    if match and not _is_total(*match.groups()):
      found[match[2]] = column
  return found


def _is_total(folder: str, name: str) -> bool:
  """Return whether a name below `reward/` or `rewards/` is no part."""
  if folder == 'reward':
    return bool((_TOTALS | _NO_PARTS) & set(re.split(r'[_@]', name)))
  return name in _TOTALS


def judges(part: str) -> bool:
  """Return whether a part of the reward tells what is right, by its name."""
  low = part.lower()
  if 'format' in low:
    return False
  return _says_outcome(part) or any(word in low for word in _JUDGES)


def is_form(part: str) -> bool:
  """Return whether a part of the reward judges the form alone, by its name."""
  low = part.lower()
  return bool(_FORM.search(low)) and not _OF_ANSWERS.search(low)


def _says_outcome(name: str, patterns: Sequence[str] = _OUTCOME) -> bool:
  """Return whether a name has a word that says what is solved.

  'incorrect' does not, and neither do 'not_correct' and 'correct_format'.
  """
  words = [word.lower() for word in _WORD.findall(name)]
  if any(_OTHERS.fullmatch(word) for word in words):
    return False
  return any(re.fullmatch(p, word) for p in patterns for word in words)


def guess_outcome(
    rows: pd.DataFrame,
    parts: Sequence[str],
    taken: dict[str, str],
    notes: list[str],
) -> None:
  """Choose the column that tells what is solved, unless it is given.

  The candidates are columns with a suitable name, the only reward part (unless
  it is that of the form), parts whose names tell what is right, and a reward
  without parts, in this order. The first one of 0s and 1s is chosen; without
  any, the first one of two values on another scale (-1 and 1, 0 and 2), see
  `form.tells_solved`.
  """
  if 'outcome' in taken:
    return
  named = [
      n
      for pattern in _OUTCOME
      for n in rows
      if n != 'outcome' and _says_outcome(str(n), (pattern,))
  ]
  only = [n for n in parts if len(parts) == 1 and not is_form(n)]
  judging = [n for n in parts if judges(n)]
  # Without parts, a reward of 0s and 1s tells what is right.
  reward = taken.get('reward', 'reward')
  paid = [reward] if not parts and reward in rows else []
  levels = {}
  for name in [*named, *only, *judging, *paid]:
    values = form.numeric(rows[name]).to_numpy(np.float64)
    levels[name] = np.unique(values[np.isfinite(values)])
  for fits in (_is_binary, form.tells_solved):
    for name, values in levels.items():
      if len(values) and fits(values):
        taken['outcome'] = name
        scaled = fits is not _is_binary and max(values) > 0
        where = f', where it is {max(values):g}' if scaled else ''
        notes.append(
            f'the column {name!r} is taken to say what is solved{where}'
            ' (--columns=outcome=...)'
        )
        return
  notes.append('no column says what is solved: --columns=outcome=NAME')


def _is_binary(values: np.ndarray) -> bool:
  """Return whether all values are 0 or 1."""
  return bool(np.isin(values, (0.0, 1.0)).all())


def guess_texts(rows: pd.DataFrame, taken: dict[str, str]) -> None:
  """Choose the columns of the right answer and the format, unless given."""
  for name in _REFERENCE:
    if 'reference' not in taken and name in rows:
      if rows[name].notna().any():
        taken['reference'] = name
  formats = (c for c in map(str, rows.columns) if 'format' in c.lower())
  form_ = next(formats, None)
  if form_ and 'format_ok' not in taken and not form_.startswith(form.PART):
    values = form.numeric(rows[form_]).dropna().unique()
    # A column of 0s alone does not tell what is readable.
    if _is_binary(values) and (values > 0).any():
      taken['format_ok'] = form_
