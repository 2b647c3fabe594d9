"""What is measured of programs; each file runs in the box."""
