"""The sampler of a run: an engine in this process, or a client of servers."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import hashlib
import pathlib

import jax
import ml_collections

from evojax import config as config_lib
from evojax import records
from evojax.models import decoder
from evojax.models import policy as policy_lib
from evojax.rollout import client as client_lib
from evojax.rollout import engine as engine_lib
from evojax.rollout import fleet
from evojax.rollout import parity
from evojax.rollout import slots
from evojax.runtime import config_checks
from evojax.runtime import preemption
from evojax.runtime import sharding


def make_engine(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: sharding.AnyMesh,
) -> engine_lib.Engine:
  """Return an engine in this process, at the fixed shapes of the config."""
  return engine_lib.Engine(
      policy.cfg,
      slots.Shapes(
          max_prompt_tokens=config.data.max_prompt_tokens,
          max_tokens=config.rollout.max_tokens,
          decode_slots=config.rollout.decode_slots,
          prefill_rows=config.rollout.prefill_rows,
      ),
      eos_ids=policy.tokenizer.eos_ids,
      decode_text=policy.tokenizer.decode,
      refill_every=config.rollout.refill_every,
      # While the next step is sampled, the update takes the buffers over.
      copy_weights=bool(config.rollout.queue_depth),
      mesh=mesh,
  )


def open_sampler(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: jax.sharding.Mesh,
    workdir: pathlib.Path,
    stopping: Callable[[], bool] = lambda: False,
) -> contextlib.closing[records.RolloutEngine]:
  """Open the sampler that config.rollout.kind names; `with` closes it.

  Args:
    config: The config of the run.
    policy: The policy of the run.
    mesh: The devices that hold the parameters.
    workdir: Directory of the weights that servers load, unless
      config.rollout.weights_dir names another.
    stopping: Returns whether the run was asked to stop; see `fleet.Fleet`.

  Raises:
    ValueError: If a key is missing, or a server does not fit the policy.
    fleet.FleetError: If no server is up in time.
  """
  if config.rollout.kind == 'engine':
    return contextlib.closing(make_engine(config, policy, mesh))
  r, model, tokenizer = config.rollout, config.model, policy.tokenizer
  half = 'bfloat16' in (model.compute_dtype, model.param_dtype)
  key = lambda name: config_lib.read_key(r[name], f'config.rollout.{name}')
  folder = workdir / 'weights'
  if r.weights_dir:
    # Other runs may use the same directory.
    run = hashlib.sha256(str(workdir.absolute()).encode()).hexdigest()[:12]
    folder = pathlib.Path(r.weights_dir).expanduser() / 'weights' / run
  # Any short text will do: servers must score it as this process does.
  probe = tuple(tokenizer.encode('12 + 34 ='))

  def scorer(cfg: decoder.DecoderConfig) -> parity.Scorer:
    rows, length = client_lib.PROBES * len(r.urls), client_lib.PROBE_TOKENS
    return parity.make_scorer(cfg, mesh, rows=rows, length=len(probe) + length)

  client = client_lib.SGLangEngine(
      r.urls,
      client_lib.Model(
          vocab_size=policy.cfg.vocab_size,
          eos_ids=tokenizer.eos_ids,
          decode=tokenizer.decode,
          encode=tokenizer.encode,
          max_prompt_tokens=config.data.max_prompt_tokens,
          max_tokens=r.max_tokens,
          dtype='bfloat16' if half else 'float32',
          export=lambda params, path: policy_lib.export(
              policy, params, path, model.param_dtype
          ),
          score=scorer(policy.cfg),
          score_bfloat16=scorer(
              dataclasses.replace(policy.cfg, compute_dtype='bfloat16')
          ),
          corrected=config_checks.corrects_sampler(config),
          probe=probe,
      ),
      weights_folder=folder,
      concurrency=r.concurrency,
      timeout_seconds=r.timeout_seconds,
      api_key=key('api_key_env'),
      admin_key=key('admin_key_env'),
      stopping=stopping,
  )
  return contextlib.closing(client)


@contextlib.contextmanager
def stopped_without_servers(asked: list[int]) -> Iterator[None]:
  """Turn a failure of servers after a signal into `Preempted`: the run ends."""
  try:
    yield
  except fleet.FleetError as error:
    if not asked:
      raise
    raise preemption.Preempted() from error
