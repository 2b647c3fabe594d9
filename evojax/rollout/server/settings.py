"""Settings of a server: its model, limits and keys."""

from collections.abc import Mapping
import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Settings:
  """Settings that are fixed for the life of a server."""

  model_name: str  # Shown by /v1/models; requests may use any name.
  model_path: str
  vocab_size: int  # Rows of the embedding; larger ids are refused.
  context_tokens: int  # Longest prompt plus sampled tokens of a sample.
  sampled_tokens: int  # Most sampled tokens of one sample.
  max_samples: int = 1024  # Most samples of a request: prompts x n.
  max_top_logprobs: int = 20
  max_stops: int = 16  # Stop strings per sample.
  max_stop_chars: int = 256  # Characters per stop string.
  max_stop_tokens: int = 8
  max_logit_biases: int = 64
  api_key: str = ''  # Empty: anyone may sample.
  admin_key: str = ''  # Empty: anyone who may sample may also manage.
  hosts: tuple[str, ...] = ()  # Further host names in URLs; '*': any.
  # Real paths of directories; new weights must lie in one or below it.
  weight_roots: tuple[str, ...] = ()
  connections: int = 4096  # Most requests at a time.
  body_bytes: int = 16 << 20  # Largest body of a request without tensors.
  # Largest size of all tensors of an update that arrives in requests.
  tensor_bytes: int = 64 << 20
  # A client that sends its request, or reads the next part of a stream, more
  # slowly than this is disconnected.
  client_seconds: float = 60.0
  health_seconds: float = 20.0  # Time limit of /health_generate.
  # Further fields of /server_info, which also shows the model and the limits of
  # its tokens and samples.
  info: Mapping[str, Any] = dataclasses.field(default_factory=dict)
