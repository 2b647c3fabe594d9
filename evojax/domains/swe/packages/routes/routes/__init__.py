"""Graphs: {place: {neighbour: length}}."""
