"""Who gets a decode slot: continuous batching on the host.

Jobs wait in groups, one per caller, which take turns, so that a thousand jobs
of one caller do not hold up one job of another. Prompts are prefilled in the
rows of a block, copied into free slots, and decoded in segments; between two
segments finished slots are refilled and new jobs are seen.
"""

import collections
from collections.abc import Callable, Collection, Iterator, Sequence
import dataclasses
import functools

import numpy as np

from evojax.rollout import prefix
from evojax.rollout import service
from evojax.rollout import slots as slots_lib
from evojax.rollout import stops as stops_lib

# Decode steps between looks at the text when stop strings are in use.
_STOP_CHECK_STEPS = 16
# Chunks that are prefilled between two segments of decoding.
_CHUNKS_PER_STEP = 4

# What a row holds: a prompt, and whether it is scored, which is a program of
# its own.
_Key = tuple[tuple[int, ...], bool]


@dataclasses.dataclass(eq=False)
class Entry:
  """A job and what it has so far."""

  job: service.Job
  listener: 'Callable[[Entry, service.Chunk], None]'
  problem: int = 0  # Of its random key, with Job.seed.
  sample: int = 0
  tokens: np.ndarray = dataclasses.field(
      default_factory=lambda: np.zeros(0, np.int32)
  )
  logprobs: np.ndarray = dataclasses.field(
      default_factory=lambda: np.zeros(0, np.float32)
  )
  sent: int = 0  # Tokens that the listener has got.
  started: bool = False  # Whether the listener has got a chunk.
  cached_tokens: int = 0
  prompt: tuple[service.Token, ...] = ()  # Scored, for the first chunk.
  group: 'str | int' = 0  # Its caller, or a number where none is known.

  @property
  def scored(self) -> bool:
    """Whether log-probs of the prompt are still to be told."""
    return self.job.logprob_start is not None and not self.started

  @property
  def context(self) -> tuple[int, ...]:
    """What has to be prefilled: the prompt, and tokens of an earlier stay."""
    return (*self.job.prompt_tokens, *self.tokens.tolist())


class _Turns:
  """Groups of waiting entries, served in turn."""

  def __init__(self):
    self._groups: collections.OrderedDict[
        str | int, collections.deque[Entry]
    ] = collections.OrderedDict()
    self._count = 0
    self._next = 0

  def __len__(self) -> int:
    return self._count

  def __iter__(self) -> Iterator[Entry]:
    for group in self._groups.values():
      yield from group

  def add(self, entries: Sequence[Entry]) -> None:
    """Behind what their callers wait for; new groups behind the others."""
    self._next += 1
    for entry in entries:
      entry.group = entry.job.caller or self._next
      self._groups.setdefault(entry.group, collections.deque()).append(entry)
    self._count += len(entries)

  def put_back(self, entry: Entry) -> None:
    """Before everything else, since it has waited already."""
    group = self._groups.setdefault(entry.group, collections.deque())
    group.appendleft(entry)
    self._groups.move_to_end(entry.group, last=False)
    self._count += 1

  def peek(self) -> Entry:
    return next(iter(self._groups.values()))[0]

  def pop(self) -> Entry:
    number, group = next(iter(self._groups.items()))
    entry = group.popleft()
    self._count -= 1
    if group:
      self._groups.move_to_end(number)
    else:
      del self._groups[number]
    return entry

  def remove(self, entry: Entry) -> bool:
    group = self._groups.get(entry.group, ())
    if entry not in group:
      return False
    group.remove(entry)
    self._count -= 1
    if not group:
      del self._groups[entry.group]
    return True


class Scheduler:
  """The state of all jobs; one thread at a time."""

  def __init__(
      self,
      slots: slots_lib.Slots,
      *,
      decode_text: Callable[[Sequence[int]], str],
      refill_every: int,
  ):
    """Starts with nothing to do.

    Args:
      slots: The device side.
      decode_text: Token ids -> text without special tokens.
      refill_every: Decode steps between refills; 0 waits for all rows.
    """
    self.slots = slots
    self.version = ''
    self.waiting = _Turns()
    self.running: list[Entry | None] = [None] * slots.decode_slots
    self.tree = (
        prefix.PrefixTree(slots.prefix_chunks, slots.chunk)
        if slots.prefix_chunks
        else None
    )
    self._decode_text = decode_text
    self._refill_every = refill_every
    self._halted = np.zeros(slots.decode_slots, bool)
    self._block: slots_lib.Block | None = None
    # What the block's rows hold; the longest unused first.
    self._rows: dict[_Key, int] = {}
    self._found: dict[int, int] = {}  # Chunks that were cached, by row.
    # Whose prompts are being prefilled, in which rows; in order of arrival.
    self._pending: dict[Entry, int] = {}

  # --------------------------------------------------------------------- jobs

  @property
  def busy(self) -> bool:
    """Whether a step would do anything."""
    return bool(len(self.waiting) or self._pending or self.live)

  @property
  def live(self) -> int:
    """Entries in a slot."""
    return sum(entry is not None for entry in self.running)

  @property
  def queued(self) -> int:
    """Entries that have no slot yet."""
    return len(self.waiting) + len(self._pending)

  @property
  def cached_tokens(self) -> int:
    """Tokens in the prefix cache."""
    return len(self.tree) if self.tree is not None else 0

  def entries(self) -> list[Entry]:
    """All that have not ended."""
    live = [entry for entry in self.running if entry is not None]
    return [*live, *self._pending, *self.waiting]

  def warm_up(self) -> None:
    """Compiles all programs of a service; nothing may run or wait."""
    self.slots.warm_up(self._width)

  def abort(self, entry: Entry, message: str = '') -> None:
    """Ends an entry that has not ended yet; it keeps its tokens."""
    if entry in self.running:
      slot = self.running.index(entry)
      self.running[slot] = None
      self._halted[slot] = True
    elif entry in self._pending:
      row = self._pending.pop(entry)
      if row not in self._pending.values():  # Nobody wants it any more.
        self._rows = {k: r for k, r in self._rows.items() if r != row}
        self.slots.begin(self._block, {row: ()}, {}, ())
    elif not self.waiting.remove(entry):
      return
    self._send(entry, (), service.Finish('abort', message=message))

  def retract(self) -> None:
    """All go back to the queue, to be prefilled with their tokens so far."""
    self.forget_block()
    for slot, entry in reversed(list(enumerate(self.running))):
      if entry is not None:
        self.running[slot] = None
        self._halted[slot] = True
        self.waiting.put_back(entry)

  def forget_block(self) -> None:
    """Drops prompts that were prefilled with other weights."""
    for entry in reversed(self._pending):
      self.waiting.put_back(entry)
    self._pending, self._block, self._rows = {}, None, {}

  def forget_prefixes(self) -> None:
    """Empties the prefix cache."""
    if self.tree is not None:
      self.tree.clear()

  # -------------------------------------------------------------------- steps

  def step(self) -> None:
    """Refills slots, decodes a segment and tells the listeners."""
    self._refill()
    if self.live:
      self.slots.decode(self._halted, self._segment())
      self._halted[:] = False
      self._collect()
    elif self._pending:
      self.slots.wait()  # Rather than to run ahead of jobs that come now.

  @property
  def _every(self) -> int:
    """Decode steps between two looks of the host, where it must look."""
    return self._refill_every or _STOP_CHECK_STEPS

  @property
  def _width(self) -> int:
    """Tokens of a slot that are fetched."""
    if not self.slots.chunk:
      return self.slots.max_tokens
    # What the segments since the last look can have brought, at most: each
    # starts with a token of the prefill.
    return min(self.slots.max_tokens, 1 + self._every)

  def _segment(self) -> int:
    """Decode steps until the host must look again."""
    every = self._every
    if self.slots.chunk:
      # The emptier the slots, the more a job that comes meanwhile would lose.
      return max(1, every * self.live // self.slots.decode_slots)
    stops = any(entry and entry.job.params.stop for entry in self.running)
    if stops or (self.queued and self._refill_every):
      return every
    return self.slots.max_tokens

  def _refill(self) -> None:
    """Fills free slots, as far as prefilled chunks may be waited for."""
    chunks = 0
    while self._begin():
      if self.slots.chunk:
        ended = self.slots.advance(self._block)
        chunks += not ended
      else:
        ended = list(self._rows.values())
      if ended:
        self._end(ended)
      if chunks == _CHUNKS_PER_STEP:
        return

  def _begin(self) -> bool:
    """Takes entries from the queue; False where no prompt is prefilled."""
    free = self.running.count(None) - len(self._pending)
    filling = set(self._pending.values())
    rows = self._free_rows(filling)
    ready, fresh, entries = [], {}, []
    while len(self.waiting) and free > 0:
      entry = self.waiting.peek()
      key = entry.context, entry.scored
      if key in self._rows:
        row = self._rows[key] = self._rows.pop(key)  # The last to be replaced.
        if row not in filling:
          entry.cached_tokens = len(entry.job.prompt_tokens)
          ready.append((self.waiting.pop(), row))
          free -= 1
          continue
      elif key in fresh:
        row = fresh[key]
      elif rows:
        row = fresh[key] = rows.pop(0)
      else:
        break
      entries.append((self.waiting.pop(), row))
      free -= 1
    self._insert(ready)
    if fresh:
      self._prefill(fresh)
    for entry, row in entries:
      self._pending[entry] = row
      if not entry.started:
        cached = self._found.get(row, 0) * self.slots.chunk
        entry.cached_tokens = min(cached, len(entry.job.prompt_tokens))
    return bool(self._pending)

  def _free_rows(self, filling: Collection[int]) -> list[int]:
    """Rows that may take a prompt: those without one first."""
    every = list(range(self.slots.prefill_rows))
    if not self.slots.chunk:  # All are replaced at once.
      return every
    held = [row for row in self._rows.values() if row not in filling]
    return [r for r in every if r not in self._rows.values()] + held

  def _prefill(self, fresh: dict[_Key, int]) -> None:
    """Rows take prompts in place of what they held."""
    if not self.slots.chunk:
      self._rows = fresh
      self._block = self.slots.prefill([context for context, _ in fresh])
      return
    taken = set(fresh.values())
    kept = {key: row for key, row in self._rows.items() if row not in taken}
    self._rows = kept | fresh
    # What is scored is computed.
    cached = {
        row: self.tree.match(context)
        for (context, scored), row in fresh.items()
        if self.tree is not None and not scored
    }
    for row in taken:
      self._found[row] = len(cached.get(row, ()))
    self._block = self._block or self.slots.open()
    self.slots.begin(
        self._block,
        {row: context for (context, _), row in fresh.items()},
        cached,
        [row for (_, scored), row in fresh.items() if scored],
    )

  def _end(self, rows: Collection[int]) -> None:
    """Entries of rows that are done take slots, their chunks are cached."""
    ended = {key: row for key, row in self._rows.items() if row in rows}
    if self.tree is not None:
      # A scored chunk is not bit-equal to one of the other program.
      plain = [(key[0], row) for key, row in ended.items() if not key[1]]
      places = [
          (plain[number][1], chunk, place)
          for number, chunk, place in self.tree.insert([c for c, _ in plain])
      ]
      if places:
        self.slots.store(places)
    waited = [(e, row) for e, row in self._pending.items() if row in rows]
    for entry, _ in waited:
      del self._pending[entry]
    self._insert(waited)
    for key in ended:
      if key[1]:
        del self._rows[key]  # Its scores are of no use to others.

  def _insert(self, entries: Sequence[tuple[Entry, int]]) -> None:
    """Entries take slots, with what the rows beside them hold."""
    free = [b for b, entry in enumerate(self.running) if entry is None]
    starts = []
    for slot, (entry, source) in zip(free, entries, strict=False):
      self.running[slot] = entry
      self._halted[slot] = False  # That was the slot's previous tenant.
      starts.append(
          slots_lib.Start(
              slot,
              source,
              entry.job.seed,
              entry.problem,
              entry.sample,
              entry.job.params,
              entry.tokens,
              entry.job.top_logprobs,
          )
      )
      if entry.scored:
        entry.prompt = self._scores(entry, source)
    if starts:
      self.slots.insert(self._block, starts)

  def _scores(self, entry: Entry, row: int) -> tuple[service.Token, ...]:
    """Log-probs of the prompt's own tokens, from the asked one on."""
    job, scores = entry.job, self._block.scores[row]
    found = []
    for at in range(job.logprob_start, len(job.prompt_tokens)):
      token = int(job.prompt_tokens[at])
      if not at:  # Nothing comes before it.
        found.append(service.Token(token, None))
        continue
      found.append(
          service.Token(
              token,
              float(scores.logprobs[at]),
              _pairs(job, scores.top_tokens[at], scores.top_logprobs[at]),
          )
      )
    return tuple(found)

  def _collect(self) -> None:
    """Tells what was sampled, and frees the slots of those that ended."""
    live = [entry for entry in self.running if entry is not None]
    top = any(entry.job.top_logprobs for entry in live)
    known = np.zeros(self.slots.decode_slots, np.int32)
    if self.slots.chunk:
      for b, entry in enumerate(self.running):
        known[b] = 0 if entry is None else len(entry.tokens)
    view = self.slots.fetch(known, self._width, top=top)
    for b, entry in enumerate(self.running):
      if entry is None:
        continue
      fresh = slice(int(view['count'][b]) - known[b])
      tokens = np.concatenate(
          [entry.tokens[: known[b]], view['tokens'][b, fresh]]
      )
      stop = text = None
      if entry.job.params.stop:
        hit = stops_lib.find(
            tokens.tolist(), entry.job.params.stop, self._decode_text
        )
        stop, text = hit or (None, None)
      if stop is None and not view['done'][b] and not self.slots.chunk:
        continue  # A batch hears of its samples when they end.
      if stop is not None:
        tokens = tokens[:stop]
      fresh = slice(len(tokens) - known[b])
      logprobs = view['logprobs'][b, fresh]
      new = ()
      if self.slots.chunk:
        best = ((),) * len(logprobs)
        if entry.job.top_logprobs:
          best = tuple(
              map(
                  functools.partial(_pairs, entry.job),
                  view['top_tokens'][b, fresh],
                  view['top_logprobs'][b, fresh],
              )
          )
        new = tuple(
            map(
                service.Token,
                tokens[known[b] :].tolist(),
                logprobs.tolist(),
                best,
            )
        )
      entry.tokens = tokens
      entry.logprobs = np.concatenate([entry.logprobs[: known[b]], logprobs])
      finish = None
      if stop is not None:
        finish = service.Finish('stop', matched=text)
        self._halted[b] = True
      elif view['done'][b]:
        finish = self._finish(entry)
      if finish is not None:
        self.running[b] = None
      if new or finish is not None:
        self._send(entry, new, finish)

  def _finish(self, entry: Entry) -> service.Finish:
    """Why a row that is done ended."""
    last, params = int(entry.tokens[-1]), entry.job.params
    ends = () if params.ignore_eos else self.slots.eos_ids
    if last in ends or last in params.stop_token_ids:
      return service.Finish('stop', matched=last)
    return service.Finish('length')

  def _send(
      self,
      entry: Entry,
      tokens: tuple[service.Token, ...],
      finish: service.Finish | None,
  ) -> None:
    first = not entry.started
    entry.started = True
    entry.sent += len(tokens)
    entry.listener(
        entry,
        service.Chunk(
            tokens,
            self.version,
            finish,
            prompt=entry.prompt if first else (),
            cached_tokens=entry.cached_tokens if first else 0,
        ),
    )


def _pairs(
    job: service.Job, ids: np.ndarray, logprobs: np.ndarray
) -> tuple[tuple[int, float], ...]:
  """The best tokens and their log-probs, as many as the job wants."""
  best = slice(job.top_logprobs)
  return tuple(zip(ids[best].tolist(), logprobs[best].tolist(), strict=True))
