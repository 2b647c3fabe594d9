"""Hugging Face model directories, in and out.

One table (`_layer_leaves`, `_top_leaves`) says how each of our fused leaves is
made of Hugging Face tensors; reading, writing and checking all follow it.
Reading goes slice by slice, from the memory-mapped file to the shard that
needs it: no host ever holds the whole model.
"""

from collections.abc import Callable, Iterator
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import shutil
from typing import Any

import jax
import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from evojax.models import decoder
from evojax.runtime import sharding

FAMILIES = {
    'qwen2': 'Qwen2ForCausalLM',
    'qwen3': 'Qwen3ForCausalLM',
    'llama': 'LlamaForCausalLM',
}
TOKENIZER_FILES = (
    'tokenizer.json',
    'tokenizer_config.json',
    'special_tokens_map.json',
    'added_tokens.json',
    'vocab.json',
    'merges.txt',
    'tokenizer.model',
    'chat_template.jinja',
    'chat_template.json',
    'generation_config.json',
)
_DTYPES = {'float32': np.float32, 'bfloat16': ml_dtypes.bfloat16}
# Tensors of old or tied checkpoints that are derived from others.
_REDUNDANT = ('rotary_emb.inv_freq', 'masked_bias', 'attn.bias')


class ModelDirectoryError(ValueError):
  """A model directory is incomplete, broken, or not of a supported kind."""


@dataclasses.dataclass(frozen=True)
class _Part:
  """One Hugging Face tensor inside one of our leaves."""

  name: str
  # Its axes, each split into the axes that we keep apart: ((K, R, H), (D,)).
  groups: tuple[tuple[int, ...], ...]
  order: tuple[int, ...]  # Axis i of our leaf is axis order[i] of the groups.

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of the Hugging Face tensor."""
    return tuple(math.prod(g) for g in self.groups)

  @property
  def ours(self) -> tuple[int, ...]:
    """Shape of this part within our leaf."""
    split = sum(self.groups, ())
    return tuple(split[i] for i in self.order)

  def read(self, tensor: Any, index: tuple[slice, ...]) -> np.ndarray:
    """Reads `index` of this part, touching as little of the file as it can."""
    wanted = [slice(None)] * len(self.order)
    for mine, theirs in enumerate(self.order):
      wanted[theirs] = slice(*index[mine].indices(self.ours[mine]))
    outer, split = [], []
    for group in self.groups:  # The leading axis of a group is contiguous.
      lead = wanted[len(split)]
      stride = math.prod(group[1:])
      outer.append(slice(lead.start * stride, lead.stop * stride))
      wanted[len(split)] = slice(None)
      split += [lead.stop - lead.start, *group[1:]]
    block = tensor[tuple(outer)].reshape(split)
    return block[tuple(wanted)].transpose(self.order)

  def write(self, block: np.ndarray) -> np.ndarray:
    """Turns this part of our leaf back into the Hugging Face tensor."""
    back = block.transpose(np.argsort(self.order)).reshape(self.shape)
    return np.ascontiguousarray(back)


@dataclasses.dataclass(frozen=True)
class _Leaf:
  """One of our parameters: its parts, in order, along `axis`."""

  parts: tuple[_Part, ...]
  axis: int = 0

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of our parameter (of one layer)."""
    shape = list(self.parts[0].ours)
    shape[self.axis] = sum(p.ours[self.axis] for p in self.parts)
    return tuple(shape)

  def read(
      self, tensor: Callable[[str], Any], index: tuple[slice, ...]
  ) -> np.ndarray:
    """Reads `index` of the leaf; tensor(name) is sliced lazily."""
    index = [
        slice(*s.indices(n)) for s, n in zip(index, self.shape, strict=True)
    ]
    wanted, begin, blocks = index[self.axis], 0, []
    for part in self.parts:
      size = part.ours[self.axis]
      start = max(wanted.start - begin, 0)
      stop = min(wanted.stop - begin, size)
      if start < stop:
        index[self.axis] = slice(start, stop)
        blocks.append(part.read(tensor(part.name), tuple(index)))
      begin += size
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, self.axis)

  def write(self, leaf: np.ndarray) -> dict[str, np.ndarray]:
    """Turns the leaf back into Hugging Face tensors."""
    ends = np.cumsum([p.ours[self.axis] for p in self.parts])
    blocks = np.split(leaf, ends[:-1], self.axis)
    return {p.name: p.write(b) for p, b in zip(self.parts, blocks, strict=True)}


def _whole(name: str, *shape: int) -> _Leaf:
  groups = tuple((size,) for size in shape)
  return _Leaf((_Part(name, groups, tuple(range(len(shape)))),))


def _top_leaves(cfg: decoder.DecoderConfig) -> dict[str, _Leaf]:
  """Leaves outside the layers."""
  v, d = cfg.vocab_size, cfg.hidden_size
  leaves = {
      'embed': _whole('model.embed_tokens.weight', v, d),
      'final_norm': _whole('model.norm.weight', d),
  }
  if not cfg.tie_embeddings:
    leaves['lm_head'] = _whole('lm_head.weight', v, d)
  return leaves


def _layer_leaves(cfg: decoder.DecoderConfig, layer: int) -> dict[str, _Leaf]:
  """Leaves of one layer; Hugging Face weights are [outputs, inputs]."""
  d, f, h = cfg.hidden_size, cfg.intermediate_size, cfg.head_dim
  k, r = cfg.num_kv_heads, cfg.heads_per_kv
  prefix = f'model.layers.{layer}.'
  attn, mlp = prefix + 'self_attn.', prefix + 'mlp.'
  heads = (('q', r), ('k', 1), ('v', 1))
  leaves = {
      'attn_norm': _whole(prefix + 'input_layernorm.weight', d),
      'qkv': _Leaf(
          tuple(
              # [K, n, H, D] -> [D, K, n, H]
              _Part(f'{attn}{x}_proj.weight', ((k, n, h), (d,)), (3, 0, 1, 2))
              for x, n in heads
          ),
          axis=2,
      ),
      # [D, K, R, H] -> [K, R, H, D]
      'out': _Leaf(
          (_Part(attn + 'o_proj.weight', ((d,), (k, r, h)), (1, 2, 3, 0)),)
      ),
      'mlp_norm': _whole(prefix + 'post_attention_layernorm.weight', d),
      'gate_up': _Leaf(
          tuple(
              # [F, 1, D] -> [D, 1, F]
              _Part(f'{mlp}{x}_proj.weight', ((f, 1), (d,)), (2, 1, 0))
              for x in ('gate', 'up')
          ),
          axis=1,
      ),
      'down': _Leaf((_Part(mlp + 'down_proj.weight', ((d,), (f,)), (1, 0)),)),
  }
  if cfg.qkv_bias:
    leaves['qkv_bias'] = _Leaf(
        tuple(
            _Part(f'{attn}{x}_proj.bias', ((k, n, h),), (0, 1, 2))
            for x, n in heads
        ),
        axis=1,
    )
  if cfg.qk_norm:
    leaves['q_norm'] = _whole(attn + 'q_norm.weight', h)
    leaves['k_norm'] = _whole(attn + 'k_norm.weight', h)
  return leaves


def _all_leaves(cfg: decoder.DecoderConfig) -> Iterator[_Leaf]:
  top = _top_leaves(cfg)
  yield top.pop('embed')
  for layer in range(cfg.num_layers):
    yield from _layer_leaves(cfg, layer).values()
  yield from top.values()


def _read_json(file: pathlib.Path) -> dict[str, Any]:
  try:
    value = json.loads(file.read_text())
  except (OSError, ValueError) as e:
    raise ModelDirectoryError(
        f'{file} cannot be read as JSON ({e}). Restore the file.'
    ) from e
  if not isinstance(value, dict):
    raise ModelDirectoryError(f'{file} is not a JSON object. Restore the file.')
  return value


def load_config(path: str | os.PathLike[str]) -> decoder.DecoderConfig:
  """Reads config.json of a Qwen2, Qwen3 or Llama checkpoint.

  Understands the `rope_theta` / `rope_scaling` keys as well as the
  `rope_parameters` that transformers 5 writes.

  Args:
    path: A Hugging Face model directory.

  Returns:
    The shape of the decoder; how it is computed (dtype, remat, ...) is left at
    its defaults.

  Raises:
    ModelDirectoryError: If config.json is missing or broken, or asks for
      something that this decoder does not compute.
  """
  path = pathlib.Path(path)
  if not (path / 'config.json').is_file():
    raise ModelDirectoryError(
        f'{path} has no config.json, so it is no Hugging Face model directory.'
        ' Point config.model.path at one; a model of the hub is downloaded'
        ' first, e.g. `hf download Qwen/Qwen3-0.6B --local-dir DIRECTORY`.'
    )
  raw = _read_json(path / 'config.json')
  family = raw.get('model_type')
  rope = raw.get('rope_parameters') or {}
  rope = {**(raw.get('rope_scaling') or {}), **rope}
  rope_type = rope.get('rope_type', rope.get('type', 'default'))
  # What must hold, because the decoder computes nothing else.
  required = {
      'model_type': (family, tuple(FAMILIES)),
      'hidden_act': (raw.get('hidden_act', 'silu'), ('silu',)),
      'mlp_bias': (raw.get('mlp_bias', False), (False,)),
      'use_sliding_window': (raw.get('use_sliding_window', False), (False,)),
      'layer_types': (
          sorted(set(raw.get('layer_types') or ['full_attention'])),
          (['full_attention'],),
      ),
      'rope type': (rope_type, ('default', 'llama3')),
      'partial_rotary_factor': (
          rope.get('partial_rotary_factor', 1.0),
          (1.0, None),
      ),
      'quantization_config': (raw.get('quantization_config'), (None,)),
  }
  if family != 'qwen2':  # There it only names what the family always has.
    required['attention_bias'] = (raw.get('attention_bias', False), (False,))
  unsupported = [
      f'{name}={value!r} (supported: {", ".join(map(repr, choices))})'
      for name, (value, choices) in required.items()
      if value not in choices
  ]
  if unsupported:
    raise ModelDirectoryError(
        f'{path / "config.json"} asks for what evojax does not compute: '
        + '; '.join(unsupported)
        + '. Use a dense Qwen2, Qwen3 or Llama checkpoint.'
    )
  positive = {
      name: raw.get(name)
      for name in (
          'vocab_size',
          'hidden_size',
          'intermediate_size',
          'num_hidden_layers',
          'num_attention_heads',
          'max_position_embeddings',
      )
  }
  heads, width = positive['num_attention_heads'], positive['hidden_size']
  positive['num_key_value_heads'] = raw.get('num_key_value_heads') or heads
  if raw.get('head_dim') is not None or family == 'qwen3':
    positive['head_dim'] = raw.get('head_dim', 128)  # 128: transformers' own.
  wrong = {
      name: value
      for name, value in positive.items()
      if not isinstance(value, int) or value < 1
  }
  if wrong:
    raise ModelDirectoryError(
        f'{path / "config.json"} has {wrong}, where positive integers are'
        ' needed. Restore the file.'
    )
  positive.setdefault('head_dim', width // heads)
  if heads % positive['num_key_value_heads'] or positive['head_dim'] % 2:
    raise ModelDirectoryError(
        f'{path / "config.json"}: num_attention_heads={heads} must be a'
        f' multiple of num_key_value_heads={positive["num_key_value_heads"]},'
        f' and head_dim={positive["head_dim"]} even. Restore the file.'
    )
  rope_theta = rope.get('rope_theta', raw.get('rope_theta', 10_000.0))
  scaling = None
  if rope_type == 'llama3':
    try:
      scaling = decoder.RopeScaling(
          factor=float(rope['factor']),
          low_freq_factor=float(rope['low_freq_factor']),
          high_freq_factor=float(rope['high_freq_factor']),
          original_max_positions=int(rope['original_max_position_embeddings']),
      )
    except KeyError as e:
      raise ModelDirectoryError(
          f'{path / "config.json"}: rope type llama3 needs {e}, but has'
          f' {sorted(rope)}. Restore the file.'
      ) from e
  return decoder.DecoderConfig(
      family=family,
      vocab_size=positive['vocab_size'],
      hidden_size=width,
      intermediate_size=positive['intermediate_size'],
      num_layers=positive['num_hidden_layers'],
      num_heads=heads,
      num_kv_heads=positive['num_key_value_heads'],
      head_dim=positive['head_dim'],
      rope_theta=float(rope_theta),
      rope_scaling=scaling,
      rms_norm_eps=float(raw.get('rms_norm_eps', 1e-6)),
      tie_embeddings=bool(raw.get('tie_word_embeddings', False)),
      qkv_bias=family == 'qwen2',
      qk_norm=family == 'qwen3',
      max_positions=positive['max_position_embeddings'],
  )


@contextlib.contextmanager
def _open_weights(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Memory-maps every shard; yields {tensor name: lazily sliced tensor}."""
  single, index = (
      path / 'model.safetensors',
      path / 'model.safetensors.index.json',
  )
  if single.is_file():
    files = [single]
  elif index.is_file():
    names = _read_json(index).get('weight_map')
    if not isinstance(names, dict) or not names:
      raise ModelDirectoryError(f'{index} has no weight_map. Restore the file.')
    files = [path / name for name in sorted(set(names.values()))]
  else:
    raise ModelDirectoryError(
        f'{path} has neither {single.name} nor {index.name}. Download the'
        ' weights; other formats are converted with transformers'
        ' (`from_pretrained(...).save_pretrained(...)`).'
    )
  with contextlib.ExitStack() as stack:
    tensors = {}
    for file in files:
      try:
        shard = stack.enter_context(safetensors.safe_open(file, 'numpy'))
      except (OSError, safetensors.SafetensorError) as e:
        raise ModelDirectoryError(
            f'{file} is missing or incomplete ({e}). Download it again.'
        ) from e
      tensors |= {name: shard.get_slice(name) for name in shard.keys()}
    yield tensors


def _check_tensors(
    path: pathlib.Path, cfg: decoder.DecoderConfig, tensors: dict[str, Any]
) -> None:
  """Compares the headers with what config.json implies."""
  expected = {
      part.name: part.shape for leaf in _all_leaves(cfg) for part in leaf.parts
  }
  redundant = _REDUNDANT + (('lm_head.weight',) if cfg.tie_embeddings else ())
  problems = [f'missing {n}' for n in expected if n not in tensors]
  problems += [
      f'unexpected {n}'
      for n in sorted(set(tensors) - set(expected))
      if not n.endswith(redundant)
  ]
  for name, shape in expected.items():
    if name not in tensors:
      continue
    found, dtype = tuple(tensors[name].get_shape()), tensors[name].get_dtype()
    if found != shape:
      problems.append(f'{name} has shape {found}, expected {shape}')
    if dtype not in ('F32', 'BF16', 'F16'):
      problems.append(f'{name} has dtype {dtype}, expected F32, BF16 or F16')
  if problems:
    raise ModelDirectoryError(
        f'the weights in {path} do not fit its config.json in'
        f' {len(problems)} places: '
        + '; '.join(problems[:4])
        + ('; ...' if len(problems) > 4 else '')
        + '. Restore config.json or download the weights again.'
    )


def check_directory(path: str | os.PathLike[str]) -> decoder.DecoderConfig:
  """Validates a model directory by its headers; touches no device.

  Args:
    path: A Hugging Face model directory.

  Returns:
    Its `load_config`.

  Raises:
    ModelDirectoryError: If anything that `load_params` or the tokenizer needs
      is missing, truncated, mis-shaped or not supported.
  """
  path = pathlib.Path(path)
  cfg = load_config(path)
  if not (path / 'tokenizer.json').is_file():
    raise ModelDirectoryError(
        f'{path} has no tokenizer.json. Copy the tokenizer files of the model'
        ' there, or write them with `transformers.AutoTokenizer'
        '.from_pretrained(NAME).save_pretrained(DIRECTORY)`.'
    )
  with _open_weights(path) as tensors:
    _check_tensors(path, cfg, tensors)
  return cfg


def load_params(
    path: str | os.PathLike[str],
    cfg: decoder.DecoderConfig,
    *,
    dtype: str = 'float32',
    shardings: Any = None,
) -> decoder.Params:
  """Reads the weights into our layout, straight to their shards.

  Args:
    path: A Hugging Face model directory.
    cfg: Its `load_config`, with `scan_layers` as wanted.
    dtype: 'float32' or 'bfloat16'; of the parameters that are made.
    shardings: A tree like the parameters (more leaves do no harm); by default
      everything goes to the first local device.

  Returns:
    Parameters as decoder.py lays them out, without LoRA adapters.

  Raises:
    ModelDirectoryError: If the directory is incomplete or does not fit cfg.
  """
  path = pathlib.Path(path)
  one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
  with _open_weights(path) as tensors:
    _check_tensors(path, cfg, tensors)

    def make(leaves: list[_Leaf], sharding_, stacked: bool) -> jax.Array:
      def read(index):
        layers = leaves
        if stacked:
          layers, index = leaves[index[0]], index[1:]
        blocks = [leaf.read(tensors.__getitem__, index) for leaf in layers]
        block = np.stack(blocks) if stacked else blocks[0]
        return np.ascontiguousarray(block.astype(_DTYPES[dtype]))

      shape = leaves[0].shape
      if stacked:
        shape = (len(leaves), *shape)
      return jax.make_array_from_callback(shape, sharding_ or one_device, read)

    layers = [_layer_leaves(cfg, i) for i in range(cfg.num_layers)]
    given = shardings or {}
    params = {
        name: make([leaf], given.get(name), False)
        for name, leaf in _top_leaves(cfg).items()
    }
    if cfg.scan_layers:
      given = given.get('layers', {})
      params['layers'] = {
          name: make([layer[name] for layer in layers], given.get(name), True)
          for name in layers[0]
      }
    else:
      given = given.get('layers', [{}] * len(layers))
      params['layers'] = [
          {name: make([leaf], s.get(name), False) for name, leaf in l.items()}
          for l, s in zip(layers, given, strict=True)
      ]
  return params


def _config_json(
    cfg: decoder.DecoderConfig, dtype: str, token_ids: dict[str, Any]
) -> dict[str, Any]:
  """config.json with the keys that transformers 4, 5 and servers all read."""
  config = {
      'architectures': [FAMILIES[cfg.family]],
      'model_type': cfg.family,
      'vocab_size': cfg.vocab_size,
      'hidden_size': cfg.hidden_size,
      'intermediate_size': cfg.intermediate_size,
      'num_hidden_layers': cfg.num_layers,
      'num_attention_heads': cfg.num_heads,
      'num_key_value_heads': cfg.num_kv_heads,
      'head_dim': cfg.head_dim,
      'hidden_act': 'silu',
      'max_position_embeddings': cfg.max_positions,
      'rms_norm_eps': cfg.rms_norm_eps,
      'tie_word_embeddings': cfg.tie_embeddings,
      'rope_theta': cfg.rope_theta,
      'rope_scaling': None,
      'torch_dtype': dtype,
      'bos_token_id': None,
      'eos_token_id': None,
      **token_ids,
  }
  if cfg.family != 'qwen2':
    config['attention_bias'] = False
  if cfg.family != 'llama':
    config['use_sliding_window'] = False
  if cfg.rope_scaling is not None:
    config['rope_scaling'] = {
        'rope_type': 'llama3',
        'factor': cfg.rope_scaling.factor,
        'low_freq_factor': cfg.rope_scaling.low_freq_factor,
        'high_freq_factor': cfg.rope_scaling.high_freq_factor,
        'original_max_position_embeddings': (
            cfg.rope_scaling.original_max_positions
        ),
    }
  return config


def _host_tensors(
    cfg: decoder.DecoderConfig, params: decoder.Params, dtype: str
) -> Iterator[tuple[str, np.ndarray]]:
  """Hugging Face tensors, one leaf at a time on the host."""

  def to_host(x):
    return sharding.to_host(x.astype(_DTYPES[dtype]))

  top = _top_leaves(cfg)
  yield from top.pop('embed').write(to_host(params['embed'])).items()
  for i in range(cfg.num_layers):
    for name, leaf in _layer_leaves(cfg, i).items():
      x = params['layers']
      x = x[name][i] if cfg.scan_layers else x[i][name]
      yield from leaf.write(to_host(x)).items()
  for name, leaf in top.items():
    yield from leaf.write(to_host(params[name])).items()


def save(
    path: str | os.PathLike[str],
    cfg: decoder.DecoderConfig,
    params: decoder.Params,
    *,
    dtype: str = 'bfloat16',
    tokenizer_dir: str | os.PathLike[str] | None = None,
    max_shard_bytes: int = 5 * 10**9,
) -> None:
  """Writes a directory that transformers, SGLang and `load_params` load.

  The directory appears whole or not at all; one that is there is replaced.
  With several processes all of them call this, and process 0 writes.

  Args:
    path: Directory to make.
    cfg: Shape of the decoder, without LoRA (see lora.merge).
    params: Its parameters, on the host or any mesh.
    dtype: 'float32' or 'bfloat16'; of the tensors in the file.
    tokenizer_dir: Directory whose tokenizer, chat template, generation config
      and special token ids are copied.
    max_shard_bytes: Larger models are split into files of at most this size
      (one tensor may exceed it); also bounds the host memory in use.

  Raises:
    ValueError: If LoRA adapters have not been merged.
    ModelDirectoryError: If tokenizer_dir has no tokenizer.
    OSError: If the disk is full; nothing is left behind then.
  """
  if cfg.lora_rank:
    raise ValueError(
        f'cfg.lora_rank={cfg.lora_rank}: a directory holds plain weights. Call'
        ' lora.merge first.'
    )
  path = pathlib.Path(path)
  token_ids, copies = {}, []
  if tokenizer_dir is not None:
    source = pathlib.Path(tokenizer_dir)
    copies = [source / n for n in TOKENIZER_FILES if (source / n).is_file()]
    if not (source / 'tokenizer.json').is_file():
      raise ModelDirectoryError(
          f'{tokenizer_dir=} has no tokenizer.json. Give the directory that'
          ' the policy was loaded from.'
      )
    if (source / 'config.json').is_file():
      raw = _read_json(source / 'config.json')
      keys = ('bos_token_id', 'eos_token_id', 'pad_token_id')
      token_ids = {k: raw[k] for k in keys if k in raw}
  itemsize = np.dtype(_DTYPES[dtype]).itemsize
  sizes = {
      part.name: math.prod(part.shape) * itemsize
      for leaf in _all_leaves(cfg)
      for part in leaf.parts
  }
  shards = _plan_shards(sizes, max_shard_bytes)
  writes = jax.process_index() == 0
  tmp = path.with_name(f'.{path.name}.tmp')
  if writes:
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
  try:
    # A full disk is better found before hours of gathering than after.
    free = shutil.disk_usage(tmp).free if writes else 0
    if writes and free < sum(sizes.values()):
      raise OSError(
          f'{path} needs {sum(sizes.values())} bytes, but the disk has {free}'
          ' left. Free some space and start the same command again.'
      )
    tensors = _host_tensors(cfg, params, dtype)
    # Picking one layer out of a stack sends its index to the device.
    with jax.transfer_guard('allow'):
      for name, members in shards.items():
        held = {}
        for _ in members:
          key, tensor = next(tensors)
          if writes:
            held[key] = tensor
        if writes:
          _save_shard(tmp / name, held)
    if writes:
      config = _config_json(cfg, dtype, token_ids)
      _write_json(tmp / 'config.json', config)
      if len(shards) > 1:
        index = {
            'metadata': {'total_size': sum(sizes.values())},
            'weight_map': {n: f for f, names in shards.items() for n in names},
        }
        _write_json(tmp / 'model.safetensors.index.json', index)
      for file in copies:
        shutil.copyfile(file, tmp / file.name)
      _replace(tmp, path)
  finally:
    if writes:
      shutil.rmtree(tmp, ignore_errors=True)


def _plan_shards(sizes: dict[str, int], max_bytes: int) -> dict[str, list[str]]:
  """Groups tensors, in order, into files of at most max_bytes."""
  groups, total = [[]], 0
  for name, size in sizes.items():
    if groups[-1] and total + size > max_bytes:
      groups.append([])
      total = 0
    groups[-1].append(name)
    total += size
  if len(groups) == 1:
    return {'model.safetensors': groups[0]}
  return {
      f'model-{i:05d}-of-{len(groups):05d}.safetensors': names
      for i, names in enumerate(groups, 1)
  }


def _save_shard(file: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
  try:
    # transformers refuses files that do not say which framework laid them out.
    safetensors.numpy.save_file(tensors, file, metadata={'format': 'pt'})
  except safetensors.SafetensorError as e:
    raise OSError(
        f'{file} cannot be written ({e}). Free some space and start the same'
        ' command again.'
    ) from e


def _write_json(file: pathlib.Path, value: Any) -> None:
  file.write_text(json.dumps(value, indent=2) + '\n')


def _replace(tmp: pathlib.Path, path: pathlib.Path) -> None:
  """Moves tmp to path; a directory that is in the way goes last."""
  old = path.with_name(f'.{path.name}.old')
  shutil.rmtree(old, ignore_errors=True)
  if path.exists():
    path.rename(old)
  tmp.rename(path)
  shutil.rmtree(old, ignore_errors=True)
