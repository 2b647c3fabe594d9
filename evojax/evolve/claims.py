"""What a run may claim at its end: sealed scores, and what they cost.

The final harness is trained again from the base policy, under the steps and
prompts of the config, as a recipe of someone else would be. Then the sealed
problems are drawn: from the head of the ledger, which no longer changes, and a
salt that did not exist before; nothing that was trained or proposed could have
seen them.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import hashlib
import json
import pathlib
import secrets
from typing import Any

import numpy as np

from evojax.eval import estimates
from evojax.evidence import store
from evojax.evolve import arms
from evojax.evolve import session as session_lib
from evojax.models import policy as policy_lib
from evojax.training import setup as setup_lib

# Rows of the final table that are there even if nothing was brought in.
COMPARED = ('reference', 'seed', 'random')


@dataclasses.dataclass(frozen=True)
class Compared:
  """A finished run that is scored beside this one."""

  name: str
  path: pathlib.Path
  policy: policy_lib.Policy


def open_compared(
    workdirs: Sequence[str], setup: setup_lib.Setup
) -> list[Compared]:
  """Checks the runs of --compare before anything is paid for.

  Raises:
    ValueError: If one is not finished, or its policy is of another shape.
  """
  found = []
  for text in workdirs:
    path = pathlib.Path(text).expanduser()
    if not (path / 'policy').is_dir():
      raise ValueError(
          f'--compare={text}: there is no {path / "policy"}; name the workdir'
          ' of a finished run'
      )
    model = setup.config.model.to_dict() | {'path': path / 'policy'}
    policy = policy_lib.open_policy(
        max_tokens=setup.config.data.max_prompt_tokens
        + setup.config.rollout.max_tokens,
        **model,
    )
    if policy.cfg != setup.policy.cfg:
      raise ValueError(
          f'--compare={text}: its policy has another architecture than'
          f' {setup.policy.path}; only runs on one base policy compare'
      )
    config = json.loads((path / 'config.json').read_text())['config']
    name = config['name'].rpartition('-')[2]
    if name in {c.name for c in found}:
      name = path.name
    found.append(Compared(name, path, policy))
  return found


def retrain(session: session_lib.Session, harness: str) -> dict[str, Any]:
  """Trains the final harness from the base policy: the row of 'retrain'."""
  config = session.under(harness)
  with config.unlocked():
    config.eval.sealed = False
  arm = arms.train_arm(
      session,
      'arms/final',
      config,
      None,
      label=f'the final harness from the base policy: {config.steps} steps',
  )
  if arm['status'] != 'done':
    raise ValueError(
        f'the final harness did not train from the base policy: {arm["why"]}'
    )
  return arm


def seal(session: session_lib.Session) -> dict[str, Any]:
  """Salt and seed of the sealed problems: the row of 'seal'."""
  salt = session.decide(
      lambda: session.config.evolve.salt or secrets.token_hex(16)
  )
  digest = hashlib.sha256(f'{session.head} {salt}'.encode()).digest()
  return dict(salt=salt, seed=int.from_bytes(digest[:4], 'big'))


def score(
    session: session_lib.Session,
    *,
    seed: int,
    continued: pathlib.Path | None,
    evolved: pathlib.Path,
    compared: Sequence[Compared],
) -> dict[str, Any]:
  """Sealed scores of all policies on the same problems: the row of 'final'.

  Returns:
    scores: name -> {value, standard_error, low, high}, null where not run;
    gains, likewise, over the base policy; evolved_over, of the policy from base
    over each of the others; compute, name -> tokens sampled for training it and
    in all, search included.
  """
  c = session.config.eval
  outcomes: dict[str, np.ndarray] = {}

  def score_one(name, checkpoint, policy=None):
    folder = session.path / 'sealed' / name
    there = session.decide(lambda: bool(store.list_steps(folder, 'sealed')))
    if not there:
      session.stop_if_asked()
      session.evaluate(
          checkpoint,
          split='sealed',
          seed=seed,
          problems=c.problems,
          samples=c.samples,
          folder=folder,
          policy=policy,
      )
    solved = session.decide(
        lambda: store.problem_scores(folder, 'sealed').tolist()
    )
    outcomes[name] = np.array(solved, np.float64)

  score_one('base', None)
  if continued is not None:
    score_one('continued', continued)
  score_one('evolved', evolved)
  for other in compared:
    score_one(other.name, None, other.policy)

  estimate = lambda values: dataclasses.asdict(
      estimates.over_problems(values, rng=np.random.default_rng(0))
  )
  names = dict.fromkeys((*outcomes, *COMPARED))
  return dict(
      problems=c.problems,
      samples=c.samples,
      scores={
          name: estimate(outcomes[name]) if name in outcomes else None
          for name in names
      },
      gains={
          name: estimate(values - outcomes['base'])
          for name, values in outcomes.items()
          if name != 'base'
      },
      evolved_over={
          name: estimate(outcomes['evolved'] - values)
          for name, values in outcomes.items()
          if name != 'evolved'
      },
      compute=session.decide(lambda: _compute(session, compared)),
  )


def _compute(
    session: session_lib.Session, compared: Sequence[Compared]
) -> dict[str, dict[str, int]]:
  """Sampled tokens of each policy's own training, and of its whole run."""
  everything = _tokens(session.path)
  found = {
      'evolved': dict(
          training=_tokens(session.path / 'arms' / 'final'), total=everything
      ),
      'continued': dict(
          training=sum(
              row['payload']['sampled_tokens']
              for row in session.rows
              if row['payload']['step'] in ('train', 'promote')
          ),
          total=everything - _tokens(session.path / 'arms' / 'final'),
      ),
  }
  for other in compared:
    found[other.name] = tokens_of(other.path)
  return found


def tokens_of(path: pathlib.Path) -> dict[str, int]:
  """Sampled tokens of a finished run: to train its policy, and in all.

  In all are dev scores, too, and what a run searched.
  """
  final = path / 'arms' / 'final'
  training = arms.sampled_tokens(final if final.exists() else path)
  return dict(training=training, total=_tokens(path))


def _tokens(root: pathlib.Path) -> int:
  """Tokens sampled in all train steps, and for the dev scores, below a path."""
  return sum(
      arms.sampled_tokens(folder.parent, split)
      for folder in sorted(root.rglob('evidence'))
      for split in ('train', 'dev')
  )


def export(
    session: session_lib.Session, checkpoint: pathlib.Path, name: str
) -> pathlib.Path:
  """Writes a checkpoint's policy as a Hugging Face directory."""
  target = session.path / name
  if not session.decide(target.is_dir):
    policy_lib.export(
        session.setup.policy,
        session.params(checkpoint),
        target,
        session.config.model.param_dtype,
    )
  return target


def summary_scores(final: Mapping[str, Any]) -> dict[str, Any]:
  """The sealed part of summary.json: 'not run' where nothing was brought in."""
  return {name: score or 'not run' for name, score in final['scores'].items()}
