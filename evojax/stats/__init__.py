"""Generic statistics, which do not depend on runs and use NumPy and SciPy.

Statistics of runs are elsewhere: the uncertainty of scores over problems and
seeds in `eval.estimates`, e-values and power of the pairs of a race in
`eval.paired`.
"""
