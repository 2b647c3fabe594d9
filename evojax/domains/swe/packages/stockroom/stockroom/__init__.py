"""Goods on shelves."""
