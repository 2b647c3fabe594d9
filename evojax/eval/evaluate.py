"""Scores a policy on problems that it was not trained on."""

from collections.abc import Mapping
import contextlib
import dataclasses
import os
import time
from typing import Any

from jaxtyping import Bool, Float, Int
import numpy as np

from evojax import records
from evojax.domains import base
from evojax.episodes import collect
from evojax.episodes import rows as rows_lib
from evojax.eval import estimates
from evojax.eval import modes as modes_lib
from evojax.eval import scores
from evojax.evidence import schema
from evojax.evidence import store
from evojax.models import tokenizer as tokenizer_lib
from evojax.runtime import metrics as metrics_lib


@dataclasses.dataclass(frozen=True)
class EvalResult:
  """Scores of one policy on P problems with k samples each."""

  split: str
  seed: int
  step: int
  policy_version: int
  problem_ids: tuple[str, ...]  # P.
  families: tuple[str, ...]  # P.
  outcomes: Bool[np.ndarray, 'P k']
  # False where the evaluator failed: not measured, neither solved nor not. At
  # least one of every problem is graded.
  graded: Bool[np.ndarray, 'P k']
  # Codes; None if the domain does not classify completions.
  modes: Int[np.ndarray, 'P k'] | None
  mode_codes: Mapping[str, int] | None
  avg_at_k: estimates.Estimate
  pass_at_k: Mapping[int, float]  # For k = 1, 2, 4, ... and all samples.
  n_tokens: float  # Mean of sampled tokens.
  truncated: float  # Share of completions cut at the limit.
  seconds: float  # Wall time, compilation included.

  @property
  def problem_scores(self) -> Float[np.ndarray, 'P']:
    """Mean outcome of each problem, over what was graded."""
    return scores.of_problems(self.outcomes, self.graded)

  def metrics(self) -> dict[str, float]:
    """Scalars for `metrics.MetricWriter`, named '<split>/...'."""
    values = {
        'avg_at_k': self.avg_at_k.value,
        'avg_at_k_standard_error': self.avg_at_k.standard_error,
        'avg_at_k_low': self.avg_at_k.low,
        'avg_at_k_high': self.avg_at_k.high,
        'n_tokens': self.n_tokens,
        'truncated': self.truncated,
        'not_graded': float((~self.graded).sum()),
        'seconds': self.seconds,
    }
    values |= {f'pass_at_{k}': value for k, value in self.pass_at_k.items()}
    if self.modes is not None:
      values |= {
          f'share_{name}': float((self.modes == code)[self.graded].mean())
          for name, code in self.mode_codes.items()
      }
    return {f'{self.split}/{name}': value for name, value in values.items()}


def evaluate(
    engine: records.Sampler,
    tokenizer: tokenizer_lib.Tokenizer,
    domain: base.Domain,
    *,
    split: str,
    seed: int,
    problems: int,
    samples: int,
    params: records.SamplingParams,
    max_prompt_tokens: int,
    step: int,
    version: str = 'seed',
    workdir: str | os.PathLike[str] | None = None,
    phases: metrics_lib.Phases | None = None,
    allow_sealed: bool = False,
) -> EvalResult:
  """Scores the weights that the engine holds.

  Problems are the first ones of the split's stream under `seed`, which also
  seeds the sampler: two policies that are evaluated with equal arguments get
  the same problems and the same random numbers, so their difference is paired.

  Args:
    engine: Sampler with the weights to score.
    tokenizer: Of the policy.
    domain: Problems and grader.
    split: 'dev', or 'train' for a look at memorisation.
    seed: Of problems and sampler.
    problems: P, at least 2.
    samples: k of Avg@k.
    params: How to sample.
    max_prompt_tokens: Lp.
    step: Training step of the weights; names the evidence file.
    version: Training-harness version.
    workdir: Where evidence is written; None writes none.
    phases: Counts the time of rollout, grade and log.
    allow_sealed: Whether the split may be 'sealed': only where no training can
      follow from the score.

  Raises:
    ValueError: If a number is impossible, a prompt is too long, the split is
      sealed, or a grade does not follow the domain's columns.
    rollouts.GradingError: If no completion of some problem could be graded.
    evidence.store.EvidenceError: If the evidence does not follow its
      declaration.
    workdir.DiskError: If the evidence cannot be written.
  """
  for name, value, least in (
      ('problems', problems, 2),
      ('samples', samples, 1),
  ):
    if value < least:
      raise ValueError(f'eval.{name}={value} must be at least {least}')
  if split == 'sealed' and not allow_sealed:
    raise ValueError(
        "split='sealed' is scored once per run, by evojax.eval.sealed.score; a"
        " decision that is taken while training needs split='dev'"
    )
  start = time.perf_counter()
  phase: Any = phases or (lambda name: contextlib.nullcontext())
  drawn = domain.source(split, seed).take(0, problems)
  prompts = collect.render(tokenizer, drawn, max_prompt_tokens)
  requests = collect.requests(
      drawn, prompts, params, group_size=samples, seed=seed
  )
  with phase('rollout'):
    completions = engine.generate(requests)
  with phase('grade'):
    grades, grade_seconds = collect.grade(domain, drawn, completions)
  columns = schema.declare(domain.columns)
  rows = rows_lib.from_rollouts(
      drawn,
      completions,
      grades,
      columns=columns,
      group_size=samples,
      step=step,
      split=split,
      seed=seed,
      version=version,
      prompt_tokens=prompts,
      grade_seconds=grade_seconds,
  )
  if workdir is not None:
    with phase('log'):
      store.write_step(workdir, split, step, rows, columns)
  outcomes = rows['outcome'].reshape(problems, samples)
  graded = rows['graded'].reshape(problems, samples)
  missing = np.flatnonzero(~graded.any(axis=1))
  if len(missing):
    raise collect.GradingError(
        f'none of the {samples} completions of {len(missing)} {split} problems'
        f' could be graded, the first of them {drawn[missing[0]].problem_id}:'
        ' their score is not known. The same command evaluates again'
    )
  codes = modes_lib.codes_of(columns)
  modes = None
  if codes is not None:
    modes = np.array(rows[modes_lib.COLUMN], np.int32).reshape(outcomes.shape)
  powers = {2**i for i in range(samples.bit_length())}
  return EvalResult(
      split=split,
      seed=seed,
      step=step,
      policy_version=completions[0].policy_version,
      problem_ids=tuple(p.problem_id for p in drawn),
      families=tuple(p.family for p in drawn),
      outcomes=outcomes,
      graded=graded,
      modes=modes,
      mode_codes=codes,
      avg_at_k=estimates.over_problems(
          scores.of_problems(outcomes, graded), rng=np.random.default_rng(0)
      ),
      pass_at_k={
          k: scores.pass_at_k(outcomes, k, graded)
          for k in sorted(powers | {samples})
      },
      n_tokens=float(rows['n_tokens'].mean()),
      truncated=float(rows['truncated'].mean()),
      seconds=time.perf_counter() - start,
  )
