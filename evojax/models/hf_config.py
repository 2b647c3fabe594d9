"""config.json of Hugging Face model directories, in and out.

A further model family is a row of FAMILIES, as long as the decoder computes
what it asks for.
"""

from collections.abc import Mapping
import dataclasses
import json
import os
import pathlib
from typing import Any

from evojax.models import decoder
from evojax.models import rope as rope_lib


class ModelDirectoryError(ValueError):
  """A model directory is incomplete, broken, or not of a supported kind."""


@dataclasses.dataclass(frozen=True)
class Family:
  """The ways in which a model family differs from a plain decoder."""

  architecture: str  # Name of its class in transformers.
  qkv_bias: bool = False
  qk_norm: bool = False
  # Default for config.json; None: hidden_size / num_attention_heads.
  head_dim: int | None = None
  # Fields of config.json that only say what the decoder does not do.
  fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)


FAMILIES = {
    'qwen2': Family(
        'Qwen2ForCausalLM', qkv_bias=True, fixed={'use_sliding_window': False}
    ),
    'qwen3': Family(
        'Qwen3ForCausalLM',
        qk_norm=True,
        head_dim=128,  # The default of transformers.
        fixed={'attention_bias': False, 'use_sliding_window': False},
    ),
    'llama': Family('LlamaForCausalLM', fixed={'attention_bias': False}),
}
# Field of config.json -> the only value that the decoder computes, which is
# also that of a file without the field.
_ONLY = {
    'hidden_act': 'silu',
    'mlp_bias': False,
    'use_sliding_window': False,
    'quantization_config': None,
}
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
# Field of rope type llama3 in config.json -> field of rope.Scaling.
_LLAMA3 = {
    'factor': 'factor',
    'low_freq_factor': 'low_freq_factor',
    'high_freq_factor': 'high_freq_factor',
    'original_max_position_embeddings': 'original_max_positions',
}


def read_json(file: pathlib.Path) -> dict[str, Any]:
  """Return the JSON object in a file.

  Raises:
    ModelDirectoryError: If there is none.
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
  """Write a JSON object that people can read."""
  file.write_text(json.dumps(value, indent=2) + '\n')


def load(path: str | os.PathLike[str]) -> decoder.DecoderConfig:
  """Return the shape of a Qwen2, Qwen3 or Llama checkpoint.

  Both the keys `rope_theta` and `rope_scaling` and the `rope_parameters` of
  transformers 5 are read. How the decoder is computed (dtype, remat, ...) is
  left at its defaults.

  Args:
    path: A Hugging Face model directory.

  Raises:
    ModelDirectoryError: If config.json is missing or broken, or asks for
      something that this decoder does not compute.
  """
  file = pathlib.Path(path) / 'config.json'
  if not file.is_file():
    raise ModelDirectoryError(
        f'{path} has no config.json, so it is no Hugging Face model directory.'
        ' Point config.model.path at one; a model of the hub is downloaded'
        ' first, e.g. `hf download Qwen/Qwen3-0.6B --local-dir DIRECTORY`.'
    )
  raw = read_json(file)
  rope = (raw.get('rope_scaling') or {}) | (raw.get('rope_parameters') or {})
  _check_supported(file, raw, rope)
  family = FAMILIES[raw['model_type']]
  return decoder.DecoderConfig(
      family=raw['model_type'],
      **_sizes(file, raw, family),
      rope_theta=float(rope.get('rope_theta', raw.get('rope_theta', 10_000.0))),
      rope_scaling=_rope_scaling(file, rope),
      rms_norm_eps=float(raw.get('rms_norm_eps', 1e-6)),
      tie_embeddings=bool(raw.get('tie_word_embeddings', False)),
      qkv_bias=family.qkv_bias,
      qk_norm=family.qk_norm,
  )


def _rope_type(rope: Mapping[str, Any]) -> str:
  return rope.get('rope_type', rope.get('type', 'default'))


def _check_supported(
    file: pathlib.Path, raw: Mapping[str, Any], rope: Mapping[str, Any]
) -> None:
  """Refuse what the decoder does not compute."""
  name, full = raw.get('model_type'), ['full_attention']
  layers, turned = raw.get('layer_types'), rope.get('partial_rotary_factor')
  # Qwen2 always has biases in its attention, and its files may name them or
  # not: its row does not say `attention_bias`.
  only = _ONLY | (FAMILIES[name].fixed if name in FAMILIES else {})
  # Field -> its value and the values that the decoder computes.
  required = {
      'model_type': (name, tuple(FAMILIES)),
      'layer_types': (sorted(set(layers or full)), (full,)),
      'rope type': (_rope_type(rope), ('default', 'llama3')),
      'partial_rotary_factor': (turned, (1.0, None)),
      **{field: (raw.get(field, v), (v,)) for field, v in only.items()},
  }
  unsupported = [
      f'{field}={value!r} (supported: {", ".join(map(repr, choices))})'
      for field, (value, choices) in required.items()
      if value not in choices
  ]
  if unsupported:
    raise ModelDirectoryError(
        f'{file} asks for what evojax does not compute: '
        + '; '.join(unsupported)
        + '. Use a dense Qwen2, Qwen3 or Llama checkpoint.'
    )


def _sizes(
    file: pathlib.Path, raw: Mapping[str, Any], family: Family
) -> dict[str, int]:
  """Return the sizes of the decoder, by the names of DecoderConfig."""
  found = {name: raw.get(name) for name in _SIZES}
  heads = found['num_attention_heads']
  found['num_key_value_heads'] = raw.get('num_key_value_heads') or heads
  if family.head_dim and 'head_dim' not in raw:
    found['head_dim'] = family.head_dim
  elif found['head_dim'] is None and not family.head_dim:
    del found['head_dim']
  wrong = {n: v for n, v in found.items() if not isinstance(v, int) or v < 1}
  if wrong:
    raise ModelDirectoryError(
        f'{file} has {wrong}, where positive integers are needed. Restore the'
        ' file.'
    )
  found.setdefault('head_dim', found['hidden_size'] // heads)
  if heads % found['num_key_value_heads'] or found['head_dim'] % 2:
    raise ModelDirectoryError(
        f'{file}: num_attention_heads={heads} must be a multiple of'
        f' num_key_value_heads={found["num_key_value_heads"]}, and'
        f' head_dim={found["head_dim"]} even. Restore the file.'
    )
  return {_SIZES[name]: value for name, value in found.items()}


def _rope_scaling(
    file: pathlib.Path, rope: Mapping[str, Any]
) -> rope_lib.Scaling | None:
  if _rope_type(rope) != 'llama3':
    return None
  try:
    scaling = {ours: float(rope[name]) for name, ours in _LLAMA3.items()}
  except KeyError as e:
    raise ModelDirectoryError(
        f'{file}: rope type llama3 needs {e}, but has {sorted(rope)}. Restore'
        ' the file.'
    ) from e
  positions = int(scaling.pop('original_max_positions'))
  return rope_lib.Scaling(**scaling, original_max_positions=positions)


def dump(
    cfg: decoder.DecoderConfig, dtype: str, token_ids: Mapping[str, Any]
) -> dict[str, Any]:
  """Return config.json with keys that transformers 4, 5 and servers read.

  Args:
    cfg: Shape of the decoder.
    dtype: Of the tensors in the file, 'float32' or 'bfloat16'.
    token_ids: bos_token_id, eos_token_id and pad_token_id as far as known.
  """
  scaling = cfg.rope_scaling and {
      'rope_type': 'llama3',
      **{name: getattr(cfg.rope_scaling, x) for name, x in _LLAMA3.items()},
  }
  family = FAMILIES[cfg.family]
  return {
      'architectures': [family.architecture],
      'model_type': cfg.family,
      **{name: getattr(cfg, ours) for name, ours in _SIZES.items()},
      'hidden_act': 'silu',
      'rms_norm_eps': cfg.rms_norm_eps,
      'tie_word_embeddings': cfg.tie_embeddings,
      'rope_theta': cfg.rope_theta,
      'rope_scaling': scaling,
      'torch_dtype': dtype,
      'bos_token_id': None,
      'eos_token_id': None,
      **token_ids,
      **family.fixed,
  }
