"""A trainer and real servers that die, hang, or serve something else.

Each run ends as one without trouble, or with one error; after that the same
call continues, and ends as one without trouble.
"""

from collections.abc import Callable
import contextlib
import json
import logging
import os
import pathlib
import shutil
import signal
import tempfile
import threading
import time
from unittest import mock

from absl.testing import absltest
import httpx2
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from evojax import domains
from evojax.rollout import answers
from evojax.rollout import fleet
from evojax.rollout import probes
from evojax.training import loop
from tests import compiled
from tests import tiny
from tests.contract import servers

_STEPS = 3
_ROUNDING = 1e-4  # Share of the way that weights went; 7e-6 was measured.


class Troubles(absltest.TestCase):
  """The suite; `make` says which server it is about."""

  __test__ = False
  make = None  # (model, *flags, port=) -> servers.Server.
  # True if samples depend on no other request. Else the weights of two runs
  # differ by what the server's rounding makes of its batches.
  exact = False
  bfloat16 = '--dtype=bfloat16'

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    key = {servers.KEY_VARIABLE: servers.KEY}
    cls.enterClassContext(mock.patch.dict(os.environ, key))
    # A run waits for seconds where it would wait for half a minute.
    for module, name in ((fleet, '_WATCH_SECONDS'), (probes, 'SECONDS')):
      cls.enterClassContext(mock.patch.object(module, name, 2.0))
    cls.folder = pathlib.Path(
        cls.enterClassContext(tempfile.TemporaryDirectory())
    )
    cls.server = cls.enterClassContext(cls.make(servers.MODEL))
    cls.undisturbed = cls.train('undisturbed')

  def setUp(self):
    super().setUp()
    with contextlib.suppress(httpx2.HTTPError):
      if httpx2.get(f'{self.server.url}/health').status_code == 200:
        return
    self.server.kill()  # The test before may have left it.
    self.server.start()

  @classmethod
  def train(
      cls,
      name: str,
      *,
      urls: tuple[str, ...] = (),
      at: dict[int, Callable[[], None]] | None = None,
      **overrides,
  ) -> bytes:
    """Trains in a workdir of this name; returns the weights at the end.

    Args:
      name: The same one continues.
      urls: Of the servers; the class's by default.
      at: What happens before a step.
      **overrides: See `tiny.make_config`.
    """
    options = dict(
        steps=_STEPS,
        rollout__kind='sglang',
        rollout__urls=urls or (cls.server.url,),
        rollout__api_key_env=servers.KEY_VARIABLE,
        rollout__timeout_seconds=120.0,
        rollout__max_tokens=24,
        optim__learning_rate=1e-4,  # The policy is a trained one.
        checkpoint__every=100,  # Only errors save in between.
        eval__sealed=False,
        eval__problems=2,
        eval__samples=1,
    )
    config = tiny.make_config(servers.MODEL, **options | overrides)
    events = iter([*(at or {}).items(), (-1, None)])
    due, happens = next(events)
    step = -1

    def watch():
      nonlocal due, happens, step
      step += 1
      if step == due:
        happens()
        due, happens = next(events)

    workdir = cls.folder / name
    loop.run(config, str(workdir), watch=watch)
    return (workdir / 'policy/model.safetensors').read_bytes()

  def post(self, path: str, body: dict | None = None):
    headers = {'Authorization': f'Bearer {servers.KEY}'}
    url = self.server.url + path
    return httpx2.post(url, json=body or {}, headers=headers, timeout=60)

  def later(self, wait: Callable[[], object], *then: Callable[[], object]):
    """Calls these, one after the other, once `wait` has returned."""

    def run():
      wait()
      for call in then:
        call()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    self.addCleanup(thread.join, 60)

  @contextlib.contextmanager
  def lines(self, lost: int):
    """Warnings as they come; so many say that a server is lost."""
    with self.assertLogs('absl', logging.WARNING) as logs:
      yield logs.output
    found = [x for x in logs.output if 'is lost' in x]
    self.assertLen(found, lost, logs.output)

  def until(self, lines: list[str], text: str) -> None:
    """Waits until a line contains a text, for a minute at most."""
    deadline = time.monotonic() + 60
    while not any(text in x for x in lines):
      if time.monotonic() > deadline:
        return
      time.sleep(0.1)

  def until_lost(self, lines: list[str]) -> Callable[[], None]:
    return lambda: self.until(lines, 'is lost')

  def assert_undisturbed(self, weights: bytes):
    """Asserts that training went as it does without trouble."""
    if self.exact:
      self.assertEqual(weights, self.undisturbed)
      return
    base = _flat(_weights(domains.policy_path(servers.MODEL)))
    wanted, found = (
        _flat(safetensors.numpy.load(each))
        for each in (self.undisturbed, weights)
    )
    moved = np.linalg.norm(wanted - base)
    self.assertGreater(moved, 0)
    self.assertLess(np.linalg.norm(found - wanted), _ROUNDING * moved)

  # ----------------------------------------------------------------- tests

  def test_only_server_is_killed_and_started_again(self):
    busy = threading.Event()

    def pause():
      # Requests that arrive now are in flight until the server dies.
      self.post('/pause_generation', {'mode': 'in_place'})
      self.later(
          lambda: time.sleep(1.0), busy.set, self.server.kill, self.server.start
      )

    with self.lines(lost=1) as lines:
      weights = self.train('killed', at={1: pause})
    self.assertTrue(busy.is_set())
    self.assert_undisturbed(weights)
    # The probes are not in flight any more, the samples of the step are: 8.
    self.assertRegex('\n'.join(lines), r'is lost: .*are sent again: 8')

  def test_only_server_hangs(self):
    with self.lines(lost=1) as lines:

      def hang():
        self.server.signal(signal.SIGSTOP)
        self.later(
            self.until_lost(lines),
            lambda: time.sleep(1.0),
            lambda: self.server.signal(signal.SIGCONT),
        )

      weights = self.train('hung', at={1: hang})
    self.assert_undisturbed(weights)
    self.assertRegex('\n'.join(lines), r'is lost: no answer to /\w+ in 2 s')

  def test_one_of_two_hangs(self):
    with self.make(servers.MODEL) as other, self.lines(lost=1):
      weights = self.train(
          'one-of-two',
          urls=(self.server.url, other.url),
          at={
              1: lambda: other.signal(signal.SIGSTOP),
              2: lambda: other.signal(signal.SIGCONT),
          },
      )
    self.assert_undisturbed(weights)

  def test_servers_join_and_leave(self):
    """One joins, stalls and leaves; the first one is replaced by a third."""
    file = self.folder / 'servers'

    def name(*urls: str):
      file.write_text(''.join(f'{url}\n' for url in urls))

    with self.make(servers.MODEL) as new, self.make(servers.MODEL) as third:
      name(self.server.url)
      # It leaves before anybody notices that it stalls.
      patient = mock.patch.object(probes, 'SECONDS', 60.0)
      with patient, self.lines(lost=0) as lines:

        def join():
          name(self.server.url, new.url)
          self.until(lines, f'{new.url} joins')
          time.sleep(2.0)  # Probed, and given weights.

        def stall_and_leave():
          new.signal(signal.SIGSTOP)
          self.later(
              lambda: time.sleep(1.0), lambda: name(self.server.url, third.url)
          )

        def replace():
          new.signal(signal.SIGCONT)
          name(third.url)
          self.until(lines, f'{self.server.url} leaves')

        weights = self.train(
            'joined',
            urls=(),
            at={
                0: join,
                1: stall_and_leave,
                2: replace,
            },
            rollout__urls=(),
            rollout__urls_file=str(file),
        )
    self.assert_undisturbed(weights)
    text = '\n'.join(lines)
    for what in (f'{new.url} joins', f'{new.url} leaves', f'{third.url} joins'):
      self.assertIn(what, text)
    self.assertIn(f'{self.server.url} leaves', text)

  def exchange(self):
    """Gives the server other weights by hand, without a name for them."""
    changed = self.folder / 'changed'
    if not changed.exists():
      shutil.copytree(self.folder / 'undisturbed' / 'policy', changed)
    body = {'model_path': str(changed)}
    answer = self.post('/update_weights_from_disk', body)
    self.assertTrue(answer.json()['success'])

  def test_somebody_exchanges_the_weights(self):
    with self.lines(lost=1) as lines:
      weights = self.train('exchanged', at={1: self.exchange})
    self.assert_undisturbed(weights)
    self.assertRegex('\n'.join(lines), 'is lost: serves weight_version=')

  def test_one_error_and_the_same_call_continues(self):
    port = int(self.server.url.rpartition(':')[2])
    with self.assertRaisesRegex(
        fleet.FleetError,
        r'(?s)could be used for 3 s .*timeout_seconds = 3\).*'
        'run the same command again',
    ):
      self.train(
          'ended', at={2: self.server.kill}, rollout__timeout_seconds=3.0
      )
    saved = [p.name for p in (self.folder / 'ended/checkpoints').iterdir()]
    self.assertLen(saved, 1)
    self.assertRegex(saved[0], r'^step_0*2$')
    other = self.folder / 'tokenizer'
    shutil.copytree(domains.policy_path(servers.MODEL), other)
    _swap_digits(other / 'tokenizer.json')
    with self.make(other, port=port):
      with self.assertRaisesRegex(
          answers.DisagreementError, 'it has another tokenizer; start it with'
      ):
        self.train('ended', rollout__timeout_seconds=3.0)
    self.server.start()
    weights = self.train('ended', rollout__timeout_seconds=3.0)
    self.assert_undisturbed(weights)

  def test_server_in_bfloat16(self):
    with self.make(servers.MODEL, self.bfloat16) as server:
      with self.assertRaisesRegex(
          answers.DisagreementError,
          'as bfloat16 does from float32, which nothing .*tis_cap=2, or start',
      ):
        self.train('uncorrected', urls=(server.url,))
      with self.assertLogs('absl', logging.WARNING) as logs:
        self.train('corrected', urls=(server.url,), grpo__tis_cap=2.0, steps=2)
    said = [x for x in logs.output if 'the update corrects for it' in x]
    self.assertLen(said, 1)
    lines = (self.folder / 'corrected/metrics.jsonl').read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if 'gap' in row]
    self.assertLen(rows, 2)
    for row in rows:
      self.assertBetween(row['gap'], 1e-4, 0.1)
      self.assertBetween(row['sync/logprob_gap'], 1e-4, 0.1)


def _weights(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Returns the tensors of a policy by name."""
  file = path / 'model.safetensors'
  with safetensors.safe_open(file, 'numpy') as tensors:
    return {name: tensors.get_tensor(name) for name in tensors.keys()}


def _flat(tensors: dict[str, np.ndarray]) -> np.ndarray:
  """Returns all weights in float32, [N], in the order of their names."""
  each = [tensors[name].astype(np.float32).ravel() for name in sorted(tensors)]
  return np.concatenate(each)


def _swap_digits(path: pathlib.Path) -> None:
  """Gives the digits 1 and 2 of a tokenizer each other's number."""
  tokenizer = json.loads(path.read_text())
  vocabulary = tokenizer['model']['vocab']  # [token, score] by number.
  one, two = (
      next(i for i, (token, _) in enumerate(vocabulary) if token == digit)
      for digit in '12'
  )
  vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
  path.write_text(json.dumps(tokenizer))


def _evojax(model, *flags, port=0):
  return servers.evojax(
      model,
      '--config.serve.context_tokens=128',
      *flags,
      port=port,
      # Programs that are compiled quickly: few tokens are sampled.
      **compiled.QUICKLY,
  )


@pytest.mark.slow
class EvojaxTest(Troubles):
  """evojax's own service."""

  __test__ = True
  bfloat16 = '--config.model.compute_dtype=bfloat16'
  exact = True
  make = staticmethod(_evojax)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.real_sglang_jax
class SglangJaxTest(Troubles):
  """sglang-jax, started by launch/sglang_jax.py."""

  __test__ = True
  make = staticmethod(servers.sglang_jax)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.real_sglang
class SglangTest(Troubles):
  """Mainline SGLang, started by launch/sglang_cpu.py."""

  __test__ = True
  make = staticmethod(servers.sglang)

  def test_somebody_exchanges_the_weights(self):
    """The server keeps the former name, so only log-probs tell."""
    with self.assertRaisesRegex(
        answers.DisagreementError, 'somebody exchanged its weights'
    ):
      self.train('exchanged', at={1: self.exchange})
    # The same call installs the run's own weights again.
    self.assert_undisturbed(self.train('exchanged'))


if __name__ == '__main__':
  absltest.main()
