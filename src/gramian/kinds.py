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
    parameters : tuple of str
        Parameters that words can set, for the help, which must not import the class.
    """

    module: str
    name: str
    reads: tuple[str, ...]
    target: str | None = None
    preset: Mapping[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()

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


_HAL = (
    *("n_components", "max_degree", "knots", "n_knots", "landmarks", "n_landmarks", "solver", "center"),
    "random_state",
)
_PENALIZED = (*_HAL, "alpha", "selection", "cv")
_RIDGE = ("alpha", "cv", "fit_intercept", "random_state")


def _random(nonlinearity: str, **preset: Any) -> Kind:
    return Kind(
        "gramian.features",
        "GrassmannianRandomFeatures",
        ("subspaces",),
        None,
        {"nonlinearity": nonlinearity, **preset},
        ("n_projections", "omega", "projection", "packed", "random_state"),
    )


_NEIGHBOURS = Kind(
    "gramian.nca",
    "NeighborhoodComponentsAnalysis",
    ("covariates",),
    "labels",
    parameters=(
        *("n_components", "objective", "init", "warm_start", "max_iter", "tol", "solver"),
        *("batch_size", "n_references", "truncation", "verbose", "random_state"),
    ),
)
FEATURES = {
    "periodic": _random("periodic"),
    "sign": _random("sign", packed=True),
    "linear": _random("linear"),
    "hal": Kind("gramian.features", "HALPrincipalComponents", ("covariates",), parameters=_HAL),
    "nca": _NEIGHBOURS,
}
MODELS = {
    "pchar": Kind("gramian.regression", "PCHARRegressor", ("covariates",), "target", parameters=_PENALIZED),
    "pchal": Kind("gramian.regression", "PCHALRegressor", ("covariates",), "target", parameters=_PENALIZED),
    "ridge": Kind("gramian.ridge", "BlockwiseRidge", ("features", "covariates"), "target", parameters=_RIDGE),
    "ridge-classifier": Kind(
        "gramian.ridge",
        "BlockwiseRidgeClassifier",
        ("features", "covariates"),
        "labels",
        parameters=_RIDGE,
    ),
    "nca": _NEIGHBOURS,
}


def parameter_lines(table: Mapping[str, Kind]) -> list[str]:
    """What can be set of each kind, a line for all kinds that have the same.

    Examples
    --------
    >>> print(*parameter_lines({"ridge": MODELS["ridge"], "ridge-classifier": MODELS["ridge-classifier"]}))
    ridge, ridge-classifier: alpha, cv, fit_intercept, random_state
    """
    words: dict[tuple[str, ...], list[str]] = {}
    for word, kind in table.items():
        words.setdefault(kind.parameters, []).append(word)
    return [f"{', '.join(alike)}: {', '.join(parameters)}" for parameters, alike in words.items()]


def kind_of(estimator: Any) -> Kind:
    """The word that stands for an estimator of this class."""
    name = type(estimator).__name__
    return next(kind for kind in (*FEATURES.values(), *MODELS.values()) if kind.name == name)


def word_of(word: str, table: Mapping[str, Any], what: str) -> Any:
    """The entry of a table, or an error that lists the table."""
    if word not in table:
        raise JobError(f"{what} is {word!r}", f"give one of {', '.join(table)}")
    return table[word]
