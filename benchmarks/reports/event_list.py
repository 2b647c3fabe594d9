"""Faults that begin half-way: a service dies, or a restart restores too little.

Nobody reported these; they are what on-call engineers look for. All logs were
fixed before a check was run on one (2026-11-27). The checks of 2e1d533d named 5
of 16 with their step (rate_ends, policy_lost, limit_lowered, end_unknown,
no_numbers), 2 without it, saw a symptom of 6, and called 3 healthy (judge_lost,
one_problem, temperature_lost); no alarm in the sound ones. The checks of
`evojax.diagnosis.checks.breaks` were written for them, so the number named now
is no estimate of recall.
"""

from benchmarks.reports import threads

Report = threads.Report

SINCE = 31  # The first step with the fault, as logs count.

EVENTS = {
    'grader_dies': Report(
        seen='the reward is 0 from a step on',
        cause='the grader does not answer, and this counts as wrong',
        answer='right answers are refused from that step on',
        log='verl',
        names=('right_refused',),
        symptoms=('outcome_falling',),
        since=SINCE,
    ),
    'grader_times_out': Report(
        seen='the reward falls by half at a step',
        cause='half of the calls of the grader time out',
        answer='right answers are refused from that step on',
        log='verl',
        names=('right_refused',),
        symptoms=('outcome_falling',),
        since=SINCE,
    ),
    'grader_opens': Report(
        seen='the reward is 1 from a step on',
        cause='exceptions of the grader count as right',
        answer='the grader accepts anything from that step on',
        log='verl',
        names=('grader_open',),
        symptoms=('answers_differ',),
        since=SINCE,
    ),
    'keys_shifted': Report(
        seen='the reward is 0 from a step on',
        cause='after a restart problems are paired with answers of others',
        answer='the answers to problems changed at that step',
        log='verl',
        names=('keys_change',),
        symptoms=('outcome_falling',),
        since=SINCE,
    ),
    'judge_lost': Report(
        seen='the reward is lower from a step on',
        cause='the judge behind a second part does not answer',
        answer='that part is 0 from that step on',
        log='trl',
        names=('part_stops',),
        says='judge_reward',
        since=SINCE,
    ),
    'limit_lowered': Report(
        seen='less is solved from a step on',
        cause='the run goes on with a lower limit of tokens',
        answer='completions are cut from that step on',
        log='trl',
        names=('truncation',),
        symptoms=('outcome_falling',),
        since=SINCE,
    ),
    'end_unknown': Report(
        seen='nothing is solved from a step on',
        cause='the server does not know the token of the end any more',
        answer='completions never end from that step on',
        log='trl',
        names=('truncation',),
        symptoms=('outcome_falling',),
        since=SINCE,
    ),
    'policy_lost': Report(
        seen='rewards are as at the start',
        cause='a restart loads the base model',
        answer='the policy is the one of the start again',
        log='trl',
        names=('kl_restarts',),
        symptoms=('outcome_falling',),
        since=SINCE,
    ),
    'sampler_left_behind': Report(
        seen='the policy learns nothing more',
        cause='servers keep the weights of one step',
        answer='the weights of the sampler are old from that step on',
        log='verl',
        names=('logprob_gap',),
        says='older than',
        symptoms=('off_policy',),
        since=SINCE,
    ),
    'rate_ends': Report(
        seen='the policy learns nothing more',
        cause='the schedule of the learning rate ends half-way',
        answer='the learning rate is 0 from that step on',
        log='trl',
        names=('schedule_ends',),
        since=SINCE,
    ),
    'template_lost': Report(
        seen='nothing is solved from a step on',
        cause='a restart builds prompts without their last sentence',
        answer='prompts changed at that step',
        log='trl',
        names=('outcome_falling',),
        says='characters of a prompt: 36.8 to 20.8',
        since=SINCE,
    ),
    'harder_data': Report(
        seen='less is solved from a step on',
        cause='the next file of data has harder problems',
        answer='prompts changed at that step',
        log='verl',
        names=('outcome_falling',),
        says='characters of a prompt',
        since=SINCE,
    ),
    'one_problem': Report(
        seen='the reward is noisier from a step on',
        cause='all processes draw the same problem after a restart',
        answer='a step has one problem from that step on',
        log='verl',
        names=('fewer_problems',),
        since=SINCE,
    ),
    'no_numbers': Report(
        seen='loss and gradient are NaN, texts are noise',
        cause='an overflow',
        answer='no finite numbers from that step on',
        log='verl',
        names=('not_finite',),
        symptoms=('outcome_falling',),
        since=SINCE,
    ),
    'temperature_lost': Report(
        seen='the policy learns nothing more',
        cause='the server samples at temperature 0 after a restart',
        answer='rollouts of a group are one text from that step on',
        log='verl',
        names=('same_samples',),
        says='temperature',
        since=SINCE,
    ),
    'tools_die': Report(
        seen='less is solved from a step on',
        cause='the server of the tools is unreachable',
        answer='calls of tools fail with one error from that step on',
        log='verl',
        names=('same_error',),
        symptoms=('outcome_falling', 'malformed_calls'),
        since=SINCE,
    ),
}

SOUND = {
    'resumed_well': Report(
        seen='one large gradient after a restart', cause='', log='trl'
    ),
    'longer_limit': Report(
        seen='completions get longer at a step', cause='', log='trl'
    ),
    'new_stage': Report(
        seen='prompts are worded otherwise from a step on', cause='', log='verl'
    ),
}
