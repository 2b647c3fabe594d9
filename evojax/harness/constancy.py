"""Numbers without information: constant ones, or none at all.

A function may give useful numbers on little evidence, but a constant on as much
as a training step has, where it counts. So it is tested on that much, too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from evojax.harness import cases as cases_lib

_EVIDENCE = {'recorded': 'recorded evidence', 'scrambled': 'random evidence'}
_LIKE_A_STEP = (
    'all of them valid, as in a step of this run; use no sizes of the evidence'
)
# Name of a case -> the case and the answers to it.
Found = Mapping[str, tuple[cases_lib.Case, list[dict[str, np.ndarray]]]]


def reasons(
    function: str,
    made: cases_lib.Cases,
    found: Found,
    called: Callable[[str], str],
) -> Iterator[str]:
  """Yield the numbers without information, as sentences about a function.

  Args:
    function: parts | keep | weight | measure | predict.
    made: The cases.
    found: The answers to the cases, 0 where a completion is not valid.
    called: Returns the description of a name in an answer.
  """
  if function == 'keep':
    yield from _kept(made, found)
  elif function not in cases_lib.EACH:
    yield from _silent(made, found)
  else:
    for name in found['recorded'][1][0]:
      said = _constant(function, name, ('recorded', 'scrambled'), found)
      for kind in made.sizes if said is None else ():
        # The mere size of a step may make a number constant.
        drawn = [
            k for k in found if k == kind or k.startswith(f'{kind}: again')
        ]
        if _constant(function, name, drawn, found):
          said = _constant(function, name, [kind], found)
          said = f'{said}, {_LIKE_A_STEP}'
          break
      if said is not None:
        yield (
            f'{called(name)} tells no two completions apart: it varies in'
            f' {said}; a constant teaches nothing'
        )


def _kept(made: cases_lib.Cases, found: Found) -> Iterator[str]:
  if not any(
      answer[0].get('', np.False_).any() for _, answer in found.values()
  ):
    yield 'keeps no completion on any evidence'
    return
  for kind in made.sizes:
    if not found[kind][1][0].get('', np.False_).any():
      yield f'keeps no completion on {kind}, {_LIKE_A_STEP}'


def _constant(
    function: str, name: str, cases: Sequence[str], found: Found
) -> str | None:
  """Return where a number does not vary within groups; None if it does."""
  said = []
  least, most = np.inf, -np.inf
  for case_name in cases:
    case, (answer,) = found[case_name]
    if name not in answer:
      continue
    valid = case.tables[0].valid
    array = answer[name].reshape(*valid.shape, -1)[..., 0]
    array = array.astype(np.float64)
    known = valid & np.isfinite(array)
    low = np.where(known, array, np.inf).min(1)
    high = np.where(known, array, -np.inf).max(1)
    groups = known.sum(1) >= 2
    spread = (high - low)[groups]
    if function == 'weight' and groups.any():
      # A weight may vary between groups instead; if steps have one group each,
      # between the groups of all steps.
      least = min(least, low[groups].min())
      most = max(most, high[groups].max())
      spread = np.array([most - least])
    varies = int((spread > 1e-6).sum())
    if varies or valid.shape[1] < 2:  # A single completion cannot vary.
      return None
    values = array[known]
    said.append(
        f'{varies} of {int(groups.sum())} groups on'
        f' {_EVIDENCE.get(case_name, case_name)}, where it is'
        f' {values.min(initial=np.inf):.4g} to'
        f' {values.max(initial=-np.inf):.4g}'
    )
  return ' and in '.join(said)


def _silent(made: cases_lib.Cases, found: Found) -> Iterator[str]:
  """Yield numbers that are missing, or 0, on as much evidence as a step has."""
  few = [found[name][1][0] for name in ('synthetic', 'scrambled')]
  if not any((*few, found['recorded'][1][0])):
    yield 'returned no number on any evidence'
    return
  for kind in made.sizes:
    if not found[kind][1][0]:
      yield f'returned no number on {kind}, {_LIKE_A_STEP}'
      continue
    sized = [
        answer
        for case, (answer,) in found.values()
        if case.kind == kind and case.name not in made.copies
    ]
    for name in few[0].keys() & few[1].keys():
      if all(answer[name] != 0 for answer in few) and not any(
          answer.get(name, 1) for answer in sized
      ):
        yield (
            f'{name} is 0 on {kind}, {_LIKE_A_STEP}; it is'
            f' {float(few[1][name]):.4g} on fewer'
        )
