"""The hand-tuned recipe of swe, with five seeds.

    python -m evojax.main --mode=sweep --config=configs/swe.py
        --sweep=configs/sweeps/swe.py --executor=local --workers=2
        --config.eval.problems=93 --config.eval.samples=8

This makes the table of `reference` in "The domain swe" of BUILD_NOTES.md, of
sealed and of dev scores. A run takes about 45 minutes on one CPU core.

`python -m benchmarks.equal_tokens --config=configs/swe.py` trains the same
recipe for as many tokens as the default run samples, which are somewhat more
updates.
"""

MODE = 'train'
SEEDS = range(310, 315)
SETTINGS = {'reference': {'variant': 'reference'}}
