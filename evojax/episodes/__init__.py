"""From problems to graded rows of evidence."""
