"""Interventions that pay or fine what a run found in its own rollouts.

A diagnostic of `evolve.search` measures how often a predicate holds. While its
alert is raised, the predicate can be made a part of the reward: paid where it
holds too rarely, fined where it holds too often. As with any shaping, the race
and the second judge decide.
"""

import ast
from collections.abc import Iterator
import pathlib

from evojax.evolve import predicates
from evojax.evolve import propose
from evojax.evolve.propose import changes
from evojax.evolve.propose import library
from evojax.harness import parts
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.harness import syntax

_WEIGHT = 0.1


def entries(context: propose.Context) -> Iterator[library.Entry]:
  """Yield an intervention for every found diagnostic of the harness."""
  for path, source in context.parent.files.items():
    name = pathlib.PurePosixPath(path).stem
    tree = ast.parse(source)
    # A user may have given such a name to something else.
    if not predicates.is_found(path) or _function(tree, name) is None:
      continue
    said = ast.get_docstring(tree) or ''
    paid = _alert_below(tree, name)
    yield library.Entry(
        triggers=(name,),
        change=_give(name, source, _WEIGHT if paid else -_WEIGHT),
        expected=(-0.05, 0.06),
        hypothesis=' '.join(said.split('\n\n')[-1].split()),
        source='evojax.evolve.search',
        check=f'{name} {"rises" if paid else "falls"} and outcome rises',
    )


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
  """Return the function of a diagnostic that has its name; None without one."""
  functions = (n for n in tree.body if isinstance(n, ast.FunctionDef))
  return next((f for f in functions if f.name == name), None)


def _alert_below(tree: ast.Module, name: str) -> bool:
  """Return whether low values of a diagnostic raise its alert."""
  for statement in tree.body:
    if isinstance(statement, ast.Assign):
      target = statement.targets[0]
      if getattr(target, 'id', '') in ('WARN', 'CRITICAL'):
        bounds = ast.literal_eval(statement.value)  # The gate admits no other.
        if name in bounds:
          return bounds[name][0] == '<'
  return False


def _give(name: str, source: str, weight: float) -> changes.Change:
  """Return a change that makes a found predicate a part of the reward."""
  path = surface_lib.WEIGHTS + name

  def apply(context: propose.Context) -> spec.Harness | None:
    reward = context.parent.files.get('reward.py')
    if reward is None or context.config.get(path):
      return None
    try:
      combined = parts.add(reward, _part(name, source))
      after = context.parent.with_file('reward.py', combined)
    except (syntax.SourceError, spec.HarnessError):
      return None
    return after.with_overlay({path: weight})

  return changes.Change(path, apply)


def _part(name: str, source: str) -> str:
  """Return the predicate of a diagnostic as the source of a reward part."""
  text = ast.get_source_segment(source, _function(ast.parse(source), name))
  return f'''"""{name}: 1 where it holds, see diagnostics/{name}.py."""

import numpy as np


{text.replace(f"def {name}(", f"def _{name}(")}


def parts(e):
  return {{'{name}': _{name}(e).astype(np.float32)}}
'''
