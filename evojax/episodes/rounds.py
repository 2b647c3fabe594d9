"""Turns of several episodes, sampled in rounds."""

from collections.abc import Callable
from typing import Any

from evojax import records


class Rounds:
  """A stream for a sampler that has none; it samples waiting turns together."""

  def __init__(
      self,
      sampler: records.Sampler,
      ended: Callable[[int, records.Episode | BaseException], None],
  ):
    """Queue nothing yet; `ended` is called with each sampled turn."""
    self._sampler, self._ended = sampler, ended
    self._waiting: dict[int, records.Request] = {}

  def __enter__(self) -> 'Rounds':
    return self

  def __exit__(self, *_: Any) -> None:
    pass

  def submit(self, requests: dict[int, records.Request]) -> None:
    """Queue requests for the next round."""
    self._waiting |= requests

  def work(self) -> bool:
    """Sample all queued requests."""
    asked, self._waiting = dict(sorted(self._waiting.items())), {}
    if asked:
      episodes = self._sampler.generate(list(asked.values()))
      for number, episode in zip(asked, episodes, strict=True):
        self._ended(number, episode)
    return bool(asked)
