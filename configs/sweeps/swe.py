"""The best recipe of swe that is known, with five seeds.

    python -m evojax.main --mode=sweep --config=configs/swe.py
        --sweep=configs/sweeps/swe.py --executor=local --workers=2

`python -m benchmarks.equal_tokens --config=configs/swe.py` trains the same
recipe for as many tokens as the default run samples, which are somewhat more
updates; see "The domain swe" in BUILD_NOTES.md. A run takes about half an hour
on one CPU core.
"""

MODE = 'train'
SEEDS = range(320, 325)
SETTINGS = {'reference': {'variant': 'reference'}}
