"""Settings of a server: what it serves, its limits, its keys."""

from collections.abc import Mapping
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings that are fixed for the life of a server."""

  model_name: str  # Shown by /v1/models; requests may name any model.
  model_path: str
  vocab_size: int  # Rows of the model's embedding; token ids lie below.
  context_tokens: int  # Prompt and sampled tokens of one sample, together.
  sampled_tokens: int  # Sampled tokens of one sample, at most.
  max_samples: int = 1024  # Prompts x n of one request.
  max_top_logprobs: int = 20
  max_stops: int = 16  # Stop strings per sample.
  max_stop_chars: int = 256  # Characters per stop string.
  max_stop_tokens: int = 8
  max_logit_biases: int = 64
  api_key: str = ''  # Empty: everybody may sample.
  admin_key: str = ''  # Empty: everybody who may sample may also manage.
  hosts: tuple[str, ...] = ()  # Further names in clients' URLs; '*': any.
  # Real paths of the directories that new weights may lie in or below.
  weight_roots: tuple[str, ...] = ()
  connections: int = 4096  # Requests at once.
  body_bytes: int = 16 << 20  # Size of one request.
  # A client that sends its request, or takes the next part of its stream, more
  # slowly than this is dropped.
  client_seconds: float = 60.0
  health_seconds: float = 20.0  # Until /health_generate gives up.
  # More fields for /server_info; it shows the settings above too, but no key.
  info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
