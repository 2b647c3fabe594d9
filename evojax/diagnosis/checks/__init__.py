"""Checks: functions that examine a run for one kind of fault each.

    def check(run: form.Run) -> Finding | None

A check returns None if nothing is wrong, and raises `form.NotLogged` if the run
did not log what it needs. Findings have the name of their check, except that
`dead_groups` also finds too_hard, too_easy and entropy_collapse. Checks of
agents run only if episodes have turns.
"""

from collections.abc import Callable

from evojax.diagnosis import findings
from evojax.diagnosis import form
from evojax.diagnosis.checks import agents
from evojax.diagnosis.checks import behaviour
from evojax.diagnosis.checks import breaks
from evojax.diagnosis.checks import cheats
from evojax.diagnosis.checks import data
from evojax.diagnosis.checks import evaluations
from evojax.diagnosis.checks import finite
from evojax.diagnosis.checks import graders
from evojax.diagnosis.checks import learning
from evojax.diagnosis.checks import lengths
from evojax.diagnosis.checks import optimiser
from evojax.diagnosis.checks import overwrites
from evojax.diagnosis.checks import parts
from evojax.diagnosis.checks import phrases
from evojax.diagnosis.checks import refusals
from evojax.diagnosis.checks import replies
from evojax.diagnosis.checks import reward
from evojax.diagnosis.checks import sampler
from evojax.diagnosis.checks import settings
from evojax.diagnosis.checks import texts
from evojax.diagnosis.checks import values

Check = Callable[[form.Run], findings.Finding | None]

_ANY: tuple[Check, ...] = (
    *cheats.OF_ANY_RUN,
    *reward.CHECKS,
    *graders.CHECKS,
    *data.CHECKS,
    *breaks.CHECKS,
    *refusals.CHECKS,
    *learning.CHECKS,
    *finite.CHECKS,
    *optimiser.CHECKS,
    *values.CHECKS,
    *evaluations.CHECKS,
    *sampler.CHECKS,
    *parts.CHECKS,
    *lengths.CHECKS,
    *behaviour.CHECKS,
    *texts.CHECKS,
    *phrases.CHECKS,
    *overwrites.CHECKS,
    *replies.CHECKS,
    *settings.CHECKS,
)
ALL = (*cheats.CHECKS, *agents.CHECKS, *_ANY)


def of(run: form.Run) -> tuple[Check, ...]:
  """Return the checks that apply to a run."""
  return ALL if run.has_turns else _ANY
