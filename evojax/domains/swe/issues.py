"""The text of an issue: the symptom that a user sees, not the bug's
location."""

import ast
import hashlib
from typing import Any

from evojax.domains.swe import suite
from evojax.domains.swe import values
from evojax.runtime import python_source

# {call}, {found} and {right} are source text. No template names a module.
_WRONG = (
    '{call} returns {found}, but should return {right}.',
    'I expected {right} from {call} and got {found}.',
    'Wrong result: {call} is {found}. It should be {right}.',
    '{call} gives {found} instead of {right}.',
    'Why is {call} equal to {found}? The right answer is {right}.',
    'We rely on {call} being {right}. Now it is {found}.',
)
_FAILS = (
    '{call} fails with {found}, but should return {right}.',
    '{found} from {call}. I expected {right}.',
    '{call} does not work: {found} is raised instead of returning {right}.',
    'Calling {call} ends with {found}. It should give {right}.',
)
_ACCEPTS = (
    '{call} should raise {right}, but returns {found}.',
    '{call} is accepted and gives {found}. I expected {right}.',
    'No {right} from {call}: it returns {found}.',
)
_FAILS_OTHERWISE = (
    '{call} should raise {right}, but fails with {found}.',
    'I expected {right} from {call} and got {found}.',
)
_BEFORE = (
    'After\n\n```python\n{before}\n```\n\n',
    'With this code:\n\n```python\n{before}\n```\n\n',
    'To reproduce:\n\n```python\n{before}\n```\n\n',
)


def write(check: suite.Check, found: Any, seed: str) -> str:
  """Return the text of an issue.

  Args:
    check: A failing check.
    found: Its value, decoded.
    seed: Chooses the wording.
  """
  failed = isinstance(found, values.Raised)
  if check.raises:
    choices = _FAILS_OTHERWISE if failed else _ACCEPTS
    right = f'a {check.expected}'
  else:
    choices = _FAILS if failed else _WRONG
    right = f'`{check.expected!r}`'
  number = int(hashlib.sha256(seed.encode()).hexdigest()[:8], 16)
  text = choices[number % len(choices)].format(
      call=f'`{plain(check.call, check)}`',
      found=f'a {found.kind}' if failed else f'`{found!r}`',
      right=right,
  )
  if check.before:
    before = _BEFORE[number // 16 % len(_BEFORE)]
    text = before.format(before=plain(check.before, check)) + text
  return text


def plain(text: str, check: suite.Check) -> str:
  """Return source without module names, which would reveal the location."""
  tree = _Unqualified(check.modules).visit(python_source.parse(text))
  return ast.unparse(ast.fix_missing_locations(tree))


class _Unqualified(ast.NodeTransformer):

  def __init__(self, modules: tuple[str, ...]):
    self._modules = modules

  def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
    owner = node.value
    if isinstance(owner, ast.Name) and owner.id in self._modules:
      return ast.Name(node.attr, node.ctx)
    return self.generic_visit(node)
