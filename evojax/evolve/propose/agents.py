"""Interventions for agents that repair repositories with tools.

Whether a run trains such agents follows from the domain's arguments. The
entries answer alerts of the swe seed diagnostics, besides those of any domain.
Each part of the reward can be given a positive or a negative weight from the
start; `directions` inverts what was changed or removes it again.
"""

from collections.abc import Iterator

from evojax.evolve import propose
from evojax.evolve.propose import changes
from evojax.evolve.propose import library

_TURNS = 'domain.kwargs.max_turns'
_SCRUBBED = 'domain.kwargs.scrubbed'
_EVOTRAINER = 'EvoTrainer, arXiv:2606.03108'
# Reward parts whose columns a `seed_blind` run hides: it has to discover them.
_WATCHED = ('searched_first', 'tested_edit')


def is_agent(context: propose.Context) -> bool:
  """Return whether the problems of a run are repositories."""
  return _TURNS in context.config and _SCRUBBED in context.config


def can_pay(context: propose.Context, part: str) -> bool:
  """Return whether a run may read the columns that a reward part needs."""
  if part not in _PARTS:
    return True
  blind = context.config.get('evolve.seed_harness') == 'seed_blind'
  return is_agent(context) and not (blind and part in _WATCHED)


ENTRIES = {
    'search_before_edit': library.Entry(
        triggers=('failed_edits', 'slow_learning'),
        change=changes.give_weight('searched_first', 0.1),
        when=lambda context: can_pay(context, 'searched_first'),
        expected=(-0.04, 0.07),
        hypothesis='An agent that edits what it has not read is guessing.',
        source=f'{_EVOTRAINER}, v4',
        check='searches_first rises and outcome with it',
    ),
    'edit_then_test': library.Entry(
        triggers=('tests_its_edit', 'laziness', 'slow_learning'),
        change=changes.give_weight('tested_edit', 0.15),
        when=lambda context: can_pay(context, 'tested_edit'),
        expected=(-0.04, 0.07),
        hypothesis=(
            'An agent that runs the tests after its edit sees what it broke'
            ' while it can still mend it.'
        ),
        source=f'{_EVOTRAINER}, v4',
        check='tests_its_edit rises above 50 %',
    ),
    'credit_by_fail_to_pass': library.Entry(
        triggers=('too_hard', 'dead_group_ratio', 'weak_signal', 'edits'),
        change=changes.give_weight('fail_to_pass', 0.3),
        expected=(-0.05, 0.07),
        hypothesis=(
            'Half a repair and no edit at all earn the same: the share of the'
            ' failing tests that pass tells them apart.'
        ),
        source=f'{_EVOTRAINER}, v3: continuous reward',
        check='edits rises, dead_group_ratio falls',
    ),
    'more_turns': library.Entry(
        triggers=('slow_learning', 'weak_signal'),
        change=changes.scale(_TURNS, 1.5),
        expected=(-0.05, 0.06),
        hypothesis='The limit of turns ends episodes that are still at work.',
        source=f'{_EVOTRAINER}: a misaligned truncation budget',
        check='turns_of_solved rises',
    ),
    'fewer_turns': library.Entry(
        triggers=('failed_calls', 'repeated_calls', 'idle_turns'),
        change=changes.scale(_TURNS, 2 / 3),
        expected=(-0.05, 0.06),
        hypothesis='Late turns solve nothing; earlier ones should count.',
        source='RAGEN, Wang et al. 2025, arXiv:2504.20073, Sec. 4',
    ),
    'efficiency': library.Entry(
        triggers=('failed_calls', 'repeated_calls', 'idle_turns'),
        change=changes.give_weight('few_turns', 0.1),
        expected=(-0.05, 0.06),
        hypothesis='Turns are spent on what solves nothing.',
        source=f'{_EVOTRAINER}: an efficiency term, after which agents gave up',
        check='turns falls, turns_of_solved does not',
    ),
    'patience': library.Entry(
        triggers=('edits', 'turns_used', 'laziness'),
        change=changes.give_weight('few_turns', -0.1),
        expected=(-0.05, 0.06),
        hypothesis='Episodes end before anything is tried.',
        source=f'{_EVOTRAINER}: the inverse of its efficiency term',
        check='edits rises above 60 %',
    ),
    'edit_streak_penalty': library.Entry(
        triggers=('failed_edits',),
        change=changes.give_weight('edit_streak', 0.1),
        expected=(-0.05, 0.06),
        hypothesis='Edits follow edits without a look at their effect.',
        source=f'{_EVOTRAINER}, v5 and v6, which it made worse',
    ),
    'edit_sooner': library.Entry(
        triggers=('repeated_calls', 'idle_turns', 'slow_learning'),
        change=changes.give_weight('searched_first', -0.1),
        when=lambda context: can_pay(context, 'searched_first'),
        expected=(-0.06, 0.06),
        hypothesis='Turns that a repair needs are spent on searching.',
        source=f'{_EVOTRAINER}: the inverse of search before edit',
        check='edits rises, turns falls',
    ),
    'submit_sooner': library.Entry(
        triggers=('repeated_calls', 'idle_turns', 'slow_learning'),
        change=changes.give_weight('tested_edit', -0.15),
        when=lambda context: can_pay(context, 'tested_edit'),
        expected=(-0.06, 0.06),
        hypothesis='Turns that a repair needs are spent on running tests.',
        source=f'{_EVOTRAINER}: the inverse of edit then test',
        check='submits rises, turns falls',
    ),
    'fine_for_half_repairs': library.Entry(
        triggers=('alive_by_shaping', 'reward_hacking', 'touches_tests'),
        change=changes.give_weight('fail_to_pass', -0.3),
        expected=(-0.06, 0.06),
        hypothesis='Tests are made to pass by changes that repair nothing.',
        source=f'{_EVOTRAINER}: the inverse of credit by fail-to-pass',
        check='alive_by_shaping falls and outcome does not',
    ),
    'edit_streak_paid': library.Entry(
        triggers=('edits', 'repeated_calls'),
        change=changes.give_weight('edit_streak', -0.1),
        expected=(-0.06, 0.06),
        hypothesis='A second edit mends the first, but agents rarely make one.',
        source=f'{_EVOTRAINER}: the inverse of its edit-streak penalty',
        check='edits rises above 60 %',
    ),
    'scrubbed_history': library.Entry(
        triggers=('reads_history', 'too_easy', 'exploration_collapse'),
        change=changes.set_value(_SCRUBBED, True),
        expected=(-0.05, 0.06),
        hypothesis='Solutions are copied from the git history.',
        source=f'{_EVOTRAINER}, v4: 49 % fell to 31 % once it was scrubbed',
        check='reads_history falls',
    ),
}
_PARTS = frozenset(
    ('searched_first', 'tested_edit', 'fail_to_pass', 'edit_streak')
)


def entries(context: propose.Context) -> Iterator[library.Entry]:
  """Yield the interventions for agents; none if the domain has no agents."""
  if is_agent(context):
    yield from ENTRIES.values()
