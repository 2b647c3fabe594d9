"""Turns of an episode: ever fewer is giving up, ever more is idling.

turns_used: turns beyond an edit and a submission, as a share of those that the
limit allows beyond these two.
idle_turns: turns beyond the five of a careful repair (search, read, edit, test,
submit), as a share of those that the limit allows beyond these five.
"""

LAYER = 'behaviour'
UNIT = 'turns'
LEAST, CAREFUL = 2, 5
# At a limit of 100 turns, these are the 50 and the 5 mean turns at which
# arXiv:2606.03108 raises alerts; at a limit of 6, they are 5.5 and 2.1.
WARN = {'idle_turns': ('>', 0.47)}
CRITICAL = {'turns_used': ('<', 0.03)}


def measure(e):
  """Return the mean turns of all episodes, and of those that are solved."""
  if not e.valid.any():
    return {}
  turns = float(e.n_turns[e.valid].mean())
  limit = int(e.max_turns[e.valid].max())
  found = {'turns': turns}
  if limit > LEAST:
    found['turns_used'] = (turns - LEAST) / (limit - LEAST)
  if limit > CAREFUL:
    found['idle_turns'] = max(turns - CAREFUL, 0.0) / (limit - CAREFUL)
  solved = e.valid & e.outcome
  if solved.any():
    found['turns_of_solved'] = float(e.n_turns[solved].mean())
  return found
