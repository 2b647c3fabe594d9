"""The math domain: where problems come from, and how they are judged."""

from collections.abc import Mapping, Sequence
import dataclasses
from typing import Any

from evojax import records
from evojax.domains import base
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains.math import datasets
from evojax.domains.math import demonstrations
from evojax.domains.math import grade
from evojax.domains.math import perturb
from evojax.domains.math import problems
from evojax.harness.library.seed import reward

_READ_ARGUMENTS = {
    'jsonl': ('question_field', 'answer_field'),
    'tfds': ('name', 'data_dir', 'module', 'question_field', 'answer_field'),
}


@dataclasses.dataclass(frozen=True)
class MathDomain(base.Domain):
  """See `make`. Either `entries` or `data` is empty."""

  entries: tuple[sources.Entry, ...]  # Generated problems.
  data: Mapping[str, tuple[records.Problem, ...]]  # Split -> given problems.
  answer_format: str  # One of grade.ANSWER_FORMATS.
  system_prompt: str  # First message of generated problems; empty is none.

  name = 'math'
  columns = grade.COLUMNS
  reward_parts = staticmethod(reward.parts)
  demonstrations = base.Demonstrations(
      demonstrations.demonstrate, demonstrations.TOKENS
  )

  def source(self, split: str, seed: int) -> records.ProblemSource:
    """Problems of 'train', 'dev' or 'sealed'; disjoint by problem_id.

    Raises:
      ValueError: If the split is unknown, or a family is too small for it.
    """
    splits.check(split)
    if self.data:
      return sources.FiniteSource(self.data[split], split, seed)
    return problems.stream(self.entries, split, seed, self.system_prompt)

  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    """Grade a completion. Never raises on hostile or malformed text."""
    return grade.grade(
        problem.answer,
        completion.text,
        self.answer_format,
        completion.finish_reason == 'length',
        problem.metadata.get('answer_form', 'value'),
    )

  def perturb(self, problem: records.Problem) -> records.Problem | None:
    """The problem written otherwise; None where it cannot be.

    No other problem becomes a sealed one: that would open the split early.
    """
    changed = perturb.perturb(problem)
    if changed is None:
      return None
    opens = self._is_sealed(changed) and not self._is_sealed(problem)
    return None if opens else changed

  def _is_sealed(self, problem: records.Problem) -> bool:
    identity = problem.problem_id
    if self.data:
      return any(p.problem_id == identity for p in self.data['sealed'])
    return splits.split_of(identity) == 'sealed'


def make(
    *,
    families: str | Sequence[str] = (),
    weights: Sequence[float] = (),
    answer_format: str = 'tag',
    system_prompt: str = '',
    jsonl: Mapping[str, Any] | None = None,
    tfds: Mapping[str, Any] | None = None,
) -> MathDomain:
  """Build the domain; reads its files and measures its families.

  Problems come from one place: families, jsonl or tfds; from the family set
  'small' if none is named.

  Args:
    families: Generated problems, see `problems.select`.
    weights: One per name in families; equal if empty.
    answer_format: How an answer is marked, one of grade.ANSWER_FORMATS.
    system_prompt: First message of every problem; empty is none. It is no part
      of a problem's identity.
    jsonl: 'train', and optionally 'dev' and 'sealed': paths, see
      `datasets.read_jsonl`; 'question_field', 'answer_field'. A split without
      a path takes its share of train, by hash.
    tfds: 'name'; 'train', 'dev', 'sealed' as for jsonl: splits of the data
      set; 'data_dir', 'module', 'question_field', 'answer_field', see
      `datasets.read_tfds`.

  Raises:
    ValueError: If an argument is impossible, a file is broken, or a family is
      too small for disjoint splits.
  """
  if answer_format not in grade.ANSWER_FORMATS:
    raise ValueError(
        f'domain.kwargs.answer_format={answer_format!r} is not one of'
        f' {grade.ANSWER_FORMATS}'
    )
  sources.check_system_prompt(system_prompt)
  given = sources.filled(jsonl=jsonl, tfds=tfds)
  named = [name for name, value in given.items() if value]
  if len(named) + bool(families) > 1 or (weights and not families):
    raise ValueError(
        'domain.kwargs: problems come from one of families, jsonl and tfds'
        f' (weights belong to families); given are {families=}, {weights=},'
        f' {given}'
    )
  if named:
    data = _read(named[0], given[named[0]], system_prompt)
    return MathDomain((), data, answer_format, system_prompt)
  entries = problems.select(families or 'small', weights)
  for entry in entries:
    problems.check_capacity(entry.family, entry.level)
  return MathDomain(entries, {}, answer_format, system_prompt)


def _read(
    kind: str, config: Mapping[str, Any], system_prompt: str
) -> Mapping[str, tuple[records.Problem, ...]]:
  """Read and divides the data of a `jsonl` or `tfds` argument."""
  accepted = (*splits.SHARES, *_READ_ARGUMENTS[kind])
  unknown = sorted(set(config) - set(accepted))
  required = ('train',) if kind == 'jsonl' else ('name', 'train')
  missing = [field for field in required if field not in config]
  if unknown or missing:
    raise ValueError(
        f'domain.kwargs.{kind}: {unknown=}, {missing=}; it takes'
        f' {", ".join(accepted)}'
    )
  arguments = {k: v for k, v in config.items() if k not in splits.SHARES}
  arguments['system_prompt'] = system_prompt
  read = {
      split: (
          datasets.read_jsonl(config[split], **arguments)
          if kind == 'jsonl'
          else datasets.read_tfds(split=config[split], **arguments)
      )
      for split in splits.SHARES
      if split in config
  }
  return sources.divide(read)
