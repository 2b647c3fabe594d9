"""Continuous batching on the host: the assignment of jobs to decode slots.

Jobs wait in one group per caller. The groups take turns, so that a thousand
jobs of one caller do not delay the only job of another. Prompts are prefilled
in rows, copied into free slots, and decoded in segments of several steps;
between two segments, finished slots are refilled and new jobs are taken.
"""

import collections
from collections.abc import Callable, Collection, Iterator, Sequence
import dataclasses
import math
import operator
import time

import jax
import numpy as np

from evojax.rollout import prefix
from evojax.rollout import sampling
from evojax.rollout import service
from evojax.rollout import slots as slots_lib
from evojax.rollout import stops as stops_lib
from evojax.runtime import sharding
from evojax.runtime import waits

# Maximum length of a segment. A run checks for signals between two segments and
# must notice SIGTERM within 2 s; the margin is for steps that get slower.
_SEGMENT_SECONDS = 0.5
# Decode steps between two searches for stop strings if refill_every is 0;
# otherwise they are searched for after every refill_every steps.
_STOP_CHECK_STEPS = 16
# Chunks that are prefilled between two segments of decoding. In a burst, when
# many prompts wait for many empty slots, prefilling more is worthwhile, because
# decoding an empty slot costs as much as decoding a full one.
_CHUNKS_PER_STEP, _CHUNKS_PER_BURST = 4, 16

# Key of a row: its tokens, and whether they are scored. Scored prompts have
# their own program, whose results are not bit-equal to those of the other.
_Key = tuple[tuple[int, ...], bool]


@dataclasses.dataclass(frozen=True)
class Progress:
  """Tokens of a job since its listener was last called."""

  version: str  # Version of the weights that sampled these tokens.
  finish: service.Finish | None
  tokens: Sequence[int] = ()
  scores: slots_lib.Scores | None = None  # Log-probs of these tokens.
  # In the first Progress of a job only:
  prompt: slots_lib.Scores | None = None
  cached_tokens: int = 0


@dataclasses.dataclass(eq=False)
class Entry:
  """A job and its tokens so far."""

  job: service.Job
  listener: 'Callable[[Entry, Progress], None]'
  tokens: np.ndarray = dataclasses.field(
      default_factory=lambda: np.zeros(0, np.int32)
  )
  logprobs: np.ndarray = dataclasses.field(
      default_factory=lambda: np.zeros(0, np.float32)
  )
  started: bool = False  # Whether a Progress was made for its listener.
  cached_tokens: int = 0  # Prompt tokens that needed no prefill.
  scores: slots_lib.Scores | None = None  # Log-probs of its prompt.
  group: 'str | int' = 0  # Its caller, or the number of its batch.

  @property
  def scored(self) -> bool:
    """True while log-probs of the prompt are still to be reported."""
    return self.job.logprob_start is not None and not self.started

  @property
  def key(self) -> _Key:
    """Key of a row from which it can start.

    The tokens are the prompt and, if the job was in a slot before, all tokens
    that it sampled there.
    """
    return (*self.job.prompt_tokens, *self.tokens.tolist()), self.scored


class _Turns:
  """Groups of waiting entries, served in turn."""

  def __init__(self):
    # Caller -> deque of its entries; the caller whose turn is next comes first.
    self._groups = collections.OrderedDict()
    self._next = 0

  def __len__(self) -> int:
    return sum(map(len, self._groups.values()))

  def __iter__(self) -> Iterator[Entry]:
    for group in self._groups.values():
      yield from group

  def add(self, entries: Sequence[Entry]) -> None:
    """Append entries to their callers' groups; new groups come last."""
    self._next += 1
    for entry in entries:
      entry.group = entry.job.caller or self._next
      self._groups.setdefault(entry.group, collections.deque()).append(entry)

  def put_back(self, entry: Entry) -> None:
    """Queue an entry before all others, since it has waited already."""
    group = self._groups.setdefault(entry.group, collections.deque())
    group.appendleft(entry)
    self._groups.move_to_end(entry.group, last=False)

  def heads(self) -> Iterator[Entry]:
    """Iterate over the next entry of each caller, in turn."""
    return (group[0] for group in self._groups.values())

  def pop(self, head: Entry) -> Entry:
    """Remove one of the heads; its caller's next turn comes last now."""
    self.remove(head)
    if head.group in self._groups:
      self._groups.move_to_end(head.group)
    return head

  def remove(self, entry: Entry) -> bool:
    """Remove an entry; return False if it is not waiting."""
    group = self._groups.get(entry.group, ())
    if entry not in group:
      return False
    group.remove(entry)
    if not group:
      del self._groups[entry.group]
    return True


class Scheduler:
  """The state of all jobs; only one thread at a time may use it."""

  def __init__(
      self,
      slots: slots_lib.Slots,
      *,
      decode_text: Callable[[Sequence[int]], str],
      refill_every: int,
      jobs_may_come: bool,
  ):
    """Create a scheduler without jobs.

    Args:
      slots: The decode slots on the device.
      decode_text: Token ids -> the text in which stop strings are found,
        special tokens included.
      refill_every: Decode steps between refills; with 0, free slots are
        refilled only once all rows have ended.
      jobs_may_come: Whether jobs may come at any time, so that segments must be
        short even while no job waits.
    """
    self.slots = slots
    self.version = ''
    # If True, the caller expects more jobs, so segments are as short as when
    # jobs are queued.
    self.expecting = False
    self.waiting = _Turns()
    shapes = slots.shapes
    self.running: list[Entry | None] = [None] * shapes.decode_slots
    self.tree = prefix.PrefixTree(shapes.prefix_chunks, shapes.chunk)
    self._decode_text = decode_text
    self._refill_every = refill_every
    self._jobs_may_come = jobs_may_come
    # Decode steps of a segment, if the host must check the slots regularly.
    self._every = refill_every or _STOP_CHECK_STEPS
    # Seconds per decode step in the last segment of this process, and per chunk
    # in its last refill.
    self._step_seconds = self._chunk_seconds = math.inf
    # Whether a refill is in progress, and its chunks that count so far.
    self._refilling, self._chunks = False, 0
    # Maximum number of tokens that a slot can gain in a segment: one per step,
    # and the first one, which is sampled after the prefill.
    most = 1 + self._every if jobs_may_come else shapes.max_tokens
    self.width = min(most, shapes.max_tokens)
    # All True: this also ends rows that an earlier scheduler left running.
    self._halted = np.ones(shapes.decode_slots, bool)
    self._unsent: list[tuple[Entry, Progress]] = []
    # Prompt -> the row that holds it, the least recently used first.
    self._rows: dict[_Key, int] = {}
    self._cached_chunks: dict[int, int] = {}  # Row -> chunks from the cache.
    # Entries whose prompts are being prefilled -> the row, in order of arrival.
    self._pending: dict[Entry, int] = {}
    slots.forget_rows()

  # --------------------------------------------------------------------- jobs

  @property
  def busy(self) -> bool:
    """True if there is any job that has not ended."""
    return bool(self.queued or self.live)

  @property
  def live(self) -> int:
    """Number of entries in a slot."""
    return len(self.running) - self.running.count(None)

  @property
  def queued(self) -> int:
    """Number of entries that have no slot yet."""
    return len(self.waiting) + len(self._pending)

  def entries(self) -> list[Entry]:
    """Return all entries that have not ended."""
    return [*filter(None, self.running), *self._pending, *self.waiting]

  def abort(self, entry: Entry, message: str = '') -> None:
    """End an entry, if it has not ended yet; it keeps its tokens."""
    if entry in self.running:
      self._release(self.running.index(entry))
    elif entry in self._pending:
      row = self._pending.pop(entry)
      if row not in self._pending.values():  # No other entry needs the row.
        self._rows = {k: r for k, r in self._rows.items() if r != row}
        self.slots.assign({row: ()}, {}, ())
    elif not self.waiting.remove(entry):
      return
    finish = service.Finish('abort', message=message)
    self._send(entry, None, len(entry.tokens), finish)
    self.notify()

  def retract(self) -> None:
    """Queue all entries again, to be prefilled with their tokens so far."""
    self.forget_rows()
    for slot, entry in reversed(list(enumerate(self.running))):
      if entry is not None:
        self._release(slot)
        self.waiting.put_back(entry)

  def forget_rows(self) -> None:
    """Drop prompts that were prefilled with other weights."""
    for entry in reversed(self._pending):
      self.waiting.put_back(entry)
    self._pending, self._rows = {}, {}
    self.slots.forget_rows()

  def forget_prefixes(self) -> None:
    """Empty the rows and the prefix cache."""
    self.forget_rows()
    self.tree.clear()

  def _release(self, slot: int) -> None:
    """Free a slot, and end its sequence if that is not done."""
    self.running[slot] = None
    self._halted[slot] = True

  # -------------------------------------------------------------------- steps

  def step(self) -> None:
    """Refill slots and decode a segment.

    A refill that takes longer than a segment is continued by the next step, so
    that the caller can check for signals in between. Listeners are called in
    the next step, while the device is busy, or by `notify`.
    """
    wanted = self._refill_every or self._jobs_may_come or not self.live
    if (wanted or self._refilling) and not self._refill():
      return
    if self.live:
      self._decode()
    elif self._pending:
      self.notify()
      # Otherwise many chunks could queue on the device ahead of jobs that
      # arrive now.
      self.slots.wait()
    if not self.busy:
      self.notify()

  def _decode(self) -> None:
    """Decode a segment, and measure its time."""
    halted, self._halted = self._halted, np.zeros_like(self._halted)
    if not self._jobs_may_come:
      self.slots.wait()  # The time of a prefill does not count.
    steps, started = self._segment(), time.monotonic()
    self.slots.decode(halted, steps)
    # Listeners take time on the host, so they run while the device works.
    self.notify()
    gained = self._collect()  # Waits for the device.
    waits.advance()  # A rollout may take longer than the limit for no progress.
    self._step_seconds = (time.monotonic() - started) / min(steps, gained)

  def notify(self) -> None:
    """Call the listeners with all progress that was not sent yet."""
    unsent, self._unsent = self._unsent, []
    for entry, progress in unsent:
      entry.listener(entry, progress)

  def _segment(self) -> int:
    """Return the number of decode steps of the next segment."""
    if self._jobs_may_come:
      # The more slots are empty, the shorter the segment, since a new job waits
      # for its end.
      return max(1, self._every * self.live // len(self.running))
    stops = any(entry and entry.job.params.stop for entry in self.running)
    comes = self.queued or self.expecting
    is_short = stops or (comes and self._refill_every)
    most = self._every if is_short else self.slots.shapes.max_tokens
    # All processes must decode the same number of steps: the slowest decides.
    seconds = sharding.largest(self._step_seconds, self.slots.mesh)
    return max(1, min(most, int(_SEGMENT_SECONDS / seconds)))

  def _refill(self) -> bool:
    """Fill free slots, with a limit on the chunks that are prefilled for it.

    Returns:
      False if its time was up; the next call then continues the refill.
    """
    self._refilling, started, chunks, most = True, time.monotonic(), 0, math.inf
    while self._chunks < self._most_chunks() and chunks < most:
      if not self._begin():
        break
      if not chunks:
        most = self._most_at_once()
      live, ended = self.live, self.slots.advance()
      if ended:
        self._end(ended)
      # Chunks after which a slot was filled do not count towards the limit.
      # (Jobs that sample nothing fill no slot.)
      if self.live == live:
        self._chunks += 1
      chunks += 1
    if chunks == most:
      self.notify()
    else:
      self._refilling, self._chunks = False, 0
    if chunks and not self._jobs_may_come:
      # Otherwise all chunks would queue on the device, and the thread that
      # waits for them could not check for signals.
      self.slots.wait()
      self._chunk_seconds = (time.monotonic() - started) / chunks
    return not self._refilling

  def _most_at_once(self) -> float:
    """Return how many chunks a refill may prefill in one step."""
    if self._jobs_may_come:
      return math.inf  # A server checks for signals in another thread.
    # All processes must prefill equally many chunks: the slowest decides.
    seconds = sharding.largest(self._chunk_seconds, self.slots.mesh)
    return max(1.0, _SEGMENT_SECONDS // seconds)

  def _most_chunks(self) -> int:
    """Return how many chunks may be prefilled before the next segment."""
    rows, slots = self.slots.shapes.prefill_rows, len(self.running)
    filling = len(set(self._pending.values()))
    is_burst = 2 * filling >= rows and 8 * self.live < 7 * slots
    if self._jobs_may_come and is_burst:
      return _CHUNKS_PER_BURST
    return _CHUNKS_PER_STEP

  def _begin(self) -> bool:
    """Take entries from the queue; return whether prompts must be prefilled."""
    free = self.running.count(None) - len(self._pending)
    filling = set(self._pending.values())
    held = [row for row in self._rows.values() if row not in filling]
    rows = set(range(self.slots.shapes.prefill_rows)) - set(self._rows.values())
    rows = [*sorted(rows), *held]
    ready, fresh, entries = [], {}, []
    while free > len(ready) + len(entries):
      entry = next(self.waiting.heads(), None)
      if entry and (key := entry.key) not in self._rows and key not in fresh:
        entry = self._newcomer(rows)
      if entry is None:
        break
      key = entry.key
      if key in self._rows:
        # Move the row to the end of the order in which rows are replaced.
        row = self._rows[key] = self._rows.pop(key)
      elif key in fresh:
        row = fresh[key]
      else:
        row = fresh[key] = rows.pop(0)
      self.waiting.pop(entry)
      if key in self._rows and row not in filling:
        entry.cached_tokens = len(entry.job.prompt_tokens)
        ready.append((entry, row))
      else:
        entries.append((entry, row))
    self._insert(ready)
    if fresh:
      self._prefill(fresh)
    for entry, row in entries:
      self._pending[entry] = row
      if not entry.started:
        cached = self._cached_chunks.get(row, 0) * self.slots.shapes.chunk
        entry.cached_tokens = min(cached, len(entry.job.prompt_tokens))
    return bool(self._pending)

  def _newcomer(self, rows: Sequence[int]) -> Entry | None:
    """Return the entry that gets the first of the free rows, or None."""
    if not rows:
      return None
    heads = self.waiting.heads()
    if len(rows) > 1 or self.slots.shapes.prefill_rows == 1:
      return next(heads)
    # The last free row is kept for short prompts, so that these do not wait for
    # long ones.
    short = self.slots.shapes.chunk * _CHUNKS_PER_STEP
    return next((entry for entry in heads if len(entry.key[0]) <= short), None)

  def _prefill(self, fresh: dict[_Key, int]) -> None:
    """Assign new prompts to rows, in place of the old ones."""
    taken = set(fresh.values())
    kept = {key: row for key, row in self._rows.items() if row not in taken}
    self._rows = kept | fresh
    # A scored prompt uses no cached chunks, since the cache has no scores.
    cached = {
        row: () if scored else self.tree.match(context)
        for (context, scored), row in fresh.items()
    }
    self._cached_chunks |= {row: len(found) for row, found in cached.items()}
    self.slots.assign(
        {row: context for (context, _), row in fresh.items()},
        cached,
        [row for (_, scored), row in fresh.items() if scored],
    )

  def _end(self, rows: Collection[int]) -> None:
    """Cache the chunks of prefilled rows, and start the entries that waited."""
    ended = {key: row for key, row in self._rows.items() if row in rows}
    # Scored chunks are not cached: they are not bit-equal to unscored ones.
    plain = [(row, key[0]) for key, row in ended.items() if not key[1]]
    new = self.tree.insert([context for _, context in plain])
    if new:
      self.slots.store([(plain[i][0], chunk, place) for i, chunk, place in new])
    waited = [(e, row) for e, row in self._pending.items() if row in rows]
    for entry, _ in waited:
      del self._pending[entry]
    self._insert(waited)
    for key in ended:
      if key[1]:
        del self._rows[key]  # No other job can use a scored row.

  def _insert(self, entries: Sequence[tuple[Entry, int]]) -> None:
    """Start entries in free slots, each from the prompt in its row.

    An entry with max_tokens=0 samples nothing and ends here.
    """
    free = (b for b, entry in enumerate(self.running) if entry is None)
    starts = []
    for entry, source in entries:
      if entry.scored:
        entry.scores = self.slots.scores(source)
      if not entry.job.params.max_tokens:
        self._send(entry, None, 0, service.Finish('length'))
        continue
      slot = next(free)
      self.running[slot] = entry
      self._halted[slot] = False  # The flag was for the slot's previous entry.
      start = slots_lib.Start(slot, source, entry.job, entry.tokens)
      starts.append(start)
    if starts:
      self.slots.insert(starts)

  def _collect(self) -> int:
    """Send the tokens of a segment, and free the slots of ended entries.

    Returns:
      The largest number of new tokens of a slot, >= 1.
    """
    known = [len(entry.tokens) if entry else 0 for entry in self.running]
    top = any(entry and entry.job.top_logprobs for entry in self.running)
    found = self.slots.fetch(np.array(known, np.int32), self.width, top=top)
    most = 1
    for b, entry in enumerate(self.running):
      if entry is None:
        continue
      most = max(most, int(found.count[b]) - known[b])
      new = slice(known[b] - found.first[b], found.count[b] - found.first[b])
      entry.tokens = np.concatenate([entry.tokens, found.tokens[b, new]])
      entry.logprobs = np.concatenate([entry.logprobs, found.logprobs[b, new]])
      finish = self._finish(entry, known[b], bool(found.done[b]))
      if finish:
        self._release(b)
      best = None
      if entry.job.top_logprobs:
        best = jax.tree.map(operator.itemgetter((b, new)), found.best)
      if finish or len(entry.tokens) > known[b]:
        self._send(entry, best, known[b], finish)
    return most

  def _finish(
      self, entry: Entry, known: int, done: bool
  ) -> service.Finish | None:
    """Cut an entry after its first stop string; return why it ended, if so.

    Args:
      entry: The entry.
      known: How many of its tokens were looked at before.
      done: Whether its slot has ended.
    """
    params, tokens = entry.job.params, entry.tokens.tolist()
    hit = stops_lib.find(tokens, params.stop, self._decode_text, known)
    if hit:
      length, text = hit
      entry.tokens = entry.tokens[:length]
      entry.logprobs = entry.logprobs[:length]
      return service.Finish('stop', matched=text)
    if not done:
      return None
    last = int(entry.tokens[-1])
    eos_ids = () if params.ignore_eos else self.slots.eos_ids
    if last in eos_ids or last in params.stop_token_ids:
      return service.Finish('stop', matched=last)
    return service.Finish('length')

  def _send(
      self,
      entry: Entry,
      best: sampling.Best | None,
      known: int,
      finish: service.Finish | None,
  ) -> None:
    """Queue the tokens from index `known` on for the entry's listener."""
    first, entry.started = not entry.started, True
    progress = Progress(
        self.version,
        finish,
        entry.tokens[known:].tolist(),
        slots_lib.Scores(entry.logprobs[known:], best),
        entry.scores if first else None,
        entry.cached_tokens if first else 0,
    )
    self._unsent.append((entry, progress))
