"""Kernel learning on data larger than memory: subspaces and covariates, in Zarr, on a Dask cluster.

The public names are loaded when they are first used: ``import gramian`` is cheap, and
``import gramian.kernels`` brings NumPy and SciPy alone.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gramian import errors as errors
    from gramian import kernels as kernels
    from gramian.engine import session as session
    from gramian.features import GrassmannianRandomFeatures as GrassmannianRandomFeatures
    from gramian.features import HALPrincipalComponents as HALPrincipalComponents
    from gramian.gram import GramOperator as GramOperator
    from gramian.gram import gram as gram
    from gramian.ingest import ingest as ingest
    from gramian.models import load_model as load_model
    from gramian.models import save_model as save_model
    from gramian.nca import NeighborhoodComponentsAnalysis as NeighborhoodComponentsAnalysis
    from gramian.pipeline import run as run
    from gramian.regression import PCHALRegressor as PCHALRegressor
    from gramian.regression import PCHARRegressor as PCHARRegressor
    from gramian.ridge import BlockwiseRidge as BlockwiseRidge
    from gramian.ridge import BlockwiseRidgeClassifier as BlockwiseRidgeClassifier
    from gramian.spectral import Eigenpairs as Eigenpairs
    from gramian.spectral import leading_eigenpairs as leading_eigenpairs
    from gramian.store.layout import open_dataset as open_dataset

__version__ = "0.1.0"

_NAMES = {
    "engine": ("session",),
    "features": ("GrassmannianRandomFeatures", "HALPrincipalComponents"),
    "gram": ("GramOperator", "gram"),
    "ingest": ("ingest",),
    "models": ("load_model", "save_model"),
    "nca": ("NeighborhoodComponentsAnalysis",),
    "pipeline": ("run",),
    "regression": ("PCHALRegressor", "PCHARRegressor"),
    "ridge": ("BlockwiseRidge", "BlockwiseRidgeClassifier"),
    "spectral": ("Eigenpairs", "leading_eigenpairs"),
    "store.layout": ("open_dataset",),
    "": ("errors", "kernels"),  # modules of their own name
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_HOME)

if not TYPE_CHECKING:  # a type checker sees the imports above, and that there is nothing else

    def __getattr__(name: str) -> Any:
        """Load a public name on its first use (PEP 562)."""
        if name not in _HOME:
            raise AttributeError(f"module 'gramian' has no attribute {name!r}")
        if not _HOME[name]:
            return import_module(f"gramian.{name}")
        value = globals()[name] = getattr(import_module(f"gramian.{_HOME[name]}"), name)
        return value

    def __dir__() -> list[str]:
        """The public names, loaded or not."""
        return sorted([*__all__, "__version__"])


class _Package(ModuleType):
    """``gramian.gram`` and ``gramian.ingest`` are functions, whoever imported their modules first."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in ("gram", "ingest") and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
