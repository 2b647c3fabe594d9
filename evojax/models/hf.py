"""Reads and writes the weights of Hugging Face model directories.

Weights are read slice by slice from the memory-mapped file into the shard that
needs them, so that a host holds only the shards of its devices. `layout` maps
tensors to parameters; `hf_config` reads and writes config.json.
"""

from collections.abc import Iterator
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import shutil
from typing import Any

import jax
import numpy as np
import safetensors

from evojax.models import decoder
from evojax.models import hf_config
from evojax.models import layout
from evojax.models import tensor_files
from evojax.runtime import durable
from evojax.runtime import mirror
from evojax.runtime import sharding

TOKENIZER_FILES = (
    'tokenizer.json', 'tokenizer_config.json', 'special_tokens_map.json',
    'added_tokens.json', 'vocab.json', 'merges.txt', 'tokenizer.model',
    'chat_template.jinja', 'chat_template.json', 'generation_config.json',
)  # fmt: skip
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


def check_directory(
    path: str | os.PathLike[str], *, weights: bool = True
) -> decoder.DecoderConfig:
  """Validate a model directory by its headers, without using a device.

  Args:
    path: A Hugging Face model directory.
    weights: Also validate the weights; otherwise they may be missing.

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
  if weights:
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
        return np.ascontiguousarray(block.astype(tensor_files.DTYPES[dtype]))

      return jax.make_array_from_callback(leaf.shape, place, read)

    return jax.tree.map(make, leaves, shardings)


@functools.cache
def _reader(leaf: layout.Leaf, dtype: str, turned: bool, place: Any) -> Any:
  """Return a compiled program that takes a leaf and a layer number or None.

  Args:
    leaf: The parts of the parameter, without names.
    dtype: Dtype of the result.
    turned: If True, the program returns the tensors of the files, each
      flattened; if False, one array in the layout of our parameters.
    place: Sharding of the result.
  """

  def read(x, layer):
    if layer is not None:
      x = jax.lax.dynamic_index_in_dim(x, layer, keepdims=False)
    # Without the padding of a vocabulary.
    x = x[: leaf.shape[0]].astype(tensor_files.DTYPES[dtype])
    return [view.reshape(-1) for view in leaf.views(x)] if turned else x

  return jax.jit(read, out_shardings=place)


def _platform(place: jax.sharding.Sharding) -> str:
  """Return the kind of the devices of a sharding: 'cpu', 'gpu' or 'tpu'."""
  return next(iter(place.device_set)).platform


def _read_leaf(
    leaf: layout.Leaf, x: Any, layer: int | None, dtype: str
) -> list[Any]:
  """Return the whole tensors of a leaf; all processes must call it together.

  On an accelerator a compiled program casts and transposes them, which costs
  the host nothing. On a CPU such a program is slow, and `conversion` does it
  faster while the tensors are written.
  """
  if not isinstance(x, jax.Array):
    x = jax.device_put(x)
  place = x.sharding
  if isinstance(place, jax.sharding.NamedSharding):
    place = sharding.replicated(place.mesh)
  on_host = _platform(place) == 'cpu'
  if on_host and x.is_fully_replicated:
    x = np.asarray(x.addressable_data(0))  # No copy.
    x = x if layer is None else x[layer]
    return leaf.views(x[: leaf.shape[0]])
  nameless = dataclasses.replace(
      leaf, parts=tuple(dataclasses.replace(p, name='') for p in leaf.parts)
  )
  layer = None if layer is None else np.int32(layer)
  read = _reader(nameless, dtype, not on_host, place)(x, layer)
  if not on_host:
    return [view.addressable_data(0) for view in read]
  return leaf.views(np.asarray(read.addressable_data(0)))


def _write_tensors(
    cfg: decoder.DecoderConfig,
    params: decoder.Params,
    dtype: str,
    writer: tensor_files.Writer,
) -> None:
  """Pass tensors to a writer, holding few leaves on the host at a time."""
  layers = params['layers']
  for layer, name, leaf in layout.all_leaves(cfg):
    index = layer if cfg.scan_layers else None
    if layer is None:
      x = params[name]
    else:
      x = layers[name] if cfg.scan_layers else layers[layer][name]
    views = _read_leaf(leaf, x, index, dtype)
    writer.put(
        {
            part.name: np.asarray(view)
            for part, view in zip(leaf.parts, views, strict=True)
            if part.name in writer.names
        }
    )


def save(
    path: str | os.PathLike[str],
    cfg: decoder.DecoderConfig,
    params: decoder.Params,
    *,
    dtype: str = 'bfloat16',
    tokenizer_dir: str | os.PathLike[str] | None = None,
    max_shard_bytes: int = 5 * 10**9,
    durably: bool = True,
) -> None:
  """Write a directory that transformers, SGLang and `load_params` can load.

  The directory appears complete or not at all, and replaces an existing one. If
  there are several processes, all of them call this: each writes an equal share
  of the files of a large model. They see the same path, or each has a copy of
  the workdir that contains it, see `mirror`.

  Args:
    path: Directory to write.
    cfg: Shape of the decoder, without LoRA (see lora.merge).
    params: Its parameters, on the host or any mesh.
    dtype: 'float32' or 'bfloat16', for the tensors in the files.
    tokenizer_dir: Directory from which tokenizer, chat template, generation
      config and special token ids are copied.
    max_shard_bytes: Largest size of a file; larger models are split (a single
      tensor may exceed it). Also bounds the host memory in use.
    durably: Whether the directory must survive a power loss, which makes saving
      slower. It need not if it is only read right after the save.

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
    token_ids, copies = _of_tokenizer(pathlib.Path(tokenizer_dir))
  processes, process = jax.process_count(), jax.process_index()
  shapes = layout.tensor_shapes(cfg)
  files = tensor_files.plan(shapes, dtype, max_shard_bytes, processes)
  mine = tensor_files.share(files, process, processes)
  bytes_of = lambda files: sum(sum(file.sizes.values()) for file in files)
  total, first = bytes_of(files), process == 0
  copy = mirror.divided(path)
  tmp = path.with_name(f'.{path.name}.tmp')
  try:
    with _agreed(path):
      if first or copy:
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
        # Gathering a large model is slow, so the disk is checked first.
        size = bytes_of(mine) if copy else total
        if (free := shutil.disk_usage(tmp).free) < size:
          raise OSError(
              f'{path} needs {size} bytes, but the disk has {free} left. Free'
              ' some space and start the same command again.'
          )
    uploaded = {}
    with _agreed(path):
      # Layer numbers are copied to the device implicitly.
      with jax.transfer_guard('allow'), tensor_files.Writer(tmp, mine) as out:
        _write_tensors(cfg, params, dtype, out)
      if out.error:
        raise OSError(
            f'{tmp} cannot be written ({out.error}). Free some space and start'
            ' the same command again.'
        ) from out.error
      if copy and not first:
        uploaded = copy.send(tmp, [file.name for file in mine], path)
    uploaded = _union(uploaded) if copy else {}
    with _agreed(path):
      if first:
        config = hf_config.dump(cfg, dtype, token_ids)
        hf_config.write_json(tmp / 'config.json', config)
        if len(files) > 1:
          index = {
              'metadata': {'total_size': total},
              'weight_map': {n: f.name for f in files for n in f.shapes},
          }
          hf_config.write_json(tmp / 'model.safetensors.index.json', index)
        for file in copies:
          shutil.copyfile(file, tmp / file.name)
        if durably:
          durable.sync_tree(tmp)
        with mirror.adding(path, uploaded):
          _replace(tmp, path)
        if durably:
          durable.sync_directory(path.parent)
  finally:
    if first or copy:
      shutil.rmtree(tmp, ignore_errors=True)


def _of_tokenizer(
    source: pathlib.Path,
) -> tuple[dict[str, Any], list[pathlib.Path]]:
  """Return the special token ids of a directory, and the files to copy.

  Raises:
    ModelDirectoryError: If it has no tokenizer.
  """
  if not (source / 'tokenizer.json').is_file():
    raise hf_config.ModelDirectoryError(
        f'tokenizer_dir={str(source)!r} has no tokenizer.json. Give the'
        ' directory that the policy was loaded from.'
    )
  token_ids = {}
  if (source / 'config.json').is_file():
    raw = hf_config.read_json(source / 'config.json')
    keys = ('bos_token_id', 'eos_token_id', 'pad_token_id')
    token_ids = {k: raw[k] for k in keys if k in raw}
  return token_ids, [
      source / n for n in TOKENIZER_FILES if (source / n).is_file()
  ]


@contextlib.contextmanager
def _agreed(path: pathlib.Path) -> Iterator[None]:
  """Wait for all processes at the end; if one failed, raise an error in all."""
  error = None
  try:
    yield
  except OSError as e:
    error = e
  failed = sharding.in_any_process(error is not None)
  if error is not None:
    raise error
  if failed:
    raise OSError(f'another process could not write {path}; its log says why')


def _union(sizes: dict[str, int]) -> dict[str, int]:
  """Return the entries of all processes."""
  rows = sharding.all_gather(json.dumps(sizes).encode())
  return {name: size for row in rows for name, size in json.loads(row).items()}


def _replace(tmp: pathlib.Path, path: pathlib.Path) -> None:
  """Move tmp to path; delete the directory that was there before."""
  old = path.with_name(f'.{path.name}.old')
  shutil.rmtree(old, ignore_errors=True)
  if path.exists():
    path.rename(old)
  tmp.rename(path)
  shutil.rmtree(old, ignore_errors=True)
