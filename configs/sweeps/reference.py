"""The seed recipe beside the one tuned by hand, five seeds each.

    python -m evojax.main --mode=sweep --config=configs/math.py
        --sweep=configs/sweeps/reference.py

The table "Math, five seeds" of BUILD_NOTES.md. With --config=configs/coding.py
the same of programs. Ten runs of 3 minutes on two CPU cores.
"""

MODE = 'train'
SEEDS = range(5)
# Name of a setting -> fields, 'variant' being that of the config.
SETTINGS = {
    'seed-recipe': {'steps': 30},
    'reference': {'variant': 'reference', 'steps': 30},
}
