"""Lists of lists of equal length: rows of a grid."""
