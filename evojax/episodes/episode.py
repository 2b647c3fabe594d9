"""Episodes: turns of the policy, and the replies of an environment.

    prompt -> turn -> reply -> turn -> reply -> ... -> episode

One loop serves the in-process engine and servers. A turn is a request whose
prompt is everything before it: sampled token ids are reused as they are, and
only the environment's text is tokenized. While one environment works, turns of
other episodes are sampled; a waiting episode holds no decode slot, but the
complete chunks of its last prompt stay in the prefix cache while there is room.

The order in which environments reply changes no bit of an episode: a turn
depends on its prompt, its weights and the key (seed, problem, sample, turn).

The processes of a run sample all turns together, in rounds. Each environment is
in one process; after a round all receive the replies of all.
"""

from collections.abc import Callable, Sequence, Set
import concurrent.futures
import dataclasses
import functools
import math
import pickle
import queue
import threading
import time
from typing import Any

from absl import logging
import jax

from evojax import records
from evojax.domains import base
from evojax.domains import environments
from evojax.episodes import plays
from evojax.episodes import rounds
from evojax.episodes import shares
from evojax.evidence import schema
from evojax.models import tokenizer as tokenizer_lib
from evojax.runtime import daemon_threads
from evojax.runtime import decisions
from evojax.runtime import preemption
from evojax.runtime import waits

# Concurrent replies. Most environments wait for a box of their own.
_THREADS = 32
_WATCH_SECONDS = 1.0  # Time between checks whether the run is to stop.
_CHARACTERS = 16  # Maximum characters of an observation per token left.
_NO_TEXT = 'error: the answer spells a special token and cannot be shown'


class Player:
  """Plays the episodes of a domain on a sampler.

  Attributes:
    waited: Seconds in which nothing was sampled, because all episodes waited
      for their environments.
  """

  def __init__(
      self,
      sampler: records.Sampler,
      tokenizer: tokenizer_lib.Tokenizer,
      domain: base.Domain,
  ):
    """Set up without starting anything.

    Args:
      sampler: Holds the weights. If it has `stream`, see
        `records.RolloutEngine`, turns are sampled while environments work;
        otherwise sampling and replies alternate.
      tokenizer: Renders replies.
      domain: Gives limits and makes environments.
    """
    self._sampler, self._tokenizer, self._domain = sampler, tokenizer, domain
    self.waited = 0.0

  def play(
      self, asked: records.RequestBatch, only: Sequence[int] | None = None
  ) -> list[records.Episode]:
    """Return the episodes of a request batch, in the order of its requests.

    Args:
      asked: Problems and requests, group-major.
      only: Indices of the requests to play; None plays all.

    Raises:
      ValueError: If a request does not fit the sampler.
      fleet.FleetError: If no server was usable for too long.
      preemption.Interrupted: If the run was asked to stop.
    """
    indices = range(len(asked.requests)) if only is None else only
    requests = [asked.requests[i] for i in indices]
    if self._domain.limits.turns == 1:
      return self._sampler.generate([_first_turn(r) for r in requests])
    group_size = len(asked.requests) // len(asked.problems)
    problems = [asked.problems[i // group_size] for i in indices]
    own = set(shares.mine(len(asked.problems), group_size, indices))
    game = _Game(
        self._sampler,
        self._tokenizer,
        self._domain,
        problems,
        requests,
        {number for number, i in enumerate(indices) if i in own},
    )
    try:
      return game.play()
    finally:
      self.waited += game.waited

  def begin(self, asked: records.RequestBatch) -> Any:
    """Start `play` and return at once; weights are fixed until `finish`."""
    if self._domain.limits.turns == 1:
      return self._sampler.begin([_first_turn(r) for r in asked.requests])
    pool = concurrent.futures.ThreadPoolExecutor(1, 'episodes')
    future = pool.submit(self.play, asked)
    pool.shutdown(wait=False)
    return future

  def finish(self, pending: Any) -> list[records.Episode]:
    """Return the episodes that `begin` started, or raise its error."""
    if self._domain.limits.turns == 1:
      return self._sampler.finish(pending)
    return pending.result()


def _first_turn(request: records.Request) -> records.Request:
  """Return the request of the only turn of an episode without environment."""
  if not request.params.turn_tokens:
    return request
  return plays.turn_request(request, (), 0, request.params.max_tokens)


class _Game:
  """The episodes of one call of `Player.play`."""

  def __init__(
      self,
      sampler: records.Sampler,
      tokenizer: tokenizer_lib.Tokenizer,
      domain: base.Domain,
      problems: Sequence[records.Problem],
      requests: Sequence[records.Request],
      own: Set[int],
  ):
    self._sampler, self._tokenizer, self._domain = sampler, tokenizer, domain
    self._own, self._limits = own, domain.limits
    self._plays = [
        plays.Play(problem, request)
        for problem, request in zip(problems, requests, strict=True)
    ]
    self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    # Play -> time at which its reply is late, on the monotonic clock; the same
    # for environments that are being closed.
    self._replying: dict[int, float] = {}
    self._closing: dict[int, float] = {}
    self._late: set[int] = set()  # Plays that ended before their reply came.
    self._lock = threading.Lock()  # Guards `_late`.
    self._unstarted = list(range(len(requests)))[::-1]
    self._running = 0  # Number of requests at the sampler.
    self._error: BaseException | None = None
    self._leaving = False
    self.waited = 0.0  # Seconds in which the sampler was idle.
    # All processes must request the same turns at the same time.
    self._together = jax.process_count() > 1
    # Own plays whose reply the other processes do not have yet: the reply, and
    # why the episode ends with it.
    self._ready: dict[int, tuple[environments.Reply, str]] = {}
    # Only engines used in training have `stopping`.
    self._stopping = getattr(sampler, 'stopping', lambda: False)

  def play(self) -> list[records.Episode]:
    """Play all episodes; see `Player.play`."""
    streams = hasattr(self._sampler, 'stream') and not self._together
    in_rounds = functools.partial(rounds.Rounds, self._sampler)
    open_stream = self._sampler.stream if streams else in_rounds
    self._threads = daemon_threads.DaemonThreads(_THREADS, 'environment')
    try:
      with open_stream(self._on_turn) as self._stream:
        self._start()
        while self._goes_on():
          self._step()
        while self._closing:  # In several processes; else none is left.
          self._wait()
      self._drain()  # A late reply may have arrived meanwhile.
      if self._together:
        self._share_states()
    except BaseException:
      self._leave()
      raise
    finally:
      self._threads.end()
    return [play.episode() for play in self._plays]

  def _leave(self) -> None:
    """Close the environments that are still open after an error."""
    self._leaving = True
    with self._lock:  # A late reply then closes its own environment.
      self._late |= self._replying.keys()
      self._replying = {}
    self._drain()
    for number, play in enumerate(self._plays):
      if play.opened and not play.end and number not in self._late:
        self._threads.run(lambda play=play: self._abandon(play))

  def _goes_on(self) -> bool:
    """Return whether something is left to do; equal in all processes."""
    if self._together:  # The events within a round differ between processes.
      return any(not play.end for play in self._plays)
    return bool(self._running or self._replying or self._closing)

  def _start(self, ended: int = 0) -> None:
    """Request first turns, for as many plays as may have an environment.

    Args:
      ended: Number of plays of a round that have just ended, whose environments
        are still being closed in one of the processes.
    """
    most = self._limits.open or len(self._plays)
    alive = self._running + ended
    if not self._together:
      alive += len(self._replying) + len(self._closing)
    count = min(len(self._unstarted), most - alive)
    if count > 0:
      self._submit([self._unstarted.pop() for _ in range(count)])

  def _submit(self, numbers: Sequence[int]) -> None:
    """Request the next turns of some plays."""
    asked = {i: self._plays[i].next_request() for i in numbers}
    self._running += len(asked)
    self._stream.submit(asked)

  def _step(self) -> None:
    """Let the sampler work, then handle what has happened since."""
    works = self._running and self._stream.work()
    # Environments that are being closed delay a round only if they count.
    busy = self._replying or (self._closing and self._limits.open)
    if works:
      self._drain()
    elif busy or not self._together:
      self._wait()
    if self._error:
      raise self._error
    if not self._together:
      self._start()
    elif not (self._running or self._replying or busy):
      self._start(ended=self._take_together())

  def _drain(self) -> None:
    """Handle the events in the queue."""
    while True:
      try:
        self._events.get_nowait()()
      except queue.Empty:
        return
      waits.advance()

  def _wait(self) -> None:
    """Wait for an event; end what is late."""
    # A single process checks from time to time whether the run is to stop. With
    # several processes, none may leave the others waiting.
    if not self._together and self._stopping():
      raise preemption.Interrupted
    started, idle = time.monotonic(), not self._running
    times = (*self._replying.values(), *self._closing.values())
    first = min(times, default=math.inf)
    timeout = min(max(first - started, 0.0), _WATCH_SECONDS)
    try:
      event = self._events.get(timeout=timeout)
    except queue.Empty:
      event = lambda: None
    if idle:
      self.waited += time.monotonic() - started
    event()
    self._drain()
    for i in _take_late(self._replying):
      with self._lock:
        self._late.add(i)
      self._threads.replace()
      self._answer(i, self._no_reply(i), 'seconds')
    for i in _take_late(self._closing):
      self._threads.replace()
      seconds = self._limits.reply_seconds
      error = f'the environment does not close within {seconds:g} s'
      self._plays[i].error = self._plays[i].error or error

  # ------------------------------------------------------------------- events

  def _on_turn(
      self, number: int, turn: records.Episode | BaseException
  ) -> None:
    self._events.put(lambda: self._take_turn(number, turn))

  def _take_turn(
      self, number: int, turn: records.Episode | BaseException
  ) -> None:
    """Pass a sampled turn to its environment."""
    self._running -= 1
    if self._leaving:
      return
    if isinstance(turn, BaseException):
      self._error = self._error or turn
      return
    play = self._plays[number]
    play.add_turn(turn)
    if number not in self._own:  # Another process replies.
      return
    self._replying[number] = math.inf  # Until a thread starts on it.
    self._threads.run(lambda: self._reply(number))

  def _reply(self, number: int) -> None:
    """Get the reply of an environment; runs in a thread."""
    play, started = self._plays[number], time.monotonic()
    self._begin(self._replying, number)
    # An environment may run any code, the user's or a third party's.
    try:
      if not play.opened:
        play.environment = self._domain.environment(play.problem)
        play.opened = True
      reply = environments.Reply()
      if play.environment is not None:
        reply = _checked(play.environment.reply(play.last))
    except Exception as error:  # pylint: disable=broad-except
      reply = error
    seconds = time.monotonic() - started
    with self._lock:
      if number not in self._late:
        self._events.put(lambda: self._take_reply(number, reply, seconds))
        return
    self._abandon(play)

  def _begin(self, times: dict[int, float], number: int) -> None:
    """Note that a thread starts on a play, and when it will be late."""
    late = time.monotonic() + self._limits.reply_seconds

    def note() -> None:
      if number in times:
        times[number] = late

    self._events.put(note)

  def _take_reply(
      self, number: int, reply: environments.Reply | Exception, seconds: float
  ) -> None:
    play = self._plays[number]
    if self._replying.pop(number, None) is None:  # It was late after all.
      self._threads.run(lambda: self._abandon(play))
      return
    play.seconds += seconds
    if isinstance(reply, Exception):
      play.error = f'{type(reply).__name__}: {reply}'
      logging.warning(
          'the environment of problem %s failed: %s',
          play.problem.problem_id,
          play.error,
      )
      reply = self._no_reply(number)
    self._answer(number, reply)

  def _abandon(self, play: plays.Play) -> None:
    """Close an environment whose episode has already ended."""
    try:
      if play.environment is not None:
        play.environment.close()
    except Exception as error:  # pylint: disable=broad-except
      logging.warning('a late environment does not close: %s', error)

  def _no_reply(self, number: int) -> environments.Reply:
    """Return a substitute for the reply of an environment that failed."""
    # Either all turns of an episode have codes, or none has.
    codes = schema.codes_of(self._domain.columns, 'actions')
    turns = self._plays[number].turns
    if codes or any(t.action is not None for t in turns):
      code = codes.get('none', 0)
      return environments.Reply(action=code, argument=0, ok=False)
    return environments.Reply(ok=False)

  # ------------------------------------------------------------------ replies

  def _answer(
      self, number: int, reply: environments.Reply, end: str = ''
  ) -> None:
    """Take a reply or a substitute for it."""
    if self._together:  # Wait until all processes have all replies.
      self._ready[number] = reply, end
    else:
      self._go_on(number, self._as_answer(number, reply, end))

  def _as_answer(
      self, number: int, reply: environments.Reply, end: str
  ) -> plays.Answer:
    play = self._plays[number]
    ids, text = self._observe(play, reply)
    # The messages are in the text; other processes need not receive them twice.
    short = dataclasses.replace(reply, messages=reply.messages and ({},))
    return plays.Answer(short, ids, text, end, play.seconds, play.error)

  def _observe(
      self, play: plays.Play, reply: environments.Reply
  ) -> tuple[list[int], str]:
    """Return an observation as tokens and as text."""
    if not reply.messages:
      return [], ''
    most = _CHARACTERS * max(play.left, 1)
    clean = lambda text: text[:most].encode(errors='replace').decode()
    messages = [{**m, 'content': clean(m['content'])} for m in reply.messages]
    ended = play.last.tokens[-1:].tolist()
    render = lambda messages: self._tokenizer.render_reply(
        play.problem.messages,
        messages,
        ended=bool(ended) and ended[0] in self._tokenizer.eos_ids,
        tools=play.problem.tools,
    )
    try:
      ids = render(messages)
    except tokenizer_lib.TokenizerError:
      # Some texts would become special tokens when tokenized.
      messages = [{**m, 'content': _NO_TEXT} for m in messages]
      ids = render(messages)
    return ids, '\n'.join(m['content'] for m in messages)

  def _go_on(self, number: int, answer: plays.Answer) -> None:
    """Add a reply; request the next turn or end the episode."""
    play, ids = self._plays[number], answer.ids
    play.seconds, play.error = answer.seconds, answer.error
    if answer.end or play.error:
      play.end = answer.end or 'abort'
    elif not answer.reply.messages:
      play.end = play.last.finish_reason
    elif len(play.turns) >= self._limits.turns:
      play.end = 'turns'
    elif play.seconds >= self._limits.episode_seconds:
      play.end = 'seconds'
    elif len(ids) >= play.left:
      play.end = 'length'
    # Nothing reads the reply to the last turn, so it is not part of the tokens.
    play.add_reply(answer.reply, () if play.end else ids, answer.text)
    if not play.end:
      self._submit([number])
    elif number not in self._late and play.environment is not None:
      self._closing[number] = math.inf  # Until a thread starts on it.
      self._threads.run(lambda: self._close(number))

  def _close(self, number: int) -> None:
    play = self._plays[number]
    self._begin(self._closing, number)
    try:
      state, error = play.environment.close(), ''
    except Exception as e:  # pylint: disable=broad-except
      state, error = None, f'{type(e).__name__}: {e}'

    def take() -> None:
      if self._closing.pop(number, None) is not None:
        play.state, play.error = state, play.error or error

    self._events.put(take)

  # ---------------------------------------------------------------- processes

  def _take_together(self) -> int:
    """Take the replies of all processes, in the same order in each.

    Returns:
      The number of episodes that they end.
    """
    ready, self._ready = self._ready, {}
    # Rendered inside `exchange`, so that an error of one is raised in all.
    everywhere = decisions.exchange(
        lambda: {i: self._as_answer(i, *found) for i, found in ready.items()}
    )
    merged = {i: answer for part in everywhere for i, answer in part.items()}
    for i in sorted(merged):
      self._go_on(i, merged[i])
    return sum(bool(self._plays[i].end) for i in merged)

  def _share_states(self) -> None:
    """Give all processes what the environments have left for the grader."""
    for part in decisions.exchange(self._own_states):
      for i, state, error in part:
        play = self._plays[i]
        play.state, play.error = pickle.loads(state), error

  def _own_states(self) -> list[tuple[int, bytes, str]]:
    """Return number, pickled state and error of each own play.

    Raises:
      ValueError: If a state cannot be pickled.
    """
    own = [(i, self._plays[i]) for i in self._own]
    try:
      return [(i, pickle.dumps(play.state), play.error) for i, play in own]
    except Exception as error:  # pylint: disable=broad-except
      raise ValueError(
          f'domain {self._domain.name!r}: what `close` of an environment gives'
          f' must be picklable if the run has several processes: {error}'
      ) from error


def _checked(reply: Any) -> environments.Reply:
  """Return the reply of an environment, if it is one.

  Raises:
    TypeError: If it is not, or if a message has no role or no text.
  """
  if not isinstance(reply, environments.Reply) or not all(
      isinstance(message.get(key), str)
      for message in reply.messages
      for key in ('role', 'content')
  ):
    raise TypeError(
        f'it replied {reply!r:.200}, not an environments.Reply whose messages'
        ' have a role and a content that is text'
    )
  return reply


def _take_late(times: dict[int, float]) -> list[int]:
  """Remove and return the plays whose time is over."""
  now = time.monotonic()
  late = [i for i, at in times.items() if at <= now]
  for i in late:
    del times[i]
  return late
