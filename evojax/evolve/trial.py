"""A trial: control arms and children from one restored state, then a verdict.

Arms share seeds pairwise: child i meets the problems that control i met. All of
them are scored on dev problems drawn for this trial alone; where the test is
passed, on those problems written otherwise too. Control arms of a version serve
every trial on it; only their score is taken afresh.
"""

from collections.abc import Mapping
import dataclasses
import hashlib
import pathlib
from typing import Any

from jaxtyping import Float
import numpy as np

from evojax.domains import base
from evojax.eval import futility
from evojax.eval import perturb
from evojax.evidence import store
from evojax.evolve import arms
from evojax.evolve import promote
from evojax.evolve import session as session_lib


def dev_seed(session: session_lib.Session, trial: int) -> int:
  """Seed of the fresh dev problems of a trial."""
  text = f'dev {session.config.seed} {trial}'
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], 'big')


def arm_seed(session: session_lib.Session, index: int) -> int:
  """Seed of the index-th arm of a role; no arm's is that of version 0."""
  return (session.config.seed + 1 + index) % 2**32


def _score(
    session: session_lib.Session,
    trial: int,
    name: str,
    trained: str,
    samples: int,
    domain: base.Domain | None = None,
) -> Float[np.ndarray, 'P']:
  """Scores an arm's last checkpoint on the trial's problems, once.

  Args:
    session: The run.
    trial: Its number.
    name: Of the evidence: folder below that of the trial.
    trained: Folder of the arm, below the workdir.
    samples: Of each problem.
    domain: Where problems come from, by default the run's.
  """
  e = session.config.evolve
  folder = session.path / 'trials' / f'{trial:03d}' / name
  there = session.decide(lambda: bool(store.list_steps(folder, 'dev')))
  if not there:
    session.stop_if_asked()
    session.evaluate(
        arms.end_of(session.path / trained, e.updates),
        split='dev',
        seed=dev_seed(session, trial),
        problems=e.problems,
        samples=samples,
        step=e.updates,
        folder=folder,
        domain=domain,
    )
  return np.array(
      session.decide(lambda: store.problem_scores(folder, 'dev').tolist()),
      np.float64,
  )


def run(
    session: session_lib.Session,
    trial: int,
    *,
    parent: Mapping[str, Any],
    harness: str,
    expected: tuple[float, float],
    wealth: promote.Wealth,
) -> dict[str, Any]:
  """Trains and scores the arms of a trial.

  Args:
    session: The run.
    trial: Its number.
    parent: The version that training goes on from: name, harness, checkpoint
      (relative to the workdir).
    harness: Hash of the child harness.
    expected: Predicted effect; its upper end must be detectable.
    wealth: What the run may still spend on tests.

  Returns:
    JSON values, the row of step 'trial': start, dev_seed, alpha, mde, children,
    refused (why no child was trained, or ''), and arms.
  """
  e = session.config.evolve
  start = session.path / parent['checkpoint']
  controls, control_scores = [], []
  for i in range(e.controls):
    arm = arms.train_arm(
        session,
        f'arms/{parent["version"]}.control-{i}',
        arms.config_of(session, parent['harness'], arm_seed(session, i)),
        start,
        label=f'trial {trial}: control {i + 1} of {e.controls}',
    )
    if arm['status'] != 'done':
      return _row(session, trial, [('control', i, arm)], wealth, None, 0, '')
    controls.append(arm)
    control_scores.append(
        _score(session, trial, f'control-{i}', arm['arm'], e.samples)
    )
  control = np.stack(control_scores)

  needed = promote.children_needed(
      control, expected[1], wealth.alpha, e.max_children
  )
  children = max(e.children, needed or 0)
  mde = promote.mde(control, children, wealth.alpha)
  listed = [('control', i, arm) for i, arm in enumerate(controls)]
  if needed is None and e.underpowered == 'refuse':
    least = promote.mde(control, e.max_children, wealth.alpha)
    refused = (
        f'{e.max_children} children would detect {100 * least:.1f} points, and'
        f' at most {100 * expected[1]:.1f} are expected'
    )
    return _row(session, trial, listed, wealth, mde, children, refused)
  if session.primary:
    print(
        f'trial {trial}: {children} children detect {100 * mde:.1f} points'
        f' with power 80 % at alpha {wealth.alpha:.3f}',
        flush=True,
    )

  outcomes = np.array([arm['outcome'] for arm in controls])

  def watch(so_far: np.ndarray) -> str | None:
    return futility.early(so_far, outcomes[:, : len(so_far)])

  for i in range(children):
    arm = arms.train_arm(
        session,
        f'arms/t{trial:03d}.child-{i}',
        arms.config_of(session, harness, arm_seed(session, i)),
        start,
        label=f'trial {trial}: child {i + 1} of {children}',
        watch=watch,
    )
    listed.append(('child', i, arm))
    if arm['status'] != 'done':
      break  # One arm that collapses or crashes decides.
    _score(session, trial, f'child-{i}', arm['arm'], e.samples)
  return _row(session, trial, listed, wealth, mde, children, '')


def _row(
    session: session_lib.Session,
    trial: int,
    listed: list[tuple[str, int, Mapping[str, Any]]],
    wealth: promote.Wealth,
    mde: float | None,
    children: int,
    refused: str,
) -> dict[str, Any]:
  """The data of the step; raises if the arms did not start alike."""
  starts = {arm['start'] for _, _, arm in listed}
  if len(starts) > 1:
    raise RuntimeError(f'arms of trial {trial} started from {sorted(starts)}')
  return dict(
      start=starts.pop(),
      dev_seed=dev_seed(session, trial),
      alpha=wealth.alpha,
      mde=mde,
      children=children,
      refused=refused,
      arms=[
          {
              **arm,
              'arm': f'trials/{trial:03d}/{role}-{i}',
              'trained': arm['arm'],
              'role': role,
          }
          for role, i, arm in listed
      ],
  )


def judge(
    session: session_lib.Session,
    row: Mapping[str, Any],
    *,
    new_alerts: list[str],
) -> dict[str, Any]:
  """The row of step 'verify' for a trial whose arms are all done.

  Devices are used: all processes call it together.

  Args:
    session: The run.
    row: Of step 'trial'.
    new_alerts: Critical alerts that the child raises and its parent does not.
  """

  def read() -> dict[str, list[list[float]]]:
    found = {'control': [], 'child': []}
    for arm in row['arms']:
      found[arm['role']].append(
          store.problem_scores(session.path / arm['arm'], 'dev').tolist()
      )
    return found

  found = session.decide(read)
  control = np.array(found['control'], np.float64)
  child = np.array(found['child'], np.float64)
  effect = _estimate(session, control, child)
  perturbed = None
  if effect.p_one_sided <= row['alpha']:
    perturbed = _perturbed_effect(session, row)
  verdict = promote.decide(
      effect, row['alpha'], critical_alerts=new_alerts, perturbed=perturbed
  )
  return dict(
      status=verdict.status,
      reasons=list(verdict.reasons),
      effect=effect.value,
      standard_error=effect.standard_error,
      df=effect.df,
      low=effect.low,
      high=effect.high,
      p=effect.p_one_sided,
      alpha=row['alpha'],
      sigma_seed=effect.sigma_seed,
      se_problems=effect.se_problems,
      wilcoxon_p=effect.wilcoxon_p,
      no_loss=promote.no_loss(effect),
      control=float(control.mean()),
      child=float(child.mean()),
      perturbed_effect=None if perturbed is None else perturbed.value,
      alerts=new_alerts,
  )


def _estimate(
    session: session_lib.Session,
    control: Float[np.ndarray, 'C P'],
    child: Float[np.ndarray, 'K P'],
) -> promote.Effect:
  """The effect, to the last bit the same in every process."""
  found = session.decide(
      lambda: dataclasses.asdict(promote.estimate(control, child))
  )
  return promote.Effect(**found)


def _perturbed_effect(
    session: session_lib.Session, row: Mapping[str, Any]
) -> promote.Effect | None:
  """Effect on the trial's problems written otherwise; half as many samples.

  None where the domain cannot write so many otherwise.
  """
  e, domain = session.config.evolve, session.setup.domain
  if not perturb.has_perturbations(domain, e.problems, seed=row['dev_seed']):
    return None
  found: dict[str, list[np.ndarray]] = {'control': [], 'child': []}
  for arm in row['arms']:
    name = pathlib.PurePath(arm['arm']).name
    found[arm['role']].append(
        _score(
            session,
            row['trial'],
            f'{name}-perturbed',
            arm['trained'],
            max(1, e.samples // 2),
            perturb.Perturbed(domain),
        )
    )
  return _estimate(
      session, np.stack(found['control']), np.stack(found['child'])
  )


def not_judged(status: str, reasons: list[str]) -> dict[str, Any]:
  """The row of step 'verify' where there is no number."""
  numbers = (
      'effect',
      'standard_error',
      'df',
      'low',
      'high',
      'p',
      'alpha',
      'sigma_seed',
      'se_problems',
      'wilcoxon_p',
      'no_loss',
      'control',
      'child',
      'perturbed_effect',
  )
  return dict(dict.fromkeys(numbers), status=status, reasons=reasons, alerts=[])
