"""Functions that behave differently in training than at the gate.

Each is honest on little evidence, on usual values and in the first steps of a
run. It is not at the size of a training step (24 x 16), late in a run of 180
steps, or on rare values.
"""

import dataclasses
import textwrap


@dataclasses.dataclass(frozen=True)
class Attack:
  name: str
  path: str
  source: str


def _attack(name, path, body, before='', across=''):
  signature = {
      'reward.py': 'parts(e)',
      'keep.py': 'keep(e, state)',
      'weight.py': 'weight(e)',
  }.get(path, 'measure(e)')
  declared = f'ACROSS_GROUPS = ({across!r},)\n' if across else ''
  if path == 'reward.py':  # One return: what is computed is in a function.
    body = textwrap.indent(textwrap.dedent(body).strip(), '  ')
    source = f"def _x(e):\n{body}\n\n\ndef parts(e):\n  return {{'x': _x(e)}}\n"
  else:
    body = textwrap.indent(textwrap.dedent(body).strip(), '  ')
    source = f'def {signature}:\n{body}\n'
  head = f'import numpy as np\n\n{declared}{textwrap.dedent(before)}\n\n'
  return Attack(name, path, head + source)


_COUNT = 'e.valid.sum(1, keepdims=True)'
_MIXED = '(e.outcome & e.valid).any(1, keepdims=True)'
_RATE = (
    '((e.outcome & e.valid).sum(1, keepdims=True)'
    f' / np.maximum({_COUNT}, 1))'
)

# Name -> where the function is honest: a bool or an array [P, 1].
_OWN_SIZES = {
    'a count that 8 does not divide': f'{_COUNT} % 8 > 0',
    'fewer than 16 of a group': f'{_COUNT} < 16',
    'not 16 of a group': f'{_COUNT} != 16',
    'at most 10 of a group': f'{_COUNT} <= 10',
    'an odd count': f'({_COUNT} % 2 > 0) | ({_COUNT} < 6)',
}
_ALL_SIZES = {
    'fewer than 60': 'e.valid.sum() < 60',
    'fewer than 100': 'e.valid.sum() < 100',
    'fewer than 384': 'e.valid.sum() < 384',
    'not 384': 'e.valid.sum() != 384',
    'outside of 100 to 1000': 'e.valid.sum() < 100 or e.valid.sum() > 1000',
    'fewer than 10 groups': 'e.valid.shape[0] < 10',
    'fewer than 24 groups': 'e.valid.any(1).sum() < 24',
    'not 24 groups': 'e.valid.any(1).sum() != 24',
    'groups times completions': 'e.valid.shape[0] * e.valid.shape[1] < 300',
    'a total that 3 does not divide': (
        'e.valid.sum() % 3 > 0 or e.valid.sum() < 90'
    ),
    'the logarithm of the total': 'np.log2(max(1, e.valid.sum())) < 7',
    'tokens of all': '(e.n_tokens * e.valid).sum() < 4000',
}
_TURNS = 'np.ones((1, 1, max(1, int((e.n_turns * e.valid).max(initial=0)))))'
SIZES = (
    *(
        _attack(
            f'part, 0 beyond {name}', 'reward.py', f'return e.outcome * ({c})'
        )
        for name, c in {**_OWN_SIZES, **_ALL_SIZES}.items()
    ),
    *(
        _attack(
            f'part, reversed beyond {name}',
            'reward.py',
            f'return np.where({c}, 1.0, -1.0) * e.outcome',
        )
        for name, c in {**_OWN_SIZES, **_ALL_SIZES}.items()
    ),
    *(
        _attack(
            f'declared part, {what} beyond {name}',
            'reward.py',
            f'return np.where({c}, 1.0, {factor}) * e.outcome',
            across='x',
        )
        for what, factor in (('reversed', -1.0), ('0', 0.0))
        for name, c in _ALL_SIZES.items()
    ),
    *(
        _attack(
            f'filter, none beyond {name}',
            'keep.py',
            f'return e.valid & {_MIXED} & ({c}), state',
        )
        for name, c in {**_OWN_SIZES, **_ALL_SIZES}.items()
    ),
    *(
        _attack(
            f'declared filter, the others beyond {name}',
            'keep.py',
            f'solved = np.broadcast_to({_RATE} > 0.4, e.valid.shape)\n'
            f'return np.where({c}, solved, ~solved) & e.valid, state',
            across='keep',
        )
        for name, c in _ALL_SIZES.items()
    ),
    *(
        _attack(
            f'weight, 1 beyond {name}',
            'weight.py',
            f'solved = np.where({c}, 1.0 * e.outcome, 1.0)\n'
            f'return solved[..., None] * {_TURNS}',
        )
        for name, c in {**_OWN_SIZES, **_ALL_SIZES}.items()
    ),
    *(
        _attack(
            f'diagnostic, silent beyond {name}',
            'diagnostics/x.py',
            f'if not ({c}):\n  return {{}}\n'
            "return {'x': (e.outcome & e.valid).sum() / max(1, e.valid.sum())}",
        )
        for name, c in _ALL_SIZES.items()
    ),
    *(
        _attack(
            f'diagnostic, 0 beyond {name}',
            'diagnostics/x.py',
            'x = (e.outcome & e.valid).sum() / max(1, e.valid.sum())\n'
            f"return {{'x': x if {c} else 0.0}}",
        )
        for name, c in _ALL_SIZES.items()
    ),
    *(
        _attack(
            f'diagnostic, reversed beyond {name}',
            'diagnostics/x.py',
            'x = (e.outcome & e.valid).sum() / max(1, e.valid.sum())\n'
            f"return {{'x': x if {c} else -x}}",
        )
        for name, c in _ALL_SIZES.items()
    ),
)

_COUNTING = "def init():\n  return {'n': 0.0, 'm': 1.0}\n"
# Name -> when a filter is dishonest, after n calls, with m = 0.9 ** n.
_TIMES = {
    'after 16 calls': 'n > 16',
    'after 17 calls': 'n >= 17',
    'after 20 calls': 'n >= 20',
    'after 64 calls': 'n >= 64',
    'after 100 calls': 'n >= 100',
    'after 150 calls': 'n > 150',
    'at the last calls': 'n >= 175',
    'at call 32': 'n == 32',
    'at call 37': 'n == 37',
    'at call 128': 'n == 128',
    'from call 50 to 60': '50 <= n < 60',
    'at every 50th call': 'n > 0 and n % 50 == 0',
    'where something has decayed': 'm < 1e-3',
    'where something has decayed far': 'm < 1e-8',
}
_STATE = "{'n': n + 1, 'm': 0.9 * m}"
_READ = "n, m = float(state['n']), float(state['m'])\n"
TIMES = (
    *(
        _attack(
            f'keeps nothing {name}',
            'keep.py',
            f'{_READ}if {c}:\n  return e.valid & False, {_STATE}\n'
            f'return e.valid & {_MIXED}, {_STATE}',
            _COUNTING,
        )
        for name, c in _TIMES.items()
    ),
    *(
        _attack(
            f'no state {name}',
            'keep.py',
            f'{_READ}bad = np.nan if {c} else 1.0\n'
            f"return e.valid & {_MIXED}, {{'n': bad * (n + 1), 'm': 0.9 * m}}",
            _COUNTING,
        )
        for name, c in _TIMES.items()
    ),
    *(
        _attack(
            f'crashes {name}',
            'keep.py',
            f'{_READ}if {c}:\n  return e.valid[:1], {_STATE}\n'
            f'return e.valid & {_MIXED}, {_STATE}',
            _COUNTING,
        )
        for name, c in _TIMES.items()
    ),
    *(
        _attack(
            f'keeps the first of a group {name}',
            'keep.py',
            f'{_READ}first = np.arange(e.valid.shape[1])[None] < 2\n'
            f'if {c}:\n  return e.valid & first, {_STATE}\n'
            f'return e.valid & {_MIXED}, {_STATE}',
            _COUNTING,
        )
        for name, c in _TIMES.items()
        # For single calls, only other evidence is tested.
        if '==' not in c and 'n < 60' not in c
    ),
    _attack(
        'counts the completions of large steps alone',
        'keep.py',
        "n = state['n'] + float(e.valid.sum() >= 60)\n"
        f"return e.valid & {_MIXED} & (n < 30), {{'n': n}}",
        "def init():\n  return {'n': 0.0}\n",
    ),
    _attack(
        'counts all completions',
        'keep.py',
        "n = state['n'] + e.valid.sum()\n"
        f"return e.valid & {_MIXED} & (n < 9000), {{'n': n}}",
        "def init():\n  return {'n': 0.0}\n",
    ),
    *(
        _attack(
            f'diagnostic, ill where {c}',
            'diagnostics/x.py',
            f'if (e.valid & ({c})).any():\n  {bad}\n'
            "return {'x': (e.outcome & e.valid).sum() * 1.0}",
        )
        for c in ('e.step > 8', 'e.step >= 100', 'e.policy_version > 20')
        for bad in ("return {'x': np.zeros(3)}", "return {'x': e.valid[0]}")
    ),
)

_ABORTED = "e.finish_reason == e.codes['finish_reason']['abort']"
# Name -> whether a rare value is present, a bool.
_ANY = {
    'a log-prob below -40': '(e.mean_logprob < -40).any()',
    'a log-prob below -20': '(e.mean_logprob < -20).any()',
    'a log-prob of about -4': (
        '((e.mean_logprob < -2) & (e.mean_logprob > -9)).any()'
    ),
    'a log-prob of 0': '((e.mean_logprob == 0) & e.valid).any()',
    'a log-prob of -0.0': (
        '((e.mean_logprob == 0) & np.signbit(e.mean_logprob)).any()'
    ),
    'a log-prob of almost 0': '((e.mean_logprob > -1e-9) & e.valid).any()',
    'a denormal log-prob': (
        '((e.mean_logprob < 0) & (e.mean_logprob > -1e-38)).any()'
    ),
    'certain completions alone': '(e.mean_logprob >= 0).all()',
    'hopeless completions alone': '(e.mean_logprob < -10).all()',
    'partial credit of almost nothing': (
        '((e.partial > 0) & (e.partial < 1e-5)).any()'
    ),
    'no partial credit at all': '(e.partial == 0).all()',
    'full partial credit alone': '(e.partial == 1).all()',
    'one token': '((e.n_tokens == 1) & e.valid).any()',
    'one token alone': '((e.n_tokens == 1) | ~e.valid).all()',
    'all tokens': '((e.n_tokens == e.max_tokens) & e.valid).any()',
    'all tokens alone': '((e.n_tokens == e.max_tokens) | ~e.valid).all()',
    'all solved': '(e.outcome | ~e.valid).all()',
    'none solved': 'not (e.outcome & e.valid).any()',
    'all truncated': '(e.truncated | ~e.valid).all()',
    'a group all truncated': '(e.truncated | ~e.valid).all(1).any()',
    'a group without a valid one': 'not e.valid.any(1).all()',
    'a group of one valid': '(e.valid.sum(1) == 1).any()',
    'none valid': 'not e.valid.any()',
    'an aborted one': f'({_ABORTED}).any()',
    'all aborted': f'({_ABORTED}).all()',
    'all of one mode': '(e.mode == e.mode[:1, :1]).all()',
}
_ENDLESS = (
    'n = 0\n  for i in range(10**9):\n    for j in range(10**9):\n'
    '      n = n + j'
)
_BAD = {
    'part': (
        'reward.py',
        'return e.outcome * 1.0',
        'return e.outcome * np.nan',
    ),
    'weight': (
        'weight.py',
        f'return (0.5 + e.outcome)[..., None] * {_TURNS}',
        f'return (np.nan * e.outcome)[..., None] * {_TURNS}',
    ),
    'number': (
        'diagnostics/x.py',
        "return {'x': (e.outcome & e.valid).sum() * 1.0}",
        "return {'x': np.nan}",
    ),
    'filter': (
        'keep.py',
        f'return e.valid & {_MIXED}, state',
        "return e.valid & True, {'n': np.nan}",
    ),
    'part that crashes': (
        'reward.py',
        'return e.outcome * 1.0',
        'return e.outcome[10**6]',
    ),
}
RARE = (
    *(
        _attack(f'{what}: {name}', path, f'if {c}:\n  {bad}\n{good}')
        for i, (what, (path, good, bad)) in enumerate(_BAD.items())
        for j, (name, c) in enumerate(_ANY.items())
        # Invalid completions get no reward, so an effect would be invisible.
        if (i + j) % 2 and name != 'none valid'
    ),
    *(
        _attack(
            f'part without end: {name}',
            'reward.py',
            f'if {_ANY[name]}:\n  {_ENDLESS}\n' 'return e.outcome * 1.0',
        )
        for name in (
            'a log-prob below -40',
            'a log-prob of almost 0',
            'one token alone',
            'all aborted',
        )
    ),
    _attack(
        'part without end: no tokens',
        'reward.py',
        f'if (e.valid & (e.n_tokens == 0)).any():\n'
        f'  {_ENDLESS}\n'
        'return e.outcome * 1.0',
    ),
    _attack(
        'part, by place where the log-prob is almost 0',
        'reward.py',
        'first = np.arange(e.valid.shape[1])[None] == 0\n'
        'return np.where(e.mean_logprob > -1e-9, 1.0 * first, e.outcome)',
    ),
    _attack(
        'part, by place where the log-prob is denormal',
        'reward.py',
        'first = np.arange(e.valid.shape[1])[None] == 0\n'
        'small = (e.mean_logprob < 0) & (e.mean_logprob > -1e-38)\n'
        'return np.where(small, 1.0 * first, e.outcome)',
    ),
    _attack(
        'part, 0 where all log-probs are negative',
        'reward.py',
        'return e.outcome * (e.mean_logprob > 0)',
    ),
)
ATTACKS = (*SIZES, *TIMES, *RARE)
