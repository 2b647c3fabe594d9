"""Slices of the training problems: a curriculum over levels and families.

Families with several levels are made easier or harder by their levels. Where no
family has more than one, as in swe, the solve rates of the families in the
recorded rollouts show which are easy.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from evojax.domains import sources
from evojax.evolve import propose
from evojax.evolve.propose import changes
from evojax.harness import spec

_PATH = 'data.families'
Level = tuple[str, int]  # (family, level).
_Levels = dict[str, list[int]]  # Family -> its levels, ascending.


def half_of_levels(harder: bool) -> changes.Change:
  """Return a change to the harder or easier half of each family's levels.

  If no family has two levels, it is the half of the families that is solved
  least or most often.
  """

  def choose(context: propose.Context, now: _Levels) -> _Levels:
    if any(len(levels) > 1 for levels in now.values()):
      return {f: _half(levels, harder) for f, levels in now.items()}
    ranked = _ranked(context, now)
    if not harder:
      ranked.reverse()
    return _only(now, ranked[: len(ranked) // 2])

  return _change(choose)


def middle_families() -> changes.Change:
  """Return a change to the half of the families solved nearest to half."""

  def choose(context: propose.Context, now: _Levels) -> _Levels:
    ranked = _ranked(context, now)
    ranked.sort(key=lambda family: abs(context.solved[family] - 0.5))
    return _only(now, ranked[: (len(ranked) + 1) // 2])

  return _change(choose)


def other_families() -> changes.Change:
  """Return a change from the chosen families and levels to all the others."""

  def choose(context: propose.Context, now: _Levels) -> _Levels:
    left = [
        (family, level)
        for family, level in context.levels
        if level not in now.get(family, ())
    ]
    return _grouped(left)

  return _change(choose)


def neighbours(context: propose.Context) -> Iterator[tuple[str, tuple]]:
  """Yield (description, names) of slices with one family more or less.

  At most two families are added and two removed, those that are solved most and
  least often; without measured rates, the first and the last in the config.
  """
  now, every = _now(context), _grouped(context.levels)
  if not now:
    return
  ends = lambda names: dict.fromkeys((*names[:1], *names[-1:]))
  if len(now) > 1:
    for family in ends(_ranked(context, now) or list(now)):
      rest = {f: levels for f, levels in now.items() if f != family}
      yield f'without {family}', _names(context, rest)
  left = {f: levels for f, levels in every.items() if f not in now}
  for family in ends(_ranked(context, left) or list(left)):
    more = {f: levels for f, levels in every.items() if f in now or f == family}
    yield f'with {family}', _names(context, more | now)


def _change(choose) -> changes.Change:
  """Return a change of the slice; None where it would be empty or the same."""

  def apply(context: propose.Context) -> spec.Harness | None:
    now = _now(context)
    after = choose(context, now) if now else {}
    if not after or after == now:
      return None
    return context.parent.with_overlay({_PATH: _names(context, after)})

  return changes.Change(_PATH, apply)


def _now(context: propose.Context) -> _Levels:
  """Return the families that a harness trains on; {} without families."""
  every = _grouped(context.levels)
  # The domain takes a slice only of families that its arguments name.
  if not every or 'domain.kwargs.families' not in context.config:
    return {}
  found: _Levels = {}
  for name in context.config.get(_PATH) or every:
    family, levels = sources.read_name(name)
    found.setdefault(family, []).extend(levels or every.get(family, ()))
  return found


def _grouped(levels: Collection[Level]) -> _Levels:
  found: _Levels = {}
  for family, level in levels:
    found.setdefault(family, []).append(level)
  return {family: sorted(set(found[family])) for family in found}


def _only(now: _Levels, families: Collection[str]) -> _Levels:
  return {f: levels for f, levels in now.items() if f in families}


def _half(levels: Sequence[int], harder: bool) -> list[int]:
  """Return the harder or easier half; the middle of an odd number is easy."""
  middle = (len(levels) + 1) // 2
  return list(levels[middle:] if harder else levels[:middle]) or list(levels)


def _ranked(context: propose.Context, families: Collection[str]) -> list[str]:
  """Return the families with a known solve rate, the least solved first."""
  known: Mapping[str, float] = context.solved
  found = [family for family in families if family in known]
  return sorted(found, key=lambda family: (known[family], family))


def _names(context: propose.Context, chosen: _Levels) -> tuple[str, ...]:
  """Return a slice as names such as 'gcd:0-1'; () for all problems."""
  if chosen == _grouped(context.levels):
    return ()
  names = []
  for family, levels in chosen.items():
    runs: list[list[int]] = []
    for level in levels:
      if runs and level == runs[-1][1] + 1:
        runs[-1][1] = level
      else:
        runs.append([level, level])
    names += [
        f'{family}:{low}' if low == high else f'{family}:{low}-{high}'
        for low, high in runs
    ]
  return tuple(names)
