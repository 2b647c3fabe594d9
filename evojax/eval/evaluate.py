"""Scores of a policy on problems that it was not trained on."""

from collections.abc import Mapping, Sequence
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
from evojax.episodes import episode
from evojax.eval import estimates
from evojax.eval import modes as modes_lib
from evojax.eval import scores
from evojax.evidence import schema
from evojax.evidence import store
from evojax.ledger import records as ledger_records
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
  # False where grading failed: such a completion is neither solved nor
  # unsolved. At least one completion of every problem is graded.
  graded: Bool[np.ndarray, 'P k']
  # Codes; None if the domain does not classify completions.
  modes: Int[np.ndarray, 'P k'] | None
  mode_codes: Mapping[str, int] | None
  avg_at_k: ledger_records.Estimate
  pass_at_k: Mapping[int, float]  # For k = 1, 2, 4, ... and all samples.
  n_tokens: float  # Mean number of sampled tokens.
  truncated: float  # Share of completions cut at the limit.
  seconds: float  # Wall time, including compilation.

  @property
  def problem_scores(self) -> Float[np.ndarray, 'P']:
    """Mean outcome of each problem, over its graded completions."""
    return scores.of_problems(self.outcomes, self.graded)

  def metrics(self) -> dict[str, float]:
    """Return scalars for `metrics.MetricWriter`, named '<split>/...'."""
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


@dataclasses.dataclass(frozen=True)
class Scorer:
  """Everything that scoring needs except the choice of problems."""

  engine: records.Sampler  # Holds the weights to score.
  tokenizer: tokenizer_lib.Tokenizer
  domain: base.Domain  # Problems and grader.
  params: records.SamplingParams  # How to sample.
  max_prompt_tokens: int  # Lp.
  version: str = 'seed'  # For the evidence column of this name.
  phases: metrics_lib.Phases | None = None  # Times rollout, grade and log.


def evaluate(
    scorer: Scorer,
    *,
    split: str,
    seed: int,
    problems: int,
    samples: int,
    first: int = 0,
    step: int = 0,
    workdir: str | os.PathLike[str] | None = None,
    allow_sealed: bool = False,
) -> EvalResult:
  """Score the weights that the scorer's engine holds.

  The problems are consecutive in the split's stream under `seed`, which also
  seeds the sampler: two policies evaluated with equal arguments get the same
  problems and the same random numbers, so that their difference is paired.

  Args:
    scorer: Engine, domain and sampling parameters.
    split: 'dev', or 'train' to look for memorisation.
    seed: Seed of problems and sampler.
    problems: P, at least 2.
    samples: k of Avg@k.
    first: Position of the first problem in the stream.
    step: Training step of the weights; names the evidence file.
    workdir: Directory to write evidence to; None writes none.
    allow_sealed: Whether the split may be 'sealed', which is allowed only if no
      training can follow from the score.

  Returns:
    The scores.

  Raises:
    ValueError: If a number is impossible, a prompt is too long, the split is
      sealed, or a grade does not follow the domain's columns.
    collect.GradingError: If no completion of some problem could be graded.
    evidence.store.EvidenceError: If the evidence does not follow its
      declaration.
    durable.DiskError: If the evidence cannot be written.
    preemption.Interrupted: If the run was asked to stop.
  """
  for name, value in (('problems', problems), ('samples', samples)):
    least = 2 if name == 'problems' else 1  # An interval needs a spread.
    if value < least:
      raise ValueError(f'eval.{name}={value} must be at least {least}')
  if split == 'sealed' and not allow_sealed:
    raise ValueError(
        "split='sealed' is scored once per run, by evojax.eval.sealed.score; a"
        " decision that is taken while training needs split='dev'"
    )
  start = time.perf_counter()
  # Without timers, a phase does nothing.
  phase: Any = scorer.phases or (lambda name: contextlib.nullcontext())
  asked = collect.request_batch(
      scorer.tokenizer,
      _take(scorer.domain.source(split, seed), first, problems),
      scorer.params,
      group_size=samples,
      seed=seed,
      max_prompt_tokens=scorer.max_prompt_tokens,
  )
  with phase('rollout'):
    player = episode.Player(scorer.engine, scorer.tokenizer, scorer.domain)
    episodes = player.play(asked)
  # Evaluations have no reward parts, whatever trained the policy.
  columns = schema.declare(scorer.domain.columns)
  with phase('grade'):
    rollouts = collect.rollout_batch(
        scorer.domain,
        columns,
        asked,
        episodes,
        step=step,
        split=split,
        version=scorer.version,
        divided=True,
        # Only engines used in training have it.
        stopping=getattr(scorer.engine, 'stopping', None),
    )
  # Written before a possible error, so that graded rows are kept as evidence.
  if workdir is not None:
    with phase('log'):
      store.write_step(workdir, split, step, rollouts.rows, columns)
  _check_graded(rollouts, asked, split)
  seconds = time.perf_counter() - start
  return _result(rollouts, asked, columns, split, step, seconds)


def _take(
    source: records.ProblemSource, first: int, count: int
) -> list[records.Problem]:
  """Return problems first .. first + count - 1 of a stream.

  They repeat none of those before them, unless the stream has too few.
  """
  if first + count <= len(source):
    return source.take(0, first + count)[first:]
  return source.take(first, count)


def _check_graded(
    rollouts: collect.RolloutBatch, asked: records.RequestBatch, split: str
) -> None:
  """Raise collect.GradingError if some problem has no graded completion."""
  graded = rollouts.graded
  missing = np.flatnonzero(~graded.any(axis=1))
  if len(missing):
    raise collect.GradingError(
        f'none of the {graded.shape[1]} completions of {len(missing)} {split}'
        ' problems could be graded, the first of them'
        f' {asked.problems[missing[0]].problem_id}: their score is not known.'
        ' The same command evaluates again'
    )


def _result(
    rollouts: collect.RolloutBatch,
    asked: records.RequestBatch,
    columns: Sequence[schema.Column],
    split: str,
    step: int,
    seconds: float,
) -> EvalResult:
  """Return the scores of graded rollouts."""
  rows, graded = rollouts.rows, rollouts.graded
  outcomes = rows['outcome'].reshape(graded.shape)
  samples = graded.shape[1]
  codes = modes_lib.codes_of(columns)
  modes = None
  if codes is not None:
    modes = np.array(rows[modes_lib.COLUMN], np.int32).reshape(graded.shape)
  powers = {2**i for i in range(samples.bit_length())}
  return EvalResult(
      split=split,
      seed=asked.seed,
      step=step,
      policy_version=rollouts.episodes[0].policy_version,
      problem_ids=tuple(p.problem_id for p in asked.problems),
      families=tuple(p.family for p in asked.problems),
      outcomes=outcomes,
      graded=graded,
      modes=modes,
      mode_codes=codes,
      avg_at_k=estimates.over_problems(
          scores.of_problems(outcomes, graded), within=estimates.SHARES
      ),
      pass_at_k={
          k: scores.pass_at_k(outcomes, k, graded)
          for k in sorted(powers | {samples})
      },
      n_tokens=float(rows['n_tokens'].mean()),
      truncated=float(rows['truncated'].mean()),
      seconds=seconds,
  )
