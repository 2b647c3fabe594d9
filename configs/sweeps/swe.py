"""The hand-tuned recipe of swe, with five seeds.

    python -m evojax.main --mode=sweep --config=configs/swe.py
        --sweep=configs/sweeps/swe.py --executor=local --workers=2
        --config.eval.problems=93 --config.eval.samples=8

This produces a table of the sealed and the dev scores of `reference`, as in
"The domain swe" of BUILD_NOTES.md. A run takes about an hour on one CPU core.

`python -m benchmarks.equal_tokens --config=configs/swe.py` trains the same
recipe for as many tokens as the default run samples, which takes somewhat more
updates.
"""

MODE = 'train'
SEEDS = range(325, 330)  # Fixed before any run used them.
SETTINGS = {'reference': {'variant': 'reference'}}
