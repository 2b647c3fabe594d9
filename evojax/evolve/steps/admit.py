"""Admit: the gate's decision on a candidate."""

from evojax.evolve import arms
from evojax.evolve import opening
from evojax.evolve import recorded
from evojax.harness import admit as admit_lib
from evojax.ledger import records
from evojax.runtime import decisions
from evojax.runtime import devices
from evojax.training import memory as memory_lib

# Prefix of the reason to refuse a candidate that may not fit into memory.
SIZE_BLOCKED = 'size_blocked: '


def admit(
    run: opening.Run, version: records.Version, design: records.Design
) -> records.Admit:
  """Return the gate's reasons against a candidate; none means admitted."""
  view = recorded.view(run, [version.folder], version.harness)
  reasons = decisions.decide(
      lambda: admit_lib.admit(
          run.harnesses.load(version.harness),
          run.harnesses.load(design.harness),
          run.config,
          run.setup.surface,
          run.setup.synthetic,
          view,
      )
  )
  try:
    setup = arms.setup_under(run, design.harness)
  except ValueError as error:  # Values that are inconsistent in an arm.
    reasons = [*reasons, str(error)]
  else:
    mesh = run.states.mesh
    arm = memory_lib.Run(setup.config, setup.policy, mesh)
    # Only a process's own devices report their memory.
    limit = lambda: devices.memory_bytes(mesh.local_devices)
    reasons += decisions.decide(lambda: too_large(arm, limit()))
  return records.Admit(trial=design.trial, reasons=tuple(reasons))


def too_large(arm: memory_lib.Run, limit: int | None) -> list[str]:
  """Return why an arm may need more memory than a device has, as reasons.

  Only a reference policy makes an arm larger than the run's own steps, see
  `memory.with_reference`.

  Args:
    arm: The shapes of the candidate's arms.
    limit: Bytes that programs may use on each device; None if unknown.
  """
  if limit is None or not arm.algorithm.reference:
    return []
  if (need := memory_lib.peak(arm)) <= limit:
    return []
  return [
      f'{SIZE_BLOCKED}with a reference policy (grpo.kl_coef) a device needs up'
      f' to {need / 2**30:.2f} GiB and has {limit / 2**30:.2f} GiB; see'
      ' --mode=plan --config.grpo.kl_coef=0.01'
  ]
