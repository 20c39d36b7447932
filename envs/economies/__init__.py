"""Economies, one file each."""
