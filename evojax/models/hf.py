"""Reads and writes the weights of Hugging Face model directories.

Weights are read slice by slice from the memory-mapped file into the shard that
needs them, so that no host ever holds the whole model. `layout` maps tensors to
parameters; `hf_config` reads and writes config.json.
"""

from collections.abc import Iterator
import contextlib
import itertools
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
from evojax.models import hf_config
from evojax.models import layout
from evojax.runtime import sharding

TOKENIZER_FILES = (
    'tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json',
    'added_tokens.json', 'vocab.json', 'merges.txt', 'tokenizer.model',
    'chat_template.jinja', 'chat_template.json', 'generation_config.json',
)  # fmt: skip
_DTYPES = {'float32': np.float32, 'bfloat16': ml_dtypes.bfloat16}
_Leaf = layout.Leaf | layout.Stack | layout.Padded
# Tensors that old or tied checkpoints store although others determine them.
_REDUNDANT = ('rotary_emb.inv_freq', 'masked_bias', 'attn.bias')


@contextlib.contextmanager
def _open_weights(path: pathlib.Path) -> Iterator[dict[str, Any]]:
  """Memory-map every shard; yield {tensor name: lazily sliced tensor}."""
  single = path / 'model.safetensors'
  index = path / 'model.safetensors.index.json'
  if single.is_file():
    files = [single]
  elif index.is_file():
    names = hf_config.read_json(index).get('weight_map')
    if not isinstance(names, dict) or not names:
      raise hf_config.ModelDirectoryError(
          f'{index} has no weight_map. Restore the file.'
      )
    files = [path / name for name in sorted(set(names.values()))]
  else:
    raise hf_config.ModelDirectoryError(
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
        raise hf_config.ModelDirectoryError(
            f'{file} is missing or incomplete ({e}). Download it again.'
        ) from e
      tensors |= {name: shard.get_slice(name) for name in shard.keys()}
    yield tensors


def _check_tensors(
    path: pathlib.Path, cfg: decoder.DecoderConfig, tensors: dict[str, Any]
) -> None:
  """Check the tensors in the file headers against config.json."""
  expected = layout.tensor_shapes(cfg)
  redundant = _REDUNDANT + (('lm_head.weight',) if cfg.tie_embeddings else ())
  problems = [f'missing {n}' for n in expected if n not in tensors]
  extra = sorted(set(tensors) - set(expected))
  problems += [f'unexpected {n}' for n in extra if not n.endswith(redundant)]
  for name in filter(tensors.__contains__, expected):
    found, dtype = tuple(tensors[name].get_shape()), tensors[name].get_dtype()
    if found != expected[name]:
      problems.append(f'{name} has shape {found}, expected {expected[name]}')
    if dtype not in ('F32', 'BF16', 'F16'):
      problems.append(f'{name} has dtype {dtype}, expected F32, BF16 or F16')
  if problems:
    first = '; '.join(problems[:4]) + '; ...' * (len(problems) > 4)
    raise hf_config.ModelDirectoryError(
        f'the weights in {path} do not fit its config.json in'
        f' {len(problems)} places: {first}. Restore config.json or download the'
        ' weights again.'
    )


def check_directory(path: str | os.PathLike[str]) -> decoder.DecoderConfig:
  """Validate a model directory by its headers, without using a device.

  Args:
    path: A Hugging Face model directory.

  Returns:
    The shape of the decoder; see `hf_config.load`.

  Raises:
    ModelDirectoryError: If anything that `load_params` or the tokenizer needs
      is missing, truncated, mis-shaped or not supported.
  """
  path = pathlib.Path(path)
  cfg = hf_config.load(path)
  if not (path / 'tokenizer.json').is_file():
    raise hf_config.ModelDirectoryError(
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
  """Read the weights into our layout, directly into their shards.

  Args:
    path: A Hugging Face model directory.
    cfg: The result of `hf_config.load`, with `scan_layers` as wanted.
    dtype: 'float32' or 'bfloat16', for the parameters.
    shardings: A tree like the parameters; by default all arrays are placed on
      the first local device.

  Returns:
    Parameters as in decoder.py, without LoRA adapters.

  Raises:
    ModelDirectoryError: If the directory is incomplete or does not fit cfg.
  """
  path = pathlib.Path(path)
  leaves = layout.tree(cfg)
  if shardings is None:
    one_device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = jax.tree.map(lambda _: one_device, leaves)
  with _open_weights(path) as tensors:
    _check_tensors(path, cfg, tensors)

    def make(leaf: _Leaf, place: Any) -> jax.Array:
      def read(index):
        block = leaf.read(tensors.__getitem__, index)
        return np.ascontiguousarray(block.astype(_DTYPES[dtype]))

      return jax.make_array_from_callback(leaf.shape, place, read)

    return jax.tree.map(make, leaves, shardings)


def _host_tensors(
    cfg: decoder.DecoderConfig, params: decoder.Params, dtype: str
) -> Iterator[tuple[str, np.ndarray]]:
  """Yield Hugging Face tensors, holding one leaf at a time on the host."""
  layers = params['layers']
  for layer, name, leaf in layout.all_leaves(cfg):
    if layer is None:
      x = params[name]
    else:
      x = layers[name][layer] if cfg.scan_layers else layers[layer][name]
    x = sharding.to_host(x.astype(_DTYPES[dtype]))
    x = x[: leaf.shape[0]]  # Drops the padding of a vocabulary.
    yield from leaf.write(x).items()


def save(
    path: str | os.PathLike[str],
    cfg: decoder.DecoderConfig,
    params: decoder.Params,
    *,
    dtype: str = 'bfloat16',
    tokenizer_dir: str | os.PathLike[str] | None = None,
    max_shard_bytes: int = 5 * 10**9,
) -> None:
  """Write a directory that transformers, SGLang and `load_params` can load.

  The directory appears complete or not at all, and replaces an existing one. If
  there are several processes, all of them call this, and process 0 writes.

  Args:
    path: Directory to write.
    cfg: Shape of the decoder, without LoRA (see lora.merge).
    params: Its parameters, on the host or any mesh.
    dtype: 'float32' or 'bfloat16', for the tensors in the files.
    tokenizer_dir: Directory from which tokenizer, chat template, generation
      config and special token ids are copied.
    max_shard_bytes: Largest size of a file; larger models are split (a single
      tensor may exceed it). Also bounds the host memory in use.

  Raises:
    ValueError: If LoRA adapters have not been merged.
    ModelDirectoryError: If tokenizer_dir has no tokenizer.
    OSError: If the disk is full; nothing is left behind.
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
      raise hf_config.ModelDirectoryError(
          f'{tokenizer_dir=} has no tokenizer.json. Give the directory that'
          ' the policy was loaded from.'
      )
    if (source / 'config.json').is_file():
      raw = hf_config.read_json(source / 'config.json')
      keys = ('bos_token_id', 'eos_token_id', 'pad_token_id')
      token_ids = {k: raw[k] for k in keys if k in raw}
  itemsize = np.dtype(_DTYPES[dtype]).itemsize
  shapes = layout.tensor_shapes(cfg)
  sizes = {name: math.prod(s) * itemsize for name, s in shapes.items()}
  shards = _plan_shards(sizes, max_shard_bytes)
  writes = jax.process_index() == 0
  tmp = path.with_name(f'.{path.name}.tmp')
  if writes:
    shutil.rmtree(tmp, ignore_errors=True)
    tmp.mkdir(parents=True)
  try:
    # Gathering a large model takes long, so the disk space is checked first.
    total = sum(sizes.values())
    if writes and (free := shutil.disk_usage(tmp).free) < total:
      raise OSError(
          f'{path} needs {total} bytes, but the disk has {free} left. Free some'
          ' space and start the same command again.'
      )
    tensors = _host_tensors(cfg, params, dtype)
    # Taking one layer out of a stack transfers its index to the device.
    with jax.transfer_guard('allow'):
      for name, members in shards.items():
        # Every process gathers the tensors, but only the writer holds them.
        gathered = itertools.islice(tensors, len(members))
        held = {key: tensor for key, tensor in gathered if writes}
        if writes:
          _save_shard(tmp / name, held)
    if writes:
      config = hf_config.dump(cfg, dtype, token_ids)
      hf_config.write_json(tmp / 'config.json', config)
      if len(shards) > 1:
        index = {
            'metadata': {'total_size': total},
            'weight_map': {n: f for f, names in shards.items() for n in names},
        }
        hf_config.write_json(tmp / 'model.safetensors.index.json', index)
      for file in copies:
        shutil.copyfile(file, tmp / file.name)
      _replace(tmp, path)
  finally:
    if writes:
      shutil.rmtree(tmp, ignore_errors=True)


def _plan_shards(sizes: dict[str, int], max_bytes: int) -> dict[str, list[str]]:
  """Group tensors, in order, into files of at most max_bytes."""
  groups, room = [[]], max_bytes
  for name, size in sizes.items():
    if groups[-1] and size > room:
      groups.append([])
      room = max_bytes
    groups[-1].append(name)
    room -= size
  if len(groups) == 1:
    return {'model.safetensors': groups[0]}
  return {
      f'model-{i:05d}-of-{len(groups):05d}.safetensors': names
      for i, names in enumerate(groups, 1)
  }


def _save_shard(file: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
  try:
    # transformers refuses files without the framework's name.
    safetensors.numpy.save_file(tensors, file, metadata={'format': 'pt'})
  except safetensors.SafetensorError as e:
    raise OSError(
        f'{file} cannot be written ({e}). Free some space and start the same'
        ' command again.'
    ) from e


def _replace(tmp: pathlib.Path, path: pathlib.Path) -> None:
  """Move tmp to path; delete the directory that was there before."""
  old = path.with_name(f'.{path.name}.old')
  shutil.rmtree(old, ignore_errors=True)
  if path.exists():
    path.rename(old)
  tmp.rename(path)
  shutil.rmtree(old, ignore_errors=True)
