"""The harnesses of a run by hash, and the config values each one leads to."""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

import ml_collections

from evojax import config as config_lib
from evojax.domains import base
from evojax.harness import admit
from evojax.harness import delta as delta_lib
from evojax.harness import run as run_lib
from evojax.harness import spec
from evojax.runtime import copies
from evojax.training import settings
from evojax.training import setup as setup_lib


@dataclasses.dataclass(frozen=True)
class Harnesses:
  """The directory of all harnesses that a run has used."""

  root: pathlib.Path
  setup: setup_lib.Setup  # The run's setup, without any overlay.
  # Opened domains, by the hash of a harness that changes the run's domain.
  _domains: dict[str, base.Domain] = dataclasses.field(default_factory=dict)

  def load(self, sha256: str) -> spec.Harness:
    """Return a harness whose content matches its hash."""
    return spec.load(self.root, sha256)

  def write(self, harness: spec.Harness) -> None:
    """Store a harness that all processes know; all of them call it together."""
    if copies.writes(self.root):
      spec.write(harness, self.root)

  def functions(self, sha256: str) -> run_lib.Functions:
    """Return the functions of a harness that passes the gate.

    Raises:
      ValueError: If the gate refuses it; an older gate may have admitted it.
    """
    harness, setup = self.load(sha256), self.setup
    if refused := admit.check_functions(
        harness, setup.config, setup.surface, setup.synthetic
    ):
      lines = ''.join(f'\n  {reason}' for reason in refused)
      raise ValueError(f'harness {sha256[:12]} is refused:{lines}')
    return run_lib.Functions(harness)

  def config_under(self, sha256: str) -> ml_collections.ConfigDict:
    """Return the run's config with the values of a harness."""
    overlay = self.load(sha256).overlay
    return self.setup.surface.apply(self.setup.config, overlay)

  def judge(self, sha256: str) -> base.Domain:
    """Return the evaluator's domain for policies that a harness trained.

    It has the tools and the turns that the harness gives, which a repair may
    have changed. Whatever would reveal solutions is hidden, see `Domain.audit`.
    """
    config, own = self.config_under(sha256), self.setup.domain
    if config.domain == self.setup.config.domain:
      return own.audit
    if sha256 not in self._domains:
      self._domains[sha256] = settings.make_domain(config)
    return self._domains[sha256].audit

  def values(self, sha256: str) -> dict[str, Any]:
    """Return flat config values under a harness, by dotted path."""
    flat = config_lib.flatten(self.config_under(sha256))
    del flat['evolve.salt']  # The salt decides which problems are sealed.
    flat['steps'] = self.setup.config.evolve.updates  # The steps of an arm.
    return flat

  def delta(self, before: str, after: str) -> delta_lib.Delta:
    """Return the one factor in which two harnesses differ."""
    return delta_lib.diff(
        self.load(before),
        self.load(after),
        self.setup.surface,
        config_lib.flatten(self.setup.config),
    )

  def rebased(self, before: str, after: str, onto: str) -> str:
    """Return the hash of `onto` with the change from `before` to `after`.

    It is needed when a change that trains nothing (a diagnostic or a backtest)
    was kept after a candidate was made.
    """
    if before == onto:
      return after
    old, new, base = map(self.load, (before, after, onto))
    moved = spec.Harness(
        _moved(old.overlay, new.overlay, base.overlay),
        _moved(old.files, new.files, base.files),
    )
    self.write(moved)
    return moved.sha256


def _moved(
    old: Mapping[str, Any], new: Mapping[str, Any], base: Mapping[str, Any]
) -> dict[str, Any]:
  """Return `base` with the entries in which `new` differs from `old`."""
  gone = old.keys() - new.keys()
  changed = {k: v for k, v in new.items() if k not in old or old[k] != v}
  return {k: v for k, v in base.items() if k not in gone} | changed
