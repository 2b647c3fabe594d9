"""Who gets a decode slot: continuous batching on the host.

Jobs wait in groups (what one caller asked for at once), which take turns, so
that a thousand jobs of one caller do not hold up one job of another. Prompts
are prefilled in blocks, copied into free slots, and decoded in segments;
between two segments finished rows are refilled and new jobs are seen.
"""

import collections
from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools

import numpy as np

from evojax.rollout import prefix
from evojax.rollout import service
from evojax.rollout import slots as slots_lib

# Decode steps between looks at the text when stop strings are in use.
_STOP_CHECK_STEPS = 16
# Chunks that are prefilled between two segments of decoding.
_CHUNKS_PER_STEP = 4


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
  group: int = 0

  @property
  def context(self) -> tuple[int, ...]:
    """What has to be prefilled: the prompt, and tokens of an earlier stay."""
    return (*self.job.prompt_tokens, *self.tokens.tolist())


class _Turns:
  """Groups of waiting entries, served in turn."""

  def __init__(self):
    self._groups: collections.OrderedDict[int, collections.deque[Entry]] = (
        collections.OrderedDict()
    )
    self._count = 0
    self._next = 0

  def __len__(self) -> int:
    return self._count

  def __iter__(self) -> Iterator[Entry]:
    for group in self._groups.values():
      yield from group

  def add(self, entries: Sequence[Entry]) -> None:
    """A new group, behind the others."""
    self._next += 1
    for entry in entries:
      entry.group = self._next
    if entries:
      self._groups[self._next] = collections.deque(entries)
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
    self._rows: dict[tuple[int, ...], int] = {}  # Of a finished block.
    self._pending: list[Entry] | None = None  # Whose block is not finished.

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
    return len(self.waiting) + len(self._pending or ())

  @property
  def cached_tokens(self) -> int:
    """Tokens in the prefix cache."""
    return len(self.tree) if self.tree is not None else 0

  def entries(self) -> list[Entry]:
    """All that have not ended."""
    live = [entry for entry in self.running if entry is not None]
    return [*live, *(self._pending or ()), *self.waiting]

  def abort(self, entry: Entry, message: str = '') -> None:
    """Ends an entry that has not ended yet; it keeps its tokens."""
    if entry in self.running:
      slot = self.running.index(entry)
      self.running[slot] = None
      self._halted[slot] = True
    elif self._pending and entry in self._pending:
      self._pending.remove(entry)
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
    for entry in reversed(self._pending or []):
      self.waiting.put_back(entry)
    self._pending, self._block, self._rows = None, None, {}

  def forget_prefixes(self) -> None:
    """Empties the prefix cache."""
    if self.tree is not None:
      self.tree.clear()

  # -------------------------------------------------------------------- steps

  def step(self) -> None:
    """Refills slots, decodes a segment and tells the listeners."""
    self._refill()
    if self.live:
      steps = self._segment()
      self.slots.decode(self._halted, steps)
      self._halted[:] = False
      self._collect(steps)

  def _segment(self) -> int:
    """Decode steps until the host must look again."""
    every = self._refill_every or _STOP_CHECK_STEPS
    if self.slots.chunk:
      # The emptier the slots, the more a job that comes meanwhile would lose.
      return max(1, every * self.live // self.slots.decode_slots)
    stops = any(entry and entry.job.params.stop for entry in self.running)
    if stops or (self.queued and self._refill_every):
      return every
    return self.slots.max_tokens

  def _refill(self) -> None:
    """Fills free slots, as far as prefilled chunks may be waited for."""
    # Where nothing decodes, nothing is held up.
    chunks = _CHUNKS_PER_STEP if self.live else np.inf
    while True:
      if self._pending is None and not self._begin():
        return
      while not self.slots.advance(self._block):
        chunks -= 1
        if chunks <= 0:
          return
      self._finish_block()

  def _begin(self) -> bool:
    """Takes the next entries from the queue; False where none can start."""
    free = self.running.count(None)
    ready, fresh, prompts = [], [], {}
    score = None
    while len(self.waiting) and len(ready) + len(fresh) < free:
      entry = self.waiting.peek()
      context = entry.context
      scored = entry.job.logprob_start is not None and not entry.started
      if not scored and context in self._rows:
        entry.cached_tokens = len(entry.job.prompt_tokens)
        ready.append(self.waiting.pop())
        continue
      if score is None:
        score = scored
      if scored != score:  # Blocks with and without scores are two programs.
        break
      if context not in prompts and len(prompts) == self.slots.prefill_rows:
        break
      prompts.setdefault(context, len(prompts))
      fresh.append(self.waiting.pop())
    if ready:
      self._insert(ready)
    if not fresh:
      return False
    cached = []
    if self.tree is not None:
      cached = [[] if score else self.tree.match(p) for p in prompts]
    self._block = self.slots.prefill(list(prompts), cached, score=bool(score))
    self._rows = prompts
    self._pending = fresh
    for entry in fresh:
      if cached and not entry.started:
        chunks = len(cached[prompts[entry.context]])
        entry.cached_tokens = min(
            chunks * self.slots.chunk, len(entry.job.prompt_tokens)
        )
    return True

  def _finish_block(self) -> None:
    """The block's entries take their slots, its chunks go into the cache."""
    if self.tree is not None:
      places = [
          (row, chunk, place)
          for prompt, row in self._rows.items()
          for chunk, place in self.tree.insert(prompt)
      ]
      if places:
        self.slots.store(places)
    entries, self._pending = self._pending, None
    self._insert(entries)

  def _insert(self, entries: Sequence[Entry]) -> None:
    free = [b for b, entry in enumerate(self.running) if entry is None]
    starts = []
    for slot, entry in zip(free, entries, strict=False):
      source = self._rows[entry.context]
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
      if entry.job.logprob_start is not None and not entry.started:
        entry.prompt = self._scores(entry, source)
    if starts:
      self.slots.insert(self._block, starts)

  def _scores(self, entry: Entry, row: int) -> tuple[service.Token, ...]:
    """Log-probs of the prompt's own tokens, from the asked one on."""
    job, block = entry.job, self._block
    found = []
    for at in range(job.logprob_start, len(job.prompt_tokens)):
      token = int(job.prompt_tokens[at])
      if not at:  # Nothing comes before it.
        found.append(service.Token(token, None))
        continue
      found.append(
          service.Token(
              token,
              float(block.logprobs[row, at]),
              _pairs(job, block.top[0][row, at], block.top[1][row, at]),
          )
      )
    return tuple(found)

  def _collect(self, steps: int) -> None:
    """Tells what was sampled, and frees the slots of those that ended."""
    live = [entry for entry in self.running if entry is not None]
    top = any(entry.job.top_logprobs for entry in live)
    width = self.slots.max_tokens
    known = np.zeros(self.slots.decode_slots, np.int32)
    if self.slots.chunk:
      # What the segments since the last look can have brought, at most: each
      # starts with a token of the prefill.
      width = min(width, 1 + (self._refill_every or _STOP_CHECK_STEPS))
      for b, entry in enumerate(self.running):
        known[b] = 0 if entry is None else len(entry.tokens)
    view = self.slots.fetch(known, width, top=top)
    for b, entry in enumerate(self.running):
      if entry is None:
        continue
      fresh = slice(int(view['count'][b]) - known[b])
      tokens = np.concatenate(
          [entry.tokens[: known[b]], view['tokens'][b, fresh]]
      )
      stop, text = self._find_stop(entry, tokens)
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

  def _find_stop(
      self, entry: Entry, tokens: np.ndarray
  ) -> tuple[int | None, str | None]:
    """(tokens up to the first stop string, that string), or Nones."""
    stops = entry.job.params.stop
    if not stops:
      return None, None

    def first(text):
      hits = [(at, s) for s in stops if (at := text.find(s)) >= 0]
      return min(hits, default=None)

    if first(self._decode_text(tokens.tolist())) is None:
      return None, None
    for n in range(1, len(tokens) + 1):
      hit = first(self._decode_text(tokens[:n].tolist()))
      if hit is not None:
        return n, hit[1]
    raise AssertionError('a stop string in the whole text but in no prefix')


def _pairs(
    job: service.Job, ids: np.ndarray, logprobs: np.ndarray
) -> tuple[tuple[int, float], ...]:
  """The best tokens and their log-probs, as many as the job wants."""
  best = slice(job.top_logprobs)
  return tuple(zip(ids[best].tolist(), logprobs[best].tolist(), strict=True))
