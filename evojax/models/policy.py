"""The policy of a run: decoder shape, tokenizer, parameters."""

from collections.abc import Callable, Sequence
import dataclasses
import math
import pathlib
from typing import Any

import jax

from evojax.models import decoder
from evojax.models import hf
from evojax.models import lora
from evojax.models import tokenizer as tokenizer_lib
from evojax.runtime import sharding

# Fields of config.model that are also fields of the decoder's config.
COMPUTED = ('compute_dtype', 'remat', 'scan_layers', 'lora_rank', 'lora_alpha')
# Files of a model directory that are read without its weights.
WITHOUT_WEIGHTS = 'config.json', *hf.TOKENIZER_FILES
# Rows of a vocabulary are a multiple of this if the mesh is not known yet. It
# divides the vocabularies of most models, which then need no padding.
_UNKNOWN = 128


@dataclasses.dataclass(frozen=True)
class Policy:
  """A checked model directory, without its weights."""

  path: pathlib.Path
  cfg: decoder.DecoderConfig
  tokenizer: tokenizer_lib.Tokenizer


def open_policy(
    *,
    path: pathlib.Path,
    fsdp_shards: int = 1,
    tensor_shards: int = 1,
    max_tokens: int = 0,
    weights: bool = True,
    **model: Any,
) -> Policy:
  """Check a model directory and read all but its weights; uses no device.

  Args:
    path: A Hugging Face directory.
    fsdp_shards: config.mesh.fsdp, see `padded`.
    tensor_shards: config.mesh.tensor.
    max_tokens: Tokens of the run's longest prompt and completion together.
    weights: Also check the weights; otherwise they may be missing.
    **model: The other fields of config.model. Those in COMPUTED set how the
      decoder computes, and those of `tokenizer.template_options` set how chats
      become prompts; the rest concern only the parameters.

  Returns:
    The policy, with its vocabulary padded for the mesh.

  Raises:
    ValueError: If the directory is broken or does not fit the run.
  """
  directory = pathlib.Path(path)
  cfg = dataclasses.replace(
      hf.check_directory(directory, weights=weights),
      **{name: model[name] for name in COMPUTED},
  )
  cfg = padded(cfg, fsdp_shards, tensor_shards)
  check_shards(directory, cfg, max(fsdp_shards, 1), max(tensor_shards, 1))
  if max_tokens > cfg.max_positions:
    raise ValueError(
        f'config.data.max_prompt_tokens + config.rollout.max_tokens ='
        f' {max_tokens} exceeds the {cfg.max_positions} positions of'
        f' {directory}; lower one of them'
    )
  template = tokenizer_lib.template_options(model)
  return Policy(directory, cfg, tokenizer_lib.Tokenizer(directory, **template))


def padded(
    cfg: decoder.DecoderConfig, fsdp: int, tensor: int
) -> decoder.DecoderConfig:
  """Return the shape with a vocabulary that the mesh splits evenly.

  If one of the sizes is -1, the mesh uses all available devices. Their number
  is not known yet, and the shape must not depend on it, so that a run can
  continue on other devices. The vocabulary then gets a multiple of _UNKNOWN
  rows.
  """
  rows = math.prod(size for size in (fsdp, tensor) if size > 0)
  if -1 in (fsdp, tensor):
    rows = math.lcm(rows, _UNKNOWN)
  return dataclasses.replace(cfg, vocab_padding=-cfg.vocab_size % rows)


def check_shards(
    directory: pathlib.Path, cfg: decoder.DecoderConfig, fsdp: int, tensor: int
) -> None:
  """Check that the mesh splits every parameter evenly; see `sharding.RULES`.

  Raises:
    ValueError: If it does not.
  """
  table = 'rows of the table of the vocabulary'
  by_fsdp, by_tensor = f'config.mesh.{fsdp=}', f'config.mesh.{tensor=}'
  for fields, shards, size, what in (
      (by_tensor, tensor, cfg.num_kv_heads, 'key/value heads'),
      (by_tensor, tensor, cfg.intermediate_size, 'intermediate features'),
      (by_fsdp, fsdp, cfg.hidden_size, 'hidden features'),
      (f'{by_fsdp} x {by_tensor}', fsdp * tensor, cfg.vocab_rows, table),
  ):
    if size % shards:
      raise ValueError(
          f'{fields} does not divide the {size} {what} of {directory}; use a'
          ' divisor'
      )


def token_decoder(path: pathlib.Path) -> Callable[[Sequence[int]], str] | None:
  """Return a function from token ids to text; None if there is no tokenizer."""
  if not (path / 'tokenizer.json').is_file():
    return None
  return tokenizer_lib.Tokenizer(path).decode


def load_params(
    policy: Policy, mesh: jax.sharding.Mesh, *, param_dtype: str, seed: int = 0
) -> decoder.Params:
  """Read the weights into their shards; add new adapters under LoRA.

  Args:
    policy: From `open_policy`.
    mesh: The mesh that holds the parameters.
    param_dtype: 'float32' | 'bfloat16'.
    seed: Seed of the adapters.

  Raises:
    ValueError: If the mesh does not split them evenly.
  """
  shape = mesh.shape
  check_shards(policy.path, policy.cfg, shape['fsdp'], shape['tensor'])
  shardings = sharding.shardings(mesh, decoder.logical_axes(policy.cfg))
  _, base = lora.split(shardings)
  params = hf.load_params(
      policy.path, policy.cfg, dtype=param_dtype, shardings=base
  )
  if policy.cfg.lora_rank:
    params = lora.add_adapters(policy.cfg, params, seed, shardings=shardings)
  return params


def export(
    policy: Policy,
    params: decoder.Params,
    path: pathlib.Path,
    dtype: str,
    *,
    durably: bool = True,
) -> None:
  """Write a Hugging Face directory, adapters merged, tokenizer included.

  See `hf.save` for the arguments.
  """
  cfg = policy.cfg
  if cfg.lora_rank:
    cfg, params = lora.merge(cfg, params)
  hf.save(
      path,
      cfg,
      params,
      dtype=dtype,
      tokenizer_dir=policy.path,
      durably=durably,
  )
