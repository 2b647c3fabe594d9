"""Turns of an episode: ever fewer is giving up, ever more is idling."""

LAYER = 'behaviour'
UNIT = 'turns'
WARN = {}
CRITICAL = {}


def measure(e):
  """Return the mean turns of all episodes, and of those that are solved."""
  if not e.valid.any():
    return {}
  found = {'turns': float(e.n_turns[e.valid].mean())}
  solved = e.valid & e.outcome
  if solved.any():
    found['turns_of_solved'] = float(e.n_turns[solved].mean())
  return found
