"""Checks of what tools reply, in any form that completions show."""

import re

import pandas as pd

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis import words
from evojax.diagnosis.checks import shares
from evojax.stats import intervals

_READ = 2000  # Completions of a run whose replies are read.
_FEWEST = 100  # Replies.
_OFTEN = 0.4  # Share of the replies that are one text.
_SHOWN = 60  # Characters of a reply in a finding.
# A reply in Qwen3's format, and the output of a block of code.
_REPLY = re.compile(
    r'<tool_response>\s*(.*?)\s*(?:</tool_response>|$)'
    r'|```output[ \t]*\n\s*(.*?)\s*(?:```|$)',
    re.DOTALL,
)
_ERROR = re.compile(
    r'\b\w*(?:error|exception)\b'
    r'|\b(?:time[ds]? ?out|refused|unavailable|unreachable|fail(?:ed|ure)?'
    r'|denied|forbidden|unauthori[sz]ed|too many requests|bad gateway)\b',
    re.IGNORECASE,
)
# Errors of the call itself, which the policy makes, and tests that fail.
_OF_CALL = re.compile(
    r'malformed|invalid|json|pars(?:e|ing)|argument|syntax|(?:no|unknown|such)'
    r' (?:tool|function)|(?:tests?|cases?|build|action|move)\b.{0,20} fail'
    r'|failures?\s*[=:]|\d+ fail|assert',
    re.IGNORECASE,
)


def same_error(run: form.Run) -> findings.Finding | None:
  """Detect tools that reply to most calls with one and the same error."""
  rows = shares.thinned(run.rows('completion'), _READ)
  found = pd.DataFrame(
      [
          (row, step, match[1] or match[2] or '')
          for row, step, text in zip(
              rows.index, rows['step'], rows['completion'], strict=True
          )
          for match in _REPLY.finditer(text)
      ],
      columns=['row', 'step', 'reply'],
  )
  late = run.late(found) if len(found) else found
  if len(late) < _FEWEST:
    what = 'of tools in completions'
    raise form.too_few(len(late), 'answer', _FEWEST, what)
  errors = late[[_is_error(reply) for reply in late['reply']]]
  if not len(errors):
    return None
  said = str(errors['reply'].mode()[0])
  same = (found['reply'] == said).astype(float)
  by = same.groupby(found['step']).mean()
  share = intervals.mean(by.to_numpy()[-max(len(by) // 3, 1) :])
  if share.low < _OFTEN:
    return None
  return findings.Finding(
      check='same_error',
      severity='critical' if share.low > 0.5 else 'warning',
      text=f'{share.value:.0%} of the replies of tools are'
      f' {said[:_SHOWN]!r}',
      since=shares.since(by),
      numbers=(findings.number('such replies', share, 'share'),),
      rows=tuple(map(int, dict.fromkeys(found.loc[same > 0, 'row'][-6:]))),
      change=f'{words.word(run.format, "tools")}: does the server or sandbox'
      ' behind them run at the address that is set, and keep up with all calls'
      ' (call it by hand)?',
      curves=(('the same error', by.index.to_numpy(), by.to_numpy()),),
  )


def _is_error(reply: str) -> bool:
  """Return whether a reply is an error, and not of the call itself."""
  head = reply[:200]
  return bool(_ERROR.search(head)) and not _OF_CALL.search(head)


CHECKS = (same_error,)
