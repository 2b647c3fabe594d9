"""Reads and writes config.json of Hugging Face model directories.

`families.FAMILIES` holds the differences between model families.
"""

from collections.abc import Mapping
import dataclasses
import json
import math
import os
import pathlib
from typing import Any

from absl import logging

from evojax.models import decoder
from evojax.models import families
from evojax.models import layer
from evojax.models import rope as rope_lib


class ModelDirectoryError(ValueError):
  """A model directory is incomplete, broken, or not of a supported kind."""


# Field of config.json -> values that the decoder supports, the first of which
# also applies to a file without the field.
_ONLY = {'mlp_bias': (False,), 'quantization_config': (None,)}
# Field of config.json -> field of DecoderConfig; all are positive integers.
_SIZES = {
    'vocab_size': 'vocab_size',
    'hidden_size': 'hidden_size',
    'intermediate_size': 'intermediate_size',
    'num_hidden_layers': 'num_layers',
    'num_attention_heads': 'num_heads',
    'num_key_value_heads': 'num_kv_heads',
    'head_dim': 'head_dim',
    'max_position_embeddings': 'max_positions',
}
# Further fields that must be positive integers if they are present.
_COUNTS = (
    'query_pre_attn_scalar',
    'sliding_window_pattern',
    'no_rope_layer_interval',
)


def read_json(file: pathlib.Path) -> dict[str, Any]:
  """Return the JSON object in a file.

  Raises:
    ModelDirectoryError: If the file cannot be read or holds no JSON object.
  """
  try:
    value = json.loads(file.read_text())
  except (OSError, ValueError) as e:
    raise ModelDirectoryError(
        f'{file} cannot be read as JSON ({e}). Restore the file.'
    ) from e
  if not isinstance(value, dict):
    raise ModelDirectoryError(f'{file} is not a JSON object. Restore the file.')
  return value


def write_json(file: pathlib.Path, value: Mapping[str, Any]) -> None:
  """Write a JSON object, indented for human readers."""
  file.write_text(json.dumps(value, indent=2) + '\n')


def load(path: str | os.PathLike[str]) -> decoder.DecoderConfig:
  """Return the shape of the decoder of a checkpoint.

  Both the older keys `rope_theta` and `rope_scaling` and the `rope_parameters`
  of transformers 5 are read. Fields about the computation (dtype, remat, ...)
  keep their defaults.

  Args:
    path: A Hugging Face model directory.

  Raises:
    ModelDirectoryError: If config.json is missing or broken, or needs something
      that this decoder does not compute.
  """
  file = pathlib.Path(path) / 'config.json'
  if not file.is_file():
    raise ModelDirectoryError(
        f'{path} has no config.json, so it is not a Hugging Face directory.'
        ' Point config.model.path at one; a model of the hub is downloaded'
        ' first, e.g. `hf download Qwen/Qwen3-0.6B --local-dir DIRECTORY`.'
    )
  raw = read_json(file)
  rope, local = _rope_parameters(raw)
  _check_supported(file, raw, rope, local)
  family = families.FAMILIES[raw['model_type']]
  sizes = _sizes(file, raw, family)
  layers = sizes['num_layers']
  window, sliding = _windows(file, raw, family, layers)
  theta = rope.get('rope_theta') or raw.get('rope_theta') or family.rope_theta
  local_theta = local.get('rope_theta') or raw.get('rope_local_base_freq')
  unrotated = families.unrotated(raw, layers) if family.skips_rope else ()
  if family.skips_rope and len(unrotated) != layers:
    raise ModelDirectoryError(
        f'{file} has no_rope_layers={raw["no_rope_layers"]}, which does not fit'
        f' num_hidden_layers={layers}. Restore the file.'
    )
  biased = family.attention_bias and bool(raw.get('attention_bias'))
  flags = {'qkv_bias': biased} | dict(family.flags)
  return decoder.DecoderConfig(
      family=raw['model_type'],
      **sizes,
      **flags,
      rope_theta=float(theta),
      rope_scaling=_rope_scaling(file, raw, rope),
      sliding_window=window,
      sliding=sliding,
      sliding_rope_theta=(
          float(local_theta or 1e4) if sliding and family.own_theta else None
      ),
      unrotated=unrotated,
      rms_norm_eps=float(raw.get('rms_norm_eps', 1e-6)),
      tie_embeddings=bool(
          raw.get('tie_word_embeddings', family.tie_embeddings)
      ),
      out_bias=biased,
      activation=raw.get(family.activation, family.default_activation),
      query_scalar=family.query_scalar
      and raw.get('query_pre_attn_scalar', family.query_scalar),
  )


def _rope_parameters(
    raw: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Return the RoPE parameters of all layers and of those with windows."""
  found = (raw.get('rope_scaling') or {}) | (raw.get('rope_parameters') or {})
  local = found.pop(families.SLIDING, None) or {}
  return found | (found.pop(families.FULL, None) or {}), local


def _rope_type(rope: Mapping[str, Any]) -> str:
  return rope.get('rope_type', rope.get('type', 'default'))


def _check_supported(
    file: pathlib.Path,
    raw: Mapping[str, Any],
    rope: Mapping[str, Any],
    local: Mapping[str, Any],
) -> None:
  """Raise ModelDirectoryError if the decoder does not support the model."""
  name = raw.get('model_type')
  family = families.FAMILIES.get(name, families.FAMILIES['llama'])
  types = (families.FULL, families.SLIDING)[: 1 + (family.windows is not None)]
  turned = rope.get('partial_rotary_factor', raw.get('partial_rotary_factor'))
  only = _ONLY | dict(family.only)
  # Field -> its value and the values that the decoder supports.
  required = {
      'model_type': (name, tuple(families.FAMILIES)),
      family.activation: (
          raw.get(family.activation, family.default_activation),
          tuple(layer.ACTIVATIONS),
      ),
      'rope type': (_rope_type(rope), ('default', *rope_lib.SCALINGS)),
      f'rope type of {families.SLIDING}': (_rope_type(local), ('default',)),
      'partial_rotary_factor': (turned, (1.0, None)),
      **{field: (raw.get(field, v[0]), v) for field, v in only.items()},
  }
  for kind in raw.get('layer_types') or ():
    if kind not in types:
      required['layer_types'] = (kind, types)
  unsupported = [
      f'{field}={value!r} (supported: {", ".join(map(repr, choices))})'
      for field, (value, choices) in required.items()
      if value not in choices
  ]
  if unsupported:
    alone = 'Save its text model alone, with text_config as config.json, or use'
    remedy = alone if raw.get('text_config') else 'Use'
    raise ModelDirectoryError(
        f'{file} needs features that evojax lacks: '
        + '; '.join(unsupported)
        + f'. {remedy} a dense text model of one of these families:'
        f' {", ".join(families.FAMILIES)}.'
    )


def _sizes(
    file: pathlib.Path, raw: Mapping[str, Any], family: families.Family
) -> dict[str, int]:
  """Return the sizes of the decoder, named as in DecoderConfig."""
  found = {name: raw.get(name) for name in _SIZES}
  heads = found['num_attention_heads']
  found['num_key_value_heads'] = raw.get('num_key_value_heads') or heads
  if family.head_dim and 'head_dim' not in raw:
    found['head_dim'] = family.head_dim
  elif found['head_dim'] is None and not family.head_dim:
    del found['head_dim']
  _check_counts(file, found | {n: raw[n] for n in _COUNTS if n in raw})
  found.setdefault('head_dim', found['hidden_size'] // heads)
  if heads % found['num_key_value_heads'] or found['head_dim'] % 2:
    raise ModelDirectoryError(
        f'{file}: num_attention_heads={heads} must be a multiple of'
        f' num_key_value_heads={found["num_key_value_heads"]}, and'
        f' head_dim={found["head_dim"]} even. Restore the file.'
    )
  return {_SIZES[name]: value for name, value in found.items()}


def _check_counts(file: pathlib.Path, found: Mapping[str, Any]) -> None:
  wrong = {n: v for n, v in found.items() if not isinstance(v, int) or v < 1}
  if wrong:
    raise ModelDirectoryError(
        f'{file} has {wrong}, where positive integers are needed. Restore the'
        ' file.'
    )


def _windows(
    file: pathlib.Path,
    raw: Mapping[str, Any],
    family: families.Family,
    layers: int,
) -> tuple[int, tuple[bool, ...]]:
  """Return the window and which layers have it; 0 and () if none do."""
  size = raw.get('sliding_window', family.window)
  on = raw.get('use_sliding_window', False) if family.window_switch else True
  usual = (False,) * layers
  if family.windows and on and size is not None:
    usual = family.windows(raw, layers)
  sliding, types = usual, raw.get('layer_types')
  if types is not None:
    sliding = tuple(kind == families.SLIDING for kind in types)
  fits = len(sliding) == layers and (family.by_layer or sliding == usual)
  if not fits or any(sliding) and not (on and size is not None):
    raise ModelDirectoryError(
        f'{file} has layer_types={types}, which does not fit'
        f' num_hidden_layers={layers}, sliding_window={size} and'
        f' use_sliding_window={bool(on)}. Restore the file.'
    )
  if not any(sliding):
    return 0, ()
  _check_counts(file, {'sliding_window': size})
  return size, sliding


def _rope_scaling(
    file: pathlib.Path, raw: Mapping[str, Any], rope: Mapping[str, Any]
) -> rope_lib.Scaling | None:
  name = _rope_type(rope)
  if name not in rope_lib.SCALINGS:
    return None
  # transformers looks up this field in the same order.
  original = 'original_max_position_embeddings'
  length = rope.get(original, raw['max_position_embeddings'])
  rope = {**rope, original: raw.get(original, length)}
  values = {}
  for field in dataclasses.fields(rope_lib.SCALINGS[name]):
    value = rope.get(field.name)
    if value is None and field.default is dataclasses.MISSING:
      raise ModelDirectoryError(
          f'{file}: rope type {name} needs {field.name!r}, but has'
          f' {sorted(rope)}. Restore the file.'
      )
    if value is None:
      continue
    if not isinstance(value, int | float):
      raise ModelDirectoryError(
          f'{file}: rope type {name} has {field.name}={value!r}, where a number'
          ' is needed. Restore the file.'
      )
    whole = field.name in (original, 'truncate')
    values[field.name] = value if whole else float(value)
  scaling = rope_lib.SCALINGS[name](**values)
  if isinstance(scaling, rope_lib.Yarn):
    _warn_of_servers(file, rope, scaling)
  return scaling


def _warn_of_servers(
    file: pathlib.Path, rope: Mapping[str, Any], yarn: rope_lib.Yarn
) -> None:
  """Warn about a factor that servers read but transformers does not."""
  theirs, ours = rope.get('attn_factor', 1.0), yarn.attn_factor
  if isinstance(theirs, int | float) and not math.isclose(
      theirs, ours, rel_tol=1e-6
  ):
    # The value with which both fields mean what the servers compute.
    both = yarn.attention / ours * theirs
    logging.warning(
        '%s: of rope type yarn, SGLang and vLLM read attn_factor, here %g, but'
        ' transformers and evojax attention_factor, which means %g. Set'
        ' attention_factor=%g for what the servers compute, or attn_factor=%g'
        ' for what transformers computes.',
        *(file, theirs, ours, both, ours),
    )


def dump(
    cfg: decoder.DecoderConfig, dtype: str, token_ids: Mapping[str, Any]
) -> dict[str, Any]:
  """Return config.json with the keys that transformers 4 and 5 and servers use.

  Args:
    cfg: Shape of the decoder.
    dtype: 'float32' or 'bfloat16', of the tensors in the file.
    token_ids: bos_token_id, eos_token_id and pad_token_id, as far as known.
  """
  family = families.FAMILIES[cfg.family]
  scaling = cfg.rope_scaling and {
      'rope_type': next(
          name
          for name, kind in rope_lib.SCALINGS.items()
          if isinstance(cfg.rope_scaling, kind)
      ),
      **{
          name: value
          for name, value in dataclasses.asdict(cfg.rope_scaling).items()
          if value is not None
      },
  }
  factor = getattr(cfg.rope_scaling, 'attn_factor', 1.0)
  if factor != 1:
    scaling['attn_factor'] = factor  # For servers.
  return {
      'architectures': [family.architecture],
      'model_type': cfg.family,
      **{name: getattr(cfg, ours) for name, ours in _SIZES.items()},
      family.activation: cfg.activation,
      'rms_norm_eps': cfg.rms_norm_eps,
      'tie_word_embeddings': cfg.tie_embeddings,
      'rope_theta': cfg.rope_theta,
      'rope_scaling': scaling,
      'torch_dtype': dtype,
      'bos_token_id': None,
      'eos_token_id': None,
      'pad_token_id': None,
      **token_ids,
      **_of_family(cfg, family),
  }


def _of_family(
    cfg: decoder.DecoderConfig, family: families.Family
) -> dict[str, Any]:
  """Return the fields of config.json that only some families have."""
  fields = {}
  if family.attention_bias:
    fields['attention_bias'] = cfg.out_bias
  if family.window_switch:
    fields['use_sliding_window'] = bool(cfg.sliding)
  if cfg.sliding or family.windows and not family.by_layer:
    fields['sliding_window'] = cfg.sliding_window or None
  if family.by_layer and (cfg.sliding or not family.window_switch):
    sliding = cfg.sliding or (False,) * cfg.num_layers
    types = (families.FULL, families.SLIDING)
    fields['layer_types'] = [types[s] for s in sliding]
  if cfg.sliding_rope_theta:
    fields['rope_local_base_freq'] = cfg.sliding_rope_theta
  if family.skips_rope:
    unrotated = cfg.unrotated or (False,) * cfg.num_layers
    fields['no_rope_layers'] = [int(not u) for u in unrotated]
  if family.query_scalar:
    fields['query_pre_attn_scalar'] = cfg.query_scalar
  return fields
