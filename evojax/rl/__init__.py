"""Pure array math of group-relative policy optimisation."""
