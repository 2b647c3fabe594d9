"""Child process that calls the user's own grader.

It runs as a script with `-P` and imports nothing from evojax. A socket carries
one line of JSON per message. The first message names the function, which is
imported here; the answer tells which of two signatures it has. Each later
message holds items to score. Nothing that a policy wrote is executed:
completions are arguments of the function, and an exception that it raises is
sent as an answer.
"""

import asyncio
import ctypes
import functools
import importlib
import inspect
import json
import os
import resource
import signal
import socket
import sys

_PR_SET_PDEATHSIG = 1
_TEXT_CHARS = 2000  # Longer texts in columns and messages are cut.
_VERL = ('data_source', 'ground_truth', 'extra_info')
_TRL = ('prompts', 'completions', 'completion_ids', 'log_extra', 'log_metric')
# Typical errors of a function that gets text instead of messages, or vice
# versa.
_UNFIT = (TypeError, AttributeError, IndexError)


class SetupError(Exception):
  """The function cannot be used; the message goes to the user."""


class Function:
  """The function, called with the arguments that verl or TRL would pass.

  Attributes:
    kind: 'verl' or 'TRL'.
    needs: Required columns of the data set.
  """

  def __init__(self, path, kwargs):
    """Import the function.

    Args:
      path: Dotted path of a function or class.
      kwargs: Constructor arguments of a class; additional arguments of a
        function.
    """
    found = _load(path)
    bind = lambda f: functools.partial(f, **kwargs) if kwargs else f
    self._function = found(**kwargs) if inspect.isclass(found) else bind(found)
    try:
      parameters = inspect.signature(self._function).parameters
    except (TypeError, ValueError) as error:
      raise SetupError(f'its signature is not known ({error})') from error
    named = [
        p
        for p in parameters.values()
        if p.name not in kwargs
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    required = [p.name for p in named if p.default is p.empty]
    self.takes = [p.name for p in named]
    self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    self._swap = False  # Pass text instead of messages, or vice versa.
    self._loop = asyncio.new_event_loop()
    if 'completions' in self.takes:
      self.kind = 'TRL'
      self.needs = [n for n in required if n not in _TRL]
    elif 'ground_truth' in self.takes:
      # verl calls the text solution_str; its own functions also call it
      # model_output and predict_str.
      texts = [n for n in required if n not in _VERL]
      self.kind, self.needs = 'verl', []
      if len(texts) != 1:
        raise SetupError(
            f'it needs the arguments {texts} besides {", ".join(_VERL)}; one of'
            ' them is the completion, the others belong in'
            ' domain.kwargs.grader_options.kwargs'
        )
      self._text = texts[0]
    else:
      raise SetupError(
          f'it takes {self.takes}; a grader has the signature of verl,'
          ' compute_score(data_source, solution_str, ground_truth,'
          ' extra_info=None), or of TRL, f(completions, answer, **kwargs)'
      )

  def score(self, items):
    """Return {score, columns} of each item; exceptions pass through."""
    if self.kind == 'verl':
      return [self._verl(item) for item in items]
    return self._trl(items)

  def fit(self, item):
    """Find out from one item whether the function takes text or messages.

    Most functions written for TRL take messages. A data set of questions and
    answers does not show whether this one does.
    """
    if self.kind == 'verl':
      return
    for self._swap in (False, True):
      try:
        return self._trl([item])
      except _UNFIT:
        continue
      except Exception:  # The type fits; it fails for other reasons.
        return
    self._swap = False

  def _accepted(self, given):
    if self._takes_all:
      return given
    return {n: v for n, v in given.items() if n in self.takes}

  def _call(self, given):
    result = self._function(**given)
    if inspect.isawaitable(result):

      async def wait():
        return await result

      result = self._loop.run_until_complete(wait())
    return result

  def _verl(self, item):
    info = item['columns'].get('extra_info')
    given = {
        'data_source': item['columns'].get('data_source', item['family']),
        'ground_truth': item['answer'],
        'extra_info': item['columns']
        | (info if isinstance(info, dict) else {}),
    }
    result = self._call(self._accepted(given) | {self._text: item['text']})
    columns = {}
    if isinstance(result, dict):
      if 'score' not in result:
        raise SetupError(
            f"it returned a dict without 'score': {sorted(map(str, result))}"
        )
      columns = {str(k): _plain(v) for k, v in result.items() if k != 'score'}
      result = result['score']
    return {'score': _number(result), 'columns': columns}

  def _trl(self, items):
    extra = {}
    names = set().union(*(item['columns'] for item in items))
    given = {n: [i['columns'].get(n) for i in items] for n in names}
    given['completion_ids'] = [item['tokens'] for item in items]
    given['log_extra'] = lambda name, values: extra.update({name: list(values)})
    given['log_metric'] = lambda name, value: None
    if items[0]['conversational'] != self._swap:
      given['prompts'] = [item['messages'] for item in items]
      given['completions'] = [
          [{'role': 'assistant', 'content': item['text']}] for item in items
      ]
    else:
      given['prompts'] = [item['messages'][-1]['content'] for item in items]
      given['completions'] = [item['text'] for item in items]
    scores = self._call(self._accepted(given))
    if isinstance(scores, (str, bytes, dict)) or not hasattr(scores, '__len__'):
      raise SetupError(f'it returned {scores!r:.80}, not a list of scores')
    if len(scores) != len(items):
      raise SetupError(
          f'it returned {len(scores)} scores for {len(items)} completions'
      )
    return [
        {
            'score': _number(score),
            'columns': {
                str(n): _plain(v[i]) for n, v in extra.items() if i < len(v)
            },
        }
        for i, score in enumerate(scores)
    ]


def _load(path):
  """Return the object at a dotted path."""
  module, _, name = path.rpartition('.')
  try:
    found = getattr(importlib.import_module(module), name, None)
  except ModuleNotFoundError as error:
    if error.name and f'{module}.'.startswith(f'{error.name}.'):
      raise SetupError(
          f'there is no module {error.name!r}; it is looked up in PYTHONPATH'
          ' and the working directory'
      ) from error
    raise SetupError(f'{module} cannot be imported: {error}') from error
  if not callable(found):
    raise SetupError(f'module {module} has no function {name}')
  return found


def _number(value):
  """Return a score as a number; None stays None."""
  if value is None:
    return None
  if isinstance(value, (str, bytes, complex)):
    raise SetupError(
        f'it returned {value!r:.80} for a completion, not a number'
    )
  try:
    return float(value)
  except (TypeError, ValueError) as error:
    raise SetupError(
        f'it returned {value!r:.80} for a completion, not a number'
    ) from error


def _plain(value):
  """Return the value of a column in a form that JSON allows."""
  if hasattr(value, 'item') and getattr(value, 'size', 1) == 1:
    value = value.item()
  if isinstance(value, (bool, int, float)) or value is None:
    return value
  return str(value)[:_TEXT_CHARS]


def _failure(error):
  return f'{type(error).__name__}: {error}'[:_TEXT_CHARS]


def _limit(parent, memory_bytes):
  """Limit the memory; end this process when its parent ends."""
  if memory_bytes:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
      memory_bytes = min(memory_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, hard))
  if sys.platform == 'linux':
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
  if os.getppid() != parent:  # The parent has already ended.
    os._exit(1)


def main():
  descriptor, parent, memory_bytes = map(int, sys.argv[1:])
  _limit(parent, memory_bytes)
  channel = socket.socket(fileno=descriptor).makefile('rwb')

  def answer(message):
    channel.write(json.dumps(message).encode() + b'\n')
    channel.flush()

  hello = json.loads(channel.readline())
  try:
    function = Function(hello['path'], hello['kwargs'])
    missing = [n for n in function.needs if n not in hello['columns']]
    if not missing:
      function.fit(hello['trial'])
  except SetupError as error:
    return answer({'refused': str(error)})
  except BaseException as error:  # Even an import may call sys.exit.
    return answer({'refused': f'starting it raised {_failure(error)}'})
  answer({'kind': function.kind, 'missing': missing, 'takes': function.takes})
  for line in channel:
    try:
      message = {'scores': function.score(json.loads(line))}
    except SetupError as error:
      message = {'refused': str(error)}
    except MemoryError:
      # The memory left may not be enough for the next call.
      os._exit(1)
    except (Exception, SystemExit) as error:
      message = {'raised': _failure(error)}
    answer(message)


if __name__ == '__main__':
  main()
