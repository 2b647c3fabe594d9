"""What a run needs before a device is touched, and how configs map to it."""

from collections.abc import Callable, Iterator
import contextlib
import ctypes
import dataclasses
import functools
import hashlib
import os
import pathlib

import jax
import ml_collections
import numpy as np

from evojax import config as config_lib
from evojax import domains
from evojax import records
from evojax.domains import base
from evojax.episodes import collect
from evojax.episodes import rows as rows_lib
from evojax.episodes import synthetic
from evojax.evidence import schema
from evojax.evidence import views
from evojax.harness import admit
from evojax.harness import run
from evojax.harness import spec
from evojax.harness import surface as surface_lib
from evojax.models import policy as policy_lib
from evojax.rollout import client as client_lib
from evojax.rollout import engine as engine_lib
from evojax.rollout import parity
from evojax.runtime import config_checks
from evojax.runtime import metrics as metrics_lib
from evojax.sandbox import probe
from evojax.training import reward_pipeline
from evojax.training import update as update_lib

_COMPILED = '/jax/core/compile/backend_compile_duration'


@dataclasses.dataclass(frozen=True)
class Setup:
  """All that a run needs before a device is touched."""

  config: ml_collections.ConfigDict  # With the harness's overlay applied.
  domain: base.Domain
  taught: base.Domain  # Gives the training problems: a slice of `domain`.
  policy: policy_lib.Policy
  parts: reward_pipeline.Parts
  columns: tuple[schema.Column, ...]
  made_up: synthetic.MadeUp  # What functions are tried on.
  reader: str = 'reward'  # Whom the view of the parts is open to.
  functions: run.Functions | None = None  # Of the harness, in the box.

  @property
  def surface(self) -> surface_lib.Surface:
    """What harnesses of this run may set."""
    return surface_lib.recipe(self.domain.surface_fields)


def prepare(
    config: ml_collections.ConfigDict,
    *,
    policy: policy_lib.Policy | None = None,
) -> Setup:
  """Checks and builds everything that needs no device.

  The reward is tried on one graded problem, so that a wrong weight or a broken
  function of the user's own shows up here and not after the first rollout.

  Args:
    config: Of the run; `harness.path` names the harness that trains it.
    policy: Opened already, to save the time.

  Raises:
    ValueError: Whatever is wrong, with the field, its value and the remedy.
  """
  trim_memory_after_compiling()
  functions = domain = None
  if config.harness.path:
    harness = spec.read(config.harness.path)
    domain = domains.make(config.domain.name, **config.domain.kwargs.to_dict())
    surface = surface_lib.recipe(domain.surface_fields)
    config = surface.apply(config, harness.overlay)
    if harness.files:
      probe.tier()  # A machine that holds no such code says so now.
      functions = run.Functions(harness)
  config_checks.validate(config)
  metrics_lib.check_available(config.log.wandb)
  kwargs = config.domain.kwargs.to_dict()
  taught = domains.make(config.domain.name, **kwargs)
  domain = domain or taught
  if config.data.families:
    if 'families' not in kwargs:
      raise ValueError(
          f'config.data.families={config.data.families}: the domain'
          f' {config.domain.name!r} has no families to train a slice of; leave'
          ' the field empty'
      )
    taught = domains.make(
        config.domain.name, **(kwargs | {'families': config.data.families})
    )
  made = synthetic.MadeUp(domain)
  if functions:
    if refused := admit.check_functions(harness, config, surface, made):
      lines = ''.join(f'\n  {reason}' for reason in refused)
      raise ValueError(
          f'config.harness.path={config.harness.path} is refused:{lines}'
      )
  policy = policy or policy_lib.open_policy(
      fsdp_shards=max(config.mesh.fsdp, 1),
      tensor_shards=max(config.mesh.tensor, 1),
      max_tokens=config.data.max_prompt_tokens + config.rollout.max_tokens,
      **config.model.to_dict()
      | {'path': domains.policy_path(config.model.path)},
  )
  parts = reward_pipeline.load_parts(config.reward.parts, domain.reward_parts)
  reader = reward_pipeline.reader(parts)
  if functions and functions.has('reward'):
    parts = _joined(functions.parts, parts if config.reward.parts else None)
  columns = collect.columns(domain, config)
  problem = _check_prompts(config, domain, taught, policy)
  silent = records.Episode(
      np.zeros(1, np.int32), np.zeros(1, np.float32), 'length', 0, ''
  )
  (grade,), _ = collect.grade(domain, [problem], [silent])
  rows = rows_lib.from_rollouts(
      [problem],
      [silent] * 2,
      [grade] * 2,
      columns=columns,
      group_size=2,
      step=0,
      split='train',
      seed=config.seed,
      version='seed',
      prompt_tokens=[()],
      grade_seconds=[0.0] * 2,
  )
  view = views.View.from_rows(
      rows,
      columns,
      prompts=1,
      group_size=2,
      max_tokens=config_lib.token_limit(config),
      reader=reader,
  )
  reward_pipeline.compute(parts, view, config.reward.weights.to_dict())
  return Setup(
      config, domain, taught, policy, parts, columns, made, reader, functions
  )


def _joined(
    parts: reward_pipeline.Parts, own: reward_pipeline.Parts | None
) -> reward_pipeline.Parts:
  """A harness's parts, beside those of the user's own reward if there is one.

  Whether they count is said by the weights in the harness's overlay.
  """
  if own is None:
    return parts
  return lambda e: {**own(e), **parts(e)}


def _check_prompts(
    config: ml_collections.ConfigDict,
    domain: base.Domain,
    taught: base.Domain,
    policy: policy_lib.Policy,
) -> records.Problem:
  """Renders the first step and every evaluation; returns the first problem.

  Sealed problems are asked last: one that is too long must not show up only
  then.

  Raises:
    ValueError: If a prompt is too long, or the chat template refuses it.
  """
  counts = {'train': config.grpo.prompts, 'dev': config.eval.problems}
  if config.eval.sealed or config.eval.split == 'sealed':
    counts['sealed'] = config.eval.problems
  drawn = {
      split: (taught if split == 'train' else domain)
      .source(split, config.seed)
      .take(0, count)
      for split, count in counts.items()
  }
  for problems in drawn.values():
    collect.render(policy.tokenizer, problems, config.data.max_prompt_tokens)
  return drawn['train'][0]


def make_engine(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: jax.sharding.Mesh,
) -> engine_lib.Engine:
  """The in-process engine at the run's fixed shapes."""
  return engine_lib.Engine(
      policy.cfg,
      eos_ids=policy.tokenizer.eos_ids,
      decode_text=policy.tokenizer.decode,
      max_prompt_tokens=config.data.max_prompt_tokens,
      max_tokens=config.rollout.max_tokens,
      decode_slots=config.rollout.decode_slots,
      prefill_rows=config.rollout.prefill_rows,
      refill_every=config.rollout.refill_every,
      # The update takes them over while the next step is sampled.
      copy_weights=bool(config.rollout.queue_depth),
      mesh=mesh,
  )


@contextlib.contextmanager
def open_sampler(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: jax.sharding.Mesh,
    workdir: pathlib.Path,
    stopping: Callable[[], bool] = lambda: False,
) -> Iterator[records.RolloutEngine]:
  """Who samples: the engine in this process, or a client of servers.

  Args:
    config: Of the run.
    policy: Its policy.
    mesh: Where its parameters are.
    workdir: Holds the weights that servers are given, unless
      config.rollout.weights_dir says otherwise.
    stopping: Whether the run was asked to stop; see `fleet.Fleet`.

  Raises:
    ValueError: If a key is missing, or a server does not fit the policy.
    fleet.FleetError: If no server is up in time.
  """
  made = (
      make_engine(config, policy, mesh)
      if config.rollout.kind == 'engine'
      else _make_client(config, policy, mesh, workdir, stopping)
  )
  with contextlib.closing(made) as engine:
    yield engine


def _make_client(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: jax.sharding.Mesh,
    workdir: pathlib.Path,
    stopping: Callable[[], bool],
) -> client_lib.SGLangEngine:
  """The client of the servers at config.rollout.urls."""
  r, model = config.rollout, config.model
  folder = workdir / 'weights'
  if r.weights_dir:
    # Other runs may use the same directory.
    run = hashlib.sha256(str(workdir.absolute()).encode()).hexdigest()[:12]
    folder = pathlib.Path(r.weights_dir).expanduser() / 'weights' / run
  probe = tuple(policy.tokenizer.encode('12 + 34 ='))
  return client_lib.SGLangEngine(
      r.urls,
      client_lib.Model(
          vocab_size=policy.cfg.vocab_size,
          eos_ids=policy.tokenizer.eos_ids,
          decode=policy.tokenizer.decode,
          encode=policy.tokenizer.encode,
          max_prompt_tokens=config.data.max_prompt_tokens,
          max_tokens=r.max_tokens,
          dtype=(
              'bfloat16'
              if 'bfloat16' in (model.compute_dtype, model.param_dtype)
              else 'float32'
          ),
          export=lambda params, path: policy_lib.export(
              policy, params, path, model.param_dtype
          ),
          score=parity.make_scorer(
              policy.cfg,
              mesh,
              rows=client_lib.PROBES * len(r.urls),
              length=len(probe) + client_lib.PROBE_TOKENS,
          ),
          probe=probe,
      ),
      weights_folder=folder,
      concurrency=r.concurrency,
      timeout_seconds=r.timeout_seconds,
      api_key=config_lib.read_key(r.api_key_env, 'config.rollout.api_key_env'),
      admin_key=config_lib.read_key(
          r.admin_key_env, 'config.rollout.admin_key_env'
      ),
      stopping=stopping,
  )


def make_algorithm(config: ml_collections.ConfigDict) -> update_lib.Algorithm:
  """What of the config is compiled into the update."""
  return update_lib.Algorithm(
      ratio=config.grpo.ratio,
      aggregation=config.grpo.aggregation,
      layout=config.grpo.layout,
      on_policy=config.grpo.epochs == 1 and config.grpo.minibatches == 1,
      reference=config.grpo.kl_coef > 0,
      importance=config.grpo.tis_cap > 0,
      max_tokens=config.rollout.max_tokens,
      logprob_chunk=config.model.logprob_chunk,
      b1=config.optim.b1,
      b2=config.optim.b2,
      eps=config.optim.eps,
  )


def hyperparameters(
    config: ml_collections.ConfigDict, step: int
) -> dict[str, np.float32]:
  """The traced scalars of a step."""
  values = dict(
      learning_rate=config_lib.learning_rate(config)(step),
      weight_decay=config.optim.weight_decay,
      max_grad_norm=config.optim.max_grad_norm,
      temperature=config.rollout.temperature,
      clip_low=config.grpo.clip_low,
      clip_high=config.grpo.clip_high,
      dual_clip=config.grpo.dual_clip,
      kl_coef=config.grpo.kl_coef,
      tis_cap=config.grpo.tis_cap,
  )
  return {name: np.float32(values[name]) for name in update_lib.HYPERPARAMETERS}


def eval_params(config: ml_collections.ConfigDict) -> records.SamplingParams:
  """How evaluation samples: as training, but at its own temperature and limit.

  Scores compare policies that were trained under different ones.
  """
  return dataclasses.replace(
      sampling_params(config),
      max_tokens=config.rollout.max_tokens,
      temperature=config.eval.temperature,
  )


def sampling_params(
    config: ml_collections.ConfigDict,
) -> records.SamplingParams:
  """How training samples."""
  return records.SamplingParams(
      max_tokens=config_lib.token_limit(config),
      temperature=config.rollout.temperature,
      top_p=config.rollout.top_p,
      top_k=config.rollout.top_k,
      min_p=config.rollout.min_p,
      stop=tuple(config.rollout.stop),
  )


@functools.cache  # One listener per process.
def trim_memory_after_compiling() -> None:
  """Gives the compiler's freed memory back before a program's first call.

  glibc keeps what XLA frees, a few hundred megabytes after a train step; its
  temporaries would come on top of that. Elsewhere this does nothing.
  """
  trim = getattr(ctypes.CDLL(None), 'malloc_trim', None)
  if trim is None:
    return

  def listen(event: str, duration: float, **_) -> None:
    if event == _COMPILED and duration > 0.1:
      trim(0)

  jax.monitoring.register_event_duration_secs_listener(listen)


def describe_devices() -> str:
  """One line: what this run computes on."""
  kinds: dict[str, int] = {}
  for device in jax.devices():
    name = f'{device.platform} ({device.device_kind})'
    kinds[name] = kinds.get(name, 0) + 1
  listed = ', '.join(f'{count} x {name}' for name, count in kinds.items())
  return (
      f'devices: {listed}; {os.cpu_count()} host cores, jax {jax.__version__}'
  )
