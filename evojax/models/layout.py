"""The table that maps Hugging Face tensors to our fused parameters.

Reading, writing and checking model directories all use this table, which
`_top_leaves` and `layer_leaves` define.
"""

from collections.abc import Callable, Iterator, Mapping
import dataclasses
import math
from typing import Any

import numpy as np

from evojax.models import decoder
from evojax.models import families

_Groups = Mapping[str, tuple[tuple[int, ...], ...]]


@dataclasses.dataclass(frozen=True)
class Part:
  """A Hugging Face tensor that forms a part of one of our parameters."""

  name: str
  # The axes of the tensor, each split into our axes: ((K, R, H), (D,)).
  groups: tuple[tuple[int, ...], ...]
  order: tuple[int, ...]  # Axis i of our leaf is split axis order[i].

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
    """Return `index` of this part; reads little else of the file."""
    wanted = [slice(None)] * len(self.order)
    for mine, theirs in enumerate(self.order):
      wanted[theirs] = slice(*index[mine].indices(self.ours[mine]))
    outer, split = [], []
    # Only the leading axis of a group is contiguous in the file, so only this
    # axis is sliced there; the others are sliced in memory.
    for group in self.groups:
      lead = wanted[len(split)]
      stride = math.prod(group[1:])
      outer.append(slice(lead.start * stride, lead.stop * stride))
      wanted[len(split)] = slice(None)
      split += [lead.stop - lead.start, *group[1:]]
    block = tensor[tuple(outer)].reshape(split)
    return block[tuple(wanted)].transpose(self.order)

  def view(self, block: Any) -> Any:
    """Return this part of our leaf with its axes in the order of the file.

    Its axes are those of `groups`; joining them here would make a copy.
    """
    return block.transpose(*map(int, np.argsort(self.order)))


@dataclasses.dataclass(frozen=True)
class Leaf:
  """One of our parameters: its parts, concatenated along `axis`."""

  parts: tuple[Part, ...]
  axis: int

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of our parameter in one layer."""
    shape = list(self.parts[0].ours)
    shape[self.axis] = sum(p.ours[self.axis] for p in self.parts)
    return tuple(shape)

  def read(
      self, tensor: Callable[[str], Any], index: tuple[slice, ...]
  ) -> np.ndarray:
    """Return `index` of the leaf; tensor(name) is sliced lazily."""
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

  def views(self, leaf: Any) -> list[Any]:
    """Return the Hugging Face tensors of the parts; see `Part.view`.

    Args:
      leaf: A NumPy or JAX array with the shape of this leaf.
    """
    views, begin = [], 0
    for part in self.parts:
      end = begin + part.ours[self.axis]
      block = leaf[(slice(None),) * self.axis + (slice(begin, end),)]
      views.append(part.view(block))
      begin = end
    return views


@dataclasses.dataclass(frozen=True)
class Stack:
  """One leaf of every layer, read as one array with a leading layer axis."""

  leaves: tuple[Leaf, ...]

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of our parameter, all layers stacked."""
    return len(self.leaves), *self.leaves[0].shape

  def read(
      self, tensor: Callable[[str], Any], index: tuple[slice, ...]
  ) -> np.ndarray:
    """Return `index` of the stack; see `Leaf.read`."""
    layers = self.leaves[index[0]]
    return np.stack([leaf.read(tensor, index[1:]) for leaf in layers])


@dataclasses.dataclass(frozen=True)
class Padded:
  """A table with zero rows at its end, which are not in the files."""

  leaf: Leaf
  rows: int  # Number of zero rows.

  @property
  def shape(self) -> tuple[int, ...]:
    """Shape of our parameter."""
    rows, *rest = self.leaf.shape
    return rows + self.rows, *rest

  def read(
      self, tensor: Callable[[str], Any], index: tuple[slice, ...]
  ) -> np.ndarray:
    """Return `index` of the table; see `Leaf.read`."""
    start, stop, _ = index[0].indices(self.shape[0])
    held = self.leaf.shape[0]
    # A block of padding alone reads the last real row, for its dtype and shape.
    inside = slice(min(start, held - 1), min(max(stop, 1), held))
    block = self.leaf.read(tensor, (inside, *index[1:]))[start - inside.start :]
    padding = ((0, stop - start - len(block)),) + ((0, 0),) * (block.ndim - 1)
    return np.pad(block, padding)


def _joined(axis: int, order: tuple[int, ...], tensors: _Groups) -> Leaf:
  """Return tensors, given by their groups, joined on an axis; see `Part`."""
  return Leaf(tuple(Part(*item, order) for item in tensors.items()), axis)


def _whole(name: str, *shape: int) -> Leaf:
  groups = tuple((size,) for size in shape)
  return _joined(0, tuple(range(len(shape))), {name: groups})


def _top_leaves(cfg: decoder.DecoderConfig) -> dict[str, Leaf]:
  """Return the leaves outside of the layers."""
  v, d = cfg.vocab_size, cfg.hidden_size
  leaves = {
      'embed': _whole('model.embed_tokens.weight', v, d),
      'final_norm': _whole('model.norm.weight', d),
  }
  if not cfg.tie_embeddings:
    leaves['lm_head'] = _whole('lm_head.weight', v, d)
  return leaves


def layer_leaves(cfg: decoder.DecoderConfig, layer: int) -> dict[str, Leaf]:
  """Return the leaves of one layer; the files hold [outputs, inputs]."""
  d, f, h = cfg.hidden_size, cfg.intermediate_size, cfg.head_dim
  k, r = cfg.num_kv_heads, cfg.heads_per_kv
  prefix = f'model.layers.{layer}.'
  attn, mlp = prefix + 'self_attn.', prefix + 'mlp.'
  heads = (('q', r), ('k', 1), ('v', 1))
  norms = families.FAMILIES[cfg.family].norms
  norm = lambda ours: _whole(f'{prefix}{norms[ours]}.weight', d)
  leaves = {
      'attn_norm': norm('attn_norm'),
      # [K, n, H, D] -> [D, K, n, H]
      'qkv': _joined(
          2,
          (3, 0, 1, 2),
          {f'{attn}{x}_proj.weight': ((k, n, h), (d,)) for x, n in heads},
      ),
      # [D, K, R, H] -> [K, R, H, D]
      'out': _joined(
          0, (1, 2, 3, 0), {attn + 'o_proj.weight': ((d,), (k, r, h))}
      ),
      'mlp_norm': norm('mlp_norm'),
      # [F, 1, D] -> [D, 1, F]
      'gate_up': _joined(
          1,
          (2, 1, 0),
          {f'{mlp}{x}_proj.weight': ((f, 1), (d,)) for x in ('gate', 'up')},
      ),
      'down': _joined(0, (1, 0), {mlp + 'down_proj.weight': ((d,), (f,))}),
  }
  if cfg.qkv_bias:
    bias = {f'{attn}{x}_proj.bias': ((k, n, h),) for x, n in heads}
    leaves['qkv_bias'] = _joined(1, (0, 1, 2), bias)
  if cfg.out_bias:
    leaves['out_bias'] = _whole(attn + 'o_proj.bias', d)
  if cfg.post_norms:
    leaves['attn_post_norm'] = norm('attn_post_norm')
    leaves['mlp_post_norm'] = norm('mlp_post_norm')
  if cfg.qk_norm:
    leaves['q_norm'] = _whole(attn + 'q_norm.weight', h)
    leaves['k_norm'] = _whole(attn + 'k_norm.weight', h)
  return leaves


def tree(cfg: decoder.DecoderConfig) -> dict[str, Any]:
  """Return a tree of leaves, like the parameters without adapters."""
  layers = [layer_leaves(cfg, i) for i in range(cfg.num_layers)]
  top = _top_leaves(cfg)
  if cfg.vocab_padding:
    tables = {name: top[name] for name in ('embed', 'lm_head') if name in top}
    top |= {n: Padded(leaf, cfg.vocab_padding) for n, leaf in tables.items()}
  if cfg.scan_layers:
    stack = lambda name: Stack(tuple(layer[name] for layer in layers))
    return top | {'layers': {n: stack(n) for n in layers[0]}}
  return top | {'layers': layers}


def all_leaves(
    cfg: decoder.DecoderConfig,
) -> Iterator[tuple[int | None, str, Leaf]]:
  """Yield (layer or None, name, leaf) in the order in which files hold them."""
  embed, *rest = ((None, *item) for item in _top_leaves(cfg).items())
  yield embed
  for layer in range(cfg.num_layers):
    for name, leaf in layer_leaves(cfg, layer).items():
      yield layer, name, leaf
  yield from rest


def tensor_shapes(cfg: decoder.DecoderConfig) -> dict[str, tuple[int, ...]]:
  """Return the shape of each Hugging Face tensor of a model by name."""
  return {p.name: p.shape for *_, leaf in all_leaves(cfg) for p in leaf.parts}
