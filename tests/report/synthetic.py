"""Workdirs of runs that never ran: a ledger, harnesses, Parquet evidence."""

from collections.abc import Mapping, Sequence
import hashlib
import json
import pathlib
from typing import Any

import numpy as np

from evojax.evidence import schema
from evojax.evidence import store

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
        'source changed',
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


def write_ledger(
    path: pathlib.Path,
    rows: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any]]],
) -> None:
  """Rows (step, data, measured), chained as the contract says."""
  previous, lines = '0' * 64, []
  canonical = lambda value: json.dumps(
      value, sort_keys=True, separators=(',', ':')
  )
  for n, (step, data, measured) in enumerate(rows):
    payload = {'n': n, 'step': step, **data}
    previous = hashlib.sha256(
        (previous + canonical(payload)).encode()
    ).hexdigest()
    digest = hashlib.sha256(canonical(measured).encode()).hexdigest()
    lines.append(
        canonical(
            {
                'hash': previous,
                'payload': payload,
                'measured': measured,
                'measured_sha256': digest,
            }
        )
    )
  path.write_text(''.join(line + '\n' for line in lines))


def write_harness(
    workdir: pathlib.Path, overlay: Mapping[str, Any], files: Mapping[str, str]
) -> str:
  """One harness directory; returns its hash."""
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
  """One step of rollouts, a `share` of them solved; problems are fixed."""
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
  store.write_step(arm, split, UPDATES, rows, COLUMNS)


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
    measure |= {'value': float(value), 'level': level}
    found.append(measure | dict(zip(('warn', 'critical'), limits)))
  return found


def _alerts(measures: Sequence[Mapping[str, Any]]) -> list[str]:
  return [m['name'] for m in measures if m['level'] != 'ok']


def _estimate(value: float, half: float) -> dict[str, float]:
  return {'value': value, 'low': value - half, 'high': value + half}


def write(
    workdir: pathlib.Path,
    *,
    trials: int = 6,
    seed: int = 0,
    text: str = '',
    evidence: bool = True,
    final: bool = True,
) -> pathlib.Path:
  """A run of some trials.

  Args:
    workdir: Where; it is created.
    trials: Trials; they repeat after the sixth, with other numbers.
    seed: Of all numbers.
    text: Appended to every text that a run takes in.
    evidence: Whether to write Parquet files, of every trained trial.
    final: Whether the run came to its end.
  """
  rng = np.random.default_rng(seed)
  workdir.mkdir(parents=True, exist_ok=True)
  overlay: dict[str, Any] = {'reward.weights.outcome': 1.0}
  files = {'reward.py': _REWARD + (f'# {text}\n' if text else '')}
  harness = write_harness(workdir, overlay, files)
  config = {
      'name': f'math-default{text}',
      'grpo': {
          'prompts': 16,
          'group_size': 8,
          'clip_high': 0.2,
          'aggregation': 'sequence',
      },
      'optim': {'learning_rate': 1e-4},
      'rollout': {'temperature': 1.0},
      'evolve': {'trials': trials, 'dollars_per_device_hour': 1.2},
  }
  measured = lambda seconds: {
      'seconds': seconds * 1.1,
      'device_seconds': seconds,
      'peak_rss_mb': 900.0,
  }
  rows: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
      (
          'open',
          {
              'config': config,
              'config_sha256': sha(config),
              'harness': harness,
              'salt_sha256': sha('salt'),
              'proposer': 'rules',
              'jax': '0.10.2',
          },
          measured(0.0),
      )
  ]
  skill, state = 0.44, sha('state', 'v0')
  rows.append(
      (
          'train',
          {
              'version': 'v0',
              'parent': None,
              'harness': harness,
              'start': sha('state', 'base'),
              'end': state,
              'updates': UPDATES,
              'prompts': 16,
              'group_size': 8,
              'sampled_tokens': 98_000,
              'outcome': _curve(rng, 0.33, skill),
              'arm': 'arms/v0',
          },
          measured(71.5),
      )
  )
  if evidence:
    arm = workdir / 'arms' / 'v0'
    write_evidence(arm, 'train', rng=rng, share=skill, text=text)
  head, versions = 'v0', 0
  for n in range(trials):
    klass, factor, path, before, after, hypothesis, source = _CHANGES[n % 6]
    status = _STATUS[n % 6] if n < 6 else _late_status(n)
    measures = _measures(rng, 6 * n / max(trials, 6))
    if n % 11 == 4:
      measures[5] |= {'value': None, 'level': 'failed'}
    rows.append(
        (
            'diagnose',
            {
                'version': head,
                'trial': n,
                'measures': measures,
                'alerts': _alerts(measures),
            },
            measured(1.2),
        )
    )
    middle = float(rng.uniform(0.005, 0.045))
    expected = [middle - 0.015, middle + 0.02]
    rows.append(
        (
            'hypothesize',
            {
                'trial': n,
                'version': head,
                'proposer': 'rules',
                'trigger': 'dead_group_ratio',
                'hypothesis': hypothesis + text,
                'expected': expected,
                'criterion': 'Avg@k rises with p <= alpha',
                'rollback': f'back to {head}',
                'source': source,
                'skill': '',
                'note': text,
            },
            measured(0.1),
        )
    )
    if path == 'keep.py':
      new_overlay, new_files = overlay, files | {'keep.py': _KEEP}
    else:
      new_overlay, new_files = overlay | {path: after}, files
    new_harness = write_harness(workdir, new_overlay, new_files)
    rows.append(
        (
            'design',
            {
                'trial': n,
                'harness': new_harness,
                'delta': {
                    'sha256': sha('delta', n),
                    'factor': factor,
                    'kind': 'harness' if path == 'keep.py' else 'recipe',
                    'klass': klass,
                    'changes': [[path, before, after]],
                },
            },
            measured(0.1),
        )
    )
    refused = status == 'disqualified'
    reasons = ['reward part overlong: constant on recorded evidence' + text]
    rows.append(
        (
            'admit',
            {'trial': n, 'reasons': reasons if refused else []},
            measured(0.9),
        )
    )
    data: dict[str, Any] = {'trial': n, 'version': '', 'status': status}
    data |= {'reasons': reasons if refused else [], 'alerts': []}
    if not refused:
      versions += 1
      version = f'v{versions}'
      identifiable = klass not in ('optimizer', 'exploration')
      rows.append(
          (
              'backtest',
              {
                  'trial': n,
                  'key': sha('backtest', n),
                  'statistics': {
                      'alive_by_outcome': float(rng.uniform(0.5, 0.8)),
                      'alive_by_shaping': float(rng.uniform(0.0, 0.1)),
                      'phantom_advantage_share': float(rng.uniform(0, 0.1)),
                      'sign_agreement': float(rng.uniform(0.8, 1)),
                      'gradient_cosine': float(rng.uniform(0.7, 1)),
                      'replayed_gain': (
                          float(middle + rng.normal(0, 0.01))
                          if identifiable
                          else 'not identifiable'
                      ),
                  },
                  'predicted': (
                      [middle - 0.01, middle + 0.01] if identifiable else None
                  ),
              },
              measured(6.3),
          )
      )
      effect = {
          'keep': rng.uniform(0.018, 0.045),
          'discard': rng.normal(-0.002, 0.006),
      }.get(status, -0.2)
      effect, error = float(effect), float(rng.uniform(0.005, 0.009))
      new_state = sha('state', version)
      arms = []
      for role, seeds in (('control', 4), ('child', 2)):
        for k in range(seeds):
          gain = effect if role == 'child' else 0.0
          arms.append(
              {
                  'arm': f'trials/{n:03d}/{role}-{k}',
                  'role': role,
                  'seed': 100 * n + k,
                  'start': state,
                  'end': new_state if role == 'child' and not k else sha(n, k),
                  'status': 'done',
                  'updates': UPDATES,
                  'outcome': _curve(rng, skill, skill + 0.02 + gain),
                  'sampled_tokens': int(rng.integers(90_000, 110_000)),
              }
          )
          if evidence and k < 2:
            arm = workdir / arms[-1]['arm']
            share = skill + gain
            # Other seeds sample the same dev problems.
            write_evidence(arm, 'dev', rng=rng, share=share, text=text)
            write_evidence(arm, 'train', rng=rng, share=share, text=text)
      rows.append(
          (
              'trial',
              {
                  'trial': n,
                  'start': state,
                  'dev_seed': 1000 + n,
                  'mde': 3.4 * error,
                  'alpha': 0.05 / (n + 1),
                  'arms': arms,
              },
              measured(float(rng.uniform(90, 110))),
          )
      )
      data |= {
          'version': version,
          'effect': effect,
          'standard_error': error,
          'df': 3.0,
          'low': effect - 3.18 * error,
          'high': effect + 3.18 * error,
          'p': float(rng.uniform(0, 0.01)) if status == 'keep' else 0.41,
          'alpha': 0.05 / (n + 1),
          'sigma_seed': error * 0.8,
          'wilcoxon_p': float(rng.uniform(0, 0.2)),
          'control': skill,
          'child': skill + effect,
          'perturbed_effect': effect * 0.8,
      }
      if status == 'discard':
        data['reasons'] = [f'p = 0.41 > alpha = {0.05 / (n + 1):.4f}']
    rows.append(('verify', data, measured(8.0)))
    if status == 'keep':
      head, skill, state = version, min(skill + effect, 0.9), new_state
      overlay, files, harness = new_overlay, new_files, new_harness
    rows.append(
        (
            'accumulate',
            {
                'trial': n,
                'head': head,
                'skill': sha('skill', n) if status == 'keep' else '',
                'validity': {
                    'klass': klass,
                    'predicted': expected,
                    'realised': data.get('effect'),
                    'sign_agrees': data.get('effect', 0) > 0,
                },
            },
            measured(0.1),
        )
    )
  if final:
    rows.append(('stop', {'reason': 'trials'}, measured(0.0)))
    rows.append(
        (
            'final',
            {
                'harness': harness,
                'version': head,
                'updates': UPDATES * 4,
                'sealed': {
                    'base': _estimate(0.331, 0.025),
                    'continued': _estimate(skill + 0.02, 0.026),
                    'evolved': _estimate(skill + 0.035, 0.026),
                    'gains': {
                        'evolved_over_base': _estimate(skill - 0.296, 0.024),
                        'evolved_over_continued': _estimate(0.015, 0.019),
                    },
                },
                'compare': {
                    'reference': _estimate(0.502, 0.027),
                    'seed': _estimate(0.487, 0.026),
                    'random': 'not run',
                },
            },
            measured(148.0),
        )
    )
  write_ledger(workdir / 'ledger.jsonl', rows)
  return workdir


def _late_status(n: int) -> str:
  """Verdicts of a long run: few are kept, some crash."""
  if n % 13 == 5:
    return 'keep'
  return {7: 'disqualified', 17: 'collapse'}.get(n % 23, 'discard')
