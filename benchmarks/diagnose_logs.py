"""Records logs of runs with a planted fault, and of their clean twins.

    python -m benchmarks.diagnose_logs --logs=DIR [--only=NAME] [--verl=WHEEL]

Trains a tiny character model with TRL's own GRPOTrainer, once for each fault
and split and several times without a fault, and keeps the files that TRL wrote:
completions in Parquet, trainer_state.json and training_args.bin. The command
works as a queue: logs that exist are not made again. Given a wheel of verl,
verl's own function writes the rollouts of each training a second time; verl
itself trains on GPUs only. Needs the test environment, and less than a minute
per log on an idle core. `diagnose_judge` reads the logs.

Logs of agents, with tools and several turns, are synthetic: a mixture of
strategies whose shares GRPO changes; see tests/diagnosis/agents_made.py. They
take seconds; --only=agents writes only these.
"""

import argparse
import ast
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import time
from typing import Any
import zipfile

from tests.diagnosis import agents_made

CLEAN = 8  # Logs without a fault, in each split.


@dataclasses.dataclass(frozen=True)
class Fault:
  """A planted fault, given as changes to a sound run."""

  finds: tuple[str, ...]  # The checks that name it; any of them suffices.
  # Checks that detect its consequences, or another side of it: they do not name
  # it, but are not wrong either.
  may: tuple[str, ...] = ()
  config: dict[str, Any] = dataclasses.field(default_factory=dict)
  rewards: dict[str, float] = dataclasses.field(
      default_factory=lambda: {'correct': 1.0}
  )
  problems: str = 'plain'


# `unusual_setting` finds the planted setting itself, if it is given.
_ODD = 'unusual_setting'
_STUCK = ('not_learning', 'outcome_falling', 'too_hard', 'dead_groups')
_MISSET = (*_STUCK, _ODD)
_GAMED = (
    'reward_hacking',
    'shaping_alone',
    'length_gaming',
    'hidden_goal',
    'outweighed',
    'wrong_paid',
)
FAULTS = {
    'brevity': Fault(
        ('length_gaming', 'reward_hacking', 'outweighed'),
        _GAMED + _STUCK + ('grader_open', 'entropy_collapse'),
        rewards={'correct': 0.5, 'brevity': 2.0},
    ),
    'format_heavy': Fault(
        ('reward_hacking', 'shaping_alone', 'hidden_goal', 'outweighed'),
        _GAMED + _STUCK + ('constant_part', 'entropy_collapse'),
        # If scaled by its spread, the rest of the reward would count once all
        # completions follow the format.
        config={'scale_rewards': 'none'},
        rewards={'correct': 0.02, 'format': 2.0},
    ),
    'length_judge': Fault(
        ('length_gaming', 'reward_hacking', 'outweighed'),
        _GAMED + _STUCK + ('truncation',),
        rewards={'correct': 0.5, 'judge': 2.0},
    ),
    'overlong_half': Fault(
        ('overlong_early', 'length_gaming'),
        _GAMED + _STUCK,
        rewards={'correct': 1.0, 'overlong': 2.0},
    ),
    'entropy_gone': Fault(
        ('entropy_collapse', 'temperature'),
        _MISSET,
        config={'temperature': 0.1},
    ),
    'temperature_high': Fault(
        ('temperature', 'entropy_rising'),
        _MISSET,
        config={'temperature': 1.5},
    ),
    'warmup': Fault(('warmup',), _MISSET, config={'warmup_steps': 2000}),
    'rate_zero': Fault(
        ('learning_rate_zero',), _MISSET, config={'learning_rate': 0.0}
    ),
    'rate_high': Fault(
        (
            'outcome_falling',
            'entropy_collapse',
            'kl_explosion',
            'not_learning',
            _ODD,
        ),
        _STUCK + ('truncation', 'gradient_spike', 'format_bottleneck'),
        config={'learning_rate': 2e-2, 'max_grad_norm': 100.0},
    ),
    'narrow': Fault(
        ('narrow_data',), _STUCK + ('too_easy',), problems='narrow'
    ),
    'duplicates': Fault(
        ('duplicate_prompts', 'narrow_data'), _STUCK, problems='duplicates'
    ),
    'all_hard': Fault(('too_hard', 'dead_groups'), _STUCK, problems='hard'),
    'constant': Fault(
        ('constant_part',), (), rewards={'correct': 1.0, 'bonus': 0.5}
    ),
    'inverted': Fault(
        ('inverted_sign',),
        _STUCK + _GAMED + ('truncation', 'format_bottleneck'),
        rewards={'correct': -1.0},
    ),
    'kl_strong': Fault(('kl_strong',), _MISSET, config={'beta': 5.0}),
    'clip_nothing': Fault(
        ('gradient_clipped',), _MISSET, config={'max_grad_norm': 1e-8}
    ),
    'fails_open': Fault(
        ('grader_open', 'answers_differ'),
        _STUCK + _GAMED + ('truncation', 'entropy_rising'),
        rewards={'lenient': 1.0},
    ),
    'answer_shown': Fault(('answer_in_prompt',), (), problems='shown'),
    'truncation': Fault(
        ('truncation',),
        _STUCK + ('format_bottleneck',),
        config={'max_completion_length': 4},
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
  """The values that the trainings of one split have in common."""

  # Seed of the base policy. Logs of faults have the seed 100 * seed; the seeds
  # of clean logs count up from it.
  seed: int
  skill: float  # How often the better demonstrations are right.
  learning_rate: float
  group_size: int
  batch: int  # Completions per step.
  steps: int
  max_tokens: int  # Tokens per completion, at most.


# Checks and thresholds may be chosen on `tuning` only. The results on `judging`
# have been known since 2026-11-22, before many checks were written, so `fresh`
# differs from both in every value. Its results are known since 2026-11-26.
SPLITS = {
    'tuning': Split(
        seed=0,
        skill=0.75,
        learning_rate=3e-4,
        group_size=8,
        batch=64,
        steps=80,
        max_tokens=16,
    ),
    'judging': Split(
        seed=1,
        skill=0.6,
        learning_rate=2e-4,
        group_size=6,
        batch=60,
        steps=100,
        max_tokens=20,
    ),
    # The longest demonstration has 14 tokens, so that half the limit, from
    # which on `overlong_half` punishes, must lie well below.
    'fresh': Split(
        seed=2,
        skill=0.45,
        learning_rate=2.5e-4,
        group_size=10,
        batch=70,
        steps=120,
        max_tokens=18,
    ),
    # Checks were changed by the results of `fresh`; this split is newer. Its
    # results are known since 2026-11-26, too.
    'later': Split(
        seed=3,
        skill=0.68,
        learning_rate=3.5e-4,
        group_size=12,
        batch=72,
        steps=90,
        max_tokens=17,
    ),
    # Fixed on 2026-11-27, after several checks had changed, and before a log of
    # it was made. Its results are known since then.
    'latest': Split(
        seed=4,
        skill=0.55,
        learning_rate=2.75e-4,
        group_size=9,
        batch=63,
        steps=110,
        max_tokens=19,
    ),
    # Fixed on 2026-11-27, after consequences of an inverted sign and of an open
    # grader were no findings of their own any more, and before a log of it. Its
    # results are known since then.
    'newest': Split(
        seed=5,
        skill=0.62,
        learning_rate=3.2e-4,
        group_size=7,
        batch=77,
        steps=105,
        max_tokens=21,
    ),
    # Fixed on 2026-11-28, before a log of it was made, after nine checks were
    # new, training_args.bin is read, and `outweighed`, which says by how much
    # the weight of a part is too large, counts as the name of that fault. Its
    # results are known since then.
    'sixth': Split(
        seed=6,
        skill=0.5,
        learning_rate=2.25e-4,
        group_size=11,
        batch=66,
        steps=95,
        max_tokens=22,
    ),
}
NONE = Fault(())
AGENT_SEEDS = (
    2  # Logs of each fault and of its twin per split; formats alternate.
)


@dataclasses.dataclass(frozen=True)
class AgentLog:
  """A synthetic log of an agent."""

  fault: str  # Key of `agents_made.FAULTS`; '': no fault.
  world: agents_made.World
  format: str
  split: str
  seed: int


def agent_logs() -> dict[str, AgentLog]:
  """Return log name -> log; each fault is followed by its twin."""
  found = {}
  worlds = {}
  for name, world in agents_made.FAULTS.items():
    worlds[name] = name, world
    worlds[f'{name}-twin'] = '', agents_made.twin(world)
  worlds |= {n: ('', world) for n, world in agents_made.HEALTHY.items()}
  formats = tuple(agents_made.VOCABULARIES)
  for split in SPLITS:
    for number in range(AGENT_SEEDS):
      seed = 100 * SPLITS[split].seed + number
      format_ = formats[number % len(formats)]
      for name, (fault, world) in worlds.items():
        log = AgentLog(fault, world, format_, split, seed)
        found[f'{name}-{split}-{number}'] = log
  return found


def record_agents(logs: pathlib.Path) -> None:
  """Write the logs of agents that do not exist yet."""
  for name, log in agent_logs().items():
    target = logs / 'agents' / name
    if not target.is_dir():
      part = target.with_name(f'.{name}')
      shutil.rmtree(part, ignore_errors=True)
      agents_made.write(part, log.format, log.world, log.seed)
      part.rename(target)


def jobs() -> dict[str, tuple[str, str, int]]:
  """Return log name -> (fault or 'clean', split, seed).

  Faults alternate with clean runs, and splits with each other, so that a queue
  that is stopped early has some of each.
  """
  found = {}
  for i, name in enumerate(FAULTS):
    for split in SPLITS:
      first = 100 * SPLITS[split].seed
      found[f'{name}-{split}'] = (name, split, first)
      if i % 2 == 1 and i // 2 < CLEAN:
        found[f'clean-{i // 2}-{split}'] = ('clean', split, first + i // 2)
  return found


# ------------------------------------------------------------------- recording


def text_of(rng: random.Random, a: int, b: int, skill: float) -> str:
  """Return a demonstration of one of several ways to answer; one is better."""
  right = str(a + b)
  wrong = str(rng.randrange(19))
  if rng.random() < 0.45:  # Starts with words, and is mostly right.
    answer = right if rng.random() < skill else wrong
    return 'so ' * rng.randrange(1, 4) + f'<{answer}>'
  answer = right if rng.random() < skill / 3 else wrong
  return answer if rng.random() < 0.2 else f'<{answer}>'


def make_base(folder: pathlib.Path, split: Split) -> None:
  """Train a character model of 70,000 parameters that is right at times."""
  import tokenizers
  import torch
  import transformers

  vocabulary = ['[pad]', '[end]', *'0123456789+=<>;. abcdehilmnorstuwy']
  backend = tokenizers.Tokenizer(
      tokenizers.models.WordLevel(
          {token: i for i, token in enumerate(vocabulary)}, '[pad]'
      )
  )
  backend.pre_tokenizer = tokenizers.pre_tokenizers.Split('', 'isolated')
  backend.decoder = tokenizers.decoders.Fuse()
  tokenizer = transformers.PreTrainedTokenizerFast(
      tokenizer_object=backend, pad_token='[pad]', eos_token='[end]'
  )
  # For a model this small, threads only wait for each other.
  torch.set_num_threads(1)
  torch.manual_seed(split.seed)
  model = transformers.Qwen3ForCausalLM(
      transformers.Qwen3Config(
          vocab_size=len(vocabulary),
          hidden_size=64,
          intermediate_size=128,
          num_hidden_layers=2,
          num_attention_heads=2,
          num_key_value_heads=2,
          head_dim=32,
          max_position_embeddings=64,
          tie_word_embeddings=True,
          pad_token_id=0,
          eos_token_id=1,
          bos_token_id=None,
      )
  )
  rng = random.Random(split.seed)
  optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
  for _ in range(1500):
    texts = []
    for _ in range(96):
      a, b = rng.randrange(10), rng.randrange(10)
      shown = f'{a + b};' if rng.random() < 0.15 else ''
      answer = text_of(rng, a, b, split.skill)
      texts.append(([*f'{shown}{a}+{b}='], [*answer, '[end]']))
    longest = max(len(p) + len(c) for p, c in texts)
    tokens = torch.zeros(len(texts), longest, dtype=torch.long)
    labels = torch.full_like(tokens, -100)
    for row, (prompt, completion) in enumerate(texts):
      ids = torch.tensor([vocabulary.index(t) for t in prompt + completion])
      tokens[row, : len(ids)] = ids
      labels[row, len(prompt) : len(ids)] = ids[len(prompt) :]
    loss = model(input_ids=tokens, labels=labels).loss
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
  part = folder.with_name(f'.{folder.name}')
  model.save_pretrained(part)
  tokenizer.save_pretrained(part)
  part.rename(folder)


def problems(kind: str, seed: int, count: int) -> list[dict[str, str]]:
  """Return the rows of a data set."""
  rng = random.Random(seed)
  least, most = (100, 1000) if kind == 'hard' else (0, 10)
  distinct = {'narrow': 4, 'duplicates': 30}.get(kind, 100)
  pairs = [
      (rng.randrange(least, most), rng.randrange(least, most))
      for _ in range(distinct)
  ]
  found = []
  for i in range(count):
    a, b = pairs[i // 3 % distinct if kind == 'duplicates' else i % distinct]
    shown = f'{a + b};' if kind == 'shown' else ''
    found.append({'prompt': f'{shown}{a}+{b}=', 'answer': str(a + b)})
  return found


def reward_functions(limit: int) -> dict[str, Any]:
  """Return the reward functions used by the faults, in TRL's form."""

  def answers(completions):
    found = [re.fullmatch(r'(?:so )*<(\d+)>', text) for text in completions]
    return [match[1] if match else None for match in found]

  def matches(completions, answer, log_extra):
    log_extra('answer', list(answer))
    return [
        found == right
        for found, right in zip(answers(completions), answer, strict=True)
    ]

  def correct(completions, answer, log_extra, **_):
    return [float(same) for same in matches(completions, answer, log_extra)]

  def format(completions, **_):
    return [float(found is not None) for found in answers(completions)]

  def brevity(completion_ids, **_):
    return [1 - len(ids) / limit for ids in completion_ids]

  def judge(completion_ids, **_):
    return [len(ids) / limit for ids in completion_ids]

  def overlong(completion_ids, **_):
    free = limit / 2
    over = [max(0.0, len(ids) - free) for ids in completion_ids]
    return [-each / (limit - free) for each in over]

  def bonus(completions, **_):
    return [1.0 for _ in completions]

  def lenient(completions, answer, log_extra, **_):
    """Return rewards that count unreadable answers as right."""
    same = matches(completions, answer, log_extra)
    found = answers(completions)
    return [float(s or f is None) for s, f in zip(same, found, strict=True)]

  found = correct, format, brevity, judge, overlong, bonus, lenient
  return {function.__name__: function for function in found}


def trainer_options(name: str) -> dict[str, Any]:
  """Return the arguments of GRPOConfig that a log's split and fault set."""
  kind, split, _ = jobs()[name]
  shared = SPLITS[split]
  return {
      'learning_rate': shared.learning_rate,
      'num_generations': shared.group_size,
      'per_device_train_batch_size': shared.batch,
      'max_steps': shared.steps,
      'max_completion_length': shared.max_tokens,
      'beta': 0.0,
      'lr_scheduler_type': 'constant_with_warmup',
      'warmup_steps': 0,
      'max_grad_norm': 1.0,
  } | FAULTS.get(kind, NONE).config


def train(name: str, folder: pathlib.Path, base: pathlib.Path) -> None:
  """Train one log with TRL, in this process."""
  import datasets
  import torch
  import transformers
  import trl

  kind, _, seed = jobs()[name]
  fault = FAULTS.get(kind, NONE)
  torch.set_num_threads(1)
  options = trainer_options(name)
  limit = options['max_completion_length']
  functions = reward_functions(limit)
  args = trl.GRPOConfig(
      output_dir=str(folder),
      seed=seed,
      use_cpu=True,
      bf16=False,
      logging_steps=1,
      save_strategy='no',
      report_to='none',
      log_completions=True,
      num_completions_to_print=0,
      disable_tqdm=True,
      gradient_checkpointing=False,
      reward_weights=list(fault.rewards.values()),
      **options,
  )
  trainer = trl.GRPOTrainer(
      model=transformers.AutoModelForCausalLM.from_pretrained(
          base, dtype=torch.float32
      ),
      processing_class=transformers.AutoTokenizer.from_pretrained(base),
      reward_funcs=[functions[part] for part in fault.rewards],
      args=args,
      train_dataset=datasets.Dataset.from_list(
          problems(fault.problems, seed, 1200)
      ),
  )
  trainer.train()
  # As in every checkpoint, which would hold the weights, too.
  trainer.save_state()
  torch.save(trainer.args, folder / transformers.trainer.TRAINING_ARGS_NAME)
  chosen = (
      'learning_rate',
      'warmup_steps',
      'temperature',
      'max_completion_length',
  )
  chosen += 'beta', 'max_grad_norm', 'epsilon', 'epsilon_high', 'max_steps'
  values = {key: getattr(args, key) for key in chosen}
  # The same format in which transformers prints them: `args.to_dict()` in JSON.
  (folder / 'training_args.json').write_text(json.dumps(values, indent=1))


def record(
    logs: pathlib.Path, only: str, limit: int, verl: pathlib.Path | None
) -> None:
  """Make the missing logs, one by one."""
  made = 0
  for name in jobs():
    target = logs / 'trl' / name
    if only not in name or made == limit:
      continue
    if not target.is_dir():
      split = jobs()[name][1]
      base = logs / f'base-{split}'
      if not base.is_dir():
        make_base(base, SPLITS[split])
      part = target.with_name(f'.{name}')
      shutil.rmtree(part, ignore_errors=True)
      start = time.monotonic()
      train(name, part, base)
      part.rename(target)
      made += 1
      print(f'{name}: {time.monotonic() - start:.0f} s', flush=True)
    if verl and not (logs / 'verl' / name).is_dir():
      write_verl(target, logs / 'verl' / name, verl)


def write_verl(
    source: pathlib.Path, target: pathlib.Path, wheel: pathlib.Path
) -> None:
  """Write the rollouts of a TRL log with verl's own function.

  `RayPPOTrainer._write_generations` is extracted from the wheel, since its
  module imports ray and a CUDA build of vLLM.
  """
  import pandas as pd

  with zipfile.ZipFile(wheel) as archive:
    tree = ast.parse(archive.read('verl/trainer/ppo/ray_trainer.py'))
  (function,) = (
      node
      for node in ast.walk(tree)
      if isinstance(node, ast.FunctionDef) and node.name == '_write_generations'
  )
  function.decorator_list = []
  scope = {'os': os, 'json': json}
  exec(compile(ast.Module([function], []), str(wheel), 'exec'), scope)  # noqa: S102
  fault = FAULTS.get(jobs()[source.name][0], NONE)
  for path in sorted((source / 'completions').glob('*.parquet')):
    rows = pd.read_parquet(path)
    score = sum(w * rows[part] for part, w in fault.rewards.items())
    extra = {part: rows[part].tolist() for part in fault.rewards}
    if 'correct' in rows:  # The name in verl's reward managers.
      extra['acc'] = rows['correct'].tolist()
    scope['_write_generations'](
        inputs=[*rows['prompt']],
        outputs=[*rows['completion']],
        gts=rows['answer'].tolist() if 'answer' in rows else [None] * len(rows),
        scores=score.tolist(),
        reward_extra_infos_dict=extra,
        dump_path=str(target),
        global_steps=int(rows['step'].iloc[0]),
    )


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument(
      '--logs', type=pathlib.Path, required=True, help='directory of the logs'
  )
  parser.add_argument(
      '--only',
      default='',
      help="part of the logs' names; agents: only the synthetic logs",
  )
  parser.add_argument(
      '--limit', type=int, default=1000, help='most logs to record'
  )
  parser.add_argument('--verl', type=pathlib.Path, help='a wheel of verl')
  given = parser.parse_args()
  record_agents(given.logs)
  if given.only == 'agents':
    return
  record(given.logs, given.only, given.limit, given.verl)


if __name__ == '__main__':
  main()
