"""What is measured of every version, in any domain."""
