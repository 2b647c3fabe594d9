"""Reads the collectives of a compiled program from its HLO text."""

import dataclasses
import math
import re

KINDS = (
    'all-gather',
    'all-reduce',
    'all-to-all',
    'collective-permute',
    'reduce-scatter',
)
_BYTES = {
    'pred': 1,
    's8': 1,
    'u8': 1,
    'bf16': 2,
    'f16': 2,
    's16': 2,
    'u16': 2,
    'f32': 4,
    's32': 4,
    'u32': 4,
    'f64': 8,
    's64': 8,
    'u64': 8,
}
_ARRAY = re.compile(r'(\w+)\[([\d,]*)\]')
_INSTRUCTION = re.compile(r'%?([\w.\-]+) = (.*?) ([\w\-]+)\(')
_CALLED = re.compile(r'(?:calls|to_apply|\w+_computation)=%?([\w.\-]+)')


@dataclasses.dataclass(frozen=True)
class Collective:
  """One collective instruction."""

  kind: str
  nbytes: int  # Of its result on one chip, each time it runs.
  times: int  # Runs per run of the innermost loop of unknown length.
  loops: int  # Loops of unknown length around it.
  source: str  # Where in the Python program it comes from.
  # Whether it goes over the network between slices. All others are within one:
  # libtpu compiles what crosses to transfers of their own.
  crosses: bool = False
  conditional: bool = False  # Whether it is in a branch that may not be taken.


def find(hlo: str) -> list[Collective]:
  """Lists the collectives of every reachable computation."""
  computations, entry = _computations(hlo)
  found = []
  seen = set()

  def walk(name, times, loops, conditional=False):
    for line in computations.get(name, ()):
      match = _INSTRUCTION.search(line)
      if not match:
        continue
      _, shape, op = match.groups()
      kind = op.removesuffix('-start')
      if kind in KINDS:
        # A transfer that overlaps with computation shows up in every step of
        # it, under the same channel.
        channel = re.search(r'channel_id=(\d+)', line)
        key = (channel[1], times, loops) if channel else (line,)
        if key in seen:
          continue
        seen.add(key)
        source = re.search(r'op_name="([^"]*)"', line)
        found.append(
            Collective(
                kind,
                _nbytes(kind, shape),
                times,
                loops,
                source[1] if source else '',
                conditional=conditional,
            )
        )
      elif op == 'send' and 'xla_megascale_transfer_type' in line:
        kind = re.search(r'transfer_type="(\w+)"', line)[1]
        source = re.search(r'op_name="([^"]*)"', line)
        (dtype, dims), *_ = _ARRAY.findall(shape)
        size = math.prod(int(d) for d in dims.split(',') if d)
        found.append(
            Collective(
                kind.lower().replace('_', '-'),
                _BYTES[dtype] * size,
                times,
                loops,
                source[1] if source else '',
                crosses=True,
                conditional=conditional,
            )
        )
      elif op == 'while':
        trips = _trip_count(computations, line)
        body = re.search(r'body=%?([\w.\-]+)', line)[1]
        if trips is None:
          walk(body, 1, loops + 1, conditional)
        else:
          walk(body, times * trips, loops, conditional)
      else:
        branches = re.search(r'branch_computations=\{(.*?)\}', line)
        names = branches[1].split(', ') if branches else []
        for called in names + _CALLED.findall(line):
          branch = conditional or op == 'conditional'
          walk(called.lstrip('%'), times, loops, branch)

  walk(entry, 1, 0)
  return found


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
  computations, entry, current = {}, '', None
  for line in hlo.splitlines():
    match = re.match(r'(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{', line)
    if match:
      current = match[2]
      computations[current] = []
      entry = current if match[1] else entry
    elif line.startswith('}'):
      current = None
    elif current:
      computations[current].append(line)
  return computations, entry


def _nbytes(kind: str, shape: str) -> int:
  """Bytes of the result; of an asynchronous pair the larger, for most kinds."""
  sizes = [
      _BYTES.get(dtype, 0) * math.prod(int(d) for d in dims.split(',') if d)
      for dtype, dims in _ARRAY.findall(shape)
  ]
  # A tuple is (operand, result, ...) of one transfer, but for all-reduce it is
  # the results of several, combined.
  return sum(sizes) if kind == 'all-reduce' else max(sizes)


def _trip_count(computations: dict[str, list[str]], line: str) -> int | None:
  """Return how often a loop runs, if its condition compares with a constant.

  XLA for GPUs fuses the condition, and says how often the loop runs.
  """
  if known := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line):
    return int(known[1])
  condition = computations[re.search(r'condition=%?([\w.\-]+)', line)[1]]
  root = next(l for l in condition if l.lstrip().startswith('ROOT'))
  if 'direction=LT' not in root:
    return None
  operands = root[root.index('compare(') :].split(')')[0]
  for other in condition:
    match = re.search(r'%?([\w.\-]+) = \w+\[\]\S* constant\((\d+)\)', other)
    if match and re.search(rf'{re.escape(match[1])}(?![\w.\-])', operands):
      return int(match[2])
  return None
