"""Prometheus metrics, named as in SGLang where SGLang has the same metric."""

from collections.abc import Callable, Iterator
import dataclasses

import prometheus_client
from prometheus_client import core

from evojax.rollout import service as service_lib
from evojax.rollout.server import samples

_LABEL = 'model_name'
_SECONDS = (
    (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5)
    + (1, 2.5, 5, 10, 30, 60, 120, 300)
)  # fmt: skip
# Name -> help. The part of the name after the colon is a field of
# `service.Stats` or of `_renamed`; Prometheus adds '_total' to a counter's.
_GAUGES = {
    'sglang:num_running_reqs': 'Samples in a slot.',
    'sglang:num_queue_reqs': 'Samples that wait.',
    'sglang:cache_hit_rate': (
        'Share of prompt tokens that were found in the prefix cache.'
    ),
    'evojax:slots': 'Samples that can run at once.',
    'evojax:cached_prefix_tokens': 'Tokens in the prefix cache.',
}
_COUNTERS = {
    'sglang:prompt_tokens': 'Prompt tokens.',
    'sglang:generation_tokens': 'Sampled tokens.',
    'sglang:cached_tokens': 'Prompt tokens from the prefix cache.',
    'sglang:num_requests': 'Samples that ended, aborted ones included.',
    'sglang:num_aborted_requests': 'Samples that were aborted.',
    'evojax:refused_requests': 'Samples that found the queue full.',
    'evojax:weight_updates': 'Weights that were installed.',
}
_HISTOGRAMS = (
    ('time_to_first_token', 'From submission, in seconds.'),
    ('inter_token_latency', 'Mean over a sample, in seconds.'),
    ('e2e_request_latency', 'Of a sample, in seconds.'),
)


def _renamed(stats: service_lib.Stats) -> dict[str, int | float]:
  """Return the metrics that are not fields of `service.Stats`."""
  return {
      'num_running_reqs': stats.running,
      'num_queue_reqs': stats.waiting,
      'cache_hit_rate': stats.cached_tokens / max(stats.prompt_tokens, 1),
      'generation_tokens': stats.generated_tokens,
      'num_requests': stats.finished + stats.aborted,
      'num_aborted_requests': stats.aborted,
      'refused_requests': stats.refused,
  }


class Metrics:
  """Latencies of a server, and the current counters of its service."""

  def __init__(
      self, model_name: str, stats: Callable[[], service_lib.Stats | None]
  ):
    """Register all metrics; `stats` returns None while there is no service."""
    self._model_name = model_name
    self._stats = stats
    self._registry = prometheus_client.CollectorRegistry()
    self._registry.register(self)
    self._first, self._between, self._whole = (
        prometheus_client.Histogram(
            f'sglang:{name}_seconds',
            text,
            [_LABEL],
            buckets=_SECONDS,
            registry=self._registry,
        ).labels(model_name)
        for name, text in _HISTOGRAMS
    )

  def observe(self, sample: samples.Sample) -> None:
    """Record the latencies of a sample, unless it was aborted."""
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

  def collect(self) -> Iterator[core.Metric]:
    """Yield the service's counters; called for every page."""
    stats = self._stats()
    if stats is None:
      return
    values = dataclasses.asdict(stats) | _renamed(stats)
    for table, family in (
        (_GAUGES, core.GaugeMetricFamily),
        (_COUNTERS, core.CounterMetricFamily),
    ):
      for name, text in table.items():
        metric = family(name, text, labels=[_LABEL])
        metric.add_metric([self._model_name], values[name.split(':')[1]])
        yield metric
