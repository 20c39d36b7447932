"""The persistent compilation cache: a second run of the same program starts at once."""

from __future__ import annotations

import os
from pathlib import Path

import jax


def use_compilation_cache() -> None:
    """Keep compiled programs in the user's cache folder, unless JAX was told another place.

    `JAX_COMPILATION_CACHE_DIR` (or jax.config) wins; `JAX_ENABLE_COMPILATION_CACHE=false` turns it off.
    """
    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:
        return
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", os.fspath(Path(home) / "equimorph" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
