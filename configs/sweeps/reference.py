"""The seed recipe and the hand-tuned recipe, with five seeds each.

    python -m evojax.main --mode=sweep --config=configs/math.py
        --sweep=configs/sweeps/reference.py

This produces the last row of the table "Math, five seeds" of BUILD_NOTES.md;
the page of the sweep lists the runs. coding_recipes.py does the same for the
domain coding. There are ten runs of 3 minutes each on two CPU cores.
"""

MODE = 'train'
SEEDS = range(5)
# Name of a setting -> fields; 'variant' is the variant of the config.
SETTINGS = {
    'seed-recipe': {'steps': 30},
    'reference': {'variant': 'reference', 'steps': 30},
}
