"""Temperature and learning rate of the hand-tuned recipe of swe.

    python -m evojax.main --mode=sweep --config=configs/swe.py
        --sweep=configs/sweeps/swe.py --executor=local --workers=2

Every run has the variant `reference` and is scored on all dev problems. The
first setting is that of the last five rows of the table "reference" in the
section "The domain swe" of BUILD_NOTES.md; the others are those of its first
rows, for as many updates. There are fifteen runs, of about half an hour each on
two CPU cores.
"""

MODE = 'train'
SEEDS = range(1, 6)
SETTINGS = {
    'reference': {},
    'temperature-1': {'rollout.temperature': 1.0},
    'rate-1e-3': {'rollout.temperature': 1.0, 'optim.learning_rate': 1e-3},
}
# Fields for all settings; with several values, every combination is run.
GRID = {'variant': ('reference',), 'steps': (50,), 'eval.problems': (93,)}
