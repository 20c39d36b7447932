"""Networks and action heads."""
