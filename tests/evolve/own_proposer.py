"""A user's own proposer: it proposes the first change that is allowed."""

from evojax.evolve import propose as propose_lib

RATES = (2e-4, 3e-4)


def propose(context):
  for rate in RATES:
    after = context.parent.with_overlay({'optim.learning_rate': rate})
    try:
      return propose_lib.make(
          context,
          after,
          hypothesis=f'{len(context.history)} trials did not try {rate:g}.',
          expected=(-0.02, 0.05),
          source='tests',
      )
    except propose_lib.ProposalError:
      continue
  return None
