"""All that a run needs before it uses a device, built and checked once.

`Setup.under` applies a harness to a setup: it returns the setup of an arm or a
replay without opening domain and policy, or grading the probe, a second time.
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

# Maximum number of problems of a data set whose prompts are checked. The check
# of so many takes some seconds.
_MOST_RENDERED = 10_000


@dataclasses.dataclass(frozen=True)
class Setup:
  """All that a run, an arm or a replay needs before it uses a device."""

  config: ml_collections.ConfigDict  # With the harness's overlay applied.
  domain: base.Domain
  # Source of the training problems: `domain`, or only its families that
  # config.data.families names.
  training_domain: base.Domain
  policy: policy_lib.Policy
  synthetic: synthetic_lib.Evidence  # For trial calls of harness functions.
  probe_rows: dict[str, Any]  # Rows of one graded problem, to try rewards.
  columns: tuple[schema.Column, ...]
  parts: reward_parts.Parts
  reader: str = 'reward'  # The reader in schema.READERS whose view parts get.
  harness: spec.Harness | None = None
  functions: run.Functions | None = None  # The harness's, run in the sandbox.

  def base_params(self, mesh: jax.sharding.Mesh) -> decoder.Params:
    """Load the weights of the base policy onto the devices of a mesh."""
    dtype, seed = self.config.model.param_dtype, self.config.seed
    return policy_lib.load_params(
        self.policy, mesh, param_dtype=dtype, seed=seed
    )

  @property
  def version(self) -> str:
    """Hash of the harness that trains; 'seed' without a harness."""
    return self.harness.sha256 if self.harness else 'seed'

  def scorer(
      self,
      engine: records.Sampler,
      phases: metrics_lib.Phases | None = None,
      *,
      version: str | None = None,
  ) -> evaluate_lib.Scorer:
    """Return a scorer for the weights in an engine, with the run's settings.

    Args:
      engine: Sampler with the weights to score.
      phases: Measures the time of rollout, grade and log.
      version: Hash of the harness that trained the weights, by default that of
        this setup; see the evidence column `version`.
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
    """Return the view of rows that is passed to the reward parts."""
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

    The policy is not opened again, and the domain only if its section of the
    config differs.

    Args:
      config: The run's config without an overlay, with the changes of the arm;
        `harness.path` names the harness.

    Raises:
      ValueError: If the harness, a value or a part does not fit; see `prepare`.
    """
    return _build(config, opened=self)


def prepare(
    config: ml_collections.ConfigDict,
    *,
    trains: bool = True,
    rendered: bool = False,
) -> Setup:
  """Check and build everything that needs no device.

  The reward is computed for one graded problem, so that a wrong weight or a
  broken function of the user is found here and not after the first rollout.

  Args:
    config: The config of the run; `harness.path` names the harness that trains
      it.
    trains: False if the policy is only scored.
    rendered: Whether the run's problems have been checked, by the process that
      starts this one as an arm; see `check_problems`.

  Raises:
    ValueError: If anything is wrong, with the field, its value and the remedy.
  """
  devices.trim_memory_after_compiling()
  if (file := config.rollout.urls_file) and sharding.is_primary():
    roster.Roster(file).read()
  return _build(config, opened=None, trains=trains, rendered=rendered)


def _build(
    config: ml_collections.ConfigDict,
    opened: Setup | None,
    trains: bool = True,
    rendered: bool = False,
) -> Setup:
  """Return the setup of a config, reusing the fitting parts of `opened`."""
  policy, arm = opened and opened.policy, opened is not None
  # Synthetic evidence and the probe belong to a domain, so another domain needs
  # new ones.
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
      probe.tier()  # Raises now if this machine has no sandbox for such code.
      functions = run.Functions(harness)
  # After the overlay, because its values may be invalid only in combination.
  config_checks.validate(config, arm=arm, trains=trains)
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
  # The harness's parts replace those of the domain, but are added to those of
  # the user.
  parts = reward_parts.load_parts(config.reward.parts, domain.reward_parts)
  reader = reward_parts.reader(parts)
  if functions and functions.has('reward'):
    own = parts if config.reward.parts else lambda e: {}
    # The weights in the harness's overlay select the parts that count.
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
    if not rendered:
      _check_splits(setup)
    setup.probe_rows.update(_grade_one(setup))
  setup.rewards(setup.view(setup.probe_rows))
  return setup


def _check_turns(setup: Setup) -> None:
  """Check the settings that a domain with episodes of several turns needs.

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
  """Render the first problems of splits, with the seed of the config.

  Args:
    setup: Setup of the run.
    counts: Split -> number of problems that are taken at once.

  Raises:
    ValueError: If a split is too small, a prompt is too long, the chat template
      refuses it, or the policy has no row for one of its tokens.
  """
  config, policy = setup.config, setup.policy
  for split, count in counts.items():
    domain = setup.training_domain if split == 'train' else setup.domain
    source = base.source_of(domain, split, config.seed)
    # All problems of a finite source are used sooner or later.
    if isinstance(source, sources.FiniteSource):
      count = max(count, min(len(source), _MOST_RENDERED))
    asked = source.take(0, count)
    prompts = collect.render(
        policy.tokenizer, asked, config.data.max_prompt_tokens
    )
    highest = max((t for prompt in prompts for t in prompt), default=0)
    rows = policy.cfg.vocab_size
    # An index beyond the table would silently become that of its last row.
    if highest >= rows:
      raise ValueError(
          f'a prompt of the split {split!r} has the token {highest}, but the'
          f' vocabulary of {policy.path} has {rows} rows: its tokenizer.json is'
          ' that of another model; restore it'
      )


def _check_splits(setup: Setup) -> None:
  """Check the problems of every split.

  Sealed problems are checked, too: they are used at the end of a run, which is
  too late to find a prompt that is too long.

  Raises:
    ValueError: As in `check_problems`.
  """
  config = setup.config
  counts = dict.fromkeys(used_splits(config), config.eval.problems)
  check_problems(setup, counts | {'train': config.grpo.prompts})


def used_splits(config: ml_collections.ConfigDict) -> tuple[str, ...]:
  """Return the splits whose problems a run uses."""
  sealed = config.eval.sealed or config.eval.split == 'sealed'
  return ('train', 'dev', *['sealed'] * sealed)


def _grade_one(setup: Setup) -> dict[str, Any]:
  """Return rows of one graded problem: two completions without text."""
  config = setup.config
  train = setup.training_domain.source('train', config.seed)
  silent = records.Episode(
      np.zeros(1, np.int32), np.zeros(1, np.float32), 'length', 0, ''
  )
  asked = records.RequestBatch(train.take(0, 1), [()], config.seed)
  return collect.rollout_batch(
      setup.domain, setup.columns, asked, [silent] * 2
  ).rows
