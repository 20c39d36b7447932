"""Tissue tasks, one file each."""
