"""Evidence of the swe domain: the columns of an episode, and their values."""

from collections.abc import Iterable, Sequence
import functools
import zlib

from evojax import records
from evojax.domains.swe import grade
from evojax.domains.swe import tools
from evojax.evidence import schema

STOP_REASON = {
    'submitted': 0,
    'no_call': 1,  # A turn without a call of a tool.
    'turns': 2,
    'tokens': 3,
    'seconds': 4,
    'abort': 5,
}
_LIMITS = {'length': 'tokens', 'turns': 'turns', 'seconds': 'seconds'}
_LOOKS = ('grep', 'read')
MASK_BITS = 31  # Bits of an int32 that is not negative.
_watched = functools.partial(schema.Column, readers=('diagnostic', 'report'))
# Hidden from blind runs, which can derive these from actions and arguments.
_derived = functools.partial(schema.Column, blind=False, behaviour=True)
_shown = functools.partial(schema.Column, behaviour=True)

COLUMNS = (
    schema.with_codes('grade_status', grade.GRADE_STATUS),
    schema.with_codes('actions', tools.ACTIONS),
    schema.with_codes('arguments', tools.ARGUMENTS),
    # Known before anything is sampled.
    _watched(
        'difficulty',
        'int32',
        'Level of the problem: 0 if its issue names the function to change,'
        ' 1 if not, 2 in tasks of others.',
    ),
    _watched('unseen', 'bool', 'From a package that nothing is trained on.'),
    _watched('max_turns', 'int32', 'The limit of turns.', unit='turns'),
    _shown('format_ok', 'bool', 'Every turn calls a tool that exists.'),
    _shown(
        'files_edited', 'int32', 'Source files that differ.', unit='files'
    ),
    schema.Column(
        'files_mask',
        'int32',
        'Which source files differ: a bit for each, chosen by a hash of its'
        ' path.',
        readers=('diagnostic', 'report'),
        blind=False,
    ),
    schema.Column(
        'f2p_passed',
        'float32',
        'Share of the tests that failed at first and pass now.',
        unit='0..1',
    ),
    schema.Column(
        'p2p_passed',
        'float32',
        'Share of the tests that passed at first and still do.',
        unit='0..1',
    ),
    _shown('submitted', 'bool', 'The policy handed its work in.'),
    _shown(
        'stop_reason',
        'int32',
        'How the work ended: submitted, or what kept it from that.',
        codes=STOP_REASON,
    ),
    _derived(
        'searched_before_edit',
        'bool',
        'It made an edit, and called grep or read before the first one.',
    ),
    _derived('tested_after_edit', 'bool', 'It ran tests after its last edit.'),
    _derived('read_history', 'bool', 'It called git log or git show.'),
    _derived(
        'tests_touched',
        'int32',
        'Tests, configurations and links that differ; they are not graded.',
        unit='files',
    ),
    _derived(
        'first_edit_turn',
        'int32',
        'Turn of the first edit that succeeded, from 0; -1 without one.',
        unit='turns',
    ),
)


def mask(paths: Iterable[str]) -> int:
  """Return the value of `files_mask`; paths rarely share one of its bits."""
  # An agent's code may give a file any bytes as its name.
  names = (path.encode(errors='surrogateescape') for path in paths)
  bits = {zlib.crc32(name) % MASK_BITS for name in names}
  return sum(1 << bit for bit in bits)


def columns(settings: tools.Settings) -> tuple[schema.Column, ...]:
  """Return COLUMNS with the names under which tools are offered."""
  if not settings.names:
    return COLUMNS
  codes = {
      name if name == 'none' else settings.name(name): code
      for name, code in tools.ACTIONS.items()
  }
  actions = schema.with_codes('actions', codes)
  return tuple(actions if c.name == 'actions' else c for c in COLUMNS)


def behaviour(turns: Sequence[records.Turn]) -> dict[str, bool | int]:
  """Return the columns that are computed from an episode's actions."""
  names = {code: name for name, code in tools.ACTIONS.items()}
  done = [names.get(t.action, 'none') if t.ok else '' for t in turns]
  edits = [number for number, name in enumerate(done) if name == 'edit']
  first, last = (edits[0], edits[-1]) if edits else (-1, len(done))
  history = {tools.ARGUMENTS['log'], tools.ARGUMENTS['show']}
  return {
      'format_ok': all(names.get(t.action, 'none') != 'none' for t in turns),
      'searched_before_edit': any(name in _LOOKS for name in done[:first])
      and first > 0,
      'tested_after_edit': 'test' in done[last + 1 :],
      'read_history': any(
          t.action == tools.ACTIONS['git'] and t.argument in history
          for t in turns
      ),
      'first_edit_turn': first,
  }


def stop_reason(episode: records.Episode) -> str:
  """Return why an episode ended, a key of STOP_REASON."""
  last = episode.turns[-1]
  if last.action == tools.ACTIONS['submit'] and last.ok:
    return 'submitted'
  if episode.finish_reason == 'abort':
    return 'abort'
  return _LIMITS.get(episode.finish_reason, 'no_call')
