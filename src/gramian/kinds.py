"""The estimators behind the words of the command line: one line each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from gramian.job import JobError


@dataclass(frozen=True)
class Kind:
    """An estimator behind a word of the command line.

    Parameters
    ----------
    module, name : str
        Where its class is.
    reads : tuple of str
        The arrays that it may read as X, the first that exists.
    target : str or None
        The array that it reads as y.
    preset : dict
        Parameters that the word stands for.
    """

    module: str
    name: str
    reads: tuple[str, ...]
    target: str | None = None
    preset: Mapping[str, Any] = field(default_factory=dict)

    def make(self, settings: Mapping[str, Any]) -> Any:
        """The unfitted estimator."""
        estimator = getattr(import_module(self.module), self.name)(**self.preset)
        allowed = sorted(estimator.get_params(deep=False))
        for name in settings:
            if name not in allowed:
                raise JobError(f"{self.name} has no parameter {name!r}", f"set one of {', '.join(allowed)}")
            word = self.preset.get(name)
            if isinstance(word, str) and settings[name] != word:
                raise JobError(
                    f"{name} is {settings[name]!r} beside the word {word!r}",
                    "give the other word",
                )
        return estimator.set_params(**settings)


_RANDOM = ("gramian.features", "GrassmannianRandomFeatures", ("subspaces",), None)
_NEIGHBOURS = Kind("gramian.nca", "NeighborhoodComponentsAnalysis", ("covariates",), "labels")
FEATURES = {
    "periodic": Kind(*_RANDOM, {"nonlinearity": "periodic"}),
    "sign": Kind(*_RANDOM, {"nonlinearity": "sign", "packed": True}),
    "linear": Kind(*_RANDOM, {"nonlinearity": "linear"}),
    "hal": Kind("gramian.features", "HALPrincipalComponents", ("covariates",)),
    "nca": _NEIGHBOURS,
}
MODELS = {
    "pchar": Kind("gramian.regression", "PCHARRegressor", ("covariates",), "target"),
    "pchal": Kind("gramian.regression", "PCHALRegressor", ("covariates",), "target"),
    "ridge": Kind("gramian.ridge", "BlockwiseRidge", ("features", "covariates"), "target"),
    "ridge-classifier": Kind(
        "gramian.ridge", "BlockwiseRidgeClassifier", ("features", "covariates"), "labels"
    ),
    "nca": _NEIGHBOURS,
}


def kind_of(estimator: Any) -> Kind:
    """The word that stands for an estimator of this class."""
    name = type(estimator).__name__
    return next(kind for kind in (*FEATURES.values(), *MODELS.values()) if kind.name == name)


def word_of(word: str, table: Mapping[str, Any], what: str) -> Any:
    """The entry of a table, or an error that lists the table."""
    if word not in table:
        raise JobError(f"{what} is {word!r}", f"give one of {', '.join(table)}")
    return table[word]
