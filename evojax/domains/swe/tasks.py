"""A task: a repository, an issue, and the hidden tests of its solution.

`problems` makes tasks of the shipped packages, `foreign` reads those of others.
Both can be written as JSON lines of SWE-bench's shape.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
from typing import Any

from evojax.domains.swe import suite as suite_lib
from evojax.domains.swe import trees

# Where a verdict comes from: values compared outside of the agent's process, or
# what a pytest beside the agent's code says of itself, which can be forged.
OUTSIDE, IN_PROCESS = 'outside', 'in_process'


@dataclasses.dataclass(frozen=True)
class Task:
  """One problem. The agent sees `tree` and `issue` and nothing else of it."""

  instance_id: str
  repo: str
  issue: str
  base_commit: str  # 40 hex digits: what is checked out.
  tree: trees.Tree  # The files that an agent gets, visible tests included.
  hidden: trees.Tree  # The test files as they are graded.
  solution: trees.Tree  # The whole tree after the reference patch.
  fail_to_pass: tuple[str, ...]  # Names of tests.
  pass_to_pass: tuple[str, ...]
  # Returns the files of .git; if True, with nothing later than base_commit.
  history: Callable[[bool], Mapping[str, bytes]] = lambda scrubbed: {}
  trust: str = OUTSIDE
  family: str = ''  # What it is reported under.
  unseen: bool = False  # From a repository that nothing is trained on.

  @property
  def foreign(self) -> bool:
    """Whether its tests are somebody else's, for pytest to run."""
    return self.trust == IN_PROCESS

  @property
  def patch(self) -> str:
    """Return the reference patch, without tests."""
    right = {p: d for p, d in self.solution.items() if not trees.is_test(p)}
    tests = {p: d for p, d in self.tree.items() if trees.is_test(p)}
    return trees.patch(self.tree, {**right, **tests})

  @property
  def test_patch(self) -> str:
    """Return the patch from the visible tests to the hidden ones."""
    tests = {p: d for p, d in self.tree.items() if trees.is_test(p)}
    return trees.patch(tests, {**tests, **self.hidden})

  @property
  def suite(self) -> suite_lib.Suite:
    """Return the hidden tests as data; only where `trust` is OUTSIDE."""
    return suite_lib.parse(self.hidden)

  def row(self) -> dict[str, Any]:
    """Return the task in SWE-bench's shape; lists of tests are JSON texts."""
    return {
        'instance_id': self.instance_id,
        'repo': self.repo,
        'base_commit': self.base_commit,
        'problem_statement': self.issue,
        'patch': self.patch,
        'test_patch': self.test_patch,
        'FAIL_TO_PASS': json.dumps(self.fail_to_pass),
        'PASS_TO_PASS': json.dumps(self.pass_to_pass),
    }
