"""Generic statistics; they know nothing of runs, and need NumPy and SciPy.

What is special to runs stands elsewhere: the uncertainty of scores over
problems and seeds in `eval.estimates`, e-values and power of the pairs of a
race in `eval.paired`.
"""
