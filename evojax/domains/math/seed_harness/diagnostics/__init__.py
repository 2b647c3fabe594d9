"""What is measured of every version; each file runs in the box."""
