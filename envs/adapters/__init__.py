"""Doors to other libraries: the one place that knows another reinforcement-learning library."""
