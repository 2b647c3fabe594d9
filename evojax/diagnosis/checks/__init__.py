"""Checks: functions of a run that return a finding, None, or cannot tell.

    def check(run: form.Run) -> Finding | None

A check raises `form.NotLogged` where the run did not log what it reads. Its
name is the name of its findings, `dead_groups` apart, which also finds too_hard
and too_easy.
"""

from evojax.diagnosis.checks import behaviour
from evojax.diagnosis.checks import data
from evojax.diagnosis.checks import learning
from evojax.diagnosis.checks import optimiser
from evojax.diagnosis.checks import reward

ALL = (
    *reward.CHECKS,
    *data.CHECKS,
    *learning.CHECKS,
    *optimiser.CHECKS,
    *behaviour.CHECKS,
)
