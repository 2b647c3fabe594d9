"""Credit: what a completion's turns count."""
