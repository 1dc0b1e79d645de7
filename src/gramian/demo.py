"""The main job on real data that scikit-learn ships: an ordinary job, its data first, its page last.

Digits: a few images of one class span a subspace; random features of the subspaces are classified on held-out
groups, beside the exact projection kernel. Digits as pixels: neighbourhood components analysis, beside
nearest neighbours. Diabetes: principal-component regressions of the highly adaptive lasso, beside ridge.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramian import pipeline
from gramian.ingest import ingest
from gramian.job import Cluster, Job, parse_job
from gramian.report import write_report
from gramian.store.layout import open_dataset
from gramian.store.run import Run

IMAGES = 2  # of one class, that span a subspace
RANK = 2
TRAINING_GROUPS, TEST_GROUPS = 100, 40  # of each class
PROJECTIONS = {"periodic": 512, "sign": 1024}  # 1,024 columns each: cosine and sine, or one bit
COMPONENTS = {"nca": 10, "nca-plane": 2}  # the second to look at
PIXELS = 54  # of 64, those that vary most; others are the same in nearly all images
MEMORY = 700 << 20  # of each of two workers
ALPHAS = 10.0 ** np.arange(-3, 3)  # of the exact kernel's ridge

ADVICE = """what to try next:
  gramian inspect {root}/data/digits.zarr
  gramian verify {root}
  gramian featurize {root}/data/digits.zarr --features linear --set n_projections=4096 --out linear.zarr
  gramian fit {root}/data/diabetes.zarr --model pchal --rows train --set max_degree=2 --out pchal.zarr
  gramian ingest YOUR.csv yours.zarr --target COLUMN --split 0.2"""


@dataclass(frozen=True)
class Shown:
    """What the demo ends with.

    Parameters
    ----------
    tables : list of dict
        Each with ``title``, ``columns`` and ``rows``.
    page : Path
        The report.
    advice : str
    complete : bool
        Whether nothing was left to do.
    """

    tables: list[dict[str, Any]]
    page: Path
    advice: str
    complete: bool


def run_demo(
    out: str | Path = "runs/demo",
    *,
    scheduler: str | None = None,
    workers: int = 2,
    watch: pipeline.Watch | None = None,
) -> Shown:
    """Run the main job, or what is left of it.

    Parameters
    ----------
    out : path
        The run directory; data, outputs and the report lie in it.
    scheduler : str, optional
        Address of a running scheduler whose workers see ``out``; without it a local cluster.
    workers : int, default 2
        Of the local cluster; 0 computes in this process.
    watch : pipeline.Watch, optional
    """
    root, watch = Path(out), watch or pipeline.Silent()
    prepare_data(root, watch)
    job = demo_job(
        root, Cluster(scheduler=scheduler) if scheduler else Cluster(workers, 1, MEMORY if workers else None)
    )
    outcome = pipeline.run(job, resume=True, watch=watch)
    tables = _compare(root, watch)
    complete = not outcome.computed
    if complete:
        watch.say(f"{root} is complete: every recorded block was checked, nothing had to be computed")
    return Shown(tables, write_report(root), ADVICE.format(root=root), complete)


def demo_job(root: Path, cluster: Cluster) -> Job:
    """The job, in the words of a job file."""
    digits, diabetes = "data/digits.zarr", "data/diabetes.zarr"
    stages: dict[str, Any] = {}
    for kind, count in PROJECTIONS.items():
        settings = {"n_projections": count, "random_state": 0}
        stages[kind] = {"command": "featurize", "store": digits, "features": kind, "set": settings}
        stages |= _fit_and_test(f"{kind}-ridge", kind, "ridge-classifier")
    stages["projection"] = {"command": "gram", "store": digits, "kernel": "projection"}
    for name, count in COMPONENTS.items():
        stages |= _fit_and_test(name, "data/pixels.zarr", "nca", n_components=count)
    for model in ("pchar", "pchal", "ridge"):
        stages |= _fit_and_test(model, diabetes, model)
    job = parse_job({"path": ".", "stages": stages}, base=root)
    return Job(str(root), job.stages, cluster)


def _fit_and_test(name: str, store: str, model: str, **settings: Any) -> dict[str, Any]:
    settings["random_state"] = 0
    return {
        name: {"command": "fit", "store": store, "model": model, "rows": "train", "set": settings},
        f"{name}-test": {"command": "evaluate", "model": name, "store": store, "rows": "test"},
    }


# ---------------------------------------------------------------- data


def prepare_data(root: Path, watch: pipeline.Watch) -> None:
    """Bring the data sets in, where they are not there yet."""
    from sklearn.datasets import load_diabetes, load_digits

    folder = root / "data"
    if not (folder / "digits.zarr").exists():
        watch.say("bringing in digits: a few images of one class span a subspace")
        ingest(digit_groups(), folder / "digits.zarr", subspaces=True, rank=RANK)
    if not (folder / "pixels.zarr").exists():
        watch.say(f"bringing in pixels: the same digits, {PIXELS} covariates each")
        images = load_digits()
        varied = np.sort(np.argsort(-images.data.var(axis=0))[:PIXELS])
        rows = {"covariates": images.data[:, varied] / 16, "labels": images.target}
        ingest(rows, folder / "pixels.zarr", split=0.5, random_state=0)
    if not (folder / "diabetes.zarr").exists():
        watch.say("bringing in diabetes: 442 patients, 10 covariates")
        data = load_diabetes()
        rows = {"covariates": data.data, "target": data.target.astype(np.float64)}
        ingest(rows, folder / "diabetes.zarr", split=0.25, random_state=0)


def digit_groups() -> dict[str, NDArray[Any]]:
    """Groups of digit images of one class, drawn with a fixed seed.

    Returns
    -------
    dict
        ``X`` (groups, 64, images) pixels in [0, 1], ``labels`` and ``split``. No image is in a training and
        a test group; an image may be in several groups of one side.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    random = np.random.default_rng(0)
    groups = [
        (digits.data[members].T / 16, label, side)
        for label in range(10)
        for side, pool, count in _sides(random.permutation(np.flatnonzero(digits.target == label)))
        for members in (random.choice(pool, IMAGES, replace=False) for _ in range(count))
    ]
    matrices, labels, sides = zip(*groups, strict=True)
    return {"X": np.array(matrices), "labels": np.array(labels), "split": np.array(sides, dtype=np.int8)}


def _sides(images: NDArray[np.intp]) -> Iterator[tuple[int, NDArray[np.intp], int]]:
    """(0 for training or 1 for testing, its images, how many groups)."""
    cut = (6 * len(images)) // 10
    yield 0, images[:cut], TRAINING_GROUPS
    yield 1, images[cut:], TEST_GROUPS


# ---------------------------------------------------------------- comparison


def _compare(root: Path, watch: pipeline.Watch) -> list[dict[str, Any]]:
    """The tables of the demo; kept with the run, so that its report has them."""
    before = Run.open(root, None)
    if "comparison" not in before.stages:
        watch.say("comparison: the exact kernel and nearest neighbours on the same held-out rows")
        began = time.monotonic()
        exact = exact_accuracy(str(root / "data/digits.zarr"), str(root / "projection.zarr"))
        pixels = _pixels_table(before, *nearest_accuracies(str(root / "data/pixels.zarr")))
        tables = [_digits_table(before, exact), pixels, _diabetes_table(before)]
        facts = {"command": "demo", "seconds": round(time.monotonic() - began, 3), "tables": tables}
        with Run.open(root, before.manifest, resume=True, allow_mixed=True) as run:
            run.complete("comparison", facts)
        return tables
    found: list[dict[str, Any]] = before.stages["comparison"]["tables"]
    return found


def exact_accuracy(data: str, gram: str) -> float:
    """Accuracy on the test groups of kernel ridge on a stored Gram matrix, alpha by cross-validation."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.model_selection import GridSearchCV

    store = open_dataset(data).arrays
    K, labels = np.asarray(open_dataset(gram).arrays["gram"][:], np.float64), np.asarray(store["labels"][:])
    train, test = (np.flatnonzero(np.asarray(store["split"][:]) == side) for side in (0, 1))
    signs = np.where(labels[:, None] == np.unique(labels), 1.0, -1.0)
    search = GridSearchCV(KernelRidge(kernel="precomputed"), {"alpha": ALPHAS}, cv=_folds(labels[train]))
    search.fit(K[np.ix_(train, train)], signs[train])
    found = search.predict(K[np.ix_(test, train)]).argmax(axis=1)
    return float((found == labels[test]).mean())


def _folds(labels: NDArray[Any]) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
    from sklearn.model_selection import StratifiedKFold

    return list(StratifiedKFold(5, shuffle=True, random_state=0).split(labels, labels))


def _digits_table(run: Run, exact: float) -> dict[str, Any]:
    size = {
        "periodic": f"{2 * PROJECTIONS['periodic']:,} numbers",
        "sign": f"{PROJECTIONS['sign'] // 8:,} bytes",
    }
    rows: list[list[Any]] = [["exact projection kernel", f"{10 * TRAINING_GROUPS:,} kernel values", exact]]
    for kind, count in PROJECTIONS.items():
        accuracy = run.stages[f"{kind}-ridge-test"]["results"]["accuracy"]
        rows.append([f"{kind} features, m = {count:,}", size[kind], accuracy])
    return {
        "title": "Digits: held-out groups",
        "columns": ["method", "per group", "accuracy"],
        "rows": rows,
        "note": (
            f"{10 * (TRAINING_GROUPS + TEST_GROUPS):,} groups of {IMAGES} images of one digit, each the "
            f"{RANK}-dimensional subspace of R^64 that they span. No image stands on both sides of the "
            "split. Ridge classifiers, alpha by 5-fold cross-validation."
        ),
    }


def nearest_accuracies(data: str) -> tuple[float, float]:
    """Accuracy on the test rows of three nearest neighbours: in all columns, and in principal components."""
    from sklearn.decomposition import PCA
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline

    store = open_dataset(data).arrays
    X, labels, split = (np.asarray(store[name][:]) for name in ("covariates", "labels", "split"))
    plain = KNeighborsClassifier(3)
    reduced = make_pipeline(PCA(COMPONENTS["nca"], random_state=0), KNeighborsClassifier(3))
    plain_score, reduced_score = (
        float(model.fit(X[split == 0], labels[split == 0]).score(X[split == 1], labels[split == 1]))
        for model in (plain, reduced)
    )
    return plain_score, reduced_score


def _pixels_table(run: Run, plain: float, reduced: float) -> dict[str, Any]:
    learnt = {name: run.stages[f"{name}-test"]["results"]["accuracy"] for name in COMPONENTS}
    rows: list[list[Any]] = [
        ["3 nearest neighbours, all pixels", PIXELS, plain],
        ["3 nearest neighbours, principal components", COMPONENTS["nca"], reduced],
    ]
    rows += [
        ["neighbourhood components, stochastic neighbours", COMPONENTS[name], score]
        for name, score in learnt.items()
    ]
    return {
        "title": "Digits as pixels: held-out images",
        "columns": ["method", "numbers an image", "accuracy"],
        "rows": rows,
        "note": (
            f"1,797 images, the {PIXELS} pixels that vary, half held out. The map is learnt by exact "
            "gradients over all pairs."
        ),
    }


def _diabetes_table(run: Run) -> dict[str, Any]:
    names = {"pchar": "PCHAR", "pchal": "PCHAL", "ridge": "ordinary ridge"}
    rows = []
    for model, title in names.items():
        scores, curves = run.stages[f"{model}-test"]["results"], run.stages[model]["curves"]
        rows.append([title, max(curves["path"]["score"]), scores["r2"], scores["rmse"]])
    return {
        "title": "Diabetes: cross-validation and held-out rows",
        "columns": ["method", "R² by 5-fold CV", "R² on test rows", "RMSE on test rows"],
        "rows": rows,
        "note": (
            "442 patients, a quarter held out; 10 covariates. The relation is close to linear, so ridge is "
            "hard to beat here: the highly adaptive models have to find that out by themselves."
        ),
    }
