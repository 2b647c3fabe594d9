"""What agents do: search, edit, test, look at the history, give up, loop.

Timidity: few episodes edit. Laziness: few that edit test it. An Echo Trap: many
turns that repeat the turn before. A leak: many read the history.
"""

LAYER = 'behaviour'
UNIT = 'fraction'
# arXiv:2606.03108: tests of one's own, edit coverage, and edits that fail.
WARN = {
    'edits': ('<', 0.60),
    'tests_its_edit': ('<', 0.50),
    'failed_calls': ('>', 0.15),
}
CRITICAL = {}


def measure(e):
  """Return shares of episodes, of those that edit, and of calls."""
  if not e.valid.any():
    return {}
  edits = e.valid & (e.first_edit_turn >= 0)
  called = (e.actions >= 0) & e.valid[..., None]
  failed = called & ~e.action_ok
  found = {
      'edits': float(edits.sum() / e.valid.sum()),
      'reads_history': float(e.read_history[e.valid].mean()),
      'submits': float(e.submitted[e.valid].mean()),
      'touches_tests': float((e.tests_touched[e.valid] > 0).mean()),
      'failed_calls': float(failed.sum() / max(called.sum(), 1)),
  }
  # The same tool and class of arguments as in the turn before.
  same = (
      called[..., 1:]
      & (e.actions[..., 1:] == e.actions[..., :-1])
      & (e.arguments[..., 1:] == e.arguments[..., :-1])
  )
  follows = called[..., 1:].sum()
  found['repeated_calls'] = float(same.sum() / max(follows, 1))
  if edits.any():
    found['searches_first'] = float(e.searched_before_edit[edits].mean())
    found['tests_its_edit'] = float(e.tested_after_edit[edits].mean())
  return found
