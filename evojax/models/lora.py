"""Low-rank adapters: small trainable updates of frozen weights.

W' = W + (alpha / r) A B (Hu et al. 2021, arXiv:2106.09685, Sec. 4.1, which
writes B A; our inputs multiply from the left). In each layer, every projection
'name' has a pair 'name_lora_a' [in..., r] and 'name_lora_b' [r, out...];
decoder.py applies it if cfg.lora_rank > 0. B starts at 0, so that the first
policy is exactly the base policy.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from evojax.models import decoder
from evojax.runtime import sharding

_SUFFIXES = ('_lora_a', '_lora_b')


def add_adapters(
    cfg: decoder.DecoderConfig,
    params: decoder.Params,
    seed: int,
    *,
    shardings: Any = None,
) -> decoder.Params:
  """Add new float32 adapters to the projections of every layer.

  A is normal with standard deviation in^-1/2; B is 0.

  Args:
    cfg: Shape of the decoder with lora_rank >= 1.
    params: Parameters without adapters.
    seed: Seed of A.
    shardings: A tree like the parameters *with* adapters, from
      decoder.logical_axes(cfg); by default everything is on one device.

  Returns:
    params with adapters; the other leaves are the arrays that were given.

  Raises:
    ValueError: If cfg.lora_rank is not positive.
  """
  if cfg.lora_rank < 1:
    raise ValueError(f'{cfg.lora_rank=}: adapters need a rank of at least 1.')
  rng = np.random.default_rng(seed)

  def make(path, leaf):
    shape = leaf.shape
    if path[-1].key.endswith('_lora_b'):
      return np.zeros(shape, np.float32)
    ins = math.prod(shape[:-1]) // (cfg.num_layers if cfg.scan_layers else 1)
    return ins**-0.5 * rng.standard_normal(shape, np.float32)

  # Adapters are small, so that sampling them on the host is faster than
  # compiling a generator for each shape.
  shapes, _ = split(decoder.shapes(cfg))
  adapters = jax.tree_util.tree_map_with_path(make, shapes)
  places = shardings and split(shardings)[0]
  return join(sharding.to_device(adapters, places), params)


def split(params: Any) -> tuple[Any, Any]:
  """Return a tree like the parameters as (adapters, everything else)."""
  layers = params['layers']
  return (
      {'layers': _select(layers, adapters=True)},
      {**params, 'layers': _select(layers, adapters=False)},
  )


def join(trainable: Any, frozen: Any) -> Any:
  """Return the tree that was divided by `split`."""
  adapters, layers = trainable['layers'], frozen['layers']
  if isinstance(layers, dict):
    joined = {**layers, **adapters}
  else:
    joined = [{**l, **a} for l, a in zip(layers, adapters, strict=True)]
  return {**frozen, 'layers': joined}


def merge(
    cfg: decoder.DecoderConfig, params: decoder.Params
) -> tuple[decoder.DecoderConfig, decoder.Params]:
  """Add every adapter to the weight it belongs to.

  Args:
    cfg: Shape of the decoder, lora_rank >= 1.
    params: Parameters with adapters.

  Returns:
    The config and the parameters of the same policy without adapters.
  """
  scale = cfg.lora_alpha / cfg.lora_rank

  def merge_layer(layer):
    merged = {n: x for n, x in layer.items() if not n.endswith(_SUFFIXES)}
    for name in merged:
      if f'{name}_lora_a' in layer:
        a, b = (layer[name + s].astype(jnp.float32) for s in _SUFFIXES)
        weight = merged[name].astype(jnp.float32)
        weight += scale * jnp.tensordot(a, b, 1)
        merged[name] = weight.astype(merged[name].dtype)
    return merged

  @jax.jit
  def merge_all(params):
    layers = params['layers']
    if cfg.scan_layers:
      layers = jax.vmap(merge_layer)(layers)
    else:
      layers = [merge_layer(layer) for layer in layers]
    return {**params, 'layers': layers}

  return dataclasses.replace(cfg, lora_rank=0), merge_all(params)


def _select(layers: Any, adapters: bool) -> Any:
  if isinstance(layers, dict):
    return {
        n: x for n, x in layers.items() if n.endswith(_SUFFIXES) == adapters
    }
  return [_select(layer, adapters) for layer in layers]
