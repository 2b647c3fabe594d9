"""Calls `losses.policy_loss` with the objective's fields as keywords."""

import dataclasses

from evojax.rl import losses

_FIELDS = [field.name for field in dataclasses.fields(losses.Objective)]


def policy_loss(*args, **kwargs):
  objective = losses.Objective(
      **{name: kwargs.pop(name) for name in _FIELDS if name in kwargs}
  )
  return losses.policy_loss(*args, objective=objective, **kwargs)
