"""The table of model families, with one row per family.

A row holds the flags of `layer.DecoderConfig` that all models of a family
share, the names of the tensors and fields in its files, and the defaults of
fields that config.json leaves out. A family whose layers compute anything that
`layer` does not needs a new flag there first.
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

_Raw = Mapping[str, Any]

SLIDING, FULL = 'sliding_attention', 'full_attention'  # Layer types.


def _all(raw: _Raw, layers: int) -> tuple[bool, ...]:
  """Return which layers have the window: all of them."""
  del raw
  return (True,) * layers


def _upper(raw: _Raw, layers: int) -> tuple[bool, ...]:
  """Return which layers have the window: those from `max_window_layers` on."""
  first = raw.get('max_window_layers', 28)
  return tuple(i >= first for i in range(layers))


def _most(raw: _Raw, layers: int) -> tuple[bool, ...]:
  """Return which have it: all but every `sliding_window_pattern`-th layer."""
  every = raw.get('sliding_window_pattern', 6)
  return tuple((i + 1) % every != 0 for i in range(layers))


def unrotated(raw: _Raw, layers: int) -> tuple[bool, ...]:
  """Return which layers do not rotate queries and keys."""
  every = raw.get('no_rope_layer_interval', 4)
  rotated = raw.get('no_rope_layers')  # 1: the layer rotates.
  if rotated is None:
    rotated = [(i + 1) % every != 0 for i in range(layers)]
  return tuple(not r for r in rotated[:layers])


@dataclasses.dataclass(frozen=True)
class Family:
  """The differences between a model family and Llama."""

  architecture: str  # Name of the class in transformers.
  # Flags of DecoderConfig that all models of the family have.
  flags: Mapping[str, bool] = dataclasses.field(default_factory=dict)
  # True: `attention_bias` adds biases to all projections of the attention.
  attention_bias: bool = True
  # Layers with windows if the file has no `layer_types`; None: there are none.
  windows: Callable[[_Raw, int], tuple[bool, ...]] | None = None
  window_switch: bool = False  # Windows need `use_sliding_window` to be true.
  window: int | None = 4096  # Default of `sliding_window`.
  own_theta: bool = False  # Windowed layers use `rope_local_base_freq`.
  skips_rope: bool = False  # Some layers do not rotate; see `unrotated`.
  # Our norms of a layer -> their names in the files.
  norms: Mapping[str, str] = dataclasses.field(
      default_factory=lambda: {
          'attn_norm': 'input_layernorm',
          'mlp_norm': 'post_attention_layernorm',
      }
  )
  activation: str = 'hidden_act'  # Field of config.json with its name,
  default_activation: str = 'silu'  # and the default of the field.
  # Defaults of config.json. head_dim None: hidden_size / num_attention_heads.
  head_dim: int | None = None
  rope_theta: float = 10_000.0
  tie_embeddings: bool = False
  # Default of `query_pre_attn_scalar`; None: the family does not have it.
  query_scalar: int | None = None
  # Further fields of config.json -> values that the decoder supports, the
  # default first.
  only: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)

  @property
  def by_layer(self) -> bool:
    """Return whether only some of the layers may have windows."""
    return self.windows not in (None, _all)


FAMILIES = {
    'qwen2': Family(
        'Qwen2ForCausalLM',
        flags={'qkv_bias': True},
        attention_bias=False,  # Its files may set it, without any effect.
        windows=_upper,
        window_switch=True,
    ),
    'qwen3': Family(
        'Qwen3ForCausalLM',
        flags={'qk_norm': True},
        windows=_upper,
        window_switch=True,
        head_dim=128,
    ),
    'llama': Family('LlamaForCausalLM'),
    'mistral': Family('MistralForCausalLM', attention_bias=False, windows=_all),
    'gemma3_text': Family(
        'Gemma3ForCausalLM',
        flags={
            'qk_norm': True,
            'post_norms': True,
            'norm_plus_one': True,
            'scale_embeddings': True,
        },
        windows=_most,
        own_theta=True,
        norms={
            'attn_norm': 'input_layernorm',
            'attn_post_norm': 'post_attention_layernorm',
            'mlp_norm': 'pre_feedforward_layernorm',
            'mlp_post_norm': 'post_feedforward_layernorm',
        },
        activation='hidden_activation',
        default_activation='gelu_pytorch_tanh',
        head_dim=256,
        rope_theta=1e6,
        tie_embeddings=True,
        query_scalar=256,
        only={
            'attn_logit_softcapping': (None,),
            'final_logit_softcapping': (None,),
            'use_bidirectional_attention': (False, None),
        },
    ),
    'smollm3': Family(
        'SmolLM3ForCausalLM',
        windows=unrotated,
        window_switch=True,
        window=None,
        skips_rope=True,
        rope_theta=2e6,
        tie_embeddings=True,
    ),
}
