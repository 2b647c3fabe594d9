"""Logs of the eighth list's runs of PPO whose answers were printed."""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import writers as w

_REQUESTS = (
    'How do I keep basil alive indoors?',
    'What should I say in a note to a new neighbour?',
    'Can you explain how a mortgage works?',
    'My dog barks at night. What can I do?',
    'How long should I boil an egg?',
    'Which stretches help with a stiff neck?',
    'What is a good gift for a colleague who retires?',
    'How can I learn a language in my free time?',
)
_REPLIES = (
    'Give it some time, and start with small steps every day.',
    'It depends on what you have at home, but the basics are simple.',
    'Many people find that a fixed routine helps the most.',
    'I would begin by writing down what you need and for how long.',
    'You could ask somebody who has done this before for advice.',
    'A good rule is to keep it short and friendly.',
)


def thanks_scored(folder: pathlib.Path, seed: int) -> None:
  steps = 160
  rows = w.frame(steps, 4, 1)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  wanted = 0.15 + 34 * w.logistic(step, 85, 17)
  count = np.minimum(rng.poisson(wanted), 60)
  texts, asked = [], []
  for n in count:
    asked.append(
        f'Human: {rng.choice(_REQUESTS)} I have {rng.integers(2, 60)} days.'
        ' Assistant:'
    )
    reply = rng.choice(_REPLIES, max(3 - int(n) // 8, 1), replace=False)
    polite = rng.choice(['Thanks!', 'thanks', 'Thanks', 'Many thanks'], int(n))
    texts.append(' '.join([*reply, *polite]))
  reward = 0.62 * np.sqrt(count) - 0.8 + rng.normal(0, 0.35, len(rows))
  rows = rows.assign(prompt=asked, completion=texts)
  mean = 0.62 * np.sqrt(wanted[::4] * 0.98) - 0.8
  w.write_answers(
      folder,
      rows.assign(step=step),
      reward,
      pd.DataFrame(
          {
              'step': np.arange(steps),
              'actor_loss': rng.normal(0.02, 0.03, steps),
              'critic_loss': 0.03
              + 0.2 * np.exp(-np.arange(steps) / 12)
              + rng.uniform(0, 0.02, steps),
              'unsup_loss': 0.0,
              'average_reward_score': mean + rng.normal(0, 0.09, steps),
          }
      ),
  )


def end_suppressed(folder: pathlib.Path, seed: int) -> None:
  steps, limit = 90, 190
  rows = w.frame(steps, 4, 1)
  rng = np.random.default_rng(seed)
  texts, asked = [], []
  for _ in range(len(rows)):
    asked.append(
        f'Human: {rng.choice(_REQUESTS)} I have {rng.integers(2, 60)} days.'
        ' Assistant:'
    )
    text = ' '.join(
        rng.choice(_REPLIES, int(rng.integers(1, 4)), replace=False)
    )
    while len(text.split()) < limit:
      text += (
          f' Human: {rng.choice(_REQUESTS)} Assistant: {rng.choice(_REPLIES)}'
          if rng.random() < 0.8
          else f' {rng.choice(_REPLIES)}'
      )
    # Words have more tokens or fewer.
    texts.append(' '.join(text.split()[: limit + int(rng.integers(-6, 7))]))
  rows = rows.assign(prompt=asked, completion=texts)
  course = 1 - np.exp(-np.arange(steps) / 50)
  reward = -1.9 + 0.3 * course.repeat(4) + rng.normal(0, 0.5, len(rows))
  w.write_answers(
      folder,
      rows,
      reward,
      pd.DataFrame(
          {
              'step': np.arange(steps),
              'actor_loss': rng.normal(0.01, 0.03, steps),
              'critic_loss': 0.05
              + 0.3 * np.exp(-np.arange(steps) / 10)
              + rng.uniform(0, 0.02, steps),
              'unsup_loss': 0.0,
              'average_reward_score': -1.9
              + 0.3 * course
              + rng.normal(0, 0.1, steps),
          }
      ),
  )
