"""Software engineering: repositories with a bug, tools, and a grader.

`make(**kwargs)` builds the domain; the arguments are those of `domain.make`.
An episode has several turns, each a tool call; `evidence` has its columns, and
`demonstrations` trains the base policy. The modules below need no jax:

* `shipped`: packages that evojax ships, with tests and a `history`;
* `operators`: bugs, as small changes of a syntax tree; `survey` runs tests on
  many of them in the box, `catalogue` holds those that are good problems;
* `problems`: a bug, an issue (`issues`) and hidden tests (`suite`), by split:
  the `tasks` of an agent;
* `foreign`: tasks of any pinned pure-Python source distribution (`sdist`), and
  of JSON lines in the format of SWE-bench and SWE-rebench with a local
  checkout; `container`: a template to run their tests in; `others`: the tasks
  that a config names;
* `tools`: what an agent can do in a tree, in the box; `workspaces` lends boxes;
* `grade`: the grade of a final tree, determined in a fresh tree.

`inside` and `inside_pytest` run in the box, `values` encodes their results;
`trees` distinguishes tests from source.
"""

from evojax.domains.swe.domain import make

__all__ = ['make']
