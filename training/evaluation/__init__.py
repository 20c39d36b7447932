"""Scoring a policy: on whole episodes, or, for economies, everything that a reader of the result may ask.

The entry is `scoring.evaluate`. Each other module holds one kind of evidence.
"""
