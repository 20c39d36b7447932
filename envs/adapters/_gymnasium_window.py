"""A window that shows frames, for `render_mode="human"`."""

from __future__ import annotations

import importlib

import gymnasium
import numpy as np


class Window:
    """A window of pygame's, opened by the first frame.

    Args:
        title: what stands above it.
        frames_per_second: how fast it may be drawn.

    Raises:
        gymnasium.error.DependencyNotInstalled: pygame is missing.
    """

    def __init__(self, title: str, frames_per_second: int):
        try:
            self._pygame = importlib.import_module("pygame")
        except ImportError:
            raise gymnasium.error.DependencyNotInstalled(
                "render_mode='human' opens a window of pygame, which is not installed: pip install 'equimorph[render]'"
            ) from None
        self._title = title
        self._frames_per_second = frames_per_second
        self._screen = None
        self._clock = None

    def show(self, frame: np.ndarray) -> None:
        """Draw one frame, uint8[H, W, 3], and wait until it is due."""
        pygame = self._pygame
        size = (frame.shape[1], frame.shape[0])
        if self._screen is None or self._screen.get_size() != size:
            pygame.display.init()
            pygame.display.set_caption(self._title)
            self._screen = pygame.display.set_mode(size)
            self._clock = pygame.time.Clock()
        assert self._clock is not None
        self._screen.blit(pygame.surfarray.make_surface(frame.swapaxes(0, 1)), (0, 0))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self._frames_per_second)

    def close(self) -> None:
        """Close it; a second time does nothing."""
        if self._screen is not None:
            self._pygame.display.quit()
            self._screen = None
