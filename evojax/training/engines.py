"""The sampler of a run: an engine in this process, or a client of servers."""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import hashlib
import pathlib

import jax
import ml_collections

from evojax import records
from evojax.episodes import collect
from evojax.models import decoder
from evojax.models import policy as policy_lib
from evojax.rollout import client as client_lib
from evojax.rollout import comparison
from evojax.rollout import engine as engine_lib
from evojax.rollout import fleet
from evojax.rollout import parity
from evojax.rollout import slots
from evojax.runtime import config_checks
from evojax.runtime import environment
from evojax.runtime import mirror
from evojax.runtime import preemption
from evojax.runtime import sharding


def shapes(config: ml_collections.ConfigDict) -> slots.Shapes:
  """Return the sizes of a sampler's arrays.

  In episodes of several turns, the prompt of a turn is the episode so far. It
  is prefilled in chunks, and the prefix cache can hold those of all slots.
  """
  r, prompt = config.rollout, config.data.max_prompt_tokens
  rows = dict(decode_slots=r.decode_slots, prefill_rows=r.prefill_rows)
  if not r.turn_tokens:
    return slots.Shapes(prompt, r.max_tokens, **rows)
  context = prompt + r.max_tokens
  chunk = min(r.prefill_chunk, context - 1)
  return slots.Shapes(
      max_prompt_tokens=context - 1,
      max_tokens=min(r.turn_tokens, r.max_tokens),
      context_tokens=context,
      prefill_chunk=chunk,
      prefix_chunks=r.decode_slots * -(-context // chunk),
      **rows,
  )


# Number of servers whose probes are scored at once, if a file names them.
_SERVERS = 4
# Errors that end a training step, which is repeated when the run continues.
ERRORS = (*fleet.ERRORS, preemption.Interrupted, collect.GradingError)


def make_engine(
    config: ml_collections.ConfigDict,
    policy: policy_lib.Policy,
    mesh: sharding.AnyMesh,
) -> engine_lib.Engine:
  """Return an engine in this process, with the fixed shapes of the config."""
  return engine_lib.Engine(
      policy.cfg,
      shapes(config),
      eos_ids=policy.tokenizer.eos_ids,
      decode_text=policy.tokenizer.decode,
      decode_all=policy.tokenizer.decode_all,
      refill_every=config.rollout.refill_every,
      # With prefetch, the update donates the weights' buffers while the engine
      # still samples the next step with these weights.
      copy_weights=bool(config.rollout.queue_depth),
      mesh=mesh,
  )


def weights_folder(workdir: pathlib.Path, weights_dir: str) -> pathlib.Path:
  """Return the directory in which servers and all processes find new weights.

  Args:
    workdir: The run's directory.
    weights_dir: config.rollout.weights_dir.

  Raises:
    ValueError: If weights_dir is empty, and each process has its own copy of
      the workdir, so that it cannot hold a directory that all of them see.
  """
  if not weights_dir:
    if mirror.divided(workdir):
      raise ValueError(
          'config.rollout.weights_dir is empty: the processes of a run in a'
          ' store share no directory in which they could write new weights for'
          ' the servers; name one that all of them see, on NFS or Filestore'
      )
    return workdir / 'weights'
  # A subfolder per run, since other runs may use the same directory. It is the
  # same in all processes, even if each has a copy of the workdir.
  name = mirror.shown(str(workdir.absolute()))
  run = hashlib.sha256(name.encode()).hexdigest()[:12]
  return pathlib.Path(weights_dir).expanduser() / 'weights' / run


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
    workdir: Parent of the directory of weights that servers load, unless
      config.rollout.weights_dir names another.
    stopping: Returns whether this process was asked to stop.

  Raises:
    ValueError: If a key is missing, a server does not fit the policy, or arrays
      cannot be split evenly over the devices.
    fleet.FleetError: If no server is up in time.
  """
  config_checks.check_mesh(config, mesh.shape)
  if config.rollout.kind == 'engine':
    engine = make_engine(config, policy, mesh)
    engine.stopping = lambda: sharding.in_any_process(stopping())
    return contextlib.closing(engine)
  r, model, tokenizer = config.rollout, config.model, policy.tokenizer
  sizes = shapes(config)
  half = 'bfloat16' in (model.compute_dtype, model.param_dtype)
  key = lambda name: environment.read_key(r[name], f'config.rollout.{name}')
  folder = weights_folder(workdir, r.weights_dir)
  # Any short text is a good probe; servers must score it as this process does.
  probe = tuple(tokenizer.encode('12 + 34 ='))

  def scorer(cfg: decoder.DecoderConfig) -> parity.Scorer:
    rows = comparison.PROBES * (len(r.urls) or _SERVERS)
    length = len(probe) + comparison.PROBE_TOKENS
    return parity.make_scorer(cfg, mesh, rows=rows, length=length)

  client = client_lib.SGLangEngine(
      r.urls,
      comparison.Model(
          vocab_size=policy.cfg.vocab_size,
          eos_ids=tokenizer.eos_ids,
          decode=tokenizer.decode,
          decode_all=tokenizer.decode_all,
          encode=tokenizer.encode,
          max_prompt_tokens=sizes.max_prompt_tokens,
          max_tokens=sizes.max_tokens,
          context_tokens=sizes.context,
          dtype='bfloat16' if half else 'float32',
          export=lambda params, path, dtype: policy_lib.export(
              policy, params, path, dtype or model.param_dtype, durably=False
          ),
          score=scorer(policy.cfg),
          score_bfloat16=scorer(
              dataclasses.replace(policy.cfg, compute_dtype='bfloat16')
          ),
          corrected=config_checks.corrects_sampler(config),
          probe=probe,
      ),
      weights_folder=folder,
      urls_file=r.urls_file,
      weights_transport=r.weights_transport,
      concurrency=r.concurrency,
      timeout_seconds=r.timeout_seconds,
      api_key=key('api_key_env'),
      admin_key=key('admin_key_env'),
      stopping=stopping,
  )
  return contextlib.closing(client)


@contextlib.contextmanager
def stopped(asked: list[int]) -> Iterator[None]:
  """Convert errors that follow a signal to `Preempted`, which ends the run.

  A failure of all servers is converted, too: after a signal to the whole job,
  the servers may have ended.

  Args:
    asked: The signals received so far.

  Raises:
    preemption.Preempted: If there was a signal and sampling failed.
  """
  try:
    yield
  except (fleet.FleetError, preemption.Interrupted) as error:
    if not asked:
      raise
    raise preemption.Preempted(asked) from error
