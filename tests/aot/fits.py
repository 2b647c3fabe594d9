"""What tests of programs that are compiled ahead of time have in common.

A compiler for devices that are not there needs an environment of its own, and
runs in a process of it, see programs.py.
"""

import collections
import dataclasses
import json
import os
import pathlib
import subprocess
import tempfile

from absl.testing import parameterized
import pytest

ROOT = pathlib.Path(__file__).parents[2]
GIB, MIB = 2**30, 2**20
# For a sampled token of a slot: activations, and 0.6 MiB of logits to be sorted
# for top_p. Gathered weights would be hundreds.
DECODE_MIB = 1


@dataclasses.dataclass(frozen=True)
class Compiler:
  """An environment that compiles for devices that are not there."""

  variable: str  # The environment variable that names its Python.
  module: str  # A module without which it cannot compile for them.

  def compile(self, *what: str, effort: float = 0.0):
    """Return ({program: what is printed of it}, what is printed last), or skip.

    Args:
      *what: Arguments of `programs.py`.
      effort: jax_exec_time_optimization_effort; jax's default is 0.
    """
    python = os.environ.get(self.variable)
    if not python:
      pytest.skip(f'{self.variable} names no Python')
    probe = subprocess.run(
        [python, '-c', f'import {self.module}'], capture_output=True
    )
    if probe.returncode:
      pytest.skip(f'no {self.module} in the environment of {python}')
    with tempfile.TemporaryDirectory() as folder:
      run = subprocess.run(
          [python, '-m', 'tests.aot.programs', *what],
          env=os.environ
          | {
              'JAX_PLATFORMS': 'cpu',
              'JAX_ENABLE_COMPILATION_CACHE': 'False',
              'JAX_DISABLE_MOST_OPTIMIZATIONS': 'False',
              'JAX_EXEC_TIME_OPTIMIZATION_EFFORT': str(effort),
              # `programs.py` reads the memory of each program from this folder.
              'XLA_FLAGS': f'--xla_dump_to={folder}/dump',
              # There is no TPU to ask the metadata server about, or to lock: a
              # lock would outlive a killed test.
              'TPU_SKIP_MDS_QUERY': '1',
              'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
          },
          cwd=ROOT,
          capture_output=True,
          text=True,
          timeout=3600,
      )
    lines = [json.loads(l) for l in run.stdout.splitlines() if l[:1] == '{']
    if run.returncode or not lines:
      raise AssertionError(f'compiling failed:\n{run.stderr[-4000:]}')
    last = lines.pop()
    return {line['program']: line for line in lines}, last


class Fits(parameterized.TestCase):
  """A base of tests; what they compile fits, and the plan says so."""

  @pytest.fixture(autouse=True)
  def _terminal(self, capsys):
    self.capsys = capsys

  def check_programs(self, config, programs):
    """Check that nothing but the programs of a run without scores was compiled.

    Args:
      config: Config of the run.
      programs: From `Compiler.compile`.
    """
    copies = ['load', 'store'] if config.rollout.turn_tokens else []
    names = ['update', 'weights', 'prefill', 'insert', 'decode', *copies]
    self.assertEqual([*programs], names)

  def check_decode(self, config, programs):
    """Check that a decode step moves no weights between devices."""
    moved = sum(
        c['nbytes'] * c['times']
        for c in programs['decode']['collectives']
        if c['loops']
    )
    self.assertLess(moved / MIB, DECODE_MIB * config.rollout.decode_slots)

  def check_memory(self, title, programs, last, memory_gib):
    """Check what `programs.py` printed, and the plan, against the memory.

    Args:
      title: What was compiled, and for which devices.
      programs: From `Compiler.compile`.
      last: From `Compiler.compile`.
      memory_gib: GiB of a device that programs may use.
    """
    resident, bounds = last['resident'], last['bounds']
    kept = sum(resident.values())
    peak = kept + max(p['temporary'] for p in programs.values())
    planned = kept + max(bounds.values())
    with self.capsys.disabled():
      print(
          f'\n{title}, GiB per device: {peak / GIB:.2f} of {memory_gib:.2f},'
          f' planned {planned / GIB:.2f}, resident {kept / GIB:.2f}'
      )
      for each, program in programs.items():
        self._print(each, program, bounds[each])
    self.assertLess(peak / GIB, 0.95 * memory_gib)
    # The plan is never below the compiler, and not far above.
    self.assertBetween(planned / peak, 1, 1.15)

  def _print(self, name, program, bound):
    print(
        f'  {name}: arguments {program["argument"] / GIB:.2f}, temporary'
        f' {program["temporary"] / GIB:.3f}, planned {bound / GIB:.3f};'
        f' compiled in {program["seconds"]:.0f} s'
    )
    total = collections.Counter()
    count = collections.Counter()
    for c in program['collectives']:
      total[c['kind'], c['loops']] += c['nbytes'] * c['times']
      count[c['kind'], c['loops']] += 1
    for (kind, loops), nbytes in sorted(total.items()):
      per = {'update': 'micro-batch', 'decode': 'token'}.get(name, 'turn')
      print(
          f'    {count[kind, loops]:3} {kind}: {nbytes / MIB:,.0f} MiB per'
          f' {per if loops else "run"}'
      )
