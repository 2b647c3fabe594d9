"""States of a policy on disk: checkpoints, and the mean of several arms."""

from collections.abc import Sequence
import dataclasses
import pathlib

import jax
import numpy as np

from evojax.models import decoder
from evojax.models import policy as policy_lib
from evojax.runtime import checkpoint as checkpoint_lib
from evojax.runtime import decisions
from evojax.runtime import sharding
from evojax.training import fingerprint
from evojax.training import learner as learner_lib
from evojax.training import means
from evojax.training import settings
from evojax.training import setup as setup_lib
from evojax.training import update as update_lib


@dataclasses.dataclass(frozen=True)
class States:
  """Reads and writes the states of a run's policies.

  All processes of a run call its methods together.
  """

  setup: setup_lib.Setup  # The run's setup, without a harness.
  mesh: jax.sharding.Mesh

  def params(
      self, checkpoint: pathlib.Path | None, policy: policy_lib.Policy | None
  ) -> decoder.Params:
    """Return the parameters of a checkpoint, or those of a policy directory.

    Args:
      checkpoint: Checkpoint of an arm; None reads the policy's directory.
      policy: Policy of the run's architecture; None is the run's policy.
    """
    policy = policy or self.setup.policy
    if checkpoint is None:
      return self._base(policy)
    state = self._empty(policy)
    saved = checkpoint_lib.restore(
        checkpoint, learner_lib.abstract_state(state)
    )
    state.update(saved['learner'])
    return update_lib.policy_params(policy.cfg, state)

  def merge(
      self,
      checkpoints: Sequence[pathlib.Path],
      weights: Sequence[float],
      target: pathlib.Path,
      *,
      start: pathlib.Path,
      outer_learning_rate: float,
  ) -> str:
    """Write the merged state of several arms, as in local SGD.

    The parameters make an outer step from the arms' start towards the arms'
    weighted mean (DiLoCo, arXiv:2311.08105, Algorithm 1, with plain SGD as the
    outer optimizer):

      start + outer_learning_rate (mean - start).

    Both of Adam's moments are averaged. All sums are computed in float32. Step
    counts stay, because they are equal in all arms.

    Args:
      checkpoints: Checkpoints of the arms, after equally many updates.
      weights: One weight per arm, with sum 1.
      target: Directory of the checkpoint to write, 'step_000012'.
      start: The checkpoint that the arms started from.
      outer_learning_rate: 1 writes the mean. The mean of n arms has an n times
        smaller variance than one arm, so larger steps stay stable.

    Returns:
      The fingerprint of the state.
    """
    # At most two states at a time are on the devices, three in an outer step.
    forms = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
        self._empty(self.setup.policy),
    )
    shape = learner_lib.abstract_state(forms)
    total, others = None, {}
    for checkpoint, weight in zip(checkpoints, weights, strict=True):
      saved = checkpoint_lib.restore(checkpoint, shape)
      total = means.add(total, saved.pop('learner'), np.float32(weight))
      others = others or saved
    if outer_learning_rate != 1:
      before = checkpoint_lib.restore(start, shape)['learner']['params']
      total['params'] = means.outer_step(
          before, total['params'], np.float32(outer_learning_rate)
      )
    merged = jax.tree.map(
        lambda x, like: x.astype(like.dtype), total, shape['learner']
    )
    checkpointer = checkpoint_lib.Checkpointer(target.parent, every=1, keep=1)
    step = int(target.name.removeprefix('step_'))
    checkpointer.save(step, others | {'learner': merged}, {})
    checkpointer.wait()
    return fingerprint.of(merged)

  def begin(self, target: pathlib.Path) -> str:
    """Write the state of a new run; return its fingerprint.

    Args:
      target: Directory of the checkpoint, 'step_000000'.
    """
    state = self._empty(self.setup.policy)
    checkpointer = checkpoint_lib.Checkpointer(target.parent, every=1, keep=1)
    everywhere = sharding.replicated(self.mesh)
    seed = sharding.to_device(np.uint32(self.setup.config.seed), everywhere)
    key = jax.jit(jax.random.key, out_shardings=everywhere)(seed)
    tree = learner_lib.checkpoint_tree(state, key, cursor=0, step=0)
    checkpointer.save(0, tree, {})
    checkpointer.wait()
    return fingerprint.of(tree['learner'])

  def export(self, checkpoint: pathlib.Path, target: pathlib.Path) -> None:
    """Write a checkpoint's policy as a Hugging Face directory, once."""
    if not decisions.decide(target.is_dir):
      policy, dtype = self.setup.policy, self.setup.config.model.param_dtype
      params = self.params(checkpoint, policy)
      policy_lib.export(policy, params, target, dtype)

  def _base(self, policy: policy_lib.Policy) -> decoder.Params:
    config = self.setup.config
    return policy_lib.load_params(
        policy,
        self.mesh,
        param_dtype=config.model.param_dtype,
        seed=config.seed,
    )

  def _empty(self, policy: policy_lib.Policy) -> update_lib.State:
    """Return an initial state; its structure is the same for all harnesses."""
    algorithm = settings.algorithm(self.setup.config)
    return update_lib.compiled(
        update_lib.init_state, policy.cfg, algorithm, self.mesh
    )(self._base(policy))
