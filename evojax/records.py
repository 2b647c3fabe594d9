"""Records that travel between the stages of a training step.

problem -> request -> episode -> grade -> evidence -> reward -> advantage
-> update. Axis letters: P prompts in a step, G episodes per prompt, B = P * G
sequences in group-major order, A turns of the longest episode, L tokens.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any, Protocol, runtime_checkable

import numpy as np

_SLACK = 1e-6  # A mean of scores may leave [0, 1] by rounding.
# {'role': 'user' | 'system' | 'tool' | ..., 'content': text}
Message = Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Problem:
  """One task. No policy, reward or sandbox ever sees the answer."""

  problem_id: str  # 16 hex digits: hash of the normalised problem text.
  family: str  # Generator or data-set tag, e.g. 'chain_sum'.
  messages: tuple[Message, ...]  # The prompt, in chat format.
  answer: str  # Reference answer, evaluator-owned.
  difficulty: int = 0  # 0 = easiest level of the family.
  metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  # JSON schemas of the tools that the chat template describes to the policy.
  tools: tuple[Mapping[str, Any], ...] = ()

  @property
  def question(self) -> str:
    """Text of the last user message."""
    return next(
        m['content'] for m in reversed(self.messages) if m['role'] == 'user'
    )


@dataclasses.dataclass(frozen=True)
class Demonstration:
  """One example of the supervised warm start."""

  messages: tuple[Message, ...]  # The prompt, in chat format.
  completion: str  # The last turn.
  ends: bool = True  # False: cut at the row's end, without an EOS token.
  # Turns before it: the policy's text, and the reply to it.
  before: tuple[tuple[str, Message], ...] = ()
  # True: the policy also learns to predict these replies.
  foretells: bool = False


@dataclasses.dataclass(frozen=True)
class SamplingParams:
  """Sampling parameters of one request; the names follow SGLang's contract."""

  # Maximum number of sampled tokens, >= 1; 0 only in a service. For an episode
  # of several turns: of all tokens after its prompt, observations included.
  max_tokens: int = 128
  temperature: float = 1.0  # 0 is greedy.
  top_p: float = 1.0  # (0, 1]; 1 is off.
  top_k: int = -1  # -1 is off.
  min_p: float = 0.0  # [0, 1]; 0 is off.
  stop: tuple[str, ...] = ()  # Strings that end a completion.
  ignore_eos: bool = False
  # Maximum number of sampled tokens per turn of an episode; 0: max_tokens. Only
  # `episodes` reads it, which requests one turn at a time from an engine.
  turn_tokens: int = 0
  # The rest is for a service; training and evaluation do not set it.
  min_tokens: int = 0  # A sequence cannot end before this many sampled tokens.
  stop_token_ids: tuple[int, ...] = ()  # At most 8.
  # Subtracted from a token's logit for each earlier sample of the token.
  frequency_penalty: float = 0.0
  presence_penalty: float = 0.0  # The same, but once if there is any.
  # Divides a sampled token's logit if that is positive, else multiplies it.
  repetition_penalty: float = 1.0
  logit_bias: tuple[tuple[int, float], ...] = ()  # (token, bias), at most 64.


@dataclasses.dataclass(frozen=True)
class Request:
  """One completion to sample.

  The random key of token t is fold(seed, problem_key, sample, t), so a sample
  does not depend on its neighbours in the batch.
  """

  prompt_tokens: tuple[int, ...]
  seed: int
  problem_key: int  # uint32, e.g. the first 8 hex digits of problem_id.
  sample: int  # Index within the group, 0 <= sample < G.
  params: SamplingParams

  def check(self, max_prompt_tokens: int, max_tokens: int) -> None:
    """Refuse a request that is larger than an engine was built for.

    Raises:
      ValueError: Naming the field, its value and the remedy.
    """
    n = len(self.prompt_tokens)
    if not 1 <= n <= max_prompt_tokens:
      raise ValueError(
          f'prompt of {n} tokens; config.data.max_prompt_tokens is'
          f' {max_prompt_tokens}. Raise it or drop the problem.'
      )
    if not 1 <= self.params.max_tokens <= max_tokens:
      raise ValueError(
          f'max_tokens={self.params.max_tokens} is outside 1..{max_tokens}'
          ' (config.rollout.max_tokens).'
      )


@dataclasses.dataclass(frozen=True)
class RequestBatch:
  """The problems of one rollout round, and the requests that sample them."""

  problems: Sequence[Problem]  # [P]
  prompts: Sequence[tuple[int, ...]]  # [P] rendered prompts.
  seed: int  # Seed of the sampler.
  requests: Sequence[Request] = ()  # [B]; empty if nothing is to be sampled.


FINISH_REASONS = ('stop', 'length', 'abort')  # Reasons of an engine.
# An episode may also reach its limit of turns, or of seconds.
EPISODE_ENDS = (*FINISH_REASONS, 'turns', 'seconds')


@dataclasses.dataclass(frozen=True)
class Turn:
  """One action of the policy, and the environment's reply.

  Its tokens are contiguous in `Episode.tokens`, after those of the turn before:
  first the sampled ones, then the observation.
  """

  sampled: int  # Tokens of the action, which the policy is trained on.
  observed: int = 0  # Tokens of the observation, which it only reads.
  text: str = ''  # The action, decoded without special tokens.
  # Codes of the tool that was called and of the class of its arguments, from
  # the domain's tables; None in a domain without tools.
  action: int | None = None
  argument: int | None = None
  ok: bool = True  # The call was well formed and did not fail.
  observation: str = ''  # The environment's reply, as text.


@dataclasses.dataclass(frozen=True)
class Episode:
  """All that follows one prompt; its arrays have one entry per token.

  A sampler returns episodes of one turn. The record is the same for several
  turns, so that a single completion is graded, stored and trained on exactly as
  a longer episode is.

  Raises:
    ValueError: If the turns do not cover the tokens.
  """

  tokens: np.ndarray  # int32 [n]; a final EOS token is included.
  # float32 [n], of softmax(logits / temperature); finite where not sampled.
  logprobs: np.ndarray
  finish_reason: str  # Why it ended: one of EPISODE_ENDS.
  policy_version: int  # The version of its oldest token.
  text: str  # The last turn, decoded without special tokens.
  # (version, end): which weights sampled the tokens up to `end`. Empty: all
  # those of policy_version.
  version_spans: tuple[tuple[int, int], ...] = ()
  turns: tuple[Turn, ...] = ()  # Empty becomes one turn of all tokens.
  # A JSON value that the environment left for the grader, such as a patch.
  # It is not stored as evidence, since no episode is graded twice.
  state: Any = None
  error: str = ''  # Why the environment failed; such an episode has no grade.

  def __post_init__(self):
    if not self.turns:
      turn = Turn(len(self.tokens), text=self.text)
      object.__setattr__(self, 'turns', (turn,))
    covered = sum(turn.sampled + turn.observed for turn in self.turns)
    if covered != len(self.tokens):
      raise ValueError(
          f'the turns of an episode cover {covered} tokens, not all'
          f' {len(self.tokens)}'
      )

  @property
  def turn_of_token(self) -> np.ndarray:
    """int32 [n]: index of the turn that each token belongs to."""
    lengths = [turn.sampled + turn.observed for turn in self.turns]
    return np.repeat(np.arange(len(self.turns), dtype=np.int32), lengths)

  @property
  def loss_mask(self) -> np.ndarray:
    """bool [n]: True at sampled tokens, False at observations."""
    lengths = [n for turn in self.turns for n in (turn.sampled, turn.observed)]
    return np.repeat(np.arange(len(lengths)) % 2 == 0, lengths)


@runtime_checkable
class Stream(Protocol):
  """A stream of requests, to which new ones are added while others run.

  It is a context manager; requests that are unfinished at its end are dropped.
  """

  def submit(self, requests: Mapping[int, Request]) -> None:
    """Sample requests, each under a number of the caller's."""

  def work(self) -> bool:
    """Sample briefly in this thread; return False if it has nothing left to do.

    An engine that samples in threads of its own always returns False.
    """

  def __enter__(self) -> 'Stream':
    ...

  def __exit__(self, *_: Any) -> None:
    ...


@runtime_checkable
class Sampler(Protocol):
  """An engine as an evaluation uses it."""

  def generate(self, requests: Sequence[Request]) -> list[Episode]:
    """Return one episode of one turn for each request, in their order."""


@runtime_checkable
class RolloutEngine(Sampler, Protocol):
  """An engine as training uses it: in process, or a client of servers."""

  # Returns whether the run was asked to stop. If so, sampling and grading raise
  # `runtime.preemption.Interrupted` within about a second.
  stopping: Callable[[], bool]

  def begin(self, requests: Sequence[Request]) -> Any:
    """Start `generate` and return at once; one at a time.

    The weights must not change before `finish`.
    """

  def finish(self, pending: Any) -> list[Episode]:
    """Wait for what `begin` started; return the episodes or raise the error."""

  def stream(
      self, ended: Callable[[int, Episode | BaseException], None]
  ) -> Stream:
    """Return a stream that samples requests one by one, in one process.

    Args:
      ended: Called from any thread with the number of a request and its
        episode of one turn, or the error that ended it.
    """

  def update_weights(self, params: Any, version: int) -> None:
    """Install new weights and drop every cache."""

  def metrics(self) -> Mapping[str, float]:
    """Return metrics of the last update and the servers, for metrics.jsonl."""

  def compilations(self) -> int:
    """Return the number of programs compiled so far."""

  def close(self) -> None:
    """Wait for pending samples, and free what is not garbage collected."""


# The status of a grade that says nothing about the episode: the grader itself
# failed. Such a rollout is left out of training, and an evaluation does not
# count it: neither as 0 nor as 1.
INFRA_ERROR = 'infra_error'


@dataclasses.dataclass(frozen=True)
class Grade:
  """The evaluator's grade of one episode.

  Raises:
    ValueError: If outcome or partial has an impossible value.
  """

  outcome: bool  # Solved, evaluator-owned.
  # 0..1; equals float(outcome) where there is no partial credit.
  partial: float
  # A name in the domain's codes of the column grade_status, e.g. 'ok'.
  status: str
  columns: Mapping[str, Any]  # The domain's own evidence columns.
  sandbox_tier: str = ''  # Tier of the box that graded it; '' without.
  seconds: float | None = None  # Wall time, if the domain measured it.

  def __post_init__(self):
    # A score of 0.4, or the text 'no', would count as solved.
    if self.outcome not in (True, False):
      raise ValueError(
          f'Grade.outcome={self.outcome!r} must be True or False; a score is'
          ' Grade.partial'
      )
    if not -_SLACK <= self.partial <= 1 + _SLACK:
      raise ValueError(f'Grade.partial={self.partial!r} must lie in [0, 1]')

  @property
  def graded(self) -> bool:
    """True if the grade says anything about the episode."""
    return self.status != INFRA_ERROR


@runtime_checkable
class ProblemSource(Protocol):
  """A deterministic stream of problems: a function of the cursor alone."""

  def take(self, cursor: int, count: int) -> list[Problem]:
    """Return problems cursor .. cursor + count - 1 of the stream."""

  def __len__(self) -> int:
    """Return the number of distinct problems, or a lower bound of it."""
