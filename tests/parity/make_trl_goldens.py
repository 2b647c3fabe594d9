"""Writes tests/parity/data/trl_loss.json: the loss of TRL's GRPOTrainer.

Calls `GRPOTrainer._compute_loss` and `trl.trainer.utils.nanstd` themselves, and
runs the lines of `_generate_and_score_completions` that weight by the sampler,
on log-probs that this script draws, in float64. Needs an environment with
trl==1.16.0 and torch==2.13.0, without evojax:

  python tests/parity/make_trl_goldens.py

TRL's formulas, where they are not ours (m: mask, B: sequences in a micro-batch,
A: gradient accumulation steps; gradients of micro-batches are added up, those
of processes averaged):

  grpo     sum_b (l m)_b / max(sum m_b, 1) / B / A. B counts sequences without a
           token too; ours ('sequence') does not, and counts them over the whole
           update. Equal where each micro-batch has B nonempty sequences.
  bnpo     sum(l m) / max(sum m, 1) / A, tokens of the *micro-batch*: equal to
           our 'token' for one micro-batch, otherwise the loss depends on how
           sequences fall into micro-batches and processes. We have none such.
  dr_grpo  sum(l m) / (B max_completion_length) / A: ours ('constant'), again
           with empty sequences in B.
  dapo     sum(l m) / (tokens of the generation batch, over all processes
           / processes * A / steps_per_generation): ours ('token'), whose
           denominator is that of one optimizer update. They differ when one
           generation batch feeds several updates of unequal token counts.
  delta    min(min(r, delta) A, clip(r) A): our dual clip for
           delta > 1 + epsilon_high; below that TRL's also binds where A > 0.
  sequence s = exp(mean log-ratio), differentiated through the mean (GSPO); ours
           is GSPO-token, equal for one advantage per sequence and weights 1.
  vllm     l is multiplied by the weight before the KL term is added: the same
           as ours. What a *_mask mode masks stays in the denominators, in TRL
           and here. The weights are TRL's own: see `importance_ratio`.
  std      sample standard deviation + 1e-4; ours is sample standard deviation
           + eps.
"""

import ast
import collections
import datetime
import importlib.metadata
import inspect
import json
import math
import pathlib
import platform
import random
import textwrap
import types

PATH = pathlib.Path(__file__).parent / 'data' / 'trl_loss.json'
MAX_TOKENS = 8

_DEFAULTS = dict(
    loss_type='grpo',
    level='token',
    epsilon_low=0.2,
    epsilon_high=0.2,
    delta=None,
    beta=0.0,
    vllm_cap=None,
    vllm_floor=None,
    vllm_mode='token_truncate',
    micro_batches=1,
)
VLLM_MODES = (
    'token_truncate',
    'token_mask',
    'sequence_truncate',
    'sequence_mask',
)


def cases() -> dict[str, dict[str, object]]:
  """Return the settings of each case by name."""
  out = {}
  for loss_type in ('grpo', 'bnpo', 'dr_grpo', 'dapo'):
    for level in ('token', 'sequence'):
      out[f'{loss_type}_{level}'] = dict(loss_type=loss_type, level=level)
    out[f'{loss_type}_all'] = dict(
        loss_type=loss_type,
        epsilon_low=0.1,
        epsilon_high=0.28,
        delta=1.5,
        beta=0.04,
        vllm_cap=1.1,
    )
  out['clip_higher'] = dict(epsilon_high=0.5)
  out['delta'] = dict(delta=1.4)
  out['delta_sequence'] = dict(level='sequence', epsilon_high=0.05, delta=1.1)
  out['kl'] = dict(beta=0.1)
  out['kl_sequence'] = dict(level='sequence', beta=0.1)
  out['vllm'] = dict(vllm_cap=1.2)
  for mode in VLLM_MODES:
    vllm = dict(vllm_mode=mode, vllm_cap=1.2)
    out[f'vllm_{mode}'] = vllm
    out[f'vllm_{mode}_floor'] = dict(
        vllm, vllm_floor=0.85, loss_type='dapo', micro_batches=2
    )
    out[f'vllm_{mode}_kl'] = dict(vllm, loss_type='dr_grpo', beta=0.1)
    if 'sequence' in mode:
      out[f'vllm_{mode}_sequence'] = dict(vllm, level='sequence')
  out['dapo_accumulated'] = dict(loss_type='dapo', micro_batches=3)
  out['dr_grpo_accumulated'] = dict(loss_type='dr_grpo', micro_batches=3)
  out['grpo_accumulated'] = dict(micro_batches=3)
  return {name: {**_DEFAULTS, **case} for name, case in out.items()}


def draw_inputs() -> dict[str, list]:
  """Return B = 6 random completions of up to 7 tokens, one with a mask."""
  rng = random.Random(0)
  lengths = (7, 3, 1, 5, 7, 4)

  def normal(scale):
    return [[rng.gauss(0, scale) for _ in range(7)] for _ in lengths]

  def plus(x, y):
    return [
        [a + b for a, b in zip(u, v, strict=True)]
        for u, v in zip(x, y, strict=True)
    ]

  logprobs = [[-rng.expovariate(1.0) for _ in range(7)] for _ in lengths]
  mask = [[int(t < n) for t in range(7)] for n in lengths]
  mask[4][2] = mask[4][3] = 0
  old = plus(logprobs, normal(0.4))
  return dict(
      logprobs=logprobs,
      old_logprobs=old,
      sampler_logprobs=plus(old, normal(0.2)),
      ref_logprobs=plus(logprobs, normal(0.5)),
      advantages=[rng.gauss(0, 1) for _ in lengths],
      mask=mask,
      rewards=[[0.0, 1.0, 1.0, 0.25], [2.0, -1.0, 0.5, 3.0]],
      valid=[[True, True, True, True], [True, False, True, True]],
  )


def importance_ratio(case: dict[str, object], x: dict[str, object]) -> object:
  """Return token weights from TRL's own code for the sampler's log-probs.

  The code is in the middle of a method that also generates, so its source is
  parsed for the one `if` that computes the weights.

  Args:
    case: Settings, see `_DEFAULTS`.
    x: Torch tensors of `draw_inputs`.

  Returns:
    float64 tensor [B, L], or [B, 1] for the modes of sequences.
  """
  import torch  # pylint: disable=g-import-not-at-top
  from trl.trainer import grpo_trainer  # pylint: disable=g-import-not-at-top

  method = grpo_trainer.GRPOTrainer._generate_and_score_completions
  tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
  (block,) = (
      node
      for node in ast.walk(tree)
      if isinstance(node, ast.If)
      and ast.unparse(node.body[-1]).startswith('if self.vllm_importance_sampl')
  )
  names = dict(
      self=types.SimpleNamespace(
          vllm_importance_sampling_mode=case['vllm_mode'],
          vllm_importance_sampling_clip_max=case['vllm_cap'],
          vllm_importance_sampling_clip_min=case['vllm_floor'],
      ),
      torch=torch,
      math=math,
      completion_mask=torch.ones_like(x['mask']),
      tool_mask=x['mask'],
      old_per_token_logps=x['old_logprobs'],
      sampling_per_token_logps=x['sampler_logprobs'],
  )
  code = ast.Module(block.body, type_ignores=[])
  exec(compile(code, 'trl', 'exec'), names)  # pylint: disable=exec-used
  return names['vllm_importance_sampling_ratio']


def run_case(case: dict[str, object], inputs: dict[str, list]) -> dict:
  """Return the results of one case in TRL.

  Args:
    case: Settings, see `_DEFAULTS`.
    inputs: See `draw_inputs`.

  Returns:
    {'loss': float, 'grad': [B][L] gradient in logprobs, 'metrics': {name:
    float}} summed over micro-batches; metrics of one micro-batch only.
  """
  import torch  # pylint: disable=g-import-not-at-top
  from trl.trainer import grpo_trainer  # pylint: disable=g-import-not-at-top

  x = {k: torch.tensor(v, dtype=torch.float64) for k, v in inputs.items()}
  logprobs = x['logprobs'].requires_grad_()
  count = case['micro_batches']
  size = len(logprobs) // count
  metrics = collections.defaultdict(list)
  total = 0.0
  for i in range(count):
    part = slice(i * size, (i + 1) * size)
    mask = x['mask'][part]
    batch = dict(
        prompt_ids=torch.zeros((size, 1), dtype=torch.long),
        prompt_mask=torch.ones((size, 1), dtype=torch.long),
        completion_ids=torch.zeros(mask.shape, dtype=torch.long),
        completion_mask=torch.ones_like(mask),
        tool_mask=mask,
        advantages=x['advantages'][part],
        old_per_token_logps=x['old_logprobs'][part],
        ref_per_token_logps=x['ref_logprobs'][part],
        num_items_in_batch=x['mask'].sum(),
    )
    if case['vllm_cap'] is not None:
      batch['importance_sampling_ratio'] = importance_ratio(case, x)[part]
    scored = (logprobs[part], torch.zeros_like(mask), None)
    # All attributes that _compute_loss reads from its trainer in 1.16.0.
    trainer = types.SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, y=scored, **__: y,
        _entropy_bonus_enabled=False,
        _metrics={'train': metrics},
        accelerator=types.SimpleNamespace(
            num_processes=1,
            reduce=lambda y, reduction: y,
            gather=lambda y: y,
        ),
        args=types.SimpleNamespace(
            delta=case['delta'],
            use_bias_correction_kl=False,
            steps_per_generation=count,
        ),
        aux_loss_enabled=False,
        beta=case['beta'],
        current_gradient_accumulation_steps=count,
        epsilon_high=case['epsilon_high'],
        epsilon_low=case['epsilon_low'],
        importance_sampling_level=case['level'],
        loss_type=case['loss_type'],
        max_completion_length=MAX_TOKENS,
        model=types.SimpleNamespace(training=True),
        off_policy_mask_threshold=None,
        top_entropy_quantile=1.0,
        use_vllm=case['vllm_cap'] is not None,
        vllm_importance_sampling_correction=True,
    )
    loss = grpo_trainer.GRPOTrainer._compute_loss(trainer, None, batch)
    loss.backward()
    total += loss.item()
  return dict(
      loss=total,
      grad=logprobs.grad.tolist(),
      metrics={
          name: metrics[name][0]
          for name in ('clip_ratio/low_mean', 'clip_ratio/high_mean', 'kl')
          if name in metrics and count == 1
      },
  )


def run_advantages(inputs: dict[str, list]) -> list[list[float]]:
  """Return GRPO advantages [P][G] with TRL's nanstd; 0 where invalid."""
  import torch  # pylint: disable=g-import-not-at-top
  from trl.trainer import utils  # pylint: disable=g-import-not-at-top

  rewards = torch.tensor(inputs['rewards'], dtype=torch.float64)
  rewards[~torch.tensor(inputs['valid'])] = torch.nan
  centred = rewards - torch.nanmean(rewards, dim=1, keepdim=True)
  std = utils.nanstd(rewards, dim=1, keepdim=True)
  return torch.nan_to_num(centred / (std + 1e-4)).tolist()


def main():
  inputs = draw_inputs()
  golden = dict(
      made_by='tests/parity/make_trl_goldens.py',
      date=datetime.date.today().isoformat(),
      versions={
          'python': platform.python_version(),
          **{n: importlib.metadata.version(n) for n in ('trl', 'torch')},
      },
      max_tokens=MAX_TOKENS,
      inputs=inputs,
      advantages=run_advantages(inputs),
      cases={
          name: dict(settings=case, **run_case(case, inputs))
          for name, case in cases().items()
      },
  )
  PATH.parent.mkdir(exist_ok=True)
  # One case per line, so that a change of one case shows as one line.
  case_lines = ',\n'.join(
      f'{json.dumps(k)}: {json.dumps(v)}' for k, v in golden['cases'].items()
  )
  lines = [
      f'{json.dumps(k)}: {json.dumps(v)}'
      for k, v in golden.items()
      if k != 'cases'
  ]
  lines.append(f'"cases": {{\n{case_lines}\n}}')
  PATH.write_text('{\n' + ',\n'.join(lines) + '\n}\n')
  print(f'{PATH}: {len(golden["cases"])} cases')


if __name__ == '__main__':
  main()
