"""The meaning of a metric, from the words in its name.

    of('train/actor/grad_norm_avg')  # 'grad_norm'

Trainers write `critic/rewards/mean`, `rollout/reward_mean` or `AvgReward`, and
no list of names is complete. A name is split into words. Words that say nothing
(`train`, `actor`, `mean`) and numbers are left out; the rest must be exactly
the words of one meaning. Names with other words, such as those of a standard
deviation, a time, a bound or the loss of a critic, therefore have no meaning
here. Only scores of evaluations may have them: the name of a data set.
"""

from collections.abc import Iterable
import re

_WORD = re.compile(r'[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+')
# Words that do not change what a metric means.
_EMPTY = set(
    'actor algo all average avg batch env episode global grpo is mean metrics'
    ' model num objective optim optimizer overall policy population ppo'
    ' reinforce rl rollout rollouts sample samples stats step timestep train'
    ' trainer training update v worker'
    .split()
)
# Prefixes of names, before a '/', that do not change the meaning, either.
_FOLDERS = {'loss', 'losses', 'misc', 'progress'}
_EVALUATION = {
    'eval', 'evals', 'evaluation', 'test', 'val', 'valid', 'validation',
}  # fmt: skip
# Training metrics with these prefixes may contain a word of _EVALUATION, too:
# rewards/unit_test_reward.
_TRAINING = re.compile(r'(?:train|training|rewards?|rollouts?)/')
# Names of a count, not of a share: rollout/num_truncated.
_COUNT = re.compile(r'(?:^|[/_])(?:num|n|count)_|_(?:num|count)$')
_SHARES = {'truncated', 'dead', 'clip'}
# A score of an evaluation has one of the first words, and none of the others.
_SOLVES = {'accuracy', 'correct', 'pass', 'solved', 'success'}
_OF_OTHERS = {'format', 'length', 'max', 'min', 'std', 'time', 'token'}
# The same for the scores of several data sets or judges.
_SCORES = _SOLVES | {'exact', 'em', 'judge', 'match', 'reward', 'score'}
_NO_SCORES = _OF_OTHERS | {
    'advantage', 'best', 'count', 'entropy', 'error', 'fail', 'failed',
    'failure', 'incorrect', 'invalid', 'kl', 'loss', 'low', 'high', 'maj',
    'penalty', 'sum', 'truncated', 'violation', 'violations', 'worst', 'wrong',
}  # fmt: skip
# Shares solved by any of several samples: pass@8, pass_at_8, pass8.
_SEVERAL = re.compile(r'pass(?:@|_at_|_)?(?!1(?!\d))\d')
# Other forms of a word, and words that are written as one -> the usual words.
_SAME = {
    'accuracies': 'accuracy',
    'acc': 'accuracy',
    'clipfrac': 'clip fraction',
    'clipfraction': 'clip fraction',
    'clipped': 'clip',
    'clipping': 'clip',
    'completions': 'completion',
    'diff': 'difference',
    'div': 'divergence',
    'frac': 'fraction',
    'generated': 'output',
    'generation': 'output',
    'gen': 'output',
    'generate': 'output',
    'gradient': 'grad',
    'gradnorm': 'grad norm',
    'approxkl': 'approx kl',
    'kld': 'kl',
    'kldiv': 'kl',
    'len': 'length',
    'lengths': 'length',
    'lr': 'learning rate',
    'logp': 'logprob',
    'logprobs': 'logprob',
    'prob': 'logprob',
    'probs': 'logprob',
    'portion': 'fraction',
    'proportion': 'fraction',
    'ratio': 'fraction',
    'ratios': 'fraction',
    'ref': 'reference',
    'responses': 'response',
    'rewards': 'reward',
    'scores': 'score',
    'seq': 'sequence',
    'seqs': 'sequence',
    'sequences': 'sequence',
    'successes': 'success',
    'overlength': 'overlong',
    'tokens': 'token',
    'trunc': 'truncated',
    'truncation': 'truncated',
}
_SOLVED = (
    'accuracy', 'accuracy reward', 'correct', 'correct fraction', 'correctness',
    'pass rate', 'solve rate', 'solved', 'success', 'success rate',
)  # fmt: skip
_TEXTS = ('completion', 'output', 'response')
# Meaning -> its names, in the usual words and without those of _EMPTY.
_NAMES = {
    'reward': ('reward', 'score', 'raw reward', 'total reward', 'task reward',
               'critic reward', 'critic score'),
    'outcome': _SOLVED,
    'entropy': ('entropy', 'token entropy', 'entropy token'),
    'kl': (
        'kl', 'kl divergence', 'kl reference', 'reference kl', 'token kl',
        'kl token', 'kl loss', 'kl penalty',
    ),
    'kl_update': ('approx kl', 'kl old', 'old kl', 'old approx kl'),
    'clip': (
        'clip fraction', 'clip rate', 'pg clip fraction', 'clip token fraction',
        'fraction clip', 'clip loss fraction', 'clip ratio',
    ),
    'grad_norm': ('grad norm', 'norm grad', 'total grad norm', 'grad l norm'),
    'learning_rate': ('learning rate',),
    'loss': ('loss', 'pg loss', 'total loss', 'final loss', 'surrogate loss'),
    'length': tuple(
        f'{text} {size}'.strip()
        for text in (*_TEXTS, 'sequence')
        for size in ('length', 'token', 'length token', 'token length')
        if text != 'sequence' or size == 'length'
    ),
    'truncated': (
        'truncated', 'truncated fraction', 'truncated rate',
        'overlong', 'overlong fraction', 'overlong rate', 'no eos fraction',
        'non stop rate',
        *(f'{text} truncated fraction' for text in _TEXTS),
        *(f'{text} clip fraction' for text in _TEXTS),
        *(f'{text} length clip fraction' for text in _TEXTS),
        *(f'truncated {text} fraction' for text in _TEXTS),
        *(f'{text} truncated rate' for text in _TEXTS),
    ),
    'dead': (
        'zero std fraction', 'zero variance fraction', 'reward zero std',
        'fraction reward zero std', 'zero advantage fraction',
        'dead group fraction', 'zero std group fraction',
    ),
    'gap': (
        'mismatch kl', 'logprob difference', 'log logprob difference',
        'logprob abs difference', 'logprob difference abs', 'vllm kl',
    ),
    'ratio': ('importance fraction', 'importance sampling fraction'),
    'staleness': (
        'staleness', 'async staleness', 'version staleness',
        'version staleness theta',
    ),
}  # fmt: skip


def _words(name: str) -> list[str]:
  """Return the words of a name, in their usual form."""
  words = [word.lower() for word in _WORD.findall(name)]
  return ' '.join(_SAME.get(word, word) for word in words).split()


_KNOWN = {
    tuple(sorted(name.split())): meaning
    for meaning, names in _NAMES.items()
    for name in names
}


def _of_evaluation(name: str) -> bool:
  """Return whether a metric is one of an evaluation, by its name."""
  return bool(
      _EVALUATION & set(_words(name)) and not _TRAINING.match(name.lower())
  )


def of(name: str) -> str:
  """Return the meaning of a metric, a name in `form.STEP`; '' if unknown.

  Args:
    name: The name that a trainer logged, with its prefixes.
  """
  *folders, last = name.split('/')
  folders = [f for f in folders if f.lower() not in _FOLDERS]
  words = _words('/'.join([*folders, last]))
  if _of_evaluation(name):
    if _SEVERAL.search(name):
      return ''
    scored = _SOLVES & set(words) and not _OF_OTHERS & set(words)
    return 'eval_outcome' if scored else ''
  left = {w for w in words if w not in _EMPTY and not w.isdigit()}
  meaning = _KNOWN.get(tuple(sorted(left)), '')
  if meaning in _SHARES and _COUNT.search(last):
    return ''
  # 'ratio' alone may be the ratio of anything; 'policy' makes it clear.
  if left == {'fraction'} and 'policy' in words:
    return 'ratio' if 'ratio' in last.lower() else ''
  # PPO of TRL logs the sums over a completion as objective/kl and /entropy.
  if meaning in ('kl', 'entropy') and 'objective' in words:
    return ''
  if meaning == 'kl' and {'rollout', 'sample'} & set(words):
    # The KL divergence between the policies of the sampler and the trainer.
    return 'gap' if 'train' in words else ''
  # A metric such as ppo_kl is the KL of the update, not that to a reference.
  return 'kl_update' if meaning == 'kl' and 'ppo' in words else meaning


def is_evaluation(name: str) -> bool:
  """Return whether a metric is an evaluation score of which more is better.

  Shares of problems that any of several samples solves (pass@k) are left out,
  as they fall when a policy becomes certain.

  Args:
    name: The name that a trainer logged, with its prefixes.
  """
  found = set(_words(name))
  return (
      bool(_of_evaluation(name) and _SCORES & found)
      and not _NO_SCORES & found
      and not _SEVERAL.search(name)
  )


def best(names: Iterable[str]) -> dict[str, str]:
  """Return meaning -> the name with that meaning and the fewest words.

  Among equally short names, the first is chosen.
  """
  found: dict[str, str] = {}
  for name in sorted(map(str, names), key=lambda n: len(_words(n))):
    if meaning := of(name):
      found.setdefault(meaning, name)
  return found
