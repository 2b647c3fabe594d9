"""Synthetic workdirs, without runs: ledger, harnesses, Parquet evidence."""

from collections.abc import Mapping, Sequence
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from evojax.evidence import schema
from evojax.evidence import store
from evojax.ledger import records

HOSTILE = (
    '</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>'
    '\x1b[31m\u202e{{ 7 * 7 }} & "quoted" \'text\''
)
COLUMNS = schema.declare(
    (
        schema.with_codes('grade_status', {'ok': 0, 'no_answer': 1}),
        schema.Column('mode', 'int32', codes={'direct': 0, 'steps': 1}),
    ),
    ('outcome', 'format', 'overlong'),
)
UPDATES = 30

# step, data, measured.
Row = tuple[str, dict[str, Any], dict[str, float]]

# (class, factor, path, before, after, hypothesis, source)
_CHANGES = (
    (
        'optimizer',
        'optim.learning_rate',
        'optim.learning_rate',
        1e-4,
        3e-4,
        'Outcome climbs slowly while headroom is large: larger steps learn more'
        ' per update before the clip bound holds them.',
        'Schulman et al. 2017, arXiv:1707.06347, Sec. 6.1',
    ),
    (
        'clip',
        'clip',
        'grpo.clip_high',
        0.2,
        0.28,
        'Log-probs near 0 say that exploration is collapsing: a higher upper'
        ' clip bound lets rare right tokens grow.',
        'DAPO, arXiv:2503.14476, eq. 10 (Clip-Higher)',
    ),
    (
        'filter',
        'keep',
        'keep.py',
        None,
        'source added',
        'Many groups have one outcome alone and dilute the batch: groups whose'
        ' outcome does not vary are left out.',
        'DAPO, arXiv:2503.14476, Sec. 3.2 (dynamic sampling)',
    ),
    (
        'reward',
        'reward:overlong',
        'reward.weights.overlong',
        0,
        0.5,
        'Completions are cut at the limit: a soft penalty before it.',
        'DAPO, arXiv:2503.14476, eq. 13',
    ),
    (
        'loss',
        'grpo.aggregation',
        'grpo.aggregation',
        'sequence',
        'token',
        'Long completions weigh less per token under a sequence mean.',
        'DAPO, arXiv:2503.14476, Sec. 3.3',
    ),
    (
        'exploration',
        'rollout.temperature',
        'rollout.temperature',
        1.0,
        1.15,
        'Warmer sampling revives groups that are dead by outcome.',
        'evotrainer notes, dead-group ratio',
    ),
)
_STATUS = ('keep', 'discard', 'keep', 'disqualified', 'keep', 'discard')
_MEASURES = (
    ('outcome_mean', 'score', 'fraction', 0.34, 0.05, None, None),
    ('pass_at_group', 'score', 'fraction', 0.86, 0.01, None, None),
    ('headroom', 'score', 'fraction', 0.52, -0.03, None, None),
    ('dead_group_ratio', 'signal', 'fraction', 0.24, 0.05, 0.30, 0.50),
    ('alive_by_shaping', 'signal', 'fraction', 0.03, 0.01, None, None),
    ('reward_spread', 'signal', 'reward', 0.21, -0.02, ['<', 0.05], None),
    ('mean_logprob', 'behaviour', 'nats/token', -0.6, 0.09, -0.1, -0.05),
    ('length_reward_corr', 'behaviour', 'correlation', 0.05, 0.06, 0.3, None),
    ('truncated', 'behaviour', 'fraction', 0.12, -0.015, 0.15, None),
    ('format_failures', 'behaviour', 'fraction', 0.33, -0.05, 0.30, None),
    ('failures_in_a_row', 'version', 'trials', 0, 0.3, 3, None),
    ('signed_calibration', 'version', 'fraction', 0.0, 0.002, None, None),
)
_KEEP = '''"""Groups whose outcome varies."""

import numpy as np


def init():
  return np.zeros(1, np.float32)


def keep(e, state):
  alive = e.outcome.any(1) & ~e.outcome.all(1)
  return np.broadcast_to(alive[:, None], e.outcome.shape), state
'''
_REWARD = '''"""Reward parts of the math domain."""

import numpy as np


def parts(e):
  used = e.n_tokens.astype(np.float32) / np.float32(e.max_tokens)
  return {
      'outcome': e.outcome.astype(np.float32),
      'format': e.format_ok.astype(np.float32),
      'overlong': np.clip((0.75 - used) / 0.25, -1, 0),
  }
'''


def sha(*text: Any) -> str:
  return hashlib.sha256(repr(text).encode()).hexdigest()


def write_ledger(path: pathlib.Path, rows: Sequence[Row]) -> str:
  """Write rows (step, data, measured) as a chain; return its head."""
  head, lines = '0' * 64, []
  canonical = lambda value: json.dumps(
      value, sort_keys=True, separators=(',', ':')
  )
  digest = lambda text: hashlib.sha256(text.encode()).hexdigest()
  for n, (step, data, measurements) in enumerate(rows):
    schema = records.STEPS[step].VERSION
    payload = {'n': n, 'step': step, 'schema': schema, **data}
    head = digest(head + canonical(payload))
    line = {
        'hash': head,
        'payload': payload,
        'measured': measurements,
        'measured_sha256': digest(canonical(measurements)),
    }
    lines.append(canonical(line) + '\n')
  path.write_text(''.join(lines))
  return head


def write_harness(
    workdir: pathlib.Path, overlay: Mapping[str, Any], files: Mapping[str, str]
) -> str:
  """Write one harness directory; return its hash."""
  name = sha(sorted(overlay.items()), sorted(files.items()))
  root = workdir / 'harness' / name
  root.mkdir(parents=True, exist_ok=True)
  (root / 'overlay.json').write_text(json.dumps(overlay, indent=2))
  for file, source in files.items():
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    (root / file).write_text(source)
  return name


def write_evidence(
    arm: pathlib.Path,
    split: str,
    *,
    rng: np.random.Generator,
    share: float,
    prompts: int = 12,
    group_size: int = 8,
    text: str = '',
) -> None:
  """Write one step of rollouts, a `share` of them solved; problems are
  fixed."""
  count = prompts * group_size
  hard = np.linspace(-0.3, 0.3, prompts).repeat(group_size)
  outcome = rng.random(count) < np.clip(share + hard, 0.02, 0.98)
  truncated = ~outcome & (rng.random(count) < 0.15)
  numbers = [(17 + 3 * p, 5 + 2 * p) for p in range(prompts)]
  prompt, completion = [], []
  for index in range(count):
    a, b = numbers[index // group_size]
    prompt.append(
        f'A shelf holds {a} jars. Mira brings {b} more jars and then takes'
        f' {a // 3} away. How many jars are on the shelf?{text}'
    )
    right = a + b - a // 3
    answer = right if outcome[index] else right + int(rng.integers(1, 9))
    steps = (
        f'{a} + {b} = {a + b}\n{a + b} - {a // 3} = {answer}\n'
        if index % 3
        else ''
    )
    end = '' if truncated[index] else f'<answer>{answer}</answer>'
    ramble = 'so the jars are ' * 9 if truncated[index] else ''
    completion.append(f'{steps}{ramble}{end}{text}')
  none = [np.zeros(0, np.int32)] * count
  parts = {
      'part_outcome': outcome.astype(np.float32),
      'part_format': (~truncated).astype(np.float32),
      'part_overlong': np.where(truncated, -1, 0).astype(np.float32),
  }
  reward = parts['part_outcome'] + 0.5 * parts['part_overlong']
  groups = reward.reshape(prompts, group_size)
  advantage = (groups - groups.mean(1, keepdims=True)) / (
      groups.std(1, keepdims=True) + 1e-6
  )
  train = split == 'train'
  rows = {
      'problem_id': [
          sha(numbers[i // group_size], split)[:16] for i in range(count)
      ],
      'family': ['jars'] * count,
      'group': np.arange(count) // group_size,
      'sample': np.arange(count) % group_size,
      'version': ['v0'] * count,
      'policy_version': np.full(count, UPDATES),
      'seed': np.zeros(count, np.int64),
      'n_tokens': np.where(truncated, 64, 20 + 9 * (np.arange(count) % 3)),
      'n_turns': np.ones(count, np.int32),
      'truncated': truncated,
      'finish_reason': truncated.astype(np.int32),
      'mean_logprob': -rng.random(count).astype(np.float32),
      'actions': none,
      'arguments': none,
      'action_ok': [np.zeros(0, bool)] * count,
      'outcome': outcome,
      'partial': outcome.astype(np.float32),
      'grade_status': truncated.astype(np.int32),
      'graded': np.ones(count, bool),
      'sandbox_tier': np.zeros(count, np.int32),
      'grade_seconds': np.zeros(count, np.float32),
      'mode': (np.arange(count) % 3 > 0).astype(np.int32),
      'reward': reward,
      'prompt_tokens': none,
      'tokens': none,
      'sampler_logprobs': [np.zeros(0, np.float32)] * count,
      'prompt': prompt,
      'completion': completion,
      **parts,
  }
  if train:
    rows['advantage'] = advantage.ravel()
    rows['kept'] = np.ones(count, bool)
  # Trainings count the updates before a step, evaluations those of the policy.
  step = UPDATES - 1 if split == 'train' else UPDATES
  store.write_step(arm, split, step, rows, COLUMNS)


def _curve(
    rng: np.random.Generator, start: float, end: float, updates: int = UPDATES
) -> list[float]:
  ramp = 1 - np.exp(-np.arange(updates) / 9)
  noise = rng.normal(0, 0.025, updates)
  curve = np.clip(start + (end - start) * ramp + noise, 0, 1)
  return [float(v) for v in curve]


def _measures(rng: np.random.Generator, at: float) -> list[dict[str, Any]]:
  found = []
  for name, layer, unit, start, slope, warn, critical in _MEASURES:
    value = start + slope * at + rng.normal(0, 0.01)
    limits = [
        [('>'), limit] if isinstance(limit, (int, float)) else limit
        for limit in (warn, critical)
    ]
    level = 'ok'
    for kind, limit in zip(('warn', 'critical'), limits):
      if limit and (value > limit[1]) == (limit[0] == '>'):
        level = kind
    measure = dict(zip(('name', 'layer', 'unit'), (name, layer, unit)))
    measure |= {
        'value': float(value),
        'level': level,
        'status': '',
        'calls_for': [],
    }
    found.append(measure | dict(zip(('warn', 'critical'), limits)))
  return found


def _estimate(value: float, half: float) -> dict[str, float]:
  return {
      'value': value,
      'standard_error': half / 2,
      'low': value - half,
      'high': value + half,
  }


def write(
    workdir: pathlib.Path,
    *,
    trials: int = 6,
    seed: int = 0,
    text: str = '',
    evidence: bool = True,
    final: bool = True,
) -> pathlib.Path:
  """Write a run of some trials.

  Args:
    workdir: Directory to create.
    trials: Number of trials; after the sixth they repeat with other numbers.
    seed: Seed of all numbers.
    text: Appended to every text that a run reads.
    evidence: Whether to write Parquet files, for every trained trial.
    final: Whether the run is complete.
  """
  rows = make_rows(
      workdir, trials=trials, seed=seed, text=text, evidence=evidence
  )
  if final:
    rows += end_rows(rows)
  head = write_ledger(workdir / 'ledger.jsonl', rows)
  if final:
    summary = {'ended': 'rounds', 'ledger_head': head}
    (workdir / 'summary.json').write_text(json.dumps(summary))
  return workdir


def measured(seconds: float) -> dict[str, float]:
  return {
      'seconds': seconds * 1.1,
      'device_seconds': seconds,
      'peak_rss_mb': 900.0,
  }


def make_rows(
    workdir: pathlib.Path,
    *,
    trials: int = 6,
    seed: int = 0,
    text: str = '',
    evidence: bool = True,
) -> list[Row]:
  """Return ledger rows up to the last trial; write the files beside them."""
  rng = np.random.default_rng(seed)
  workdir.mkdir(parents=True, exist_ok=True)
  overlay: dict[str, Any] = {'reward.weights.outcome': 1.0}
  files = {'reward.py': _REWARD + (f'# {text}\n' if text else '')}
  harness = write_harness(workdir, overlay, files)
  config = {
      'name': f'math-default{text}',
      'grpo': {'clip_high': 0.2, 'aggregation': 'sequence'},
      'optim': {'learning_rate': 1e-4},
      'rollout': {'temperature': 1.0},
      'evolve': {'rounds': trials, 'dollars_per_device_hour': 1.2},
  }
  opened = {
      'config': config,
      'config_sha256': sha(config),
      'forked': '',
      'harness': harness,
      'proposer': 'rules',
      'jax': '0.10.2',
  }
  skill, state = 0.44, sha('state', 'v0')
  version = {
      'version': 'v0',
      'parent': None,
      'harness': harness,
      'start': sha('state', 'base'),
      'end': state,
      'updates': UPDATES,
      'sampled_tokens': 98_000,
      'outcome': _curve(rng, 0.33, skill),
      'folder': 'arms/v0',
      'checkpoint': 'arms/v0/checkpoints/step_000030',
  }
  rows = [
      ('open', opened, measured(0.0)),
      ('train', version | {'prompts': 12, 'group_size': 8}, measured(71.5)),
  ]
  if evidence:
    arm = workdir / 'arms' / 'v0'
    write_evidence(arm, 'train', rng=rng, share=skill, text=text)
  head, made = 'v0', 1
  for n in range(trials):
    class_, factor, path, before, after, hypothesis, source = _CHANGES[n % 6]
    status = _STATUS[n % 6] if n < 6 else _late_status(n)
    record = lambda step, seconds, _n=n, **data: rows.append(
        (step, {'trial': _n, **data}, measured(seconds))
    )
    measures = _measures(rng, 6 * n / max(trials, 6))
    if n % 11 == 4:
      measures[5] |= {'value': None, 'level': 'failed', 'status': 'hang'}
    record(
        'diagnose',
        1.2,
        round=n,
        version=head,
        measures=measures,
        alerts=[m['name'] for m in measures if m['level'] != 'ok'],
        findings=[
            dict(
                check='temperature',
                severity='warning',
                text='rollouts are sampled at temperature <3>',
                remedies=[],
            )
        ],
    )
    if path == 'keep.py':
      new_overlay, new_files = overlay, files | {'keep.py': _KEEP}
    else:
      new_overlay, new_files = overlay | {path: after}, files
    new_harness = write_harness(workdir, new_overlay, new_files)
    middle = float(rng.uniform(0.005, 0.045))
    expected = [middle - 0.015, middle + 0.02]
    record(
        'hypothesize',
        0.1,
        version=head,
        proposer='rules',
        trigger='dead_group_ratio',
        hypothesis=hypothesis + text,
        expected=expected,
        criterion='Avg@k rises with p <= alpha',
        rollback=f'back to {head}',
        source=source,
        skill='',
        note=text,
        harness=new_harness,
    )
    delta = {
        'sha256': sha('delta', n),
        'factor': factor,
        'kind': 'harness' if path == 'keep.py' else 'recipe',
        'intervention_class': class_,
        'before': harness,
        'changes': [[path, before, after]],
        'text': f'{factor} ({before} -> {after})',
    }
    record('design', 0.1, harness=new_harness, delta=delta)
    reasons = ['reward part overlong: constant on recorded evidence' + text]
    refused = status == 'disqualified'
    record('admit', 0.9, reasons=reasons if refused else [])
    verdict: dict[str, Any] = dict.fromkeys(NUMBERS)
    verdict |= {'status': status, 'alerts': [], 'version': ''}
    verdict['reasons'] = reasons if refused else []
    if not refused:
      record('backtest', 6.3, **_backtest(rng, class_, middle, n))
      incumbents = [
          _arm(rng, f'arms/r{n:03d}-incumbent-{k}', k, state, skill + 0.02)
          for k in range(4)
      ]
      effect = {
          'keep': rng.uniform(0.018, 0.045),
          'discard': rng.normal(-0.002, 0.006),
      }.get(status, -0.2)
      effect, error = float(effect), float(rng.uniform(0.005, 0.009))
      ended = 'done' if status in ('keep', 'discard') else status
      candidates = [
          _arm(
              rng,
              f'arms/r{n:03d}-t{n:03d}-{k}',
              k,
              state,
              skill + 0.02 + effect,
              status=ended,
          )
          for k in range(4 if ended == 'done' else 1)
      ]
      arms = [
          arm
          | {
              'role': 'incumbent' if trial is None else 'candidate',
              'trial': trial,
              'pair': k,
              'score': arm['outcome'][-1] if arm['status'] == 'done' else None,
              'dev': arm['folder'].replace('arms/', f'rounds/{n:03d}/'),
          }
          for trial, own in ((None, incumbents), (n, candidates))
          for k, arm in enumerate(own)
      ]
      if evidence:
        for arm in arms:
          share = skill + (effect if arm['trial'] == n else 0)
          options = {'rng': rng, 'share': share, 'text': text}
          if arm['pair'] < 2:
            write_evidence(workdir / arm['dev'], 'dev', **options)
            write_evidence(workdir / arm['folder'], 'train', **options)
      standing = {
          'trial': n,
          'index': n + 1,
          'rounds': 1,
          'differences': [effect - error, effect, effect, effect + error],
          'errors': [error] * 4,
          'pairs': 4,
          'effect': effect,
          'standard_error': error,
          'low': effect - 3.18 * error,
          'high': effect + 3.18 * error,
          'e_value': 30.0 * (n + 1) if status == 'keep' else 0.4,
          'threshold': 20.0 * (n + 1),
          'detectable': 3.4 * error,
      }
      if ended != 'done':
        standing |= dict.fromkeys(('effect', 'low', 'high', 'threshold'))
      race = {
          'round': n,
          'version': head,
          'start': state,
          'scored_by': 'dev',
          'arms': arms,
          'standings': [standing],
          'queue': [],
      }
      rows.append(('race', race, measured(float(rng.uniform(90, 110)))))
      if ended != 'done':
        verdict['reasons'] = [f'{arms[-1]["folder"]}: {ended}{text}']
      else:
        kept = status == 'keep'
        verdict |= {name: standing[name] for name in RACED}
        verdict |= {
            'perturbed_effect': effect * 0.8 if n % 2 else None,
            'perturbed_error': error if n % 2 else None,
            'reasons': [] if kept else ['0.0 points: not above the incumbent'],
            'version': f'v{made}' if kept else '',
        }
    record('verify', 8.0, **verdict)
    record(
        'accumulate',
        0.1,
        skill=sha('skill', n) if status == 'keep' else '',
        validity={
            'intervention_class': class_,
            'proposer': 'rules',
            'predicted': middle,
            'replayed': None,
            'realised': verdict['effect'],
            'sign_agrees': None,
            'replay_sign_agrees': None,
        },
    )
    if not refused:
      kept = status == 'keep'
      own = candidates if kept else incumbents
      if kept:
        overlay, files, harness = new_overlay, new_files, new_harness
        skill = min(skill + effect, 0.9)
      first = own[0]
      version = {
          'version': f'v{made}',
          'parent': head,
          'harness': harness,
          'folder': first['folder'],
          'checkpoint': f'versions/v{made}/checkpoints/step_000030',
          'start': state,
          'end': sha('merged', n),
          **{k: first[k] for k in ('outcome', 'updates')},
          'sampled_tokens': sum(arm['sampled_tokens'] for arm in own),
          'round': n,
          'outer_learning_rate': 3.0,
          'sources': [
              {k: arm[k] for k in ('folder', 'harness', 'end')}
              | {'weight': 1 / len(own)}
              for arm in own
          ],
      }
      rows.append(('promote', version, measured(0.2)))
      head, state, made = version['version'], version['end'], made + 1
  return rows


# Numbers of a standing that the verdict repeats.
RACED = (
    'effect',
    'standard_error',
    'low',
    'high',
    'rounds',
    'pairs',
    'e_value',
    'threshold',
)
NUMBERS = (*RACED, 'perturbed_effect', 'perturbed_error')


def _arm(
    rng: np.random.Generator,
    folder: str,
    seed: int,
    start: str,
    level: float,
    *,
    status: str = 'done',
) -> dict[str, Any]:
  updates = UPDATES if status == 'done' else UPDATES // 2
  return {
      'folder': folder,
      'seed': seed,
      'harness': sha(folder.partition('-')[0]),
      'start': start,
      'end': sha(folder, start),
      'status': status,
      'why': '' if status == 'done' else 'after 15 of 30 updates',
      'updates': updates,
      'outcome': _curve(rng, level - 0.02, level, updates),
      'sampled_tokens': int(rng.integers(90_000, 110_000)),
  }


def _backtest(
    rng: np.random.Generator, class_: str, middle: float, n: int
) -> dict[str, Any]:
  names = ('alive_by_outcome', 'alive_by_shaping', 'gradient_cosine')
  found: dict[str, Any] = {}
  for name in names:
    found[name] = float(rng.uniform(0.5, 0.8))
    found[f'{name}_before'] = float(rng.uniform(0.5, 0.8))
  if class_ == 'exploration':
    found['replayed_effect'] = 'not identifiable'
    return {
        'key': sha(n),
        'crash': '',
        'statistics': found,
        'predicted': None,
        'sampled_tokens': 0,
    }
  found['replayed_effect'] = float(middle + rng.normal(0, 0.01))
  predicted = [middle - 0.01, middle + 0.01]
  return {
      'key': sha(n),
      'crash': '',
      'statistics': found,
      'predicted': predicted,
      'sampled_tokens': 9_000,
  }


def end_rows(rows: Sequence[Row]) -> list[Row]:
  """Return rows of the retraining, the seal and the sealed scores."""
  head = [data for step, data, _ in rows if step in ('train', 'promote')][-1]
  rng = np.random.default_rng(1)
  trained = {
      'version': 'final',
      'folder': 'arms/final',
      'harness': head['harness'],
      'seed': 0,
      'start': sha('state', 'base'),
      'end': sha('state', 'final'),
      'status': 'done',
      'why': '',
      'updates': 60,
      'outcome': _curve(rng, 0.33, 0.6, 60),
      'sampled_tokens': 412_000,
  }
  scores = {
      'base': _estimate(0.331, 0.025),
      'evolved': _estimate(0.592, 0.026),
      'retrained': _estimate(0.571, 0.026),
      'reference': _estimate(0.602, 0.027),
      'seed': _estimate(0.487, 0.026),
      'random': None,
  }
  there = {name: score['value'] for name, score in scores.items() if score}
  final = {
      'problems': 256,
      'samples': 8,
      'scores': scores,
      'gains': {
          name: _estimate(value - 0.331, 0.024)
          for name, value in there.items()
          if name != 'base'
      },
      'evolved_over': {
          name: _estimate(0.592 - value, 0.019)
          for name, value in there.items()
          if name != 'evolved'
      },
      'compute': {
          name: {'training': 412_000, 'total': 3_900_000}
          for name in there
          if name != 'base'
      },
      'harness': head['harness'],
      'version': head['version'],
  }
  return [
      ('retrain', trained, measured(92.0)),
      ('seal', {'salt': 'salt', 'seed': 12}, measured(0.0)),
      ('final', final, measured(56.0)),
  ]


def _late_status(n: int) -> str:
  """Return verdicts of a long run: few are kept, some crash."""
  if n % 13 == 5:
    return 'keep'
  return {7: 'disqualified', 17: 'crash'}.get(n % 23, 'discard')
