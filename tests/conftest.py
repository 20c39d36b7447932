"""What all tests share."""

from pathlib import Path

import jax
import pytest

# Linux allows a process 65,530 memory maps by default; a compiled function of JAX's takes several.
MOST_MAPS = 20_000


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Optimize what a slow test compiles, and nothing else: the others compile for longer than they run."""
    jax.config.update("jax_disable_most_optimizations", item.get_closest_marker("slow") is None)


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps():
    """Forget compiled functions before a process runs out of memory maps, of which LLVM would die."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
