"""Coding: programs judged by hidden tests."""
