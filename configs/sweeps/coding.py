"""An ablation of the coding recipe: one part is changed at a time.

    python -m evojax.main --mode=sweep --config=configs/coding.py
        --sweep=configs/sweeps/coding.py --executor=local --workers=2

Every run uses the variant `reference`. The first setting leaves it unchanged;
every other one is compared with the first, seed by seed. Training uses the
changed limit, problems or reward; evaluations always use the full limit and all
problems, and count a program as solved only if it passes every test. There are
forty runs of 4 to 6 minutes each on one CPU core.
"""

MODE = 'train'
SEEDS = range(5)
SETTINGS = {
    'reference': {},
    # Cuts almost half of the shipped policy's programs.
    'half-limit': {'rollout.token_limit': 48},
    'no-overlong': {'reward.weights': {'outcome': 1.0}},
    # Rewards the share of passed tests instead of all or nothing; compare it
    # with no-overlong, since these parts replace the domain's own.
    'partial-credit': {
        'reward.parts': 'evojax.harness.library.reward.partial.parts',
        'reward.weights': {'partial': 1.0},
    },
    # Also pays for any program in a fenced block: 11 % of the first answers
    # have none.
    'paid-format': {
        'reward.weights': {'outcome': 1.0, 'overlong': 0.5, 'format': 0.2}
    },
    'no-filter': {'grpo.keep': 'all', 'grpo.refill_rounds': 0},
    'five-families': {
        'data.families': (
            'sums:0-2',
            'counting:0-2',
            'extremes:0-2',
            'sorting:0-2',
            'pairs:0-2',
        ),
    },
    'seed-learning-rate': {'optim.learning_rate': 1e-4},
}
# Fields for all settings; with several values, every combination is run.
GRID = {'variant': ('reference',), 'steps': (40,)}
