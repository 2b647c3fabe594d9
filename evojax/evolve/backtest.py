"""What a change would have done to recorded evidence, before it is trained.

Two kinds of numbers, (candidate, checkpoints, evidence, seed) -> numbers:
statistics of the recorded groups under the candidate's reward and filter, and
K replayed updates from retained checkpoints, scored on held-out train problems
against the same updates under the parent. The answer may be NOT_IDENTIFIABLE:
old rollouts do not tell what another temperature would have sampled.
"""

import hashlib
import json
import math
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from evojax.episodes import collect
from evojax.eval import estimates
from evojax.eval import evaluate as evaluate_lib
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evolve import arms
from evojax.evolve import session as session_lib
from evojax.evolve import weightings
from evojax.harness import delta as delta_lib
from evojax.harness import run as run_lib
from evojax.harness import surface as surface_lib
from evojax.ledger import chain as chain_lib
from evojax.rl import filters
from evojax.runtime import workdir as workdir_lib
from evojax.training import learner as learner_lib
from evojax.training import reward_pipeline

NOT_IDENTIFIABLE = 'not identifiable'
# Classes of changes that alter what is sampled; replaying old rollouts under
# them says nothing.
_UNSEEN = ('exploration', 'data')
SCANNED = 1000
HARMLESS = 0.1


def run(
    session: session_lib.Session,
    *,
    version: str,
    before: str,
    after: str,
    delta: delta_lib.Delta,
    folder: pathlib.Path,
) -> dict[str, Any]:
  """Backtests a candidate against its parent.

  Args:
    session: The run.
    version: The parent version.
    before: Hash of the parent harness.
    after: Hash of the candidate.
    delta: What differs.
    folder: Of the arm that left the parent's evidence and checkpoints.

  Returns:
    JSON values: key, the hash of all inputs; statistics, name -> number or
    NOT_IDENTIFIABLE; predicted, the 95 % interval of the replayed effect, or
    None. The same inputs give the same numbers, which are kept by their key.

  Raises:
    harness.run.FunctionError: If a function of the candidate fails.
  """
  steps = session.decide(lambda: store.list_steps(folder, 'train'))
  key = session.decide(
      lambda: _key(session, folder, steps, [before, after, version])
  )
  path = session.path / 'backtests' / f'{key}.json'
  stored = session.decide(
      lambda: json.loads(path.read_bytes()) if path.exists() else None
  )
  if stored is not None:
    return stored
  result: dict[str, Any] = dict(key=key, predicted=None)
  recent = steps[-max(1, len(steps) // 3) :]
  old = recorded(session, before, folder, recent)
  new = recorded(session, after, folder, recent)
  # Ours last: the harness's own take no name of theirs.
  own = _own_statistics(session, before, old, new)
  result['statistics'] = own | compare(old, new)
  if delta.factor.startswith('reward:'):
    result['statistics'] |= _scan(
        new, delta.factor.removeprefix('reward:'), session.setup.surface
    )
  names = ('replayed_effect', 'replayed_low', 'replayed_high')
  if delta.intervention_class in _UNSEEN:
    result['statistics'] |= dict.fromkeys(names, NOT_IDENTIFIABLE)
  else:
    effect = replay(session, before, after, folder, steps)
    numbers = (effect.value, effect.low, effect.high)
    result['statistics'] |= dict(zip(names, numbers, strict=True))
    result['predicted'] = [effect.low, effect.high]
  if session.primary:
    path.parent.mkdir(exist_ok=True)
    text = chain_lib.canonical_json(result) + '\n'
    workdir_lib.write_atomic(path, text.encode())
  return result


def _key(
    session: session_lib.Session,
    folder: pathlib.Path,
    steps: list[int],
    names: list[str],
) -> str:
  """Hash of everything that the numbers depend on.

  By content: files hold times and are laid out as the writer pleased. An arm's
  start, end and evidence stand for its checkpoints.
  """
  e = session.config.evolve
  arm = json.loads((folder / 'arm.json').read_bytes())
  digest = hashlib.sha256()
  for name in (
      *names,
      *(arm[key] for key in ('start', 'end', 'seed')),
      *(session.config.seed, e.replay_updates, e.replay_problems),
  ):
    digest.update(f'{name}\n'.encode())
  for step in steps:
    table = parquet.ParquetFile(store.path_of(folder, 'train', step)).read()
    table = table.drop_columns(['grade_seconds']).replace_schema_metadata()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
      writer.write_table(table)
    digest.update(sink.getvalue())
  return digest.hexdigest()


# ------------------------------------------------------------------ statistics


def recorded(
    session: session_lib.Session,
    harness: str,
    folder: pathlib.Path,
    steps: list[int],
) -> dict[str, Any]:
  """Recorded groups as a harness weighs them.

  Returns:
    rewards, advantages, outcome, n_tokens, graded [P, G]; kept [P]; parts,
    weights; and view, the evidence with these rewards for the reader
    'diagnostic'.
  """
  setup = session.setup.under(
      arms.config_of(session, harness, session.config.seed)
  )
  rollouts = collect.RolloutBatch.recorded(session_lib.load_rows(folder, steps))
  batch = reward_pipeline.RewardPipeline(setup)(rollouts)
  grid = lambda name: rollouts.rows[name].reshape(batch.graded.shape)
  columns = {
      name: values
      for name, values in batch.columns.items()
      if not name.startswith(schema.PART_PREFIX)
  }
  rows = {
      name: values
      for name, values in rollouts.rows.items()
      if not name.startswith(schema.PART_PREFIX)
  }
  return dict(
      rewards=batch.rewards,
      # One advantage per episode: statistics compare episodes.
      advantages=batch.episode_advantages,
      kept=batch.kept,
      parts=batch.parts,
      weights=setup.config.reward.weights.to_dict(),
      outcome=grid('outcome').astype(bool),
      graded=batch.graded,
      n_tokens=grid('n_tokens').astype(np.float64),
      view=session_lib.view_of(rows | columns, setup.columns, setup.config),
  )


def compare(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
  """Statistics of recorded groups under a candidate, beside the parent's.

  alive_by_outcome: share of kept groups with solved and unsolved members.
  alive_by_shaping: share of kept groups whose outcomes agree and whose rewards
    differ: they push towards what only the shaping likes.
  phantom_advantage: share of the absolute advantage that falls on them.
  sign_agreement: share of the completions in groups that are alive by outcome
    whose advantage has the sign of solved (+) or unsolved (-).
  constant_parts: reward parts with a weight that do not vary at all.
  length_correlation: of n_tokens and reward.
  gradient_cosine: cosine of the advantages with those of the outcome alone,
    each completion weighted by its length: where score functions of completions
    are orthogonal and as long as their tokens, that of the policy gradients.
  kept_groups: share of groups that enter the update.

  Returns:
    Name -> number of the candidate; '<name>_before' -> of the parent.
  """
  result: dict[str, Any] = dict(_describe(after))
  result |= {f'{name}_before': v for name, v in _describe(before).items()}
  return result


def _describe(r: dict[str, Any]) -> dict[str, Any]:
  kept, outcome, graded = r['kept'], r['outcome'], r['graded']
  advantages = np.where(kept[:, None], r['advantages'], 0).astype(np.float64)
  # What was not graded has advantage 0, and an outcome that says nothing.
  mixed = (outcome & graded).any(1) & (~outcome & graded).any(1)
  masked = lambda x: np.ma.array(x, mask=~graded)
  differs = masked(r['rewards']).std(1).filled(0) > filters.MIN_STD
  shaped = kept & differs & ~mixed
  total = np.abs(advantages).sum()
  alive = kept & mixed
  told = alive[:, None] & graded
  signs = np.sign(advantages[told]) == np.where(outcome[told], 1, -1)
  plain = masked(outcome.astype(np.float64))
  plain = (plain - plain.mean(1, keepdims=True)).filled(0)
  length = np.sqrt(r['n_tokens'])
  a, b = (advantages * length).ravel(), (plain * length).ravel()
  norm = math.sqrt(float(a @ a) * float(b @ b))
  constant = [
      name
      for name, part in r['parts'].items()
      if r['weights'].get(name) and np.ptp(part[graded]) == 0
  ]
  rewards, tokens = r['rewards'][graded], r['n_tokens'][graded]
  varies = rewards.std() > 0 and tokens.std() > 0
  missing = NOT_IDENTIFIABLE
  return dict(
      alive_by_outcome=float(alive.mean()),
      alive_by_shaping=float(shaped.mean()),
      phantom_advantage=(
          float(np.abs(advantages[shaped]).sum() / total) if total else 0.0
      ),
      sign_agreement=float(signs.mean()) if signs.size else missing,
      constant_parts=len(constant),
      length_correlation=(
          float(np.corrcoef(tokens, rewards)[0, 1]) if varies else missing
      ),
      gradient_cosine=float(a @ b / norm) if norm else missing,
      kept_groups=float(kept.mean()),
  )


def _scan(
    after: dict[str, Any], part: str, surface: surface_lib.Surface
) -> dict[str, Any]:
  """How large the weight of a part may be, all others as they are.

  harmless_weight: the largest of SCANNED weights within the surface, of the
  sign that is proposed, at which, as at all smaller ones, at most HARMLESS of
  the absolute advantage falls on groups whose outcomes agree.
  """
  names = list(after['parts'])
  if part not in names:
    return {}
  bound = surface.field(surface_lib.WEIGHTS + part).high
  bound = math.copysign(bound, after['weights'][part])
  grid = np.linspace(0, bound, SCANNED)
  weights = np.tile([after['weights'][name] for name in names], (SCANNED, 1))
  weights[:, names.index(part)] = grid
  shares = weightings.apply(
      np.stack([after['parts'][name] for name in names]).astype(np.float32),
      weights.astype(np.float64),
      after['outcome'],
      after['graded'],
  ).phantom_share
  harmful = np.flatnonzero(shares > HARMLESS)
  last = harmful[0] - 1 if len(harmful) else SCANNED - 1
  found = float(grid[last]) if last >= 0 else NOT_IDENTIFIABLE
  return dict(harmless_weight=found)


def _own_statistics(
    session: session_lib.Session,
    harness: str,
    before: dict[str, Any],
    after: dict[str, Any],
) -> dict[str, Any]:
  """Statistics that the harness brings; one that fails is a status."""
  found: dict[str, Any] = {}
  functions = session.functions(harness)
  for name in functions.backtests:
    try:
      found |= functions.predict(name, before['view'], after['view'])
    except run_lib.FunctionError as error:
      found[name] = error.status
  return found


# ---------------------------------------------------------------------- replay


def replay(
    session: session_lib.Session,
    before: str,
    after: str,
    folder: pathlib.Path,
    steps: list[int],
) -> estimates.Estimate:
  """Effect of K updates on recorded rollouts, on held-out train problems.

  From every retained checkpoint, K updates under the parent and K under the
  candidate learn from the rollouts that were recorded nearest to it (after it,
  or where it is the last, before); both policies are then scored on the same
  problems of the train split, drawn under a seed of their own.
  """
  e = session.config.evolve
  count = min(e.replay_updates, len(steps))
  seed = _replay_seed(session.config.seed)
  gains = []
  for checkpoint in arms.retained(folder, len(steps)):
    at = int(checkpoint.name.removeprefix('step_'))
    follow = [s for s in steps if s >= at][:count]
    chosen = follow if len(follow) == count else steps[-count:]
    scores = [
        _replayed(session, harness, checkpoint, folder, chosen, seed)
        for harness in (before, after)
    ]
    gains.append(scores[1] - scores[0])
  # Checkpoints are no sample of anything: problems are, and share them.
  return estimates.over_problems(
      np.mean(gains, axis=0), rng=np.random.default_rng(0)
  )


def _replay_seed(seed: int) -> int:
  digest = hashlib.sha256(f'replay {seed}'.encode()).digest()
  return int.from_bytes(digest[:4], 'big')


def _replayed(
    session: session_lib.Session,
    harness: str,
    checkpoint: pathlib.Path,
    folder: pathlib.Path,
    steps: list[int],
    seed: int,
) -> np.ndarray:
  """Scores [problems] after the replayed updates."""
  config = arms.config_of(session, harness, session.config.seed)
  setup = session.setup.under(config)
  learner = learner_lib.Learner(setup, session.mesh, session.phases)
  learner.start_from(checkpoint)
  rewards = reward_pipeline.RewardPipeline(setup)
  for step in steps:
    rows = session_lib.load_rows(folder, [step])
    learner.learn(rewards(collect.RolloutBatch.recorded(rows)))
  session.engine.update_weights(learner.params, learner.step)
  with session.phases('eval'):
    result = evaluate_lib.evaluate(
        setup.scorer(session.engine, session.phases),
        split='train',
        seed=seed,
        problems=config.evolve.replay_problems,
        samples=config.evolve.samples,
    )
  return result.problem_scores
