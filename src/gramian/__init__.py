"""Kernel learning on data larger than memory."""

__version__ = "0.1.0"
