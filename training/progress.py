"""How far a run is, on the terminal."""

from __future__ import annotations

import contextlib
import contextvars
import math
import time
from collections.abc import Iterator
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

FIRST_WAIT, LONGEST_WAIT, GROWTH = 2.0, 60.0, 1.5
"""Seconds before the first plain line, the most between two, and by what each wait is longer than the one before."""

REDRAWS = 4
"""Times a second that the bar is drawn."""

_LINES = contextvars.ContextVar("plain lines where there is no terminal", default=False)


@contextlib.contextmanager
def lines_without_terminal() -> Iterator[None]:
    """Within it, progress that was neither asked for nor forbidden shows as plain lines where there is no terminal."""
    token = _LINES.set(True)
    try:
        yield
    finally:
        _LINES.reset(token)


class Progress:
    """How far a run is: a bar on a terminal, plain lines elsewhere, or nothing.

    Args:
        iterations: how many there will be.
        steps_per_iteration: environment steps in each, over all environments and seeds.
        done: iterations that were done before, where a run goes on.
        enabled: True: always; False: never; None: on a terminal, and elsewhere within `lines_without_terminal`.
        console: where it goes; by default the standard error, so that tables can be piped.
    """

    def __init__(
        self,
        iterations: int,
        steps_per_iteration: int,
        *,
        done: int = 0,
        enabled: bool | None = None,
        console: Console | None = None,
    ):
        self._iterations = iterations
        self._steps = steps_per_iteration
        self._done = done
        self._console = console or Console(stderr=True)
        self._bar: Bar | None = None
        self._shown = (self._console.is_terminal or _LINES.get()) if enabled is None else enabled
        self._start = self._last_line = time.monotonic()
        self._wait = FIRST_WAIT
        self._first: tuple[int, float] | None = None
        self._score = ""

    def __enter__(self) -> Progress:
        self._start = self._last_line = time.monotonic()
        if self._shown and self._console.is_terminal:
            columns = [
                TextColumn("iteration"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("left"),
                TimeRemainingColumn(), TextColumn("{task.fields[report]}"),
            ]  # fmt: skip
            self._bar = Bar(*columns, console=self._console, refresh_per_second=REDRAWS)
            self._task = self._bar.add_task("", total=self._iterations, completed=self._done, report="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def compiling(self) -> None:
        """Say that a program is being compiled, during which nothing moves."""
        if self._bar is not None:
            self._bar.update(self._task, report="compiling ...", refresh=True)
        else:
            self.say("compiling ...")

    def compiled(self, iteration: int, seconds: float) -> None:
        """Say how long that took, with the iterations that it ran up to `iteration`."""
        self._first, self._last_line = (iteration, time.monotonic()), time.monotonic()
        self.say(f"compiled, and ran the first iteration, in {seconds:.1f} s")
        if self._bar is not None:
            self._bar.update(self._task, completed=iteration, report=self._score)

    def update(self, iteration: int, score: float | None = None, name: str = "score") -> None:
        """Report that `iteration` iterations are done.

        Args:
            iteration: how many are done.
            score: how the policy did; None or NaN where nothing new is known.
            name: what `score` is.
        """
        if not self._shown:
            return
        if score is not None and not math.isnan(score):
            self._score = f"{name} {score:.4g}"
        now = time.monotonic()
        speed = self._speed(iteration, now)
        report = ", ".join(part for part in (f"{speed * self._steps:,.0f} steps/s", self._score) if part)
        if self._bar is not None:
            self._bar.update(self._task, completed=iteration, report=report)
        elif now - self._last_line >= self._wait or iteration >= self._iterations:
            self._last_line = now
            self._wait = min(self._wait * GROWTH, LONGEST_WAIT)
            left = duration((self._iterations - iteration) / speed)
            self._console.print(
                f"iteration {iteration}/{self._iterations}, {left} left, {report}", highlight=False, soft_wrap=True
            )

    def say(self, text: str) -> None:
        """Print a line, above the bar where there is one."""
        if self._shown:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _speed(self, iteration: int, now: float) -> float:
        """Iterations a second since the first report: the time before it was compilation's."""
        if self._first is None:
            self._first = (iteration, now)
        done, seconds = iteration - self._first[0], now - self._first[1]
        if done <= 0 or seconds <= 0:
            done, seconds = max(iteration - self._done, 1), max(now - self._start, 1e-9)
        return done / seconds


def duration(seconds: float) -> str:
    """A time in the units that suit it.

    Example:
        >>> duration(42.4), duration(200), duration(7380)
        ('42 s', '3 min 20 s', '2 h 03 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
