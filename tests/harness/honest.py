"""Functions of an honest proposer: the gate must let all of them pass."""

import dataclasses
import textwrap


@dataclasses.dataclass(frozen=True)
class Function:
  name: str
  path: str
  source: str


def _function(name, path, source):
  return Function(name, path, textwrap.dedent(source).lstrip('\n'))


def _part(name, helper):
  """Return a reward with one part."""
  return _function(
      name,
      'reward.py',
      f'"""{name}."""\n\nimport numpy as np\n\n\n'
      + textwrap.dedent(helper).strip()
      + f"\n\n\ndef parts(e):\n  return {{'{name}': _{name}(e)}}\n",
  )


def _filter(name, source):
  return _function(
      name,
      'keep.py',
      'import numpy as np\n\n\n' + textwrap.dedent(source).strip() + '\n',
  )


def _measure(name, body, before=''):
  body = textwrap.indent(textwrap.dedent(body).strip(), '  ')
  return Function(
      name,
      f'diagnostics/{name}.py',
      f'"""{name}."""\n\nimport numpy as np\n\n'
      "LAYER = 'behaviour'\nUNIT = 'fraction'\n"
      f"WARN = {{'{name}': ('>', 0.5)}}\nCRITICAL = {{}}\n\n\n"
      f'{textwrap.dedent(before)}\n\n'
      f'def measure(e):\n  """A number."""\n{body}\n',
  )


REWARDS = (
    _part(
        'solved_short',
        """
        def _solved_short(e):
          share = e.n_tokens / e.max_tokens
          return np.where(e.outcome, 1.0 - 0.5 * share, 0.0).astype(np.float32)
        """,
    ),
    _part(
        'margin',
        """
        def _margin(e):
          solved = (e.outcome & e.valid).sum(axis=1, keepdims=True)
          count = np.maximum(e.valid.sum(axis=1, keepdims=True), 1)
          return (e.outcome - solved / count).astype(np.float32)
        """,
    ),
    _part(
        'rank_of_length',
        """
        def _rank_of_length(e):
          n = np.where(e.valid, e.n_tokens, np.inf)
          shorter = (n[:, :, None] > n[:, None, :]).sum(axis=-1)
          return -shorter / np.maximum(e.valid.sum(1, keepdims=True), 1)
        """,
    ),
    _part(
        'certain',
        """
        def _certain(e):
          return np.exp(np.clip(e.mean_logprob, -10, 0)) * e.outcome
        """,
    ),
    _part(
        'near_median',
        """
        def _near_median(e: np.ndarray) -> np.ndarray:
          n = np.where(e.valid, e.n_tokens.astype(np.float64), np.nan)
          middle = np.nan_to_num(np.nanmedian(n, axis=1, keepdims=True))
          return 1.0 / (1.0 + np.abs(e.n_tokens - middle) / e.max_tokens)
        """,
    ),
    _part(
        'zscore',
        """
        EPS = 1e-3

        def _zscore(e):
          there = e.valid
          n = np.maximum(there.sum(1, keepdims=True), 1)
          x = np.where(there, e.n_tokens, 0).astype(np.float64)
          mean = x.sum(1, keepdims=True) / n
          var = (np.where(there, x - mean, 0) ** 2).sum(1, keepdims=True) / n
          return -(x - mean) / (np.sqrt(var) + EPS)
        """,
    ),
    _part(
        'mode_bonus',
        """
        def _mode_bonus(e):
          steps = e.mode == e.codes['mode']['steps']
          return np.where(steps & e.format_ok, 0.2, 0.0)
        """,
    ),
    _part(
        'by_level',
        """
        LEVELS = (0.25, 0.5, 0.75)

        def _by_level(e):
          used = e.n_tokens / e.max_tokens
          score = np.zeros(e.valid.shape, dtype=np.float32)
          for level in LEVELS:
            score += used > level
          return -score / len(LEVELS)
        """,
    ),
    _part(
        'masked_mean',
        """
        def _masked_mean(e):
          n = e.n_tokens.astype(float)
          usual = n.mean(axis=1, keepdims=True, where=e.valid)
          usual = np.nan_to_num(usual)
          return np.where(n < usual, 1.0, 0.0)
        """,
    ),
    _part(
        'finish',
        """
        def _finish(e):
          if 'finish_reason' not in e.columns:
            return np.zeros(e.valid.shape)
          stop = e.codes['finish_reason']['stop']
          return (e.finish_reason == stop) & e.outcome
        """,
    ),
    _part(
        'best_of_group',
        """
        def _best_of_group(e):
          score = np.where(e.valid & e.outcome, e.mean_logprob, -np.inf)
          best = score.max(axis=1, keepdims=True)
          return (np.isfinite(score) & (score >= best)).astype(np.float32)
        """,
    ),
    _function(
        'rank across groups, declared',
        'reward.py',
        '''
        """easy: how easy the group is among all; needs the others."""

        import numpy as np

        ACROSS_GROUPS = ('easy',)


        def _easy(e):
          rate = (e.outcome & e.valid).sum(1) / np.maximum(e.valid.sum(1), 1)
          there = e.valid.any(1)
          lower = ((rate[:, None] > rate[None, :]) & there[None, :]).sum(1)
          share = lower / max(1, int(there.sum()))
          return e.outcome * share[:, None]


        def parts(e):
          return {'outcome': 1.0 * e.outcome, 'easy': _easy(e)}
        ''',
    ),
)
FILTERS = (
    _filter(
        'finished',
        """
        def keep(e, state):
          \"\"\"Groups of which at least half is finished.\"\"\"
          done = (~e.truncated & e.valid).sum(1)
          kept = 2 * done >= e.valid.sum(1)
          return np.repeat(kept[:, None], e.valid.shape[1], axis=1), state
        """,
    ),
    _filter(
        'spread_of_length',
        """
        MIN_STD = 0.05

        def keep(e, state):
          n = np.maximum(e.valid.sum(1), 1)
          x = np.where(e.valid, e.n_tokens / e.max_tokens, 0.0)
          mean = x.sum(1) / n
          var = np.where(e.valid, (x - mean[:, None]) ** 2, 0.0).sum(1) / n
          mixed = (e.outcome & e.valid).any(1) & (~e.outcome & e.valid).any(1)
          kept = mixed | (np.sqrt(var) > MIN_STD)
          return np.broadcast_to(kept[:, None], e.valid.shape), state
        """,
    ),
    _filter(
        'warm_up',
        """
        def init():
          return {'steps': np.float32(0)}

        def keep(e, state):
          steps = state['steps'] + 1
          solved = (e.outcome & e.valid).sum(1)
          hard = solved <= 0.75 * e.valid.sum(1)
          kept = hard if steps > 10 else np.ones_like(hard)
          return np.tile(kept[:, None], (1, e.valid.shape[1])), {'steps': steps}
        """,
    ),
    _filter(
        'decayed_rate',
        """
        def init():
          return {'rate': np.full((), 0.5), 'seen': np.zeros(())}

        def keep(e, state):
          rate = (e.outcome & e.valid).sum() / max(1, int(e.valid.sum()))
          usual = 0.9 * state['rate'] + 0.1 * rate
          own = (e.outcome & e.valid).sum(1) / np.maximum(e.valid.sum(1), 1)
          kept = np.abs(own - state['rate']) < 0.45
          mask = np.repeat(kept[:, None], e.valid.shape[1], 1)
          return mask, {'rate': usual, 'seen': state['seen'] + 1}
        """,
    ),
    _filter(
        'top_half',
        """
        ACROSS_GROUPS = ('keep',)

        def keep(e, state):
          n = np.maximum(e.valid.sum(1), 1)
          rate = (e.outcome & e.valid).sum(1) / n
          signal = rate * (1 - rate)
          there = e.valid.any(1)
          middle = np.median(signal[there]) if there.any() else 0.0
          kept = signal >= middle
          return np.repeat(kept[:, None], e.valid.shape[1], 1), state
        """,
    ),
    _filter(
        'not_certain',
        """
        def keep(e, state):
          logprob = np.where(e.valid, e.mean_logprob, -np.inf).max(axis=1)
          kept = logprob < -0.01
          return kept[:, np.newaxis] & e.valid, state
        """,
    ),
)
WEIGHTS = (
    _function(
        'short first',
        'weight.py',
        '''
        import numpy as np


        def _turns(e):
          return max(1, int(np.where(e.valid, e.n_turns, 0).max(initial=0)))


        def weight(e):
          """Shorter completions count more."""
          share = np.clip(e.n_tokens / e.max_tokens, 0.0, 1.0)
          return np.repeat((1.5 - share)[..., None], _turns(e), axis=-1)
        ''',
    ),
    _function(
        'decay over turns',
        'weight.py',
        """
        import numpy as np

        DECAY = 0.9


        def weight(e):
          turns = max(1, int(np.where(e.valid, e.n_turns, 0).max(initial=0)))
          by_turn = DECAY ** np.arange(turns)[None, None, :]
          solved = np.where(e.outcome, 1.0, 0.5)[:, :, None]
          return (by_turn * solved).astype('float32')
        """,
    ),
    _function(
        'rare groups',
        'weight.py',
        """
        import numpy as np


        def weight(e):
          solved = (e.outcome & e.valid).sum(axis=1)
          count = np.maximum(e.valid.sum(axis=1), 1)
          rare = np.sqrt(1.0 / (1.0 + solved)) + 0.0 * count
          turns = max(1, int((e.n_turns * e.valid).max(initial=0)))
          return np.ones((*e.valid.shape, turns)) * rare[:, None, None]
        """,
    ),
)
DIAGNOSTICS = (
    _measure(
        'parted_pairs',
        """
        pairs = [
            (float(tokens), bool(solved))
            for tokens, solved, there in zip(
                e.n_tokens.ravel().tolist(),
                e.outcome.ravel().tolist(),
                e.valid.ravel().tolist(),
            )
            if there
        ]
        if not pairs:
          return {}
        tokens, solved = zip(*sorted(pairs))
        half = len(tokens) // 2
        return {'parted_pairs': sum(solved[half:]) / len(solved)}
        """,
    ),
    _measure(
        'long_share',
        """
        if not e.valid.any():
          return {}
        long = e.n_tokens[e.valid] > 0.9 * e.max_tokens
        return {'long_share': float(long.mean())}
        """,
    ),
    _measure(
        'by_computed_name',
        """
        found = {}
        for name in ('tokens', 'turns'):
          column = e[f'n_{name}']
          if isinstance(column, np.ndarray) and column.dtype.kind in 'iu':
            found[name] = float(column[e.valid].sum())
        return found
        """,
    ),
    _measure(
        'gap',
        """
        n = np.sort(np.where(e.valid, e.n_tokens, 0), axis=1)
        gaps = np.diff(np.pad(n, ((0, 0), (1, 0))), axis=1)
        level = np.select([gaps > 8, gaps > 2], [1.0, 0.5], default=0.0)
        return {'gap': float(gaps.max(initial=0)), 'level': float(level.sum())}
        """,
    ),
    _measure(
        'percentiles',
        """
        n = e.n_tokens[e.valid]
        if n.size == 0:
          return {}
        low, middle, high = np.percentile(n, [10, 50, 90])
        return {'p10': low, 'p50': float(middle), 'p90': high}
        """,
    ),
    _measure(
        'by_mode',
        """
        found = {}
        for name, code in e.codes['mode'].items():
          there = e.valid & (e.mode == code)
          if there.sum() >= 2:
            found[f'solved_{name}'] = float(e.outcome[there].mean())
        return found
        """,
    ),
    _measure(
        'correlation',
        """
        there = e.valid & np.isfinite(e.mean_logprob)
        x = e.mean_logprob[there].astype(np.float64)
        y = e.outcome[there].astype(np.float64)
        if len(x) < 3 or min(x.std(), y.std()) < 1e-6:
          return {}
        return {'correlation': float(np.corrcoef(x, y)[0, 1])}
        """,
    ),
    _measure(
        'entropy_of_modes',
        """
        if not e.valid.any():
          return {}
        _, counts = np.unique(e.mode[e.valid], return_counts=True)
        p = counts / counts.sum()
        return {'entropy_of_modes': float(-(p * np.log(p)).sum())}
        """,
    ),
    _measure(
        'words',
        """
        texts = [str(t) for t in e.completion[e.valid]]
        if not texts:
          return {}
        return {'words': float(np.mean([len(t.split()) for t in texts]))}
        """,
    ),
    _measure(
        'repeats',
        """
        shares = []
        for text in e.completion[e.valid]:
          words = text.lower().split()
          if words:
            shares.append(1 - len(set(words)) / len(words))
        return {'repeats': float(sum(shares) / len(shares))} if shares else {}
        """,
    ),
    _measure(
        'duplicates',
        """
        found = []
        for texts, there in zip(e.completion, e.valid):
          kept = [str(t) for t, v in zip(texts, there) if v]
          if len(kept) > 1:
            found.append(1 - len(set(kept)) / len(kept))
        if not found:
          return {}
        return {'duplicates': float(np.mean(found))}
        """,
    ),
    _measure(
        'phantom',
        """
        there = e.valid & np.isfinite(e.advantage)
        size = np.where(there, np.abs(e.advantage), 0.0).astype(np.float64)
        solved = (e.outcome & there).sum(1)
        mixed = (solved > 0) & (solved < there.sum(1))
        total = size.sum()
        if total == 0:
          return {}
        return {'phantom': float(size[~mixed].sum() / total)}
        """,
    ),
    _measure(
        'histogram',
        """
        share = e.n_tokens[e.valid] / e.max_tokens
        if share.size == 0:
          return {}
        counts, edges = np.histogram(share, bins=4, range=(0.0, 1.0))
        return {f'bin_{i}': float(c) for i, c in enumerate(counts / share.size)}
        """,
    ),
    _measure(
        'slope',
        """
        x = e.n_tokens[e.valid].astype(np.float64)
        y = e.outcome[e.valid].astype(np.float64)
        spread = ((x - x.mean()) ** 2).sum() if x.size else 0.0
        if spread < 1e-9:
          return {}
        slope = ((x - x.mean()) * (y - y.mean())).sum() / spread
        return {'slope': float(slope)}
        """,
    ),
    _measure(
        'pass_at_2',
        """
        n = e.valid.sum(1)
        c = (e.outcome & e.valid).sum(1)
        there = n >= 2
        if not there.any():
          return {}
        missed = [
            math.comb(int(a - b), 2) / math.comb(int(a), 2)
            for a, b in zip(n[there], c[there])
        ]
        return {'pass_at_2': 1.0 - sum(missed) / len(missed)}
        """,
        'import math\n',
    ),
    _measure(
        'parts_seen',
        """
        found = {}
        for name in e.columns:
          if name.startswith('part_'):
            values = e[name][e.valid]
            values = values[np.isfinite(values)]
            if values.size:
              found[name.removeprefix('part_') + '_mean'] = float(values.mean())
        found['groups'] = float(e.valid.any(1).sum())
        return found
        """,
    ),
    _measure(
        'gap_of_solved',
        """
        found = {}
        for name, mask in {
            'solved': e.valid & e.outcome, 'unsolved': e.valid & ~e.outcome
        }.items():
          if mask.any():
            found[name] = float(_mean(e.mean_logprob, mask))
        return found
        """,
        'def _mean(x, mask, default=0.0):\n'
        '  return x[mask].mean() if mask.any() else default\n',
    ),
    _measure(
        'sorted_rates',
        """
        rates = sorted(
            [(s / n, n) for s, n in _counts(e)], key=lambda pair: pair[0]
        )
        if not rates:
          return {}
        worst = rates[: max(1, len(rates) // 4)]
        return {'worst_quarter': sum(r for r, _ in worst) / len(worst)}
        """,
        'def _counts(e):\n'
        '  solved = (e.outcome & e.valid).sum(1).tolist()\n'
        '  count = e.valid.sum(1).tolist()\n'
        '  return [(s, n) for s, n in zip(solved, count) if n]\n',
    ),
    _measure(
        'most_common',
        """
        counts = dict(none=0)
        for n in e.n_tokens[e.valid].tolist():
          counts[n] = counts.get(n, 0) + 1
        top = max(sorted(counts, key=str), key=counts.get)
        return {'most_common': counts[top] / max(1, sum(counts.values()))}
        """,
    ),
    _measure(
        'lines',
        """
        total, count = 0, 0
        for text in e.completion[e.valid].tolist():
          for line in text.splitlines():
            if not line.strip():
              continue
            total += len(line)
            count += 1
        return {'lines': total / max(count, 1)}
        """,
    ),
)
BACKTESTS = (
    _function(
        'moved',
        'backtests/moved.py',
        '''
        """How far rewards move."""

        import numpy as np


        def predict(before, after):
          there = before.valid & np.isfinite(before.reward + after.reward)
          if not there.any():
            return {}
          change = (after.reward - before.reward)[there].astype(np.float64)
          return {'moved': float(np.abs(change).mean())}
        ''',
    ),
    _function(
        'kept_solved',
        'backtests/kept_solved.py',
        """
        import numpy as np


        def _rate(e):
          there = e.valid & e.kept
          return float(e.outcome[there].mean()) if there.any() else 0.0


        def predict(before, after):
          new = _rate(after)
          return {'kept_solved': new, 'change': new - _rate(before)}
        """,
    ),
    _function(
        'order_kept',
        'backtests/order_kept.py',
        '''
        import numpy as np


        def predict(before, after):
          """Share of pairs of a group that both rewards order alike."""
          pairs = same = 0
          for g in range(before.valid.shape[1]):
            a = np.sign(before.reward - before.reward[:, g : g + 1])
            b = np.sign(after.reward - after.reward[:, g : g + 1])
            both = before.valid & before.valid[:, g : g + 1] & (a != 0)
            pairs += int(both.sum())
            same += int((both & (a == b)).sum())
          return {'order_kept': same / pairs} if pairs else {}
        ''',
    ),
)
FUNCTIONS = (*REWARDS, *FILTERS, *WEIGHTS, *DIAGNOSTICS, *BACKTESTS)
