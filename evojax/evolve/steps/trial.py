"""Trial: control arms and children, trained from one state and scored.

Arms share seeds pairwise: child i meets the problems that control i met. All of
them are scored on dev problems drawn for this trial alone. Control arms of a
version serve every trial on it; only their score is taken afresh.
"""

from collections.abc import Sequence
import functools
import hashlib

from jaxtyping import Float
import numpy as np

from evojax.domains import base
from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import promote
from evojax.evolve import recorder
from evojax.evolve import scoring
from evojax.ledger import records
from evojax.training import arm as arm_lib
from evojax.training import stages


def dev_seed(seed: int, trial: int) -> int:
  """Return the seed of the fresh dev problems of a trial."""
  text = f'dev {seed} {trial}'
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], 'big')


def score(
    run: opening.Run,
    trial: int,
    name: str,
    folder: str,
    domain: base.Domain | None = None,
) -> Float[np.ndarray, 'P']:
  """Score an arm's last checkpoint on the trial's problems, once.

  Args:
    run: The run.
    trial: Its number.
    name: Of the evidence: folder below that of the trial.
    folder: Of the arm, below the workdir.
    domain: Where perturbed problems come from, which get half as many samples.
      By default the problems are those of the run.
  """
  e = run.config.evolve
  wanted = scoring.Scored(
      folder=run.path / scores_folder(trial, name),
      checkpoint=arm_lib.checkpoint_of(run.path / folder, e.updates),
      split='dev',
      seed=dev_seed(run.config.seed, trial),
      problems=e.problems,
      samples=max(1, e.samples // 2) if domain else e.samples,
      step=e.updates,
      domain=domain,
  )
  return run.scorer.scores(wanted)


def scores_folder(trial: int, name: str) -> str:
  """Return where the dev evidence of an arm lies, below the workdir."""
  return f'trials/{trial:03d}/{name}'


def _train(
    run: opening.Run,
    version: records.Version,
    trial: int,
    role: str,
    harness: str,
    count: int,
    controls: Sequence[records.TrialArm] = (),
) -> tuple[list[records.TrialArm], list[np.ndarray]]:
  """Train and score the arms of a role, up to the first that fails.

  Args:
    run: The run.
    version: The parent, from whose checkpoint they start.
    trial: Its number.
    role: 'control' or 'child'.
    harness: Hash.
    count: Arms of this role.
    controls: Finished arms that they are compared with at their half.

  Returns:
    Records, and the scores [P] of those that are done.
  """
  # Controls serve every trial on a version.
  owner = version.version if role == 'control' else f't{trial:03d}'
  names = [f'{role}-{i}' for i in range(count)]
  jobs = [
      arms.job(
          run,
          folder=f'arms/{owner}.{name}',
          harness=harness,
          # No arm has the seed of version 0.
          changes=arms.changes(
              run, (run.config.seed + 1 + i) % 2**32, run.config.evolve.updates
          ),
          start=version.checkpoint,
          label=f'trial {trial}: {role} {i + 1} of {count}',
          controls=tuple(arm.outcome for arm in controls),
      )
      for i, name in enumerate(names)
  ]
  trained = arms.train_all(
      run, jobs, stages.trial_name(run.config, trial, role)
  )
  found, scores = [], []
  for arm, name in zip(trained, names, strict=False):
    if arm.status == 'done':
      scores.append(score(run, trial, name, arm.folder))
    place = scores_folder(trial, name)
    found.append(
        recorder.made_from(records.TrialArm, arm, role=role, scores=place)
    )
  return found, scores


def train(
    run: opening.Run,
    version: records.Version,
    proposal: records.Hypothesize,
    wealth: promote.Wealth,
) -> records.Trial:
  """Train and score the arms of a trial.

  Args:
    run: The run.
    version: The parent, from whose checkpoint all arms start.
    proposal: Its upper expected effect must be detectable.
    wealth: What the run may still spend on tests.

  Raises:
    RuntimeError: If the arms did not start alike.
  """
  e, trial, alpha = run.config.evolve, proposal.trial, wealth.alpha
  seed = dev_seed(run.config.seed, trial)
  row = functools.partial(
      records.Trial, trial=trial, dev_seed=seed, alpha=alpha
  )
  of_role = functools.partial(_train, run, version, trial)
  controls, scores = of_role('control', version.harness, e.controls)
  last = controls[-1]
  if last.status != 'done':
    return row(start=last.start, mde=None, children=0, refused='', arms=(last,))
  control = np.stack(scores)

  most = proposal.expected[1]
  needed = promote.children_needed(control, most, alpha, e.max_children)
  children = max(e.children, needed or 0)
  # Printed before it is paid for.
  mde = promote.mde(control, children, alpha)
  found, refused = controls, ''
  if needed is None and e.underpowered == 'refuse':
    least = promote.mde(control, e.max_children, alpha)
    refused = (
        f'{e.max_children} children would detect {100 * least:.1f} points, and'
        f' at most {100 * most:.1f} are expected'
    )
  else:
    run.say(
        f'trial {trial}: {children} children detect {100 * mde:.1f} points'
        f' with power 80 % at alpha {alpha:.3f}'
    )
    trained, _ = of_role('child', proposal.harness, children, controls)
    found = [*controls, *trained]
  # From different states, arms would compare policies and not harnesses.
  starts = {arm.start for arm in found}
  if len(starts) > 1:
    raise RuntimeError(f'arms of trial {trial} started from {sorted(starts)}')
  return row(
      start=starts.pop(),
      mde=mde,
      children=children,
      refused=refused,
      arms=tuple(found),
  )


def wealth(run: opening.Run) -> promote.Wealth:
  """Return what a run may still spend on tests.

  Trials that were refused or crashed made no test and have no p.
  """
  # As it was when the run began: a test more than was promised then can only
  # be paid for by what was found.
  promised = run.recorder.find(records.Open).config['evolve']
  verdicts = run.recorder.history.all(records.Verify)
  return promote.Wealth(
      float(promised['false_discovery_rate']),
      promised['trials'],
      tuple(v.status == 'keep' for v in verdicts if v.p is not None),
  )


def first(trial: records.Trial, role: str) -> records.TrialArm:
  """Return the first arm of a role: named before any arm was scored."""
  return next(arm for arm in trial.arms if arm.role == role)
