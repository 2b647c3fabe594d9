"""The seed recipe and the hand-tuned recipe of coding, with five seeds each.

    python -m evojax.main --mode=sweep --config=configs/coding.py
        --sweep=configs/sweeps/coding_recipes.py --executor=local --workers=2

This produces the columns without a search in the table "Coding, five seeds" of
BUILD_NOTES.md. There are ten runs of 4 to 6 minutes each on one CPU
core, and five with 300 steps, which take six to eight times as long.
"""

MODE = 'train'
SEEDS = range(5)
# Name of a setting -> fields; 'variant' is the variant of the config.
SETTINGS = {
    'seed-recipe': {'steps': 40},
    'reference': {'variant': 'reference', 'steps': 40},
    'seed-recipe-300': {'steps': 300},
}
