"""A task: a repository, an issue, and the hidden tests of its solution.

`problems` makes tasks of the shipped packages, `foreign` reads third-party
ones. Both can be written as JSON lines in SWE-bench's format.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
from typing import Any

from evojax.domains.swe import suite as suite_lib
from evojax.domains.swe import trees

# Origin of a verdict: values compared outside the agent's process, or the
# output of a pytest in the same process as the agent's code, which can forge
# it.
OUTSIDE, IN_PROCESS = 'outside', 'in_process'


@dataclasses.dataclass(frozen=True)
class Task:
  """One problem. The agent only sees its `tree`, `issue` and `history`."""

  instance_id: str
  repo: str
  issue: str
  base_commit: str  # The commit to check out, 40 hex digits.
  tree: trees.Tree  # The files that an agent gets, with the visible tests.
  hidden: trees.Tree  # The test files as they are graded.
  solution: trees.Tree  # The whole tree after the reference patch.
  fail_to_pass: tuple[str, ...]  # Names of tests.
  pass_to_pass: tuple[str, ...]
  # Returns the files of .git; for True, without anything after base_commit.
  history: Callable[[bool], Mapping[str, bytes]] = lambda scrubbed: {}
  trust: str = OUTSIDE
  family: str = ''  # Family in reports.
  unseen: bool = False  # From a repository that nothing is trained on.

  @property
  def foreign(self) -> bool:
    """True if the tests are third-party ones, which pytest runs."""
    return self.trust == IN_PROCESS

  @property
  def patch(self) -> str:
    """The reference patch, without tests."""
    right = {p: d for p, d in self.solution.items() if not self._is_test(p)}
    tests = {p: d for p, d in self.tree.items() if self._is_test(p)}
    return trees.patch(self.tree, {**right, **tests})

  @property
  def test_patch(self) -> str:
    """The patch from the visible tests to the hidden ones."""
    tests = {
        p: d
        for p, d in self.tree.items()
        if trees.is_test(p) or p in self.hidden
    }
    return trees.patch(tests, {**tests, **self.hidden})

  def _is_test(self, path: str) -> bool:
    """Return whether a file is a test, by its name or because it is hidden."""
    hidden = path in self.hidden and not trees.is_configuration(path)
    return hidden or trees.is_test(path)

  @property
  def suite(self) -> suite_lib.Suite:
    """The hidden tests as data; only if `trust` is OUTSIDE."""
    return suite_lib.parse(self.hidden)

  def row(self) -> dict[str, Any]:
    """Return the task in SWE-bench's format, with test lists as JSON texts."""
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
