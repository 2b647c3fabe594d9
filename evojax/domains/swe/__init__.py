"""Software engineering: repositories with a bug, tools, and a grader.

`make(**kwargs)` builds the domain; the arguments are those of `domain.make`.
An episode has several turns, each a call of a tool; `evidence` has its columns,
and `demonstrations` trains the base policy. Below is a library without jax:

* `shipped`: packages that evojax ships, with tests and a `history`;
* `operators`: bugs, as small changes of a syntax tree; `survey` runs tests on
  many of them in the box, `catalogue` holds those that are worth asking about;
* `problems`: a bug, an issue (`issues`) and hidden tests (`suite`), by split:
  the `tasks` of an agent;
* `foreign`: tasks of any pinned pure-Python source distribution (`sdist`), and
  of JSON lines of SWE-bench's and SWE-rebench's shape with a local checkout;
  `container`: a template to run their tests in; `others`: those that a config
  names;
* `tools`: what an agent can do in a tree, in the box; `workspaces` lends boxes;
* `grade`: the judgement of a final tree, in a fresh one.

`inside` and `inside_pytest` are what runs in the box, `values` what comes out
of it; `trees` tells tests from source.
"""

from evojax.domains.swe.domain import make

__all__ = ['make']
