"""What the steps of the meta-loop share: devices, the ledger, decisions.

Process 0 owns the ledger and decides; the others hear of it. All of them walk
the same state machine, so that devices are used together.
"""

from collections.abc import Callable, Mapping
import dataclasses
import json
import pathlib
import resource
import time
from typing import Any

import jax
import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax import records
from evojax.domains import base
from evojax.eval import evaluate as evaluate_lib
from evojax.evidence import schema
from evojax.evidence import store
from evojax.evidence import views
from evojax.harness import admit
from evojax.harness import delta as delta_lib
from evojax.harness import run as run_lib
from evojax.harness import spec
from evojax.ledger import budget as budget_lib
from evojax.ledger import chain as chain_lib
from evojax.ledger import records as records_lib
from evojax.models import decoder
from evojax.models import policy as policy_lib
from evojax.runtime import checkpoint as checkpoint_lib
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import preemption
from evojax.runtime import sharding
from evojax.training import settings
from evojax.training import setup as setup_lib
from evojax.training import trainer as trainer_lib
from evojax.training import update as update_lib

Payload = dict[str, Any]


class BudgetExhaustedError(Exception):
  """The run may spend no more; everything is saved."""


# What `Session.stop_if_asked` raises.
STOPS = (preemption.Preempted, BudgetExhaustedError)


@dataclasses.dataclass
class Session:
  """A run that evolves, in one process of it."""

  config: ml_collections.ConfigDict  # Of the run, without any overlay.
  path: pathlib.Path
  setup: setup_lib.Setup  # Domain and policy; without a harness.
  mesh: jax.sharding.Mesh
  engine: records.RolloutEngine
  phases: metrics_lib.Phases
  preempted: Callable[[], None]  # Raises preemption.Preempted after SIGTERM.
  ledger: chain_lib.Ledger | None  # Of process 0.
  rows: list[Any] = dataclasses.field(default_factory=list)

  def __post_init__(self):
    self._since = time.perf_counter()
    self._deciding = False
    rows = self.decide(lambda: list(self.ledger.rows))
    self.rows.extend(rows)

  # -------------------------------------------------------------- the ledger

  @property
  def primary(self) -> bool:
    """Whether this is the process that writes and decides."""
    return self.ledger is not None

  def decide(self, choose: Callable[[], Any]) -> Any:
    """Process 0's choice, a JSON value, in every process.

    Raises:
      RuntimeError: Inside another decision, where the others are not asked.
    """
    if self._deciding:
      raise RuntimeError('a decision inside a decision')
    text = b''
    if self.primary:
      self._deciding = True
      try:
        text = chain_lib.canonical_json(choose()).encode()
      finally:
        self._deciding = False
    if jax.process_count() > 1:
      size = int(sharding.broadcast(np.int64(len(text))))
      data = np.zeros(size, np.uint8)
      data[: len(text)] = np.frombuffer(text, np.uint8)
      text = np.asarray(sharding.broadcast(data), np.uint8).tobytes()
    return json.loads(text)

  def find(self, step: str, **match: Any) -> Payload | None:
    """Payload of the last row of a step that has these values."""
    row = chain_lib.find(self.rows, step, **match)
    return row and row['payload']

  def record(
      self, step: str, make: Callable[[], Mapping[str, Any]], **key: Any
  ) -> Payload:
    """The row of a step, made now if there is none: steps are idempotent.

    What `make` leaves on disk is there before the row is.
    """
    found = self.find(step, **key)
    if found is not None:
      return found
    self._since = time.perf_counter()
    self.stop_if_asked()
    return self._append(step, {**key, **make()})

  def _append(self, step: str, data: Mapping[str, Any]) -> Payload:
    """Adds a row for all that was done since the last one."""
    now = time.perf_counter()
    seconds, self._since = now - self._since, now

    def append():
      peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
      measured = dict(
          seconds=seconds,
          device_seconds=seconds * jax.device_count(),
          peak_rss_mb=peak,
      )
      return self.ledger.append(step, data, measured)

    self.rows.append(self.decide(append))
    return self.rows[-1]['payload']

  def stop_if_asked(self) -> None:
    """To be called where everything up to here is, or can be, saved.

    Raises:
      preemption.Preempted: After SIGTERM.
      BudgetExhaustedError: If the run has spent what it may.
    """
    self.preempted()
    running = time.perf_counter() - self._since
    spent = running * jax.device_count()
    if self.decide(
        lambda: spent
        >= self.budget.remaining([records_lib.parse(r) for r in self.rows])
    ):
      raise BudgetExhaustedError

  def stop(self, reason: str) -> None:
    """Records why the run ends here, and what was spent since the last row."""
    if not self.rows or self.rows[-1]['payload']['step'] != 'stop':
      self._append('stop', dict(reason=reason))

  @property
  def head(self) -> str:
    """Hash of the last row."""
    return self.rows[-1]['hash'] if self.rows else chain_lib.START

  @property
  def budget(self) -> budget_lib.Budget:
    """What the config allows the run to spend."""
    e = self.config.evolve
    return budget_lib.Budget(
        e.device_seconds, e.dollars, e.dollars_per_device_hour
    )

  # ------------------------------------------------------------ the harnesses

  def harness(self, sha256: str) -> spec.Harness:
    """A harness of this run, checked against its name."""
    return spec.load(self.path / 'harness', sha256)

  def functions(self, sha256: str) -> run_lib.Functions:
    """The functions of a harness of this run, which passed the gate.

    Raises:
      ValueError: If one does not: it was admitted by another gate.
    """
    harness = self.harness(sha256)
    synthetic = self.setup.synthetic
    if refused := admit.check_functions(
        harness, self.config, self.setup.surface, synthetic
    ):
      lines = ''.join(f'\n  {reason}' for reason in refused)
      raise ValueError(f'harness {sha256[:12]} is refused:{lines}')
    return run_lib.Functions(harness)

  def under(self, sha256: str) -> ml_collections.ConfigDict:
    """The run's config under a harness."""
    c = self.config.copy_and_resolve_references()
    with c.unlocked():
      c.harness.path = str(self.path / 'harness' / sha256)
    return c

  def applied(self, sha256: str) -> ml_collections.ConfigDict:
    """The run's config with the values of a harness."""
    return self.setup.surface.apply(self.config, self.harness(sha256).overlay)

  def values(self, sha256: str) -> dict[str, Any]:
    """Config values under a harness, by dotted path, as proposers see them."""
    flat = config_lib.flatten(self.applied(sha256))
    del flat['evolve.salt']
    return flat

  def delta(self, before: str, after: str) -> delta_lib.Delta:
    """What differs between two harnesses of this run."""
    return delta_lib.diff(
        self.harness(before),
        self.harness(after),
        self.setup.surface,
        config_lib.flatten(self.config),
    )

  # ------------------------------------------------------------- the policies

  def params(
      self,
      checkpoint: pathlib.Path | None,
      policy: policy_lib.Policy | None = None,
  ) -> decoder.Params:
    """Parameters of a checkpoint; without one, of a policy's directory.

    Args:
      checkpoint: Of an arm.
      policy: Of the shape of the run's, which it is by default.
    """
    policy = policy or self.setup.policy
    dtype = self.config.model.param_dtype
    params = policy_lib.load_params(
        policy, self.mesh, param_dtype=dtype, seed=self.config.seed
    )
    if checkpoint is not None:
      # Whatever algorithm trained it, parameters and moments look alike.
      algorithm = settings.algorithm(self.config)
      state = update_lib.jit_init_state(
          policy.cfg, algorithm, self.mesh, donate=True
      )(params)
      saved = checkpoint_lib.restore(
          checkpoint, trainer_lib.abstract_state(state)
      )
      state.update(saved['learner'])
      params = update_lib.policy_params(policy.cfg, state)
    return params

  def evaluate(
      self,
      checkpoint: pathlib.Path | None,
      *,
      split: str,
      seed: int,
      problems: int,
      samples: int,
      step: int = 0,
      folder: pathlib.Path | None = None,
      policy: policy_lib.Policy | None = None,
      domain: base.Domain | None = None,
  ) -> evaluate_lib.EvalResult:
    """Scores a policy, see `params`; evidence goes into a folder, if given.

    Problems are those of `domain`, by default the run's.
    """
    self.engine.update_weights(self.params(checkpoint, policy), 0)
    with self.phases('eval'):
      return evaluate_lib.evaluate(
          self.engine,
          self.setup.policy.tokenizer,
          domain or self.setup.domain,
          split=split,
          seed=seed,
          problems=problems,
          samples=samples,
          params=settings.eval_params(self.config),
          max_prompt_tokens=self.config.data.max_prompt_tokens,
          step=step,
          workdir=folder if self.primary else None,
          phases=self.phases,
          # Nothing is trained or proposed once the sealed problems are drawn.
          allow_sealed=self.find('seal') is not None,
      )


def load_rows(folder: pathlib.Path, steps: list[int]) -> dict[str, Any]:
  """Train evidence of some steps as one batch of groups, by column.

  Groups are numbered through. Where refill rounds made the steps unequal, all
  their groups are there.
  """
  frame = store.read(folder, 'train', steps)
  rows = {name: frame[name].to_numpy() for name in frame.columns}
  first, offset = {}, 0
  for step in steps:
    first[step] = offset
    offset += int(rows['group'][rows['step'] == step].max()) + 1
  rows['group'] = rows['group'] + np.array([first[s] for s in rows['step']])
  return rows


def view_of(
    rows: dict[str, Any],
    columns: tuple[schema.Column, ...],
    config: ml_collections.ConfigDict,
) -> views.View:
  """Rows as a diagnostic of the harness sees them."""
  return views.View.from_rows(
      rows,
      columns,
      prompts=int(rows['group'].max()) + 1,
      group_size=int(rows['sample'].max()) + 1,
      max_tokens=config_lib.token_limit(config),
      reader='diagnostic',
  )
