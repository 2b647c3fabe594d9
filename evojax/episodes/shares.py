"""The episodes of a batch that each process of a run works on."""

from collections.abc import Sequence

import jax


def mine(
    problems: int, group_size: int, only: Sequence[int] | None = None
) -> list[int]:
  """Return the episodes whose environments and grading belong to this process.

  They are whole groups if there is at least one for each process, so that only
  one process prepares what a problem needs.

  Args:
    problems: Number of problems.
    group_size: Episodes per problem; the batch is group-major.
    only: Episodes of the batch to divide; None: all.

  Returns:
    Indices into the batch. In a run of one process these are all.
  """
  process, processes = jax.process_index(), jax.process_count()
  whole = problems >= processes
  return [
      b
      for b in (range(problems * group_size) if only is None else only)
      if (b // group_size if whole else b) % processes == process
  ]
