"""What keeps a long run from being spoilt: one writer a folder, and an orderly end on a signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import filelock

from ..errors import UserError

LOCK = ".lock"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class FolderLock:
    """Keeps a second process out of a run folder. The operating system lets go of it when its process ends.

    Args:
        path: the folder; it exists.

    Raises:
        UserError: a live run has it, or nothing can be written there.
    """

    def __init__(self, path: str | os.PathLike):
        self._lock = filelock.FileLock(Path(path, LOCK))
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UserError(
                f"the run folder {os.fspath(path)!r} is in use by a run that is still going; wait for it, stop it "
                "(SIGTERM saves what it has), or choose another folder"
            ) from None
        except OSError as error:
            raise UserError(f"cannot write into the run folder {os.fspath(path)!r}: {error.strerror}") from None

    def release(self) -> None:
        """Let others in."""
        self._lock.release()


class Signals:
    """Within it the first SIGINT or SIGTERM is only noted, and a second one ends the process at once.

    Outside the main thread, where Python delivers no signals, it does nothing.

    Args:
        notice: is told of it.
        shared: the run is one of several processes, which answer a signal to one of them together (`agree`).

    Attributes:
        noted: the signal that this process noted.
    """

    def __init__(self, notice: Callable[[str], None] | None = None, *, shared: bool = False):
        self.noted: signal.Signals | None = None
        self._notice = notice
        self._shared = shared
        self._agreed: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def received(self) -> signal.Signals | None:
        """The signal that ends the run."""
        return self._agreed if self._shared else self.noted

    def agree(self, noted: Sequence[int | None]) -> None:
        """Receive the first signal of those that the processes noted, by rank, in each of them."""
        number = next((number for number in noted if number is not None), None)
        if number is not None and self._agreed is None:
            self._agreed = signal.Signals(number)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted is not None:
            os._exit(128 + number)  # at once: what is saved is whole, and what is being saved is not yet there
        self.noted = signal.Signals(number)
        if self._notice is not None:
            self._notice(f"{self.noted.name}: the iteration is finished and saved; once more to end at once")

    def finish(self, said: str) -> None:
        """End the program as the signal asked, now that everything is saved.

        Raises:
            KeyboardInterrupt: after SIGINT.
            SystemExit: after SIGTERM, with code 143.
        """
        if self.received is signal.SIGINT:
            raise KeyboardInterrupt(said)
        if self.received is not None:
            sys.stderr.write(f"equimorph: {said}\n")
            raise SystemExit(128 + self.received)
