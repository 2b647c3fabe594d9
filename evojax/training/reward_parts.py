"""Reward parts, computed from stored evidence, and their weighted sum.

Grading runs programs and is slow; a reward is only arithmetic on stored grades.
It is linear in its weights, and every part is logged in addition to the sum.
"""

from collections.abc import Callable, Mapping
import importlib
import inspect
import re
from typing import Any
import warnings

from jaxtyping import Float
import numpy as np

from evojax.evidence import schema
from evojax.runtime import numerals

Parts = Callable[[Any], Mapping[str, np.ndarray]]
# Largest |reward|. Advantages square it, and float32 ends at 3e38.
LARGEST = 1e15


class RewardError(ValueError):
  """A reward function or its weights do not fit the run."""


class RewardWarning(UserWarning):
  """A reward function of the user does something that no harness may do."""


def load_parts(path: str, default: Parts) -> Parts:
  """Return the reward function at a dotted path, or the domain's own for ''.

  Its signature is `parts(evidence view)`, or that of TRL, (prompts,
  completions, **columns) -> list of float, or that of verl,
  compute_score(data_source, solution_str, ground_truth, extra_info) -> float. A
  function of TRL or verl becomes one part with the function's name, in addition
  to the domain's parts. It causes a warning, because it reads text and runs in
  this process.

  Args:
    path: Dotted path of a function, or ''.
    default: The domain's own parts.

  Raises:
    RewardError: If there is no function at the path, or if one of TRL or verl
      is async, or its name cannot be the name of a part.
  """
  if not path:
    return default
  field = f'config.reward.parts={path!r}'
  module, _, name = path.rpartition('.')
  if not module or not all(x.isidentifier() for x in path.split('.')):
    raise RewardError(
        f'{field} is not the dotted path of a function, such as'
        ' my_package.my_module.parts'
    )
  try:
    found = getattr(importlib.import_module(module), name, None)
  except ImportError as error:
    raise RewardError(
        f'{field} cannot be imported ({error}); its module is looked up in'
        ' PYTHONPATH and the working directory'
    ) from error
  if not callable(found):
    raise RewardError(
        f'{field}: {module} has no function {name}; name one that it has, or'
        " leave the field empty for the domain's own"
    )
  # Each of the two libraries requires a parameter that the other lacks.
  for kind in (TrlReward, VerlReward):
    if kind.SIGNATURE in _parameters(found):
      return kind(path, found, default)
  return found


def reader(parts: Parts) -> str:
  """Return the reader whose view these parts need; see schema.READERS."""
  return getattr(parts, 'reader', 'reward')


def offers(parts: Parts, view: Any) -> str:
  """Return a list, as text, of what parts may read; valid after their call."""
  own = 'valid', 'max_tokens', 'codes', *view.columns
  return getattr(parts, 'offers', ', '.join(f'e.{name}' for name in own))


def _parameters(function: Callable[..., Any]) -> Mapping[str, Any]:
  """Return parameters by name; empty if Python cannot find them."""
  try:
    return inspect.signature(function).parameters
  except (TypeError, ValueError):  # The function is written in C.
    return {}


class _TextReward:
  """A function of texts as one part, in addition to the parts of the domain.

  A subclass defines the name of its library (KIND), a parameter that only its
  functions have (SIGNATURE), the arguments other than columns (GIVEN), and
  `_scores`, which scores lists of prompts and completions.

  Attributes:
    reader: The reader 'diagnostic', since it may read texts; see `reader`.
    offers: The arguments that the function may have, set by its first call.
  """

  reader = 'diagnostic'
  offers: str = ''

  def __init__(self, path: str, function: Callable[..., Any], default: Parts):
    self.name = getattr(function, '__name__', '')
    self._path, self._function, self._default = path, function, default
    self._parameters = _parameters(function)
    if not re.fullmatch('[a-z][a-z0-9_]*', self.name):
      raise RewardError(
          f'config.reward.parts={path!r}: its part would be named'
          f' {self.name!r}; give the function a name of lower case letters,'
          ' digits and underscores'
      )
    if inspect.iscoroutinefunction(function):
      raise RewardError(
          f'config.reward.parts={path!r} is async; name a plain function'
      )
    warnings.warn(
        f'{path} has the signature of {self.KIND}: it is the reward part'
        f" {self.name!r}, beside the domain's own, and counts with the weight"
        f' config.reward.weights.{self.name}. It reads texts and runs in this'
        ' process; a part of a harness could do neither',
        RewardWarning,
        stacklevel=3,
    )

  def __call__(self, view: Any) -> dict[str, np.ndarray]:
    parts = dict(self._default(view))
    if self.name in parts:
      raise RewardError(
          f'config.reward.parts={self._path!r}: the domain has a part'
          f' {self.name!r} already; rename the function'
      )
    # The function gets graded completions only; the others score 0.
    scores, columns = np.zeros(view.valid.shape, np.float32), _columns(view)
    self.offers = f'{self.GIVEN}, {", ".join(sorted(columns))}'
    scores[view.valid] = self._scores(
        view.prompt[view.valid].tolist(),
        view.completion[view.valid].tolist(),
        columns,
    )
    return {**parts, self.name: scores}

  def _accepted(self, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments for which the function has parameters."""
    known = self._parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
    return {n: v for n, v in given.items() if takes_all or n in known}

  def _number(self, value: Any) -> float:
    """Return one score as a number."""
    try:
      return float(value)
    except (TypeError, ValueError) as error:
      raise RewardError(
          f'{self._path} returned {value!r:.80} for a completion; it must be a'
          ' number'
      ) from error

  def _withheld(self, what: str) -> RewardError:
    return RewardError(
        f'{self._path} asks for {what}, which no reward gets: a reference'
        " answer is the evaluator's. Whether a completion is right stands in"
        " the column 'outcome' (verl: extra_info['outcome']); use that, or"
        ' leave correctness to config.reward.weights.outcome. It may read'
        f' {self.offers}'
    )


def _columns(view: Any) -> dict[str, list[Any]]:
  """Return the columns of valid completions that a reward may read, as lists.

  Tokens after the prompt are in 'completion_ids', as TRL names them.
  """
  closed = {c.name for c in schema.CORE if 'reward' not in c.readers}
  found = {
      name: getattr(view, name)[view.valid].tolist()
      for name in view.columns
      if name not in closed and not name.startswith(schema.PART_PREFIX)
  }
  observed = np.maximum(view.observation_tokens, 0).sum(-1)
  lengths = (view.n_tokens + observed)[view.valid]
  found['completion_ids'] = [
      row[:length].tolist()
      for row, length in zip(view.tokens[view.valid], lengths, strict=True)
  ]
  return found


class TrlReward(_TextReward):
  """TRL's `reward_func(prompts, completions, completion_ids, **columns)`.

  The function is called once per batch, with all valid completions. Prompts and
  completions are texts, as in TRL's standard data sets; a function that fails
  on texts gets messages, as in TRL's conversational ones. Columns are those of
  the evidence that rewards may read. A score None counts as 0, as in TRL.
  """

  KIND, SIGNATURE, GIVEN = 'TRL', 'completions', 'prompts, completions'

  _form: int | None = None  # 0: texts; 1: messages; None: not known yet.

  def _scores(self, prompts, completions, columns):
    # The texts come last, so that no column of the same name replaces them.
    texts = {'prompts': prompts, 'completions': completions}
    given = self._accepted(columns | texts)
    missing = [
        name
        for name, p in self._parameters.items()
        if p.default is p.empty
        and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        and name not in given
    ]
    if missing:
      raise self._withheld(', '.join(missing))
    try:
      scores = self._call(given)
    except KeyError as error:
      if not error.args or error.args[0] in given:
        raise
      raise self._withheld(repr(error.args[0])) from error
    count = len(completions)
    if (
        not isinstance(scores, list | tuple | np.ndarray)
        or len(scores) != count
    ):
      raise RewardError(
          f'{self._path} returned {scores!r:.80}; it must be a list of {count}'
          ' numbers, one per completion'
      )
    return [0.0 if s is None else self._number(s) for s in scores]

  def _call(self, given: Mapping[str, Any]) -> Any:
    """Call the function with texts, or with messages if texts fail."""
    roles = {'prompts': 'user', 'completions': 'assistant'}
    messages = {
        name: [[{'role': role, 'content': text}] for text in given[name]]
        for name, role in roles.items()
        if name in given
    }
    forms = given, {**given, **messages}
    if self._form is not None:
      return self._function(**forms[self._form])
    unfit = TypeError, AttributeError, IndexError
    try:
      scores, self._form = self._function(**given), 0
    except unfit as error:
      try:
        scores, self._form = self._function(**forms[1]), 1
      except unfit:
        raise error from None
    return scores


class VerlReward(_TextReward):
  """verl's `compute_score(data_source, solution_str, ground_truth, ...)`.

  The function is called once per completion. `ground_truth` is withheld: any
  use of it raises RewardError. `extra_info` holds the prompt and the evidence
  that rewards may read.
  """

  KIND, SIGNATURE = 'verl', 'solution_str'
  GIVEN = 'data_source, solution_str, extra_info with prompt'

  def _scores(self, prompts, completions, columns):
    truth = _GroundTruth(self._withheld('ground_truth'))
    found = []
    for i, (prompt, text) in enumerate(zip(prompts, completions, strict=True)):
      row = {name: values[i] for name, values in columns.items()}
      given = dict(
          data_source='evojax',
          solution_str=text,
          ground_truth=truth,
          extra_info={'prompt': prompt} | row,
      )
      try:
        score = self._function(**self._accepted(given))
      # `in`, str.replace and re raise TypeError if ground_truth is not a text.
      except TypeError as error:
        if not re.search('_GroundTruth|must be string', str(error)):
          raise
        raise self._withheld('ground_truth') from error
      if isinstance(score, Mapping):
        score = score.get('score')
      found.append(self._number(score))
    return found


class _GroundTruth:
  """A substitute for the reference answer that verl passes; any use raises."""

  def __init__(self, refusal: RewardError):
    self.__dict__['refusal'] = refusal

  def __repr__(self) -> str:
    return '<ground_truth, withheld>'

  def _refuse(self, *_, **__):
    raise self.__dict__['refusal']

  __getattr__ = __setattr__ = __str__ = __format__ = __bool__ = _refuse
  __len__ = __iter__ = __getitem__ = __contains__ = __call__ = _refuse
  __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse
  __int__ = __float__ = __index__ = __add__ = __radd__ = _refuse


def compute(
    parts: Parts, view: Any, weights: Mapping[str, float]
) -> tuple[Float[np.ndarray, 'P G'], dict[str, Float[np.ndarray, 'P G']]]:
  """Evaluate the parts on a view, and return their weighted sum.

  Args:
    parts: view -> {name: float [P, G]}.
    view: An evidence view; `view.valid` gives the shape.
    weights: Part -> its weight; parts without a weight are left out.

  Returns:
    float32 [P, G] rewards, and the parts named in `weights`, before weighting.

  Raises:
    RewardError: If a weight names no part, a part has another shape or is not
      finite, or the sum is larger than LARGEST.
  """
  shape = view.valid.shape
  # The result is checked completely, since it may come from a user's function.
  found = parts(view)
  if not isinstance(found, Mapping):
    raise RewardError(
        f'the reward returned {type(found).__name__}, not a dict of name ->'
        f' float32 array of shape {shape}'
    )
  unknown = sorted(set(weights) - set(found))
  if unknown:
    raise RewardError(
        f'config.reward.weights names {unknown}; the reward has the parts'
        f' {sorted(found)}: give a weight to those that count, in a config file'
        f' reward.weights = {dict.fromkeys(sorted(found), 1.0)}, in the'
        ' overlay.json of a harness "reward.weights.NAME": 1.0'
    )
  total, used = np.zeros(shape, np.float32), {}
  for name, weight in weights.items():
    try:
      part = np.asarray(found[name], np.float32)
    except (TypeError, ValueError) as error:
      raise RewardError(
          f'reward part {name!r} is not an array of numbers: {error}'
      ) from error
    if part.shape != shape:
      raise RewardError(
          f'reward part {name!r} has shape {part.shape}; it must be [P, G] ='
          f' {shape}'
      )
    # Values of episodes that were not graded are ignored, whatever they are.
    part = np.where(view.valid, part, 0)
    bad = np.argwhere(~np.isfinite(part)).tolist()
    if bad:
      others = numerals.counted(len(bad) - 1, 'other place')
      raise RewardError(
          f'reward part {name!r} is {part[tuple(bad[0])]} at [p, g] = {bad[0]}'
          f' and {others}; give every completion a finite number'
      )
    used[name] = part
    with np.errstate(over='ignore', invalid='ignore'):
      total += np.float32(weight) * part
  if not (largest := np.abs(total).max(initial=0)) <= LARGEST:
    raise RewardError(
        'the reward leaves the range of float32 when it is squared: it is up to'
        f' {largest:.3g}, more than {LARGEST:g}, with config.reward.weights ='
        f' {dict(weights)}; lower them'
    )
  return total, used
