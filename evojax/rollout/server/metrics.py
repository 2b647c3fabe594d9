"""Prometheus metrics, under SGLang's names where there are any."""

from collections.abc import Callable, Iterator

import prometheus_client
from prometheus_client import core

from evojax.rollout import service as service_lib
from evojax.rollout.server import samples

_LABEL = 'model_name'
_SECONDS = (
    (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
    + (1, 2.5, 5, 10, 30, 60, 120, 300)
)  # fmt: skip
# (name, help, value); Prometheus adds '_total' to the name of a counter.
_GAUGES = (
    ('sglang:num_running_reqs', 'Samples in a slot.', lambda s: s.running),
    ('sglang:num_queue_reqs', 'Samples that wait.', lambda s: s.waiting),
    (
        'sglang:cache_hit_rate',
        'Share of prompt tokens that were found in the prefix cache.',
        lambda s: s.cached_tokens / max(s.prompt_tokens, 1),
    ),
    ('evojax:slots', 'Samples that can run at once.', lambda s: s.slots),
    (
        'evojax:cached_prefix_tokens',
        'Tokens in the prefix cache.',
        lambda s: s.cached_prefix_tokens,
    ),
)
_COUNTERS = (
    ('sglang:prompt_tokens', 'Prompt tokens.', lambda s: s.prompt_tokens),
    (
        'sglang:generation_tokens',
        'Sampled tokens.',
        lambda s: s.generated_tokens,
    ),
    (
        'sglang:cached_tokens',
        'Prompt tokens from the prefix cache.',
        lambda s: s.cached_tokens,
    ),
    (
        'sglang:num_requests',
        'Samples that ended, aborted ones included.',
        lambda s: s.finished + s.aborted,
    ),
    (
        'sglang:num_aborted_requests',
        'Samples that were aborted.',
        lambda s: s.aborted,
    ),
    (
        'evojax:refused_requests',
        'Samples that found the queue full.',
        lambda s: s.refused,
    ),
    (
        'evojax:weight_updates',
        'Weights that were installed.',
        lambda s: s.weight_updates,
    ),
)


class Metrics:
  """Latencies of a server, and the counters of its service as they are."""

  def __init__(
      self, model_name: str, stats: Callable[[], service_lib.Stats | None]
  ):
    """Registers all metrics; `stats` returns None while there is no service."""
    self._registry = prometheus_client.CollectorRegistry()
    self._registry.register(_Counters(model_name, stats))

    def histogram(name: str, text: str) -> prometheus_client.Histogram:
      made = prometheus_client.Histogram(
          name, text, [_LABEL], buckets=_SECONDS, registry=self._registry
      )
      return made.labels(model_name)

    self._first = histogram(
        'sglang:time_to_first_token_seconds', 'From submission, in seconds.'
    )
    self._between = histogram(
        'sglang:inter_token_latency_seconds', 'Mean over a sample, in seconds.'
    )
    self._whole = histogram(
        'sglang:e2e_request_latency_seconds', 'Of a sample, in seconds.'
    )

  def observe(self, sample: samples.Sample) -> None:
    """Count the latencies of a sample, unless it was aborted."""
    if sample.finish is None or sample.finish.reason == 'abort':
      return
    self._whole.observe(sample.seconds)
    if sample.first_token:
      self._first.observe(max(sample.first_token - sample.submitted, 0.0))
    if len(sample.ids) > 1:
      decoding = sample.last_chunk - sample.first_token
      self._between.observe(max(decoding, 0.0) / (len(sample.ids) - 1))

  def render(self) -> bytes:
    """Return the page that Prometheus reads."""
    return prometheus_client.generate_latest(self._registry)


class _Counters:
  """Reads the service's counters whenever the page is read."""

  def __init__(
      self, model_name: str, stats: Callable[[], service_lib.Stats | None]
  ):
    self._labels = [model_name]
    self._stats = stats

  def collect(self) -> Iterator[core.Metric]:
    stats = self._stats()
    if stats is None:
      return
    for kind, family in (
        (_GAUGES, core.GaugeMetricFamily),
        (_COUNTERS, core.CounterMetricFamily),
    ):
      for name, text, value in kind:
        metric = family(name, text, labels=[_LABEL])
        metric.add_metric(self._labels, value(stats))
        yield metric
