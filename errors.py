"""The one exception for a mistake of the user's, and the wording of a misspelt name."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user asked for: its message is one line that says what, why and what to do.

    The command line prints the message and exits with code 2; anything else that escapes is ours, and exits with 1.
    """


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Suggest the candidate nearest to a misspelt name.

    Args:
        name: what was given.
        candidates: the names that would have been valid.

    Returns:
        `" Did you mean 'x'?"` with a leading space, or an empty string where nothing is near.

    Example:
        >>> did_you_mean("gama", ["gamma", "delta"])
        " Did you mean 'gamma'?"
        >>> did_you_mean("zzz", ["gamma", "delta"])
        ''
    """
    folded = {candidate.lower(): candidate for candidate in candidates}
    nearest = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return f" Did you mean {folded[nearest[0]]!r}?" if nearest else ""


def unknown(kind: str, name: str, candidates: Iterable[str]) -> UserError:
    """The error for a name that is not among the valid ones.

    Args:
        kind: what the name stands for, such as "environment".
        name: what was given.
        candidates: the valid names.

    Returns:
        The error, to be raised by the caller. Where no name is near, the message lists the valid ones.

    Example:
        >>> str(unknown("agent", "mapo", ["deqn", "mappo"]))
        "unknown agent 'mapo'. Did you mean 'mappo'?"
        >>> str(unknown("agent", "xyz", ["deqn", "mappo"]))
        "unknown agent 'xyz'. Known: deqn, mappo."
    """
    names = sorted(candidates)
    hint = did_you_mean(name, names) or f" Known: {', '.join(names)}."
    return UserError(f"unknown {kind} {name!r}.{hint}")
