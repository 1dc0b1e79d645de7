"""The project's exceptions.

Every message states the condition with the value found, and the remedy: one line each.
"""

from __future__ import annotations


class GramianError(Exception):
    """Base of all errors of this package.

    Parameters
    ----------
    cause : str
        The condition that failed and the value that was found.
    remedy : str
        What the reader can do about it.
    """

    def __init__(self, cause: str, remedy: str) -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause}; {self.remedy}"


class InputError(GramianError, ValueError):
    """Data or a parameter with a value that cannot be used."""


class InputTypeError(GramianError, TypeError):
    """Data or a parameter of a type that cannot be used."""


class PlanError(GramianError, RuntimeError):
    """A plan that does not fit its memory limit; nothing was submitted."""


class StoreError(GramianError, RuntimeError):
    """A store that is missing, exists already, is damaged or has another schema."""


class RunError(GramianError, RuntimeError):
    """A run directory that is in use, was overtaken, or belongs to other inputs or parameters."""


class ClusterError(GramianError, RuntimeError):
    """A cluster that cannot be reached, lost its workers or differs from this process."""


class GramianWarning(UserWarning):
    """Something that the reader should know and can act upon."""
