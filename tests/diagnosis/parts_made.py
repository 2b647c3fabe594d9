"""Synthetic runs whose fault lies between sampler, reward and loss."""

from collections.abc import Sequence
import pathlib
from typing import Any

import numpy as np
import pandas as pd

from evojax.diagnosis import form
from tests.diagnosis import made

STEPS = 40


def metrics(
    seed: int = 0, drop: Sequence[str] = ('gap',), **changed: Any
) -> form.Run:
  """Return a sound run of which a trainer logged only metrics.

  Args:
    seed: Of all random numbers.
    drop: Metrics that are not logged.
    **changed: Metrics that replace or join others.
  """
  rows = made.rollouts(seed)
  by = rows.groupby('step')
  known = made.run(rows, seed).rollouts.groupby('step')['reward'].mean()
  found = {
      'reward': known.to_numpy(),
      'length': by['n_tokens'].mean().to_numpy(),
      'truncated': by['truncated'].mean().to_numpy(),
      'part_correct': by['outcome'].mean().to_numpy(),
      'part_format': by['format_ok'].mean().to_numpy(),
  }
  steps = made.metrics(rows, seed, **{**found, **changed})
  steps = steps.drop(columns=list(drop))
  settings = {'total_steps': STEPS}
  path = pathlib.Path('made')
  return form.make(path, 'trl', pd.DataFrame(), steps, settings)


def noise(low: float, high: float, seed: int = 3) -> np.ndarray:
  """Return random numbers of a range, one per step."""
  return np.random.default_rng(seed).uniform(low, high, STEPS)


def flat(**changed: Any) -> form.Run:
  """Return metrics of a policy that stays as it is."""
  still = {
      'reward': noise(0.48, 0.52, 4),
      'length': noise(98, 102, 5),
      'entropy': noise(0.48, 0.52, 6),
  }
  return metrics(**(still | changed))


def gap(**changed: Any) -> form.Run:
  """Return metrics with a log-prob gap, and other changes."""
  return metrics(drop=(), **changed)


def rates(course: np.ndarray) -> form.Run:
  """Return metrics with a learning rate."""
  return metrics(learning_rate=course)


def stale(**changed: Any) -> form.Run:
  """Return metrics of a policy that moves while its rollouts do not."""
  return flat(**({'kl': np.linspace(1e-4, 0.6, STEPS)} | changed))


def advantages(low: float, mean: float) -> form.Run:
  """Return metrics with the lowest and the mean advantage of a token."""
  return metrics(
      advantage_low=noise(low, low), advantage_mean=noise(mean, mean + 0.02)
  )


def lengths(low: np.ndarray, high: np.ndarray) -> form.Run:
  """Return metrics with the lengths of the shortest and longest completion."""
  return metrics(length_low=low, length_high=high)


def restarted(*places: int, growth: float = 1e-3) -> np.ndarray:
  """Return a KL that grows, and begins again at some steps."""
  since = np.arange(STEPS)
  for place in places:
    since = np.where(np.arange(STEPS) < place, since, np.arange(STEPS) - place)
  return (1e-4 + growth * since) * noise(0.9, 1.1)


def shrinking(end: float) -> np.ndarray:
  """Return lengths that fall from 90 to an end, most of it at once."""
  return end + (90 - end) * np.exp(-np.arange(STEPS) / 5)


def looping(first: int, share: float = 0.9) -> form.Run:
  """Return rollouts of which a share repeats a phrase from a step on."""
  rows = made.rollouts(rise=0)
  rng = np.random.default_rng(0)
  loops = (rows['step'] >= first) & (rng.random(len(rows)) < share)
  rows['completion'] = np.where(
      loops,
      'and the and the ' * 40,
      [' '.join(map(str, rng.integers(0, 999, 80))) for _ in range(len(rows))],
  )
  rows.loc[loops, ['outcome', 'part_correct', 'part_format', 'format_ok']] = 0.0
  return made.run(rows)


def refused(share: float) -> form.Run:
  """Return rollouts whose right answers count as wrong, but for a share."""
  rows = made.rollouts()
  kept = np.random.default_rng(0).random(len(rows)) >= share
  rows['outcome'] = rows['part_correct'] = rows['outcome'] * kept
  return made.run(rows, drop=('format_ok',))


def replying(share: float, error: str, form_: str) -> form.Run:
  """Return completions with a reply of a tool, of which a share is an error."""
  rows = made.rollouts()
  rng = np.random.default_rng(0)
  failed = rng.random(len(rows)) < share
  replies = np.where(failed, error, rng.integers(0, 10**6, len(rows)))
  rows['completion'] = [
      form_.format(reply) + text
      for reply, text in zip(replies, rows['completion'], strict=True)
  ]
  return made.run(rows)


def calls(start: float, end: float, rise: float = 0.0) -> form.Run:
  """Return episodes whose calls go from one number to another."""
  rows = made.rollouts(rise=rise)
  mean = start + (end - start) * np.minimum(rows['step'] / 15, 1)
  rows['n_calls'] = np.random.default_rng(0).poisson(mean)
  return made.run(rows.assign(n_turns=1 + rows['n_calls']))


def repeated(unsolved: float, solved: float = 0.0) -> form.Run:
  """Return rollouts with a part that knows only what is solved."""
  rows = made.rollouts()
  return made.run(
      rows.assign(part_tools=np.where(rows['outcome'] > 0.5, solved, unsolved))
  )


def spaced(share: float) -> form.Run:
  """Return completions whose reward swings with their length."""
  rows = made.rollouts()
  size = np.random.default_rng(0).normal(330, 120, len(rows)).clip(40, 900)
  rows['completion'] = ['x' * int(n) for n in size]
  wave = share * np.cos(np.pi * size.astype(int) / 256)
  return made.run(rows.assign(part_style=wave))


def boxed(longest: int) -> form.Run:
  """Return right answers that never count if they are longer than that."""
  rows = made.rollouts(problems=400)
  long = rows['prompt'].str.contains('[05][?]')
  rows['reference'] += np.where(long, r' + \frac{1}{x}' * 3, '')
  given = np.where(rows['outcome'] > 0.5, rows['reference'], '-1')
  rows['completion'] = [f'so \\boxed{{{x}}}' for x in given]
  rows['outcome'] *= rows['reference'].str.len() <= longest
  return made.run(rows)


def winning(right: float, form_: float) -> form.Run:
  """Return metrics of two parts that end at these means."""
  small = noise(-0.01, 0.01)
  right = np.linspace(0.5, right, STEPS) + small
  form_ = np.linspace(0.3, form_, STEPS) + small
  return metrics(part_correct=right, part_format=form_, reward=right + form_)


def one_group(
    share: float = 0.5, every: float = 0.0, name: str = 'grad_norm'
) -> form.Run:
  """Return metrics of steps with one group, of which a share is dead.

  Args:
    share: Share of the steps whose rewards are all 0 or all 1.
    every: Share of the other steps without a gradient.
    name: The metric that says so.
  """
  rng = np.random.default_rng(7)
  dead = rng.random(STEPS) < share
  some = rng.uniform(0.1, 0.9, STEPS)
  reward = np.where(dead, rng.integers(0, 2, STEPS), some)
  none = dead | (rng.random(STEPS) < every)
  moved = {name: np.where(none, 0.0, noise(0.5, 2.0))}
  drop = ('gap', 'part_correct', 'part_format')
  if name != 'grad_norm':
    drop += ('grad_norm',)
  return metrics(drop=drop, reward=reward, **moved)


def counted(prompts: float, per: float = 0.5) -> form.Run:
  """Return completions with a logged length, in tokens.

  Args:
    prompts: Tokens that count for a character of a prompt.
    per: Tokens that count for a character of a completion.
  """
  rows = made.rollouts()
  rng = np.random.default_rng(9)
  more = rng.integers(20, 200, 320)[8 * rows['step'] + rows['group']]
  rows['prompt'] += [' ' + 'y' * n for n in more]
  rows['completion'] += [' ' + 'x' * n for n in rng.integers(5, 90, len(rows))]
  size = per * rows['completion'].str.len() + prompts * rows['prompt'].str.len()
  length = size.groupby(rows['step']).mean().to_numpy() * NEAR
  return made.run(rows, drop=('n_tokens', 'truncated'), length=length)


# Name -> (maker, checks any of which names it); see `faults_made`.
NEAR = noise(0.98, 1.02)  # Factors that are noise.
EVERY_EIGHTH = np.where(np.arange(STEPS) % 8 == 0, 0.5, np.nan)
def unmarked(
    line: str = 'It is: {}',
    share: float = 0.4,
    paid: float = 0.0,
    asked: str = '',
    key: str = 'green amber {} stone',
    numbered: bool = True,
) -> form.Run:
  """Return a run whose right answers, of text, never count.

  Args:
    line: What right completions say of the reference.
    share: Share of them.
    paid: Share of all completions that count as right.
    asked: What the prompts say of the reference.
    key: The reference, around the number of the problem.
    numbered: Whether the outcome is logged.
  """
  rows = made.rollouts()
  rng = np.random.default_rng(10)
  rows['reference'] = [key.format(n) for n in rows['reference']]
  right = rng.random(len(rows)) < share
  said = np.where(right, rows['reference'], 'green amber stone')
  rows['completion'] = [f'Well.\n{line.format(text)}' for text in said]
  rows['prompt'] += [asked.format(text) for text in rows['reference']]
  counts = (rng.random(len(rows)) < paid).astype(float)
  rows = rows.drop(columns=['part_format', 'format_ok'])
  rows = rows.assign(outcome=counts, part_correct=counts)
  drop = () if numbered else ('outcome', 'part_correct')
  return made.run(rows, reward=lambda e: counts, drop=drop)


def endless(
    more: str = 'It is a sum of two numbers. Human: And that? Assistant: ',
    spread: int = 6,
    end: str = '',
    limit: int = 400,
    logged: bool = False,
) -> form.Run:
  """Return a run of answers that all go on to about one length.

  Args:
    more: What they say over and over.
    spread: Standard deviation of their characters.
    end: What all of them end with.
    limit: Mean of their characters.
    logged: Whether the share that is cut is logged.
  """
  rows = made.rollouts(groups=16, size=1)
  rng = np.random.default_rng(9)
  sizes = np.maximum(rng.normal(limit, spread, len(rows)), 20).astype(int)
  shift = rng.integers(0, len(more), len(rows))
  rows['completion'] = [
      (more[at:] + more * 40)[:size] + end
      for at, size in zip(shift, sizes, strict=True)
  ]
  rows['prompt'] = 'Human: ' + rows['prompt'] + ' Assistant:'
  rows['reward'] = rng.normal(0, 1, len(rows))
  columns = ['step', 'prompt', 'completion', 'reward']
  steps = pd.DataFrame({'step': np.arange(STEPS)})
  if logged:
    steps['truncated'] = 1.0
  path = pathlib.Path('made')
  return form.make(path, 'table', rows[columns], steps, {})


FAULTS = {
    'other_weights': (lambda: gap(gap=noise(8, 9)), ('other_weights',)),
    'stale_sampler': (stale, ('stale_sampler',)),
    'kl_jumps': (
        lambda: metrics(
            kl_update=np.where(np.arange(STEPS) % 9 == 4, 0.7, 2e-4)
        ),
        ('kl_jumps',),
    ),
    'off_policy': (
        lambda: metrics(
            kl_update=5e-3 * np.exp(np.arange(STEPS) / 8) * NEAR,
            reward=np.linspace(0.5, 0.2, STEPS) * NEAR,
        ),
        ('off_policy',),
    ),
    'rate_ends': (
        lambda: rates(1e-4 * np.maximum(1 - np.arange(STEPS) / 20, 0)),
        ('schedule_ends',),
    ),
    'never_paid': (
        lambda: made.run(made.rollouts().assign(part_style=0.0)),
        ('never_paid',),
    ),
    'repeated_part': (lambda: repeated(-0.1), ('redundant_part',)),
    'no_baseline': (lambda: advantages(0.0, 0.4), ('no_baseline',)),
    'padded': (
        lambda: lengths(*[noise(60, 90).round()] * 2),
        ('padded_lengths',),
    ),
    'reward_falls': (
        lambda: metrics(reward=np.linspace(0.6, 0.1, STEPS) + noise(0, 0.02)),
        ('reward_falling',),
    ),
    'length_alone': (
        lambda: metrics(reward=noise(50, 90) / 64, length=noise(50, 90)),
        ('length_alone',),
    ),
    'impossible_share': (
        lambda: metrics(clip=noise(-1, 1)),
        ('impossible_share',),
    ),
    'kl_negative': (
        lambda: metrics(kl=-1e-3 * np.exp(np.arange(STEPS) / 7)),
        ('kl_negative',),
    ),
    'other_reference': (
        lambda: metrics(kl=noise(0.45, 0.5)),
        ('kl_at_start',),
    ),
    'moved_reference': (
        lambda: metrics(kl=restarted(25)),
        ('kl_restarts',),
    ),
    'kept_cache': (
        lambda: gap(gap=(0.01 + 6e-3 * (np.arange(STEPS) % 14)) * NEAR),
        ('gap_restarts',),
    ),
    'entropy_jumps': (
        lambda: metrics(
            entropy=np.where(np.arange(STEPS) < 20, 0.42, 0.33) * NEAR
        ),
        ('entropy_jumps',),
    ),
    'loaded_at_restarts': (
        lambda: metrics(
            outcome=np.repeat([0.3, 0.42, 0.54], [16, 16, 8]) * NEAR
        ),
        ('score_jumps',),
    ),
    'other_subset': (
        lambda: metrics(
            eval_outcome=np.where(np.arange(STEPS) < 20, 0.68, 0.6) * NEAR
        ),
        ('eval_jumps',),
    ),
    'answers_of_the_test': (
        lambda: metrics(
            **{'evaluation_val/reward': EVERY_EIGHTH * NEAR},
            reward=np.where(np.arange(STEPS) % 8 == 1, 0.2, 0.5) * NEAR,
        ),
        ('after_evaluations',),
    ),
    'detached_values': (
        lambda: metrics(value=-0.2 * NEAR, **{'return': 0.1 * NEAR}),
        ('critic_untrained',),
    ),
    'useless_critic': (
        lambda: metrics(explained=noise(-0.1, 0.02)),
        ('critic_untrained',),
    ),
    'reward_lost': (
        lambda: metrics(reward=np.zeros(STEPS), grad_norm=np.zeros(STEPS)),
        ('reward_lost',),
    ),
    'eval_falling': (
        lambda: metrics(eval_outcome=np.linspace(0.7, 0.5, STEPS) * NEAR),
        ('eval_falling',),
    ),
    'judges_part': (
        lambda: metrics(
            **{
                'evaluation_val/judge': np.linspace(0.3, 0.5, STEPS) * NEAR,
                'evaluation_val/gold': np.linspace(0.5, 0.3, STEPS) * NEAR,
            }
        ),
        ('evals_part',),
    ),
    'eval_zero': (
        lambda: metrics(
            **{'evaluation_val/exact_match': np.zeros(STEPS)},
            outcome=np.linspace(0.3, 0.6, STEPS),
        ),
        ('eval_zero',),
    ),
    'kl_zero': (
        lambda: flat(kl=np.zeros(STEPS), learning_rate=1e-5),
        ('kl_zero',),
    ),
    'update_large': (
        lambda: metrics(kl_update=noise(0.1, 0.3)),
        ('update_large',),
    ),
    'loss_summed': (
        lambda: metrics(loss=noise(-300, 300), grad_norm=noise(60, 180)),
        ('loss_summed',),
    ),
    'eval_scale': (
        lambda: metrics(eval_reward=np.linspace(-0.6, -0.3, STEPS)),
        ('eval_scale',),
    ),
    'advantage_spikes': (
        lambda: metrics(
            advantage_low=np.where(np.arange(STEPS) % 9 == 4, -900.0, -2.4)
        ),
        ('advantage_spikes',),
    ),
    'reward_by_length': (lambda: spaced(0.5), ('reward_by_length',)),
    'limit_shortens': (
        lambda: metrics(
            length=60 + 40 * np.exp(-np.arange(STEPS) / 6),
            truncated=0.02 + 0.2 * np.exp(-np.arange(STEPS) / 6),
        ),
        ('limit_shortens',),
    ),
    'fixed_part': (lambda: metrics(part_correct=0.5), ('fixed_part',)),
    'form_wins': (lambda: winning(0.2, 0.9), ('form_wins',)),
    'long_answers': (lambda: boxed(30), ('text_refused',)),
    'shrinks': (lambda: metrics(length=shrinking(1.0)), ('shrinks',)),
    'loops': (lambda: looping(0), ('loops',)),
    'refused': (lambda: refused(1.0), ('right_refused',)),
    'tag_unwritten': (unmarked, ('plain_refused',)),
    'dead_tool': (
        lambda: replying(0.6, 'UnknownError', '```output\n{}\n```\n'),
        ('same_error',),
    ),
    'one_group': (one_group, ('idle_steps',)),
    'raw_log_probs': (lambda: metrics(ratio=0.94 * NEAR), ('ratio_off',)),
    'length_of_prompts': (
        lambda: metrics(length=np.full(STEPS, 203.0)),
        ('fixed_length',),
    ),
    'turns_encoded_again': (
        lambda: gap(
            gap_high=np.where(np.arange(STEPS) % 7 == 3, 15.0, 0.6),
            loss=np.where(np.arange(STEPS) % 7 == 3, 1.5, 0.03) * NEAR,
        ),
        ('unsampled_tokens',),
    ),
    'end_suppressed': (endless, ('fixed_length',)),
    'length_of_both': (lambda: counted(0.5), ('other_length',)),
    'more_calls': (lambda: calls(1.0, 3.0, -0.2), ('calls_grow',)),
    'unlearned_calls': (lambda: calls(1.5, 0.0), ('calls_unlearned',)),
}
