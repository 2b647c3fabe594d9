"""All that a run needs before a device is touched, built and checked once.

A harness lies over a setup: `Setup.under` returns that of an arm or a replay
without opening domain and policy, or grading, a second time.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax import records
from evojax.domains import base
from evojax.domains import sources
from evojax.episodes import collect
from evojax.episodes import synthetic as synthetic_lib
from evojax.eval import evaluate as evaluate_lib
from evojax.evidence import schema
from evojax.evidence import views
from evojax.harness import admit
from evojax.harness import run
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.models import decoder
from evojax.models import policy as policy_lib
from evojax.rollout import roster
from evojax.runtime import config_checks
from evojax.runtime import devices
from evojax.runtime import metrics as metrics_lib
from evojax.runtime import sharding
from evojax.sandbox import probe
from evojax.training import reward_parts
from evojax.training import settings

_MOST_RENDERED = 10_000  # Problems of a data set: some seconds.


@dataclasses.dataclass(frozen=True)
class Setup:
  """All that a run, an arm or a replay needs before a device is touched."""

  config: ml_collections.ConfigDict  # With the harness's overlay applied.
  domain: base.Domain
  # Gives the training problems: the slice of `domain` at config.data.families.
  training_domain: base.Domain
  policy: policy_lib.Policy
  synthetic: synthetic_lib.Evidence  # Functions are tried on it.
  probe_rows: dict[str, Any]  # One graded problem, to try rewards on.
  columns: tuple[schema.Column, ...]
  parts: reward_parts.Parts
  reader: str = 'reward'  # What the view that the parts see is open to.
  harness: spec.Harness | None = None
  functions: run.Functions | None = None  # The harness's, run in the box.

  def base_params(self, mesh: jax.sharding.Mesh) -> decoder.Params:
    """Read the weights of the base policy to the devices of a mesh."""
    dtype, seed = self.config.model.param_dtype, self.config.seed
    return policy_lib.load_params(
        self.policy, mesh, param_dtype=dtype, seed=seed
    )

  @property
  def version(self) -> str:
    """Hash of the harness that trains; 'seed' where there is none."""
    return self.harness.sha256 if self.harness else 'seed'

  def scorer(
      self,
      engine: records.Sampler,
      phases: metrics_lib.Phases | None = None,
      *,
      version: str | None = None,
  ) -> evaluate_lib.Scorer:
    """Return what scores the weights that an engine holds, as the run does.

    Args:
      engine: Sampler with the weights to score.
      phases: Counts the time of rollout, grade and log.
      version: Hash of the harness that trained the weights, by default the
        setup's own; see the evidence column `version`.
    """
    return evaluate_lib.Scorer(
        engine=engine,
        tokenizer=self.policy.tokenizer,
        domain=self.domain,
        params=settings.eval_params(self.config),
        max_prompt_tokens=self.config.data.max_prompt_tokens,
        version=self.version if version is None else version,
        phases=phases,
    )

  def view(self, rows: Mapping[str, Any]) -> views.View:
    """Return the view of rows that the reward's parts get."""
    limit = config_lib.token_limit(self.config)
    return collect.view(rows, self.columns, limit, self.reader)

  def rewards(
      self, view: views.View
  ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the weighted reward and its parts; see `reward_parts.compute`."""
    weights = self.config.reward.weights.to_dict()
    return reward_parts.compute(self.parts, view, weights)

  @property
  def surface(self) -> surface_lib.Surface:
    """The fields that harnesses of this run may set."""
    return surface_lib.recipe(self.domain.surface_fields)

  def under(self, config: ml_collections.ConfigDict) -> 'Setup':
    """Return the setup of an arm or a replay of this run.

    Args:
      config: The run's config without an overlay, with the arm's seed, shapes
        and numbers; `harness.path` names the harness. The policy stays open,
        and so does the domain unless its section differs.

    Raises:
      ValueError: If the harness, a value or a part does not fit, as `prepare`.
    """
    return _build(config, opened=self)


def prepare(config: ml_collections.ConfigDict) -> Setup:
  """Check and build everything that needs no device.

  The reward is tried on one graded problem, so that a wrong weight or a broken
  function of the user's own shows up here and not after the first rollout.

  Args:
    config: The config of the run; `harness.path` names the harness that trains
      it.

  Raises:
    ValueError: If anything is wrong, with the field, its value and the remedy.
  """
  devices.trim_memory_after_compiling()
  if (file := config.rollout.urls_file) and sharding.is_primary():
    roster.Roster(file).read()
  return _build(config, opened=None)


def _build(config: ml_collections.ConfigDict, opened: Setup | None) -> Setup:
  """Return the setup of a config, with what `opened` holds of it already."""
  policy = opened and opened.policy
  # Synthetic evidence and the probe are of the domain's own problems.
  if opened is not None and config.domain != opened.config.domain:
    opened = None
  domain = opened.domain if opened else settings.make_domain(config)
  surface = surface_lib.recipe(domain.surface_fields)
  harness = functions = None
  if config.harness.path:
    harness = spec.read(config.harness.path)
    section = config.domain
    config = surface.apply(config, harness.overlay)
    if config.domain != section:
      domain, opened = settings.make_domain(config), None
    if harness.files:
      probe.tier()  # A machine without a box for such code says so now.
      functions = run.Functions(harness)
  # After the overlay: a harness may set values that only together are wrong.
  config_checks.validate(config, arm=opened is not None)
  metrics_lib.check_available(config.log.wandb)
  families = config.data.families
  training_domain = (
      settings.make_domain(config, families) if families else domain
  )
  synthetic = opened.synthetic if opened else synthetic_lib.Evidence(domain)
  refused = functions and admit.check_functions(
      harness, config, surface, synthetic
  )
  if refused:
    raise ValueError(
        f'config.harness.path={config.harness.path} is refused:'
        + ''.join(f'\n  {reason}' for reason in refused)
    )
  policy = policy or settings.open_policy(config)
  # The harness's parts replace the domain's, but not those the user brought.
  parts = reward_parts.load_parts(config.reward.parts, domain.reward_parts)
  reader = reward_parts.reader(parts)
  if functions and functions.has('reward'):
    own = parts if config.reward.parts else lambda e: {}
    # The weights in the harness's overlay say which of them count.
    parts = lambda e: {**own(e), **functions.parts(e)}
  setup = Setup(
      config=config,
      domain=domain,
      training_domain=training_domain,
      policy=policy,
      synthetic=synthetic,
      columns=collect.columns(domain, config),
      parts=parts,
      reader=reader,
      harness=harness,
      functions=functions,
      probe_rows=opened.probe_rows if opened else {},
  )
  _check_turns(setup)
  if not opened:
    setup.probe_rows.update(_grade_one(setup))
  setup.rewards(setup.view(setup.probe_rows))
  return setup


def _check_turns(setup: Setup) -> None:
  """Refuse episodes of several turns that the sampler has no room for.

  Raises:
    ValueError: Naming the field, its value and the remedy.
  """
  domain, turns = setup.domain, setup.domain.limits.turns
  if turns == 1:
    return
  if not setup.config.rollout.turn_tokens:
    raise ValueError(
        f'config.rollout.turn_tokens=0, but episodes of the domain'
        f' {domain.name!r} have up to {turns} turns: set it to the tokens that'
        ' one turn may have'
    )
  statuses = schema.codes_of(setup.columns, 'grade_status')
  if records.INFRA_ERROR not in statuses:
    raise ValueError(
        f'domain {domain.name!r}: an environment may fail, but grade_status has'
        f' no code for {records.INFRA_ERROR!r}; put it into'
        " schema.with_codes('grade_status', ...)"
    )


def check_problems(setup: Setup, counts: Mapping[str, int]) -> None:
  """Render the first problems of splits, under the seed of the config.

  Args:
    setup: Of the run.
    counts: Problems that are asked at once, by split.

  Raises:
    ValueError: If a split is too small, a prompt is too long, or the chat
      template refuses it.
  """
  config = setup.config
  for split, count in counts.items():
    domain = setup.training_domain if split == 'train' else setup.domain
    source = domain.source(split, config.seed)
    if isinstance(source, sources.FiniteSource):  # All are asked some day.
      count = max(count, min(len(source), _MOST_RENDERED))
    asked = source.take(0, count)
    collect.render(setup.policy.tokenizer, asked, config.data.max_prompt_tokens)


def _grade_one(setup: Setup) -> dict[str, Any]:
  """Check the problems of every split; return rows of one graded problem.

  The rows are two samples of an empty completion. Sealed problems are asked
  last in a run: one whose prompt is too long must not show up only then.

  Raises:
    ValueError: As `check_problems`.
  """
  config = setup.config
  counts = {'train': config.grpo.prompts, 'dev': config.eval.problems}
  if config.eval.sealed or config.eval.split == 'sealed':
    counts['sealed'] = config.eval.problems
  check_problems(setup, counts)
  train = setup.training_domain.source('train', config.seed)
  silent = records.Episode(
      np.zeros(1, np.int32), np.zeros(1, np.float32), 'length', 0, ''
  )
  asked = records.RequestBatch(train.take(0, 1), [()], config.seed)
  return collect.rollout_batch(
      setup.domain, setup.columns, asked, [silent] * 2
  ).rows
