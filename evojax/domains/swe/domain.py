"""The domain of repositories with a bug, for an agent with tools."""

from collections.abc import Mapping, Sequence
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import time
from typing import Any

from evojax import records
from evojax.domains import base
from evojax.domains import environments
from evojax.domains import sources
from evojax.domains import splits
from evojax.domains import texts
from evojax.domains.swe import demonstrations
from evojax.domains.swe import evidence
from evojax.domains.swe import foreign
from evojax.domains.swe import grade as grade_lib
from evojax.domains.swe import operators
from evojax.domains.swe import others as others_lib
from evojax.domains.swe import problems
from evojax.domains.swe import survey
from evojax.domains.swe import tasks
from evojax.domains.swe import tools as tools_lib
from evojax.domains.swe import workspaces
from evojax.evidence import schema
from evojax.harness import surface
from evojax.harness.library.seed import reward
from evojax.sandbox import processes

# Families are the operators that made the bugs; for levels see
# `problems.level`.
_LEVELS = dict.fromkeys(operators.OPERATORS, range(problems.LEVELS))
_FAMILIES = sources.Catalogue(
    levels=_LEVELS,
    sets={'all': _LEVELS},
    # The problems are given, see `problems`, so nothing is counted here.
    capacity=lambda family, level: 0,
    least=0,
    draft=lambda entry, stream, index, system_prompt: ('', lambda: None),
)
_CALLS = 3  # Tests of the longest duration that fit into an episode.
_SURFACE = functools.partial(surface.Field, intervention_class='tools')


@dataclasses.dataclass(frozen=True)
class SweDomain(base.Domain):
  """Repositories with a bug, see `make`."""

  families: frozenset[tuple[str, int]]  # (operator, level).
  settings: tools_lib.Settings
  system_prompt: str
  limits: environments.Limits
  others: others_lib.Others = others_lib.NONE

  name = 'swe'
  reward_parts = staticmethod(reward.parts)
  surface_fields = (
      _SURFACE(
          path='domain.kwargs.max_turns',
          kind='int',
          low=2,
          high=100,
          scale='log',
      ),
      _SURFACE(
          path='domain.kwargs.scrubbed', kind='choice', choices=(True, False)
      ),
      _SURFACE(
          path='domain.kwargs.tools',
          kind='names',
          low=1,  # An agent without a tool would end at once.
          choices=tools_lib.TOOLS,
      ),
  )

  @property
  def columns(self) -> tuple[schema.Column, ...]:
    """The columns of the domain, with the names that its tools are offered by.

    In other domains, this is an attribute of the class.
    """
    return evidence.columns(self.settings)

  @property
  def demonstrations(self) -> base.Demonstrations:
    """The data for the base policy: real sessions with these tools."""
    return base.Demonstrations(
        functools.partial(
            demonstrations.demonstrate, self.settings, self.limits.turns
        ),
        tuple(map(self.settings.written, demonstrations.TOKENS)),
        words=True,
    )

  @property
  def audit(self) -> 'SweDomain':
    """Return the domain with a scrubbed history, without fixes to look up."""
    if self.settings.scrubbed:
      return self
    settings = dataclasses.replace(self.settings, scrubbed=True)
    return dataclasses.replace(self, settings=settings)

  @property
  def levels(self) -> tuple[tuple[str, int], ...]:
    """The operators and levels that have problems to train on."""
    there = {
        (e.bug.operator, problems.level(e))
        for e in problems.entries('train')
        if not e.demonstrated
    }
    return tuple(sorted(there & self.families))

  def source(self, split: str, seed: int) -> records.ProblemSource:
    """Return the problems of 'train', 'dev' or 'sealed', disjoint by id.

    Problems of train that demonstrations show are left out.

    Raises:
      ValueError: If the split is unknown, or has none of the families.
    """
    return Source(self, split, seed, shown=False)

  def demonstrated(self, seed: int) -> records.ProblemSource:
    """Return the half of train that demonstrations show; `source` omits it."""
    return Source(self, 'train', seed, shown=True)

  def task(self, problem_id: str) -> tasks.Task:
    """Return the task of a problem.

    Raises:
      KeyError: If there is no such problem.
    """
    if problem_id in self.others.tasks:
      return self.others.tasks[problem_id]
    return problems.build(problems.find(problem_id))

  def environment(self, problem: records.Problem) -> environments.Environment:
    """Return the tools in a workspace with the problem's repository.

    Raises:
      tools_lib.BoxError: If the box fails.
    """
    task = self.task(problem.problem_id)
    with contextlib.ExitStack() as lent:
      pool = _pool('episodes', task, self.limits.open)
      box = lent.enter_context(pool.lend())
      container = self.others.container if task.foreign else None
      session = tools_lib.Session(task, box, self.settings, container)
      lent = lent.pop_all()

    def run(name: str, arguments: Mapping[str, Any]) -> environments.Answer:
      found = session.call(name, arguments)
      return environments.Answer(
          found.text, found.ok, found.argument, session.submitted
      )

    def close() -> dict[str, Any]:
      with lent:
        return grade_lib.changes(task, session.files()).to_json()

    offered = self.settings.offered
    named = {name: functools.partial(run, name) for name in offered}
    codes = {'none': tools_lib.ACTIONS['none']}
    codes |= {name: tools_lib.ACTIONS[tool] for name, tool in offered.items()}
    return environments.ToolEnvironment(named, codes, close)

  def grade(
      self, problem: records.Problem, completion: records.Episode
  ) -> records.Grade:
    """Grade a final tree by hidden tests."""
    return self.grade_many([problem], [completion])[0]

  def grade_many(
      self,
      problems: Sequence[records.Problem],
      completions: Sequence[records.Episode],
  ) -> list[records.Grade]:
    """Grade completion b of problem b, for all b, in fresh trees.

    Equal changes of one problem are graded once per call.
    """
    keys = [
        (p.problem_id, json.dumps(c.state, sort_keys=True))
        for p, c in zip(problems, completions, strict=True)
    ]
    work = list(dict.fromkeys(keys))
    with concurrent.futures.ThreadPoolExecutor(processes.cores()) as threads:
      reports = dict(zip(work, threads.map(self._report, work), strict=True))
    grades = []
    for problem, completion, key in zip(
        problems, completions, keys, strict=True
    ):
      unseen = self.task(problem.problem_id).unseen
      known = {'unseen': unseen, 'max_turns': self.limits.turns}
      grade = _grade(problem, completion, reports[key], known)
      # A late reply ends an episode without its tree; see `Limits`.
      if completion.state is None and completion.finish_reason == 'seconds':
        grade = dataclasses.replace(grade, status=records.INFRA_ERROR)
      grades.append(grade)
      # The time of a shared grading run counts only once.
      reports[key] = dataclasses.replace(reports[key], seconds=0.0)
    return grades

  def attempts(self, problem: records.Problem) -> list[records.Episode]:
    """Return episodes of every kind, with synthetic tool replies."""
    made = demonstrations.attempts(self.task(problem.problem_id))
    renamed = lambda turn: dataclasses.replace(
        turn, text=self.settings.written(turn.text)
    )
    return [
        dataclasses.replace(episode, turns=tuple(map(renamed, episode.turns)))
        for episode in made
    ]

  def _report(self, key: tuple[str, str]) -> grade_lib.Report:
    """Grade the changes of one problem: (problem_id, JSON text)."""
    task, state = self.task(key[0]), json.loads(key[1])
    changed = (
        grade_lib.Changes.from_json(state) if state else grade_lib.NO_CHANGES
    )
    start = time.monotonic()
    with _pool('grades', task, processes.cores()).lend() as box:
      container = self.others.container if task.foreign else None
      report = grade_lib.grade_changes(task, changed, box, container)
    return dataclasses.replace(report, seconds=time.monotonic() - start)


def _pool(purpose: str, task: tasks.Task, size: int) -> workspaces.Pool:
  """Return workspaces in which a task's tests can run."""
  entry = foreign.ENTRY if task.foreign else survey.ENTRY
  return workspaces.shared(purpose, size, entry)


class Source:
  """A split's problems in endless shuffled epochs."""

  def __init__(self, domain: SweDomain, split: str, seed: int, *, shown: bool):
    """Choose the problems of a split; their trees are made on demand.

    Args:
      domain: Gives the families and the third-party problems.
      split: Name of the split.
      seed: Seed of the order.
      shown: Whether to use the demonstrated problems of train or the others.

    Raises:
      ValueError: If there are none.
    """
    splits.check(split)
    of_split = [
        e
        for e in problems.entries(split)
        if split != 'train' or e.demonstrated == shown
    ]
    levels = {e.identity: problems.level(e) for e in of_split}
    entries = [
        e.identity
        for e in of_split
        if (e.bug.operator, levels[e.identity]) in domain.families
    ]
    if (others := domain.others.of(split)) and not shown:
      entries = others if domain.others.alone else entries + others
    if not entries:
      raise ValueError(
          f'{split} has no problem of the families in domain.kwargs.families;'
          ' name more families'
      )
    self._entries = sources.FiniteSource(entries, split, seed)
    self._domain, self._levels = domain, levels

  def __len__(self) -> int:
    return len(self._entries)

  def take(self, cursor: int, count: int) -> list[records.Problem]:
    """Return problems cursor .. cursor + count - 1, all distinct."""
    return [self._problem(i) for i in self._entries.take(cursor, count)]

  def _problem(self, identity: str) -> records.Problem:
    domain, task = self._domain, self._domain.task(identity)
    # The issue quotes what third-party tests print.
    issue = texts.without_surrogates(task.issue)
    messages = [{'role': 'user', 'content': issue}]
    if domain.system_prompt:
      messages.insert(0, {'role': 'system', 'content': domain.system_prompt})
    # Packages that no policy is trained on get their own rows in tables.
    family = task.family
    if task.foreign and not domain.others.alone:
      family = 'third_party_package'
    elif task.unseen and not task.foreign:
      family = 'unseen_package'
    return records.Problem(
        identity,
        family,
        tuple(messages),
        task.patch,
        # Issues of third-party repositories have a level of their own, since it
        # is unknown whether they name the function.
        self._levels.get(identity, problems.LEVELS),
        tools=tuple(tools_lib.schemas(domain.settings)),
    )


def _grade(
    problem: records.Problem,
    episode: records.Episode,
    report: grade_lib.Report,
    known: Mapping[str, bool | int],
) -> records.Grade:
  """Return a grade; `known` are the columns known before the episode."""
  stop = evidence.stop_reason(episode)
  return records.Grade(
      outcome=report.outcome,
      # A partial repair that breaks something else is worth less.
      partial=report.f2p_passed * report.p2p_passed,
      status=report.status,
      columns={
          'difficulty': problem.difficulty,
          **known,
          'files_edited': report.files_edited,
          'files_mask': evidence.mask(report.edited),
          'f2p_passed': report.f2p_passed,
          'p2p_passed': report.p2p_passed,
          'submitted': stop == 'submitted',
          'stop_reason': evidence.STOP_REASON[stop],
          'tests_touched': report.tests_touched,
          **evidence.behaviour(episode.turns),
      },
      sandbox_tier=report.tier,
      seconds=report.seconds,
  )


def make(
    *,
    families: str | Sequence[str] = 'all',
    max_turns: int = 30,
    scrubbed: bool = True,
    tools: Sequence[str] = tools_lib.TOOLS,
    names: Mapping[str, str] | None = None,
    slots: int = 16,
    max_letters: int = 4000,
    read_lines: int = 200,
    patch_context: int = 3,
    test_seconds: float = 10.0,
    system_prompt: str = '',
    sdists: Sequence[Mapping[str, Any]] = (),
    jsonl: Mapping[str, Any] | None = None,
    trust_in_process: bool = False,
) -> SweDomain:
  """Build the domain; nothing is run yet.

  Args:
    families: 'all', or operators of bugs with levels, such as 'off_by_one:0':
      at level 0 the issue names the function to change, at level 1 it does not.
    max_turns: Maximum number of turns in an episode, including wrong calls.
    scrubbed: Whether the history ends where the work begins. If not, the commit
      that fixes the bug is on another branch.
    tools: Tools that an agent may call, see `tools.TOOLS`.
    names: Tool -> name under which it is offered instead of its own, in
      prompts, calls, replies and the codes of `actions`: for a policy that
      knows the tool by that name.
    slots: Number of concurrent workspaces, and so of episodes; each costs about
      15 MiB and 3 processes.
    max_letters: Maximum characters of one tool reply.
    read_lines: Lines that `read` shows if no last line is given.
    patch_context: Unchanged lines that `git` shows around each change.
    test_seconds: CPU time of `test`.
    system_prompt: First message of every problem; '' for none.
    sdists: Source distributions of pure Python with their own tests, whose bugs
      are further sealed problems, of the family 'third_party_package': each has
      a 'path' and its 'sha256', and optionally the number of 'candidates' to
      try and a 'seed'.
    jsonl: Rows in the format of SWE-bench and SWE-rebench, which replace the
      sealed problems of the shipped packages: the 'path' of the file;
      'checkouts', repo -> a local clone; 'container', to run tests that the box
      cannot, see `container.Container`.
    trust_in_process: Whether these tasks, split by hash, replace the shipped
      problems of all splits, so that a policy is trained on them. Their
      verdicts can be forged, and a policy may learn to do so.

  Raises:
    ValueError: If an argument is invalid, or a file is broken.
  """
  # With a single turn, no tool reply would be read.
  for field, value, least in (('max_turns', max_turns, 2), ('slots', slots, 1)):
    if type(value) is not int or value < least:
      raise ValueError(
          f'domain.kwargs.{field}={value!r} must be an integer of at'
          f' least {least}'
      )
  if type(scrubbed) is not bool:
    raise ValueError(f'domain.kwargs.{scrubbed=} must be True or False')
  if not isinstance(system_prompt, str):
    raise ValueError(
        f'domain.kwargs.{system_prompt=} must be text; empty is none'
    )
  chosen = _FAMILIES.select(families)
  try:
    settings = tools_lib.Settings(
        tools=tuple(tools),
        names=tuple(sorted(dict(names or {}).items())),
        scrubbed=scrubbed,
        max_letters=max_letters,
        read_lines=read_lines,
        patch_context=patch_context,
        test_seconds=test_seconds,
    )
  except ValueError as error:
    raise ValueError(f'domain.kwargs: {error}') from error
  others = others_lib.read(jsonl, sdists, trust_in_process)
  limits = environments.Limits(turns=max_turns, open=slots)
  if others.container:
    # The tool `test` waits for the container, which may take minutes.
    seconds = others.container.most_seconds + limits.reply_seconds
    limits = dataclasses.replace(
        limits, reply_seconds=seconds, episode_seconds=_CALLS * seconds
    )
  return SweDomain(
      frozenset((entry.family, entry.level) for entry in chosen),
      settings,
      system_prompt,
      limits,
      others,
  )
