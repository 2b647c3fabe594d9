"""An ablation of the hand-tuned recipe: one part is left out at a time.

    python -m evojax.main --mode=sweep --config=configs/math.py
        --sweep=configs/sweeps/ablation.py --executor=local --workers=2

The parts are those of the variant `reference` in configs/common.py, which every
run uses. The other settings are compared with the first, seed by seed. There
are thirty runs of 3 minutes each on two CPU cores.
"""

MODE = 'train'
SEEDS = range(5)
SETTINGS = {
    'reference': {},
    'no-clip-higher': {'grpo.clip_high': 0.2},
    'mean-of-sequences': {'grpo.aggregation': 'sequence'},
    'no-filter': {'grpo.keep': 'all', 'grpo.refill_rounds': 0},
    'no-overlong': {'reward.weights': {'outcome': 1.0}},
    'seed-learning-rate': {'optim.learning_rate': 1e-4},
}
# Fields for all settings; with several values, every combination is run.
GRID = {'variant': ('reference',), 'steps': (30,)}
