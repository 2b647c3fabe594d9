"""Who does what when; times are minutes since midnight."""
