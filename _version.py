"""The installed distribution's version, apart because finding it reads the disk."""

import importlib.metadata

__version__ = importlib.metadata.version("equimorph")
