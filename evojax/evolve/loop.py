"""The meta-loop: a state machine over an append-only ledger.

    open  train  (diagnose  hypothesize  design  admit  backtest  trial  verify
    promote  accumulate)*  retrain  seal  final

Every step is one row, written after what it left on disk; a step whose row is
there is not done again. So a killed run goes on where it was, and ends with the
rows of a run that nobody disturbed.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
from typing import Any

import jax
import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax import domains
from evojax.episodes import collect
from evojax.evidence import store
from evojax.evidence import views
from evojax.evolve import arms
from evojax.evolve import backtest
from evojax.evolve import claims
from evojax.evolve import diagnose
from evojax.evolve import promote
from evojax.evolve import propose as propose_lib
from evojax.evolve import session as session_lib
from evojax.evolve import skills as skills_lib
from evojax.evolve import summary as summary_lib
from evojax.evolve import trial as trial_lib
from evojax.evolve.propose import human
from evojax.harness import admit
from evojax.harness import delta as delta_lib
from evojax.harness import library
from evojax.harness import run as run_lib
from evojax.harness import spec
from evojax.harness import surface
from evojax.ledger import chain as chain_lib
from evojax.report import page
from evojax.runtime import devices
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import preemption
from evojax.runtime import sharding
from evojax.runtime import workdir as workdir_lib
from evojax.sandbox import probe
from evojax.training import engines
from evojax.training import loop as training_loop
from evojax.training import setup as setup_lib


def run(
    config: ml_collections.ConfigDict,
    workdir: str,
    *,
    compare: Sequence[str] = (),
    fork_from: str = '',
    fork_version: str = '',
) -> dict[str, Any]:
  """Evolves policy and harness; the same call continues a run.

  Args:
    config: Of the run. With evolve.trials = 0 it is `train.run`.
    workdir: The run's directory.
    compare: Workdirs of finished runs, scored on the same sealed problems.
    fork_from: Workdir of another evolving run, which a new one starts from.
    fork_version: The version of it; its newest one if ''.

  Returns:
    The summary that is also in workdir/summary.json.

  Raises:
    ValueError: If config, domain, model, harness or workdir is wrong.
    preemption.Preempted: After SIGTERM, with everything saved.
  """
  if not config.evolve.trials:
    if compare or fork_version:
      raise ValueError(
          '--compare and --fork_version need a run that evolves; this config'
          ' has evolve.trials=0'
      )
    return training_loop.run(config, workdir, fork_from=fork_from)
  base = config.copy_and_resolve_references()
  with base.unlocked():
    base.harness.path = ''
  setup = setup_lib.prepare(base)
  seed = seed_harness(config)
  reasons = admit.check(seed, base, setup.surface, setup.synthetic)
  if reasons:
    raise ValueError('the seed harness:' + ''.join(f'\n  {r}' for r in reasons))
  propose_lib.load(config.evolve.proposer)
  compared = claims.open_compared(compare, setup)
  # Before a device is touched: whatever is proposed runs in the box.
  tier = probe.tier()
  primary = sharding.is_primary()
  with (
      workdir_lib.open_workdir(
          workdir,
          config_lib.to_json(config),
          config_lib.sha256(config),
          primary=primary,
      ) as directory,
      preemption.sigterm_flag() as sigterm,
      engines.stopped_without_servers(sigterm),
      contextlib.ExitStack() as stack,
  ):
    path = directory.path
    if primary and (path / 'metrics.jsonl').exists():
      raise ValueError(
          f'workdir {path} holds a run of --mode=train; pass another --workdir'
      )
    with workdir_lib.release_if_unused(
        directory, primary, used=lambda: (path / 'ledger.jsonl').exists()
    ):
      fork = None
      if fork_from:
        fork = _Fork(pathlib.Path(fork_from).expanduser(), fork_version)
      print(devices.describe(), flush=True)
      if primary:
        directory.record_start()
      mesh = sharding.make_mesh(**base.mesh.to_dict())
      session = session_lib.Session(
          config=base,
          path=path,
          setup=setup,
          mesh=mesh,
          engine=stack.enter_context(
              engines.open_sampler(
                  base,
                  setup.policy,
                  mesh,
                  path,
                  stopping=lambda: bool(sigterm),
              )
          ),
          phases=metrics_lib.Phases(),
          preempted=lambda: _preempt(sigterm, path),
          ledger=(
              chain_lib.Ledger(path / 'ledger.jsonl', tier) if primary else None
          ),
      )
      return _Loop(session, seed, compared, fork).run()


def seed_harness(config: ml_collections.ConfigDict) -> spec.Harness:
  """The harness that a run starts from: its own, or the domain's.

  A domain without one has its reward, with the weights of the config; its
  policy is then diagnosed by how it learns alone.

  Raises:
    ValueError: If the harness that is named is not there.
  """
  if config.harness.path:
    return spec.read(config.harness.path)
  name = config.evolve.seed_harness
  folder = domains.folder(config.domain.name) / name
  if folder.is_dir():
    return spec.read(folder)
  if name != 'seed_harness':
    raise ValueError(
        f'config.evolve.seed_harness={name!r}: the domain'
        f' {config.domain.name!r} has no directory {folder}; make one, or name'
        ' a harness by --config.harness.path'
    )
  weights = config.reward.weights.to_dict()
  return spec.Harness(
      {surface.WEIGHTS + part: value for part, value in weights.items()}, {}
  )


def _preempt(sigterm: list[int], path: pathlib.Path) -> None:
  """Raises after SIGTERM; hosts are told at different times."""
  if not np.any(sharding.to_host(np.array([bool(sigterm)]))):
    return
  if sharding.is_primary():
    print(
        f'SIGTERM: everything up to the last row of {path / "ledger.jsonl"} and'
        ' the newest checkpoint of the arm is saved; the same command continues'
    )
  raise preemption.Preempted()


@dataclasses.dataclass(frozen=True)
class Version:
  """A harness with the policy that it trained."""

  version: str  # 'v0', 'v1', ...
  harness: str  # Hash.
  arm: str  # Folder of its evidence and checkpoints, below the workdir.
  checkpoint: str  # Where training goes on from, below the workdir.


class _Fork:
  """A version of another run as the first one of a new run."""

  def __init__(self, source: pathlib.Path, name: str):
    """Reads the other run's ledger; changes nothing there.

    Raises:
      ValueError: If there is no such version.
    """
    if not (source / 'ledger.jsonl').exists():
      raise ValueError(
          f'--fork_from={source} is not the workdir of a run that evolves'
      )
    rows = [r['payload'] for r in chain_lib.read(source / 'ledger.jsonl')]
    found = {v.version: v for v in versions(rows)}
    if not found or (name and name not in found):
      raise ValueError(
          f'--fork_version={name}: {source} has the versions {list(found)}'
      )
    self.source = source
    self.version = found[name or list(found)[-1]]
    self.row = next(
        row
        for row in rows
        if row['step'] in ('train', 'promote')
        and row['version'] == self.version.version
    )

  def copy(self, target: pathlib.Path) -> None:
    """Copies harness, evidence and checkpoints, at once or not at all."""
    spec.write(
        spec.load(self.source / 'harness', self.version.harness),
        target / 'harness',
    )
    arm = target / 'arms' / 'v0'
    if not arm.exists():
      temporary = target / 'arms' / 'v0.tmp'
      shutil.rmtree(temporary, ignore_errors=True)
      shutil.copytree(self.source / self.version.arm, temporary)
      os.replace(temporary, arm)


def versions(rows: Sequence[dict[str, Any]]) -> list[Version]:
  """All versions in a ledger's payloads, oldest first."""
  return [
      Version(row['version'], row['harness'], row['arm'], row['checkpoint'])
      for row in rows
      if row['step'] in ('train', 'promote')
  ]


class _Loop:
  """The steps, in their order."""

  def __init__(
      self,
      session: session_lib.Session,
      seed: spec.Harness,
      compared: list[claims.Compared],
      fork: _Fork | None,
  ):
    self.session, self.seed = session, seed
    self.compared, self.fork = compared, fork
    self.inbox = session.path / 'inbox'

  # ------------------------------------------------------------------- queries

  @property
  def payloads(self) -> list[dict[str, Any]]:
    return [row['payload'] for row in self.session.rows]

  @property
  def version(self) -> Version:
    """The version that training goes on from."""
    return versions(self.payloads)[-1]

  def _parent(self, trial: int) -> Version:
    """The version that a trial, begun or not, changes."""
    begun = self.session.find('diagnose', trial=trial)
    if begun is None:
      return self.version
    return next(
        v for v in versions(self.payloads) if v.version == begun['version']
    )

  def history(self) -> list[propose_lib.Trial]:
    """Earlier trials, as proposers see them."""
    trials = []
    for row in self.payloads:
      if row['step'] != 'verify':
        continue
      design = self.session.find('design', trial=row['trial'])
      guess = self.session.find('hypothesize', trial=row['trial'])
      delta = design['delta']
      trials.append(
          propose_lib.Trial(
              delta_sha=delta['sha256'],
              factor=delta['factor'],
              intervention_class=delta['klass'],
              status=row['status'],
              effect=row['effect'],
              low=row['low'],
              high=row['high'],
              expected=(
                  float(guess['expected'][0]),
                  float(guess['expected'][1]),
              ),
              parent_sha=delta['before'],
              changes=tuple(
                  (c[0], _tuples(c[1]), _tuples(c[2])) for c in delta['changes']
              ),
          )
      )
    return trials

  def wealth(self) -> promote.Wealth:
    """What former tests left: refused and crashed trials made none."""
    # As they were when the run began: a test more than was promised then can
    # only be paid for by what was found.
    promised = self.session.find('open')['config']['evolve']
    return promote.Wealth(
        float(promised['false_discovery_rate']),
        promised['trials'],
        tuple(
            row['status'] == 'keep'
            for row in self.payloads
            if row['step'] == 'verify' and row['p'] is not None
        ),
    )

  # ----------------------------------------------------------------- the steps

  def run(self) -> dict[str, Any]:
    """From wherever the ledger ends to the end."""
    try:
      reason = self._steps()
    except session_lib.BudgetExhaustedError:
      reason = 'budget'
      self.session.stop(reason)
    return self._end(reason)

  def _steps(self) -> str:
    """All steps that are left; why there were no more trials."""
    session = self.session
    opened = session.record('open', self._open)
    if opened['harness'] != self.seed.sha256:
      raise ValueError(
          f'workdir {session.path} was begun with the seed harness'
          f' {opened["harness"][:12]}, which is now {self.seed.sha256[:12]}:'
          ' undo the change, or start anew in another --workdir'
      )
    session.record('train', self._train, version='v0')
    reason = 'trials'
    trials = session.config.evolve.trials
    # Once the final harness is trained, more trials would be about another one.
    ended = session.find('retrain') is not None
    if ended and session.find('accumulate', trial=trials - 1) is None:
      self._say('this run has ended; --fork_from it to try more changes')
    for trial in range(0 if ended else trials):
      if session.find('accumulate', trial=trial):
        continue
      if not self.wealth().alpha:
        reason = 'no wealth left'
        self._say(
            f'{trial} tests were promised at the start and found nothing to pay'
            ' for more; --fork_from this run to try further changes'
        )
        break
      if not self._trial(trial):
        reason = 'nothing to propose'
        break
      self._page()
    harness = self.version.harness
    arm = session.record(
        'retrain', lambda: claims.retrain(session, harness), version='final'
    )
    session.record('seal', lambda: claims.seal(session))
    session.record('final', lambda: self._final(arm))
    return reason

  def _open(self) -> dict[str, Any]:
    session = self.session
    if session.primary:
      spec.write(self.seed, session.path / 'harness')
    return dict(
        config=json.loads(config_lib.to_json(session.config)),
        config_sha256=config_lib.sha256(session.config),
        harness=self.seed.sha256,
        proposer=session.config.evolve.proposer,
        jax=jax.__version__,
        forked=(
            f'{self.fork.source.name}:{self.fork.version.version}'
            if self.fork
            else ''
        ),
    )

  def _train(self) -> dict[str, Any]:
    """Version 0: the seed harness from the base policy, or a fork."""
    session, e = self.session, self.session.config.evolve
    name = 'arms/v0'
    if self.fork is not None:
      if session.primary:
        self.fork.copy(session.path)
      arm = self.fork.row
      last = pathlib.Path(self.fork.version.checkpoint).name
    else:
      arm = arms.train_arm(
          session,
          name,
          arms.config_of(
              session, self.seed.sha256, session.config.seed, e.first_updates
          ),
          None,
          label='v0: the seed harness from the base policy',
      )
      if arm['status'] != 'done':
        raise ValueError(f'the seed harness did not train: {arm["why"]}')
      last = arms.end_of(pathlib.Path(name), arm['updates']).name
    return dict(
        parent=None,
        harness=arm['harness'],
        start=arm['start'],
        end=arm['end'],
        updates=arm['updates'],
        prompts=e.prompts,
        group_size=e.group_size,
        outcome=arm['outcome'],
        sampled_tokens=arm['sampled_tokens'],
        arm=name,
        checkpoint=f'{name}/checkpoints/{last}',
    )

  def _trial(self, trial: int) -> bool:
    """One trial, from diagnosis to what is learned; False: nothing to try."""
    session = self.session
    version = self._parent(trial)
    session.record('diagnose', lambda: self._diagnose(version), trial=trial)
    guess = session.record(
        'hypothesize', lambda: self._hypothesize(trial, version), trial=trial
    )
    if not guess['proposer']:
      return False
    if session.primary:
      human.taken(self.inbox, guess['trigger'])
    self._say(f'trial {trial}: {guess["hypothesis"]}')
    design = session.record(
        'design', lambda: self._design(version, guess), trial=trial
    )
    admitted = session.record(
        'admit', lambda: self._admit(version, design), trial=trial
    )
    delta = session.delta(version.harness, design['harness'])
    if not admitted['reasons']:
      session.record(
          'backtest',
          lambda: self._backtest(version, design, delta),
          trial=trial,
      )
      if delta.trains:
        session.record(
            'trial',
            lambda: self._run(trial, version, design, guess),
            trial=trial,
        )
    verdict = session.record(
        'verify',
        lambda: self._verify(trial, version, design, delta),
        trial=trial,
    )
    if verdict['status'] == 'keep':
      session.record(
          'promote',
          lambda: self._promote(trial, version, design, delta),
          version=verdict['version'],
      )
    session.record(
        'accumulate',
        lambda: self._accumulate(trial, version, design, guess, verdict, delta),
        trial=trial,
    )
    self._say(_told(trial, verdict))
    return True

  def _view(self, folder: str, harness: str) -> views.View:
    """The last third of an arm's evidence, as its harness declares it."""
    session = self.session
    path = session.path / folder
    steps = session.decide(lambda: store.list_steps(path, 'train'))
    rows = session_lib.load_rows(path, steps[-max(1, len(steps) // 3) :])
    config = session.applied(harness)
    columns = collect.columns(session.setup.domain, config)
    return session_lib.view_of(rows, columns, config)

  def _measure(
      self, folder: str, harness: str, outcome: Sequence[float]
  ) -> list[diagnose.Measure]:
    """Measures of an arm, by the diagnostics of its harness."""
    session = self.session
    return diagnose.measure(
        session.functions(harness),
        self._view(folder, harness),
        session.rows,
        [float(x) for x in outcome],
    )

  def _diagnose(self, version: Version) -> dict[str, Any]:
    outcome = arms.outcomes(self.session.path / version.arm).tolist()
    measures = self._measure(version.arm, version.harness, outcome)
    alerts = diagnose.alerts(measures)
    self._say(f'{version.version}: alerts {", ".join(alerts) or "none"}')
    return dict(
        version=version.version,
        measures=[m.to_json() for m in measures],
        alerts=alerts,
    )

  def _hypothesize(self, trial: int, version: Version) -> dict[str, Any]:
    """The next proposal; the user's inbox first."""
    session, e = self.session, self.session.config.evolve

    def choose():
      diagnosis = session.find('diagnose', trial=trial)
      context = propose_lib.Context(
          parent=session.harness(version.harness),
          config=session.values(version.harness),
          measures=[diagnose.from_json(m) for m in diagnosis['measures']],
          history=self.history(),
          skills=skills_lib.read_all(
              [*e.skills, session.path / 'skills'], session.setup.surface
          ),
          rng=np.random.default_rng(int(session.head[:16], 16)),
          domain=session.config.domain.name,
          surface=session.setup.surface,
          vetoes=human.vetoes(self.inbox),
      )
      proposal = human.propose(context, self.inbox)
      if proposal is None:
        proposal = propose_lib.load(e.proposer)(context)
      if proposal is None:
        return dict(proposer='', version=version.version)
      spec.write(proposal.after, session.path / 'harness')
      return dict(
          version=version.version,
          proposer=proposal.proposer,
          trigger=proposal.trigger,
          hypothesis=proposal.hypothesis,
          expected=list(proposal.expected),
          criterion=proposal.criterion,
          rollback=proposal.rollback,
          source=proposal.source,
          skill=proposal.skill,
          note=proposal.note,
          harness=proposal.after.sha256,
      )

    return session.decide(choose)

  def _design(self, version: Version, guess: dict[str, Any]) -> dict[str, Any]:
    delta = self.session.delta(version.harness, guess['harness'])
    after = self.session.harness(guess['harness'])
    return dict(
        harness=guess['harness'],
        delta=dict(
            sha256=delta.sha256,
            factor=delta.factor,
            kind=delta.kind,
            klass=delta.intervention_class,
            before=delta.before,
            changes=[list(change) for change in delta.changes],
            text=_told_delta(delta, after),
        ),
    )

  def _admit(self, version: Version, design: dict[str, Any]) -> dict[str, Any]:
    session = self.session
    view = self._view(version.arm, version.harness)
    reasons = session.decide(
        lambda: admit.admit(
            session.harness(version.harness),
            session.harness(design['harness']),
            session.config,
            session.setup.surface,
            session.setup.synthetic,
            view,
        )
    )
    return dict(reasons=reasons)

  def _backtest(
      self, version: Version, design: dict[str, Any], delta: delta_lib.Delta
  ) -> dict[str, Any]:
    session = self.session
    try:
      return backtest.run(
          session,
          version=version.version,
          before=version.harness,
          after=design['harness'],
          delta=delta,
          folder=session.path / version.arm,
      )
    except run_lib.FunctionError as error:
      return dict(key='', statistics={}, predicted=None, crash=str(error))

  def _run(
      self,
      trial: int,
      version: Version,
      design: dict[str, Any],
      guess: dict[str, Any],
  ) -> dict[str, Any]:
    low, high = guess['expected']
    return trial_lib.run(
        self.session,
        trial,
        parent=dataclasses.asdict(version),
        harness=design['harness'],
        expected=(float(low), float(high)),
        wealth=self.wealth(),
    )

  def _verify(
      self,
      trial: int,
      version: Version,
      design: dict[str, Any],
      delta: delta_lib.Delta,
  ) -> dict[str, Any]:
    session = self.session
    name = f'v{len(versions(self.payloads))}'
    admitted = session.find('admit', trial=trial)
    if admitted['reasons']:
      verdict = trial_lib.not_judged('disqualified', admitted['reasons'])
    elif crash := session.find('backtest', trial=trial).get('crash'):
      verdict = trial_lib.not_judged('preflight_crash', [crash])
    elif not delta.trains:
      verdict = self._validate(version, design)
    else:
      verdict = self._judge(trial)
    return dict(verdict, version=name if verdict['status'] == 'keep' else '')

  def _validate(
      self, version: Version, design: dict[str, Any]
  ) -> dict[str, Any]:
    """A diagnostic or a backtest trains nothing: it must work on the past."""
    measures = self._measure(version.arm, design['harness'], ())
    failed = [
        f'{m.name} fails on {version.version}: {m.status}'
        for m in measures
        if m.level == 'failed'
    ]
    if failed:
      return trial_lib.not_judged('discard', failed)
    return trial_lib.not_judged('keep', [f'measured on {version.version}'])

  def _judge(self, trial: int) -> dict[str, Any]:
    """The verdict on a trial that was run."""
    session = self.session
    row = session.find('trial', trial=trial)
    if row['refused']:
      return trial_lib.not_judged('disqualified', [row['refused']])
    ended = [arm for arm in row['arms'] if arm['status'] != 'done']
    if ended:
      arm = ended[0]
      why = [f'{arm["arm"]}: {arm["status"]} {arm["why"]}']
      if arm['role'] == 'control':
        return trial_lib.not_judged('harness_abort', why)
      early = arm['status'] in ('futility', 'collapse')
      return trial_lib.not_judged('discard' if early else arm['status'], why)
    # Of the parent, too, trained on for as long as the child.
    before, after = (
        self._criticals(_first(row, role)) for role in ('control', 'child')
    )
    new = session.decide(lambda: sorted(after - before))
    return trial_lib.judge(session, row, new_alerts=new)

  def _criticals(self, arm: dict[str, Any]) -> set[str]:
    """Critical alerts of an arm that speak against it.

    Those about the signal do not: they say what to change next, and a policy
    that solves more leaves more groups without one.
    """
    found = self._measure(arm['trained'], arm['harness'], arm['outcome'])
    return {
        m.name for m in found if m.level == 'critical' and m.layer != 'signal'
    }

  def _promote(
      self,
      trial: int,
      version: Version,
      design: dict[str, Any],
      delta: delta_lib.Delta,
  ) -> dict[str, Any]:
    """The child as the version that training goes on from.

    Its policy is that of the first child arm, named before any was scored.
    """
    if not delta.trains:
      old = self.session.find('train', version=version.version)
      old = old or self.session.find('promote', version=version.version)
      return dict(
          parent=version.version,
          harness=design['harness'],
          arm=version.arm,
          checkpoint=version.checkpoint,
          start=old['start'],
          end=old['end'],
          outcome=old['outcome'],
          updates=0,
          sampled_tokens=0,
      )
    child = _first(self.session.find('trial', trial=trial), 'child')
    end = arms.end_of(pathlib.Path(child['trained']), child['updates'])
    return dict(
        parent=version.version,
        harness=child['harness'],
        arm=child['trained'],
        checkpoint=str(end),
        start=child['start'],
        end=child['end'],
        outcome=child['outcome'],
        updates=child['updates'],
        sampled_tokens=child['sampled_tokens'],
    )

  def _accumulate(
      self,
      trial: int,
      version: Version,
      design: dict[str, Any],
      guess: dict[str, Any],
      verdict: dict[str, Any],
      delta: delta_lib.Delta,
  ) -> dict[str, Any]:
    """Head, skill, and how the predictions did."""
    session = self.session
    predicted = sum(guess['expected']) / 2
    realised = verdict['effect']
    backtested = session.find('backtest', trial=trial) or {}
    replayed = backtested.get('statistics', {}).get('replayed_effect')
    replayed = replayed if isinstance(replayed, float) else None
    # A prediction of exactly 0 has no sign to agree with.
    agrees = lambda p: (
        (p > 0) == (realised > 0) if p and realised is not None else None
    )

    def learn() -> str:
      known = guess['trigger'] and not guess['trigger'].startswith('inbox/')
      if verdict['status'] != 'keep' or realised is None or not known:
        return ''
      try:
        skill = skills_lib.learned(
            delta,
            session.harness(design['harness']),
            session.values(version.harness),
            session.setup.surface,
            trigger=guess['trigger'],
            hypothesis=guess['hypothesis'],
            evidence=skills_lib.Evidence(
                run=session.config.name,
                trial=trial,
                domain=session.config.domain.name,
                base=version.harness,
                effect=realised,
                low=max(verdict['low'], -1.0),
                high=min(verdict['high'], 1.0),
            ),
        )
      except skills_lib.SkillError:
        return ''
      skills_lib.write(session.path / 'skills', skill)
      return skill.sha256

    return dict(
        head=verdict['version'] or version.version,
        skill=session.decide(learn),
        validity=dict(
            klass=delta.intervention_class,
            proposer=guess['proposer'],
            predicted=predicted,
            replayed=replayed,
            realised=realised,
            sign_agrees=agrees(predicted),
            replay_sign_agrees=agrees(replayed),
        ),
    )

  # ------------------------------------------------------------------- the end

  def _final(self, arm: dict[str, Any]) -> dict[str, Any]:
    session = self.session
    head = self.version
    result = claims.score(
        session,
        seed=session.find('seal')['seed'],
        continued=session.path / head.checkpoint,
        evolved=arms.end_of(session.path / 'arms' / 'final', arm['updates']),
        compared=self.compared,
    )
    return dict(result, harness=head.harness, version=head.version)

  def _say(self, text: str) -> None:
    if self.session.primary:
      print(text, flush=True)

  def _page(self) -> None:
    """Rebuilds the page from what is on disk."""
    if self.session.primary:
      page.build(self.session.path)

  def _end(self, reason: str) -> dict[str, Any]:
    """Exports, the summary and the page."""
    session = self.session
    trained = session.find('train') is not None
    if trained:
      continued = session.path / self.version.checkpoint
      claims.export(session, continued, 'policy_continued')
    retrained = session.find('retrain')
    if retrained is not None:
      end = arms.end_of(session.path / 'arms' / 'final', retrained['updates'])
      claims.export(session, end, 'policy')
    summary: dict[str, Any] = {}
    if session.primary:
      summary = summary_lib.make(session, reason)
      text = json.dumps(summary, indent=2, allow_nan=False) + '\n'
      workdir_lib.write_atomic(session.path / 'summary.json', text.encode())
      if trained:
        self._page()
      summary_lib.show(summary)
    return session.decide(lambda: summary)


def _first(row: dict[str, Any], role: str) -> dict[str, Any]:
  """The first arm of a role, in the row of a trial."""
  return next(arm for arm in row['arms'] if arm['role'] == role)


def _told_delta(delta: delta_lib.Delta, after: spec.Harness) -> str:
  """The change in a line; a function of the library by its name."""
  for path, *_ in delta.changes:
    for name in library.names():
      if path in after.files and after.files[path] == library.source(name):
        return f'{delta.factor} ({name})'
  return str(delta)


def _tuples(value: Any) -> Any:
  """JSON lists as tuples, as overlays hold them."""
  return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _told(trial: int, verdict: dict[str, Any]) -> str:
  """One line on the outcome of a trial."""
  text = f'trial {trial}: {verdict["status"]}'
  if verdict['effect'] is not None:
    text += (
        f', {100 * verdict["effect"]:+.1f} points'
        f' [{100 * verdict["low"]:+.1f}, {100 * verdict["high"]:+.1f}]'
    )
  return f'{text} ({"; ".join(verdict["reasons"])})'
