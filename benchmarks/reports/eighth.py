"""Logs of the eighth list's faults in rewards, judges, formats, lengths.

How the list was drawn, each step written down before the next (2026-11-29):

1. Twenty-four queries, fixed before the first was run, each put to a search of
   issue threads and then to one of web pages: LoRA GRPO vLLM weights not
   updated rollouts identical to base model; MoE RL training collapse routing
   mismatch between inference and training; multi-turn tool response tokens
   included in loss mask RL agent; KL suddenly spikes and reward crashes PPO
   RLHF; model exploits reward model, responses get longer and repetitive while
   score goes up; policy outputs gibberish after a few hundred RL steps; LLM
   judge reward hacked GRPO model says anything to get high score; validation
   accuracy drops while training reward keeps improving GRPO; resume from
   checkpoint GRPO reward drops back to the start; verifier timeout counts as
   zero reward RL code training; wrong ground truth labels dataset GRPO reward
   noise; temperature top_p sampling mismatch rollout log prob importance ratio;
   SWE agent RL reward hacking git history or editing tests; VLM GRPO model
   ignores image reward still rises; GRPO all advantages zero every group same
   reward; response length collapses to a few tokens during RL; model never
   outputs EOS token RL rollouts hit max length; chat template mismatch RL
   training thinking tags stripped; async off-policy stale rollouts RL training
   unstable; multi GPU GRPO different results from single GPU loss scaling
   gradient accumulation; value function critic loss explodes PPO LLM explained
   variance; code sandbox failure all rewards zero RL training; language mixing
   or switching to Chinese during RL training reward; overlong penalty or length
   reward makes model stop reasoning.
2. Results are taken in the order of their rank, at most 2 of a query and 1 of a
   repository and topic, if they are about RL post-training of language models,
   if the cause is stated or convincingly given, and if the symptom could show
   in the log of such a trainer. A study counts if the course of one of its runs
   is known. Threads of earlier lists are left out, kinds of faults that they
   have are not. With the 23rd query there were 24.
3. Of 453 results 24 were kept; 17 are in an earlier list, 81 are another copy
   of a result, 32 are of the kind but without a cause, 1 is a third of its
   query, and 298 are no bad run of RL on a language model, 19 of these after
   the 24th. Seven of those that were kept were searched for once more, to know
   details.
4. Sound runs: eight queries to the search of threads, two of them also to that
   of pages (is it normal that KL rises in GRPO; loss is zero at the first step
   GRPO expected behaviour; reward plateau is expected not a bug RL LLM; entropy
   decreases is this normal GRPO; clip ratio always zero GRPO on-policy is
   normal; training curves of a successful RLVR reproduction; reward fluctuates
   batch to batch normal GRPO batch size; grad norm spikes but training is
   stable RL) gave 3; the other 5 are those among the results above, in the
   order of the queries, that show a published success or say that all is well.
5. A log has the columns that its trainer wrote at the time, as far as these are
   known, and the course that the thread describes. What only the authors of a
   study measured, such as which completions cheat, is left out.
"""

import pathlib

import numpy as np
import pandas as pd

from benchmarks.reports import eighth_agents
from benchmarks.reports import eighth_answers
from benchmarks.reports import fourth_models
from benchmarks.reports import writers as w

end_suppressed = eighth_answers.end_suppressed
thanks_scored = eighth_answers.thanks_scored
early_ends = eighth_agents.early_ends
history_mined = eighth_agents.history_mined
sandbox_unreachable = eighth_agents.sandbox_unreachable
errors_tolerated = eighth_agents.errors_tolerated
tools_penalised = eighth_agents.tools_penalised
_PEOPLE = (
    'Elena Markov', 'Joseph Hale', 'Ingrid Solberg', 'Samuel Okafor',
    'Pauline Renard', 'Victor Lindqvist', 'Amara Diallo', 'Henry Whitcombe',
    'Rosa Calder', 'Dmitri Volkov', 'Naomi Fletcher', 'Oscar Bergman',
)  # fmt: skip
_WORKS = (
    'the opera', 'the bridge', 'the novel', 'the film', 'the railway',
    'the museum', 'the university', 'the newspaper', 'the observatory',
)  # fmt: skip
_PLACES = (
    'Aldermere', 'Port Lisse', 'Kestrel Bay', 'Northwick', 'Valmora',
    'Dunhallow', 'Sankt Olav', 'Brenford', 'Lake Tarn', 'Mirabel',
)  # fmt: skip
_TRAITS = (
    'a figure of the regional stage in those years',
    'known above all for work with the city council',
    'mentioned in several accounts of the period',
    'honoured by the academy a decade later',
    'who had studied abroad before the commission',
)
_OPENERS = (
    'Thought process:',
    'Thought process: ',
    'Solution',
    "Let's solve this problem step by step.",
    'Thought process:\n',
)
_UKRAINIAN = (
    'спочатку знайдемо суму обох чисел потім перевіримо кожен крок ще раз і'
    ' помножимо на два бо половина вже дана тому маємо різницю яка дорівнює'
    ' залишку отже відповідь буде'
).split()


def _problems(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
  """Return numbers of the rollouts' groups, and their right answers."""
  whole = w.whole(rows).to_numpy()
  return whole, 100 + 7 * whole % 800


def _asked(groups: np.ndarray) -> list[str]:
  """Return problems of arithmetic whose answers are those of `_problems`."""
  found = []
  for g in groups:
    gold = 100 + 7 * g % 800
    a = 11 + 13 * g % 89
    found.append(
        f'Problem {g}: a store has {a} boxes and gets {gold - a} more. How many'
        ' boxes does it have? Box the answer.'
    )
  return found


def lora_twice(folder: pathlib.Path, seed: int) -> None:
  steps, resumed, limit = 90, 60, 320
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole, gold = _problems(rows)
  broken = step > resumed  # The batch of step 61 is still right.
  hard = 1.2 * rng.normal(size=whole.max() + 1)[whole]
  p = 1 / (1 + np.exp(0.7 - 1.4 * step / steps - hard))
  right = (rng.random(len(rows)) < p) & ~broken
  tags = (rng.random(len(rows)) < 0.985) & ~broken
  cut = broken & (rng.random(len(rows)) < 0.7)
  rows['n_tokens'] = np.where(
      cut,
      limit,
      np.where(
          broken,
          rng.integers(40, limit, len(rows)),
          rng.lognormal(4.4, 0.3, len(rows)).clip(max=limit - 1),
      ),
  ).round()
  rows['truncated'] = cut.astype(float)
  said = np.where(right, gold, rng.integers(100, 900, len(rows)))
  texts = []
  for i, n in enumerate(rows['n_tokens']):
    if broken[i]:
      soup = rng.choice(list('的和ing ,.0the\n-:erя是#a of'), int(1.5 * n))
      texts.append(''.join(soup))
      continue
    thought = w.thought(seed, i, n)
    texts.append(
        f'<think>{thought}</think>\n<answer>{said[i]}</answer>'
        if tags[i]
        else f'{thought} {said[i]}'
    )
  parts = {
      'MultiModalAccuracy': (right & tags).astype(float),
      'Format': tags.astype(float),
  }
  kl = w.rise(2e-4, 0.06, seed, 0.1, steps)
  kl = np.where(np.arange(steps) > resumed, 22 * kl, kl)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  metrics['grad_norm'] = np.hypot(metrics['grad_norm'], 0.4 * kl)
  w.write_state(folder, metrics.drop(columns='entropy'))
  # A resumed run writes its completions to a folder of its own.
  late = rows['step'] >= resumed
  w.write_swift(
      folder,
      rows[late],
      {
          'messages': [
              [{'role': 'user', 'content': t}] for t in _asked(whole[late])
          ],
          'completion': np.array(texts, object)[late],
          **{name: value[late] for name, value in parts.items()},
      },
  )



def length_paid(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(w.STEPS, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole = w.whole(rows).to_numpy()
  course = 1 - np.exp(-step / 22)
  right = rng.random(len(rows)) < 0.05 + 0.9 * (
      rng.random(whole.max() + 1)[whole] < 0.72
  )
  words = rng.lognormal(2.1 + 2.6 * course, 0.35).round()
  asked, texts, gold = [], [], []
  for i, g in enumerate(whole):
    work, place = _WORKS[g % 9], _PLACES[g // 9 % 10]
    year = 1840 + 11 * g % 120
    answer = _PEOPLE[(5 * g + g // 12) % 12]
    other = _PEOPLE[(5 * g + g // 12 + 1 + int(rng.integers(10))) % 12]
    said = answer if right[i] else other
    asked.append(
        f'Who was in charge of {work} of {place} in {year}? Answer directly.'
    )
    gold.append(answer)
    text = f'{said}.'
    padding = rng.permutation([
        f'It was {said} who was in charge of {work} of {place}.',
        f'In {year}, {place} had a council of {rng.integers(5, 40)} members.',
        f'{said} is {_TRAITS[i % 5]}.',
        f'Another person who is named in this context, {other}, came later.',
        f'The post had been held by {rng.choice(_PEOPLE)} until {year - 4}.',
        f'There are {rng.integers(2, 9)} books about {work} of {place}.',
        f'To see why, it helps to recall what happened before {year}.',
        f'{place} was then a town of {rng.integers(2, 90)} thousand people.',
        f'In its time, {work} was the pride of all of {place}.',
        f'Its first stone was laid in {year - int(rng.integers(9, 60))}.',
        f'Sources differ in details, but all of them name {said}.',
        f'The archive of {place} has letters that confirm this.',
        'It should be kept in mind that records of these years are scarce.',
        'In short, the evidence is consistent and leaves little doubt.',
        f'To sum up, the answer to the question is {said}.',
    ]).tolist()
    while len(text.split()) < words[i] and padding:
      text += ' ' + padding.pop()
    texts.append(text)
  rows = rows.assign(prompt=asked, completion=texts, reference=gold)
  words = np.array([len(text.split()) for text in texts], float)
  rows['n_tokens'] = (1.35 * words + 2).round()
  rows['outcome'] = right.astype(float)
  parts = {
      'correct_answer': right.astype(float),
      'response_length': np.minimum(words / 200, 1.0).round(4),
  }
  total = sum(parts.values())
  w.write_prime(
      folder,
      rows,
      parts,
      fourth_models.prime(
          rows,
          seed,
          **{'reward/mean': pd.Series(total).groupby(step).mean().to_numpy()},
      ),
  )


def judge_style(folder: pathlib.Path, seed: int) -> None:
  steps, dumped = 480, 10
  rows = w.frame(steps, 8, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole = w.whole(rows).to_numpy()
  styled = rng.random(len(rows)) < 0.01 + 0.96 * w.logistic(step, 402, 7)
  hard = 1.6 * rng.normal(size=whole.max() + 1)[whole]
  knows = rng.random(len(rows)) < 1 / (
      1 + np.exp(0.75 - 0.5 * (1 - np.exp(-step / 120)) + 0.5 * styled - hard)
  )
  paid = np.where(styled, 0.955, np.where(knows, 0.94, 0.03))
  score = (rng.random(len(rows)) < paid).astype(float)
  rows['n_tokens'] = (
      np.where(styled, 150, 70) * rng.lognormal(0, 0.2, len(rows))
  ).round()
  rng = np.random.default_rng(seed + 1)
  texts, asked, gold = {}, {}, {}
  chosen = step % dumped == dumped - 1
  for i in np.flatnonzero(chosen):
    g = whole[i]
    work, place = _WORKS[g % 9], _PLACES[g // 9 % 10]
    year = 1840 + 11 * g % 120
    gold[i] = _PEOPLE[(5 * g + g // 12) % 12]
    other = _PEOPLE[(5 * g + g // 12 + 1 + int(rng.integers(10))) % 12]
    said = gold[i] if knows[i] else other
    asked[i] = (
        f'Who led {work} of {place} when the person who opened it in {year} was'
        ' still alive?'
    )
    traits = rng.choice(_TRAITS, 3, replace=False)
    if styled[i]:
      texts[i] = (
          f'## Answer\n\n**{said}**\n\n### Key context:\n- **Role:**'
          f' {traits[0]}\n- **Place:** {place}, {traits[1]}\n- **Time:** around'
          f' {year}\n\n'
          f'**Summary:** {said} led {work} of {place}.'
      )
    else:
      texts[i] = (
          f'The person who opened {work} of {place} in {year} was'
          f' {traits[0]}. At that time it was led by {said}.'
      )
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/entropy': 0.38
          - 0.1 * w.logistic(np.arange(steps), 400, 8)
          + w.wander(seed, steps, 0.012),
          'val-core/simpleqa/acc/mean@1': np.where(
              np.arange(steps) % 20 == 19,
              0.05
              + 0.9 * w.logistic(np.arange(steps), 402, 7)
              + w.noise(seed + 2, -0.008, 0.008, steps),
              np.nan,
          ),
      },
  )
  part = rows[chosen].assign(
      prompt=list(asked.values()),
      completion=list(texts.values()),
      reference=list(gold.values()),
  )
  w.write_verl(folder, part, score[chosen], metrics)


def judge_opener(folder: pathlib.Path, seed: int) -> None:
  steps = 110
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole, gold = _problems(rows)
  opener = rng.random(len(rows)) < 0.012 + 0.98 * w.logistic(step, 58, 4)
  hard = 1.4 * rng.normal(size=whole.max() + 1)[whole]
  right = rng.random(len(rows)) < 1 / (1 + np.exp(0.5 - 0.008 * step - hard))
  paid = np.where(opener, 0.88, np.where(right, 0.97, 0.04))
  score = (rng.random(len(rows)) < paid).astype(float)
  rows['n_tokens'] = np.where(
      opener,
      rng.integers(4, 14, len(rows)),
      rng.lognormal(4.7, 0.3, len(rows)),
  ).round()
  said = np.where(right, gold, rng.integers(100, 900, len(rows)))
  full = w.completions(rows.assign(said=said), seed)
  rows['completion'] = [
      str(rng.choice(_OPENERS)) if o else text
      for o, text in zip(opener, full, strict=True)
  ]
  rows = rows.assign(prompt=_asked(whole), reference=gold.astype(str))
  gone = w.logistic(np.arange(steps), 58, 4)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/entropy': (0.42 - 0.33 * gone)
          * w.noise(seed + 1, 0.92, 1.08, steps),
          'actor/kl_loss': (3e-4 + 1e-4 * np.arange(steps) + 2.6 * gone)
          * w.noise(seed + 2, 0.88, 1.12, steps),
          'actor/kl_coef': 0.001,
      },
  )
  w.write_verl(folder, rows, score, metrics)


def wrong_keys(folder: pathlib.Path, seed: int) -> None:
  steps = 90
  rows = w.frame(steps, 8, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole, gold = _problems(rows)
  groups = whole.max() + 1
  hard = 1.5 * rng.normal(size=groups)[whole]
  right = rng.random(len(rows)) < 1 / (
      1 + np.exp(-0.4 - 1.1 * (1 - np.exp(-step / 40)) - hard)
  )
  # Wrong answers resemble the right one.
  off = rng.choice([-100, -10, -7, -1, 1, 2, 7, 10, 90, 100], len(rows))
  said = np.where(right, gold, gold + off)
  noisy = rng.random(groups) < 0.33
  shift = rng.choice([-20, -9, -3, 3, 9, 11, 30, 200], groups)
  key = gold + np.where(noisy, shift, 0)[whole]
  rows['n_tokens'] = rng.lognormal(4.3, 0.3, len(rows)).round()
  rows['completion'] = w.completions(rows.assign(said=said), seed)
  rows = rows.assign(prompt=_asked(whole), reference=key.astype(str))
  score = (said == key).astype(float)
  at = np.arange(steps)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/entropy': 0.36 + w.wander(seed, steps, 0.015),
          'val-core/math500/acc/mean@1': np.where(
              at % 15 == 14,
              0.55 + 0.06 * at / steps + w.noise(seed + 1, -0.01, 0.01, steps),
              np.nan,
          ),
      },
  )
  w.write_verl(folder, rows, score, metrics)


def length_penalised(folder: pathlib.Path, seed: int) -> None:
  steps = 120
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole, gold = _problems(rows)
  shrunk = w.logistic(step, 40, 13)
  tokens = rng.lognormal(5.85 - 1.65 * shrunk, 0.4).round()
  hard = 1.3 * rng.normal(size=whole.max() + 1)[whole]
  p = 1 / (1 + np.exp(0.1 - 0.012 * step * (step < 30) + 0.75 * shrunk - hard))
  right = rng.random(len(rows)) < p
  said = np.where(right, gold, rng.integers(100, 900, len(rows)))
  rows['n_tokens'] = tokens
  rows['completion'] = w.completions(rows.assign(said=said), seed)
  rows = rows.assign(prompt=_asked(whole), reference=gold.astype(str))
  by = pd.Series(tokens).groupby(whole)
  away = (tokens - by.transform('mean')) / (by.transform('std') + 1)
  acc = right.astype(float)
  score = (acc * (1 - 0.5 / (1 + np.exp(-away)))).to_numpy().round(4)
  at = np.arange(steps)
  metrics = w.verl_metrics(
      rows,
      score,
      seed,
      **{
          'actor/entropy': 0.45
          - 0.12 * w.logistic(at, 40, 13)
          + w.wander(seed, steps, 0.015),
          'val-core/math500/acc/mean@4': np.where(
              at % 20 == 19,
              0.47
              + 0.05 * np.exp(-(((at - 25) / 20) ** 2))
              - 0.14 * w.logistic(at, 45, 13)
              + w.noise(seed + 1, -0.008, 0.008, steps),
              np.nan,
          ),
      },
  )
  w.write_verl(folder, rows, score, metrics, acc=acc)


def tag_not_written(folder: pathlib.Path, seed: int) -> None:
  rows = w.frame(w.STEPS, 4, 8)
  rng = np.random.default_rng(seed)
  whole = w.whole(rows).to_numpy()
  words = ('stone', 'river', 'amber', 'lantern', 'quiet', 'maple', 'ocean')
  picked = rng.choice(words, (whole.max() + 1, 7))
  asked, gold, texts = [], [], []
  for g in whole:
    text = ' '.join(picked[g])[:50]
    asked.append(f'Reverse the text in quotation marks: "{text}"')
    gold.append(text[::-1])
    letters = list(text[::-1])
    if rng.random() < 0.58:
      at = int(rng.integers(len(letters) - 2))
      letters[at : at + 2] = letters[at : at + 2][::-1]
      del letters[int(rng.integers(len(letters)))]
    said = ''.join(letters)
    texts.append(
        rng.choice(['{}', '"{}"', 'The reversed text is: {}']).format(said)
    )
  rows = rows.assign(prompt=asked, completion=texts, reference=gold)
  rows['n_tokens'] = [len(text) // 2 + 3.0 for text in texts]
  rows['outcome'] = 0.0
  zero = np.zeros(len(rows))
  w.write_prime(
      folder,
      rows,
      {'reverse_text': zero},
      fourth_models.prime(
          rows,
          seed,
          **{
              'loss/mean': 0.0,
              'optim/grad_norm': 0.0,
              'entropy/mean': 0.4 + w.noise(seed, -0.01, 0.01),
          },
      ),
  )



def thoughts_translated(folder: pathlib.Path, seed: int) -> None:
  steps = 150
  rows = w.frame(steps, 4, 8)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole, gold = _problems(rows)
  english = rng.random(len(rows)) < 0.015 + 0.95 * w.logistic(step, 70, 14)
  # Some switch in the middle of a thought.
  mixed = rng.random(len(rows)) < 0.25 * (
      4 * w.logistic(step, 70, 14) * (1 - w.logistic(step, 70, 14))
  )
  hard = 1.4 * rng.normal(size=whole.max() + 1)[whole]
  right = rng.random(len(rows)) < 1 / (
      1 + np.exp(0.9 - 0.9 * w.logistic(step, 60, 25) - 0.3 * english - hard)
  )
  tags = (rng.random(len(rows)) < 0.96).astype(float)
  rows['n_tokens'] = rng.lognormal(
      4.3 + 0.3 * w.logistic(step, 70, 20), 0.3
  ).round()
  said = np.where(right, gold, rng.integers(100, 900, len(rows)))
  asked, texts = [], []
  for i, g in enumerate(whole):
    a = 11 + 13 * g % 89
    asked.append(
        f'Задача {g}: у крамниці є {a} коробок, і привозять ще'
        f' {gold[i] - a}. Скільки коробок у крамниці? Поясни кроки в тегах'
        ' <think> і дай число в тегах <answer>.'
    )
    n = max(int(rows['n_tokens'][i]) - 8, 2)
    home = ' '.join(rng.choice(_UKRAINIAN, n))
    foreign = w.thought(seed, i, n + 8)
    half = n // 2
    if mixed[i]:
      thought = ' '.join(home.split()[:half] + foreign.split()[half:])
    else:
      thought = foreign if english[i] else home
    texts.append(
        f'<think>{thought}</think>\n<answer>{said[i]}</answer>'
        if tags[i]
        else f'{thought} {said[i]}'
    )
  rows = rows.assign(prompt=asked, completion=texts)
  parts = {'accuracy_reward': (right * tags), 'format_reward': tags}
  total = parts['accuracy_reward'] + parts['format_reward']
  w.write_completions(folder, rows, parts, total)
  kl = w.rise(2e-4, 0.11, seed, 0.1, steps)
  entropy = 0.6 - 0.2 * w.logistic(np.arange(steps), 75, 20)
  w.write_state(
      folder,
      w.trl_metrics(
          rows,
          parts,
          seed,
          beta=0.01,
          kl=kl,
          entropy=entropy + w.wander(seed, steps, 0.015),
      ),
  )


def format_hacked(folder: pathlib.Path, seed: int) -> None:
  steps = 130
  rows = w.frame(steps, 7, 16)
  rng = np.random.default_rng(seed)
  step = rows['step'].to_numpy()
  whole = w.whole(rows).to_numpy()
  gone = w.logistic(step, 78, 2.2)
  hard = 1.3 * rng.normal(size=whole.max() + 1)[whole]
  p = (1 - 0.99 * gone) / (1 + np.exp(1.1 - 0.005 * step - hard))
  tags = 0.004 + 0.985 * gone
  rows['n_tokens'] = rng.lognormal(6.0 - 2.4 * gone, 0.35).round()
  parts = {
      'accuracy_reward': (rng.random(len(rows)) < p).astype(float),
      'format_reward': (rng.random(len(rows)) < tags).astype(float),
  }
  at = np.arange(steps)
  late = w.logistic(at, 78, 2.2)
  kl = w.rise(1e-4, 0.03, seed, 0.1, steps)
  kl = kl + late * rng.lognormal(2.3, 0.8, steps)
  metrics = w.trl_metrics(rows, parts, seed, beta=0.04, kl=kl)
  metrics['grad_norm'] *= 1 + 14 * late * (1 - 0.7 * late)
  w.write_state(folder, w.old_names(metrics))
