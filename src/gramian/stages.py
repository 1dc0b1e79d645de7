"""What each command does: from what is known of its inputs to a plan, and from its inputs to its output.

A stage may read what an earlier one has yet to make; hence it plans on a `Source`, which knows shapes
before there are arrays.
"""

from __future__ import annotations

import inspect
import json
import shlex
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import zarr
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline

from gramian import engine, models
from gramian.blocks import ArraySpec, Grid, Plan, Step
from gramian.curves import kernel_error, kernel_error_plan, neighbourhoods, path, spectrum
from gramian.errors import InputError, StoreError
from gramian.gram import KERNELS, GramOperator
from gramian.job import COMMANDS, JobError, Stage, json_text
from gramian.kernels.scores import class_sums, error_sums, target_sums
from gramian.kinds import FEATURES, MODELS, kind_of, word_of
from gramian.maps import after, bounded_step
from gramian.selection import variances
from gramian.sources import loaded
from gramian.store.layout import (
    FORMAT,
    check_free,
    check_outside,
    copy_side_arrays,
    create_array,
    create_store,
    finish_store,
    open_dataset,
    open_store,
)
from gramian.store.manifest import fingerprint
from gramian.store.run import Run
from gramian.store.writer import block_grid, check_block, refuse_lost
from gramian.streams import seed_of
from gramian.validation import refuse_no_weight, shown
from gramian.views import Fitted, Source, View, parts

Session = Callable[[str], AbstractContextManager[None]]


@dataclass
class Known:
    """What the stages so far have promised, and the seeds of a run that is resumed."""

    seeds: dict[str, int] = field(default_factory=dict)
    actions: dict[str, Action] = field(default_factory=dict)

    def add(self, action: Action) -> None:
        """Later stages may name this one."""
        self.actions[action.stage.name] = action

    def source(self, store: str) -> Source:
        """An earlier stage's output, or the store at a path."""
        return self.actions[store].promise() if store in self.actions else Source.open(store)

    def fitted(self, model: str) -> Fitted:
        """An earlier stage's model, or the model at a path."""
        if model not in self.actions:
            return Fitted.open(model)
        action = self.actions[model]
        if not isinstance(action, Fit):
            raise JobError(f"stage {model} makes no model", 'name a stage with command = "fit"')
        return action.fitted()

    def map(self, what: str) -> tuple[Any, str | None]:
        """The map of features or of a model, and the path to load it from once it is fitted."""
        action = self.actions.get(what)
        if isinstance(action, Fit):
            found, place = action.fitted().map, action.fitted().path
        elif action is not None:
            found, place = action.promise().map, action.promise().path
        else:
            found, place = _load_map(what), what
        if found is None:
            raise InputError(
                f"{what} holds no map of features", "give the path of features, or of a model made of them"
            )
        return found, place


def _load_map(path: str) -> Any:
    """The map of a store of features or of a model."""
    if _kind_at(path) == "model":
        estimator, before = parts(models.load_model(path), path)
        return estimator if before is None and hasattr(estimator, "stored_map") else before
    return Source.open(path).map


def _kind_at(path: str) -> str:
    facts: Any = open_store(path).attrs["gramian"]
    return str(facts["kind"])


def _refuse_swapped(stage: Stage) -> None:
    """Refuse a model in the place of the store, and a store in that of the model."""
    if _kind_at(stage.store) == "model" and _kind_at(stage.what) != "model":
        raise JobError(
            f"the order of model and store is wrong: {stage.what} holds data, {stage.store} a model",
            f"give the model first: gramian {shlex.join([stage.command, stage.store, stage.what])}",
        )


# ---------------------------------------------------------------- the commands


class Action(ABC):
    """A stage that can be planned and run.

    Parameters
    ----------
    stage : Stage
    known : Known
        What earlier stages have promised.
    """

    kind: ClassVar[str] = ""
    seed: int | None = None

    def __init__(self, stage: Stage, known: Known) -> None:
        self.stage = stage
        self.view = View(known.source(stage.store), stage.rows)
        self._given = stage.store not in known.actions

    @abstractmethod
    def plan(self) -> Plan:
        """What running takes."""

    @abstractmethod
    def promise(self) -> Source:
        """What the output will be, for stages that read it."""

    def arrays(self) -> Mapping[str, ArraySpec]:
        """The arrays of the output that are known before it is made."""
        return self.promise().specs

    @abstractmethod
    def reads(self) -> list[str]:
        """The arrays of the store that decide the result."""

    @abstractmethod
    def run(self, session: Session, run: Run | None, *, force: bool) -> dict[str, Any]:
        """Make the output; the facts to keep: results, choices and curves."""

    def target_spec(self, name: str) -> ArraySpec:
        """Of an array that is learnt from, as a plan needs it: labels count as one column a class.

        Labels without names are read, to count them.
        """
        spec, count = self.view.spec(name), len(self.view.source.classes)
        if name == "target":
            return spec
        if not count and self._given:
            count = len(np.unique(loaded(self.view.array(name))))
        return replace(spec, shape=(spec.shape[0], max(2, count)))

    def inputs(self) -> dict[str, Any]:
        """Fingerprints of what no earlier stage has made, by path; nothing of it may be lost."""
        if not self._given:
            return {}
        data = open_dataset(self.stage.store)
        names = dict.fromkeys([*self.reads(), *(["split"] if self.view.by_split else [])])
        for name in names:
            refuse_lost(data.arrays[name], name)
        return {self.stage.store: {name: fingerprint(data.arrays[name]) for name in names}}

    def paths(self) -> list[str]:
        """Which words of the stage are paths."""
        return ["out", *(["store"] if self._given else [])]

    def is_there(self) -> bool:
        """Whether the output exists."""
        out = self.stage.out
        if out is None:
            return False
        if "://" in out:
            return _remote_exists(out)
        return Path(out).exists()

    def is_sound(self) -> bool:
        """Whether the output is there and opens."""
        if self.stage.out is None or self.kind == "scores":
            return self.is_there()
        return self.is_there() and opens(self.kind, self.stage.out)

    def settle_seed(self, estimator: Any, known: Known) -> Any:
        """A seed for an estimator that was given none: that of the run to resume, or a new one."""
        if "random_state" in estimator.get_params(deep=False) and estimator.random_state is None:
            self.seed = known.seeds.get(self.stage.name, seed_of(None))
            estimator.set_params(random_state=self.seed)
        elif "random_state" in estimator.get_params(deep=False):
            seed_of(estimator.random_state)  # refused here rather than in the fit
        return estimator

    def check_free(self, *, force: bool) -> None:
        """Refuse, before anything is made, an output that exists or that ``force`` must not replace."""
        if self.stage.out is not None:
            check_free(self.stage.out, self.kind, force=force)

    def _group(self, attrs: Mapping[str, Any], *, force: bool) -> zarr.Group:
        """The output: made, or what an earlier attempt of this run has left of it."""
        assert self.stage.out is not None
        attrs = {**attrs, "complete": False}
        if not self.is_there() or force:
            return create_store(self.stage.out, self.kind, attrs=attrs, force=force)
        for unfinished in Path(self.stage.out).rglob("*.partial"):  # of a write that was killed
            unfinished.unlink(missing_ok=True)
        try:
            return zarr.open_group(self.stage.out, mode="r+")
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ):  # its document is lost or damaged, its arrays may not be
            facts = {"format": FORMAT, "kind": self.kind, **attrs}
            return zarr.create_group(self.stage.out, zarr_format=3, attributes={"gramian": facts})

    def _record(self, run: Run | None, group: zarr.Group, written: tuple[str, ...] = ()) -> None:
        """Record the arrays that this process wrote itself, all but those that the engine has recorded."""
        for name, array in sorted(dict(group.members(max_depth=None)).items()):
            if run is not None and isinstance(array, zarr.Array) and name not in written:
                for index in np.ndindex(*block_grid(array)):
                    found = check_block(array, index)
                    assert found is not None
                    run.record(f"{self.stage.name}/{name}", index, found)


def opens(kind: str, path: str) -> bool:
    """Whether a store of this kind can be read: its documents, not its blocks."""
    try:
        if kind == "model":
            models.load_model(path)
        elif kind == "features":
            models.load_map(open_store(path))
        else:
            open_dataset(path)
    except StoreError:
        return False
    return True


def _remote_exists(url: str) -> bool:
    from zarr.core.sync import sync
    from zarr.storage import FsspecStore

    return not sync(FsspecStore.from_url(url).is_empty(""))


class Featurize(Action):
    """Features of subspaces or covariates, with the fitted map that made them."""

    kind = "features"

    def __init__(self, stage: Stage, known: Known) -> None:
        super().__init__(stage, known)
        self._from: str | None = None
        if stage.what in FEATURES:
            self.map = self.settle_seed(FEATURES[stage.what].make(stage.set), known)
        elif stage.what in known.actions or "/" in stage.what or Path(stage.what).exists():
            if stage.set:
                raise JobError(f"{', '.join(stage.set)} of a fitted map", "set it where the map is made")
            self.map, self._from = known.map(stage.what)
        else:
            word_of(stage.what, FEATURES, "features")
        self._elsewhere = self._from is not None and stage.what not in known.actions
        kind = kind_of(self.map)
        self.name = self.view.first(kind.reads, "give a data set that this map reads")
        self.target: str | None = None
        if self._from is None and kind.target is not None:
            remedy = f"{stage.what} learns from {kind.target}, bring them in"
            self.target = self.view.first((kind.target,), remedy)

    def reads(self) -> list[str]:
        return [self.name, *self.view.side_specs()]

    def paths(self) -> list[str]:
        return [*super().paths(), *(["features"] if self._elsewhere else [])]

    def inputs(self) -> dict[str, Any]:
        found = super().inputs()
        return found | (
            {self.stage.what: {"map": models.fingerprint_of(self.map)}} if self._elsewhere else {}
        )

    def plan(self) -> Plan:
        X = self.view.spec(self.name)
        y = () if self.target is None else (self.target_spec(self.target),)
        fit = self.map.plan(X, *y) if self._from is None else Plan()
        stored = Plan((self.map.expected(X)[0],))
        return fit + stored + kernel_error_plan(self.map, X) + _copy_plan(self.view)

    def promise(self) -> Source:
        assert self.stage.out is not None
        stored = self.map.expected(self.view.spec(self.name))[1]
        specs = {"features": stored, **self.view.side_specs()}
        n_bits = stored.shape[1] if getattr(self.map, "packed", False) else 0
        return Source(self.stage.out, specs, self.view.split(), self.map, self.view.source.classes, n_bits)

    def run(self, session: Session, run: Run | None, *, force: bool) -> dict[str, Any]:
        assert self.stage.out is not None
        X = self.view.array(self.name)
        fitted = self.map
        if self._from is not None:
            fitted = _load_map(self._from)
        else:
            y = () if self.target is None else (self.view.array(self.target),)
            with session("sums"):
                fitted = self.map.fit(X, *y)
        row_map, attrs = fitted.stored_map(X)
        group = self._group({"features": self.stage.what}, force=force)
        out = create_array(group, "features", row_map.shape, row_map.dtype, row_map.grids, attrs)
        copy_side_arrays(open_dataset(self.view.source.path), group, rows=self.view.indices)
        models.save_map(fitted, group)
        self._record(run, group, written=("features",))
        with session(""):
            engine.write(row_map, out, X, name="features")
        finish_store(group)
        return {
            "choices": _choices(fitted),
            "curves": {**kernel_error(fitted, X), **spectrum(fitted), **self._climbed(fitted, X)},
            "shape": list(engine.spec_of(out).shape),
        }

    def _climbed(self, fitted: Any, X: Any) -> dict[str, Any]:
        return {} if self.target is None else neighbourhoods(fitted, X, self.view.array(self.target))


class Gram(Action):
    """A Gram matrix, tile by tile."""

    kind = "gram"

    def __init__(self, stage: Stage, known: Known) -> None:
        super().__init__(stage, known)
        kernel = word_of(
            stage.what, {name.replace("_", "-"): kernel for name, kernel in KERNELS.items()}, "kernel"
        )
        for name in stage.set:
            if name not in kernel.parameters:
                raise JobError(
                    f"kernel {stage.what} has no parameter {name!r}",
                    f"set one of {', '.join(kernel.parameters)}" if kernel.parameters else "leave it out",
                )
        self.kernel = kernel
        self.name = self.view.first(
            (kernel.reads,), f"the {stage.what} kernel reads {kernel.reads}, give a store that has them"
        )
        if self.kernel.reads == "features" and not self.view.source.n_bits:
            raise InputError(f"{stage.store} has features that are not packed", "make sign features, packed")

    def _operator(self, X: Any) -> GramOperator:
        return GramOperator(X, kernel=self.kernel.name, **self.stage.set)

    def _planned(self) -> tuple[ArraySpec, GramOperator]:
        """What is read, as it is stored, and the matrix."""
        spec, n_bits = self.view.spec(self.name), self.view.source.n_bits
        if self.kernel.reads != "features":
            return spec, self._operator(spec)
        spec = replace(spec, shape=(spec.shape[0], -(-n_bits // 8)), dtype=np.dtype(np.uint8))
        return spec, GramOperator(spec, kernel=self.kernel.name, **{"n_bits": n_bits, **self.stage.set})

    def reads(self) -> list[str]:
        return [self.name, *self.view.side_specs()]

    def plan(self) -> Plan:
        X, operator = self._planned()
        return Plan((operator.tile_map.step("gram", X),)) + _copy_plan(self.view)

    def promise(self) -> Source:
        assert self.stage.out is not None
        tile_map = self._planned()[1].tile_map
        chunks = tuple(grid.step for grid in tile_map.grids)
        spec = ArraySpec(tile_map.shape, tile_map.dtype, chunks)
        specs = {"gram": spec, **self.view.side_specs()}
        return Source(self.stage.out, specs, self.view.split(), classes=self.view.source.classes)

    def run(self, session: Session, run: Run | None, *, force: bool) -> dict[str, Any]:
        operator = self._operator(self.view.array(self.name))
        tile_map = operator.tile_map
        parameters = {name: value for name, value in self.stage.set.items() if name != "knots"}
        group = self._group({"kernel": self.kernel.name, "parameters": parameters}, force=force)
        out = create_array(group, "gram", tile_map.shape, tile_map.dtype, tile_map.grids)
        copy_side_arrays(open_dataset(self.view.source.path), group, rows=self.view.indices)
        self._record(run, group, written=("gram",))
        with session(""):
            engine.write_tiles(tile_map, out, *operator.sources, name="gram")
        finish_store(group)
        return {"shape": list(tile_map.shape)}


class Fit(Action):
    """A model of covariates or of features."""

    kind = "model"

    def __init__(self, stage: Stage, known: Known) -> None:
        super().__init__(stage, known)
        self.word = word_of(stage.what, MODELS, "model")
        self.estimator = self.settle_seed(self.word.make(stage.set), known)
        remedy = "make features of it first, with gramian featurize"
        self.name = self.view.first(self.word.reads, remedy)
        self.target = self.view.first(
            (self.word.target,), f"{stage.what} learns from {self.word.target}, bring them in"
        )
        self.map = self.view.source.map if self.name == "features" else None

    def reads(self) -> list[str]:
        return [self.name, self.target, *self._sides()]

    def _sides(self) -> dict[str, str]:
        """Further arrays that the fit takes: array and parameter."""
        accepted = inspect.signature(self.estimator.fit).parameters
        found = {"weights": "sample_weight", "groups": "groups"}
        return {array: name for array, name in found.items() if self.view.has(array) and name in accepted}

    def plan(self) -> Plan:
        return Plan(self.estimator.plan(self.view.spec(self.name), self.target_spec(self.target)).steps)

    def arrays(self) -> Mapping[str, ArraySpec]:
        return {}

    def promise(self) -> Source:
        raise JobError(f"stage {self.stage.name} makes a model, not a store of rows", "name it as a model")

    def fitted(self) -> Fitted:
        """The model as later stages know it."""
        assert self.stage.out is not None
        answer = self.view.spec(self.target)
        return Fitted(self.stage.out, self.estimator, self.map, promised=True, answer=answer)

    def run(self, session: Session, run: Run | None, *, force: bool) -> dict[str, Any]:
        assert self.stage.out is not None
        sides = {name: self.view.array(array) for array, name in self._sides().items()}
        X, y = self.view.array(self.name), self.view.array(self.target)
        with session("sums"):
            self.estimator.fit(X, y, **sides)
        if self.target == "labels" and self.view.source.classes:
            self.estimator.class_names_ = np.array(self.view.source.classes)
        model = self.estimator
        if self.name == "features":
            model = Pipeline([("map", _load_map(self.view.source.path)), ("model", self.estimator)])
        self._group({}, force=force)  # what this run has left of it may be replaced, nothing else
        models.save_model(model, self.stage.out, force=True)
        self._record(run, open_store(self.stage.out))
        return {
            "choices": _choices(self.estimator),
            "curves": {
                **spectrum(self.estimator),
                **path(self.estimator),
                **neighbourhoods(self.estimator, X, y),
            },
        }


class Use(Action):
    """What prediction and evaluation share: a model and rows that it can read."""

    def __init__(self, stage: Stage, known: Known) -> None:
        if not {stage.store, stage.what} & known.actions.keys():
            _refuse_swapped(stage)
        super().__init__(stage, known)
        self.model = known.fitted(stage.what)
        self.name, self.through = self._input()

    def _input(self) -> tuple[str, bool]:
        """The array to read, and whether it has yet to go through the model's map."""
        estimator, before = self.model.estimator, self.model.map
        if before is None:
            reads = kind_of(estimator).reads
            return self.view.first(reads, "give a store of what the model was made of"), False
        if self.view.has("features"):
            if not self.model.promised:
                self._check_map(before, self.view.source.map)
            return "features", False
        return self.view.first(kind_of(before).reads, "give a data set that the model's map reads"), True

    def _check_map(self, one: Any, other: Any) -> None:
        """Features of another map would give numbers without meaning."""
        if other is None or models.fingerprint_of(one) != models.fingerprint_of(other):
            raise InputError(
                f"{self.view.source.path} has features of another map than {self.model.path}",
                "give the raw data set, or features made with --features and the path of the model",
            )

    def ready(self) -> Fitted:
        """The model, fitted by now; made in this job, its map meets the rows' own here for the first time."""
        model = self.model.ready()
        if self.model.promised and self.name == "features" and model.map is not None:
            self._check_map(model.map, _load_map(self.view.source.path))
        return model

    def responses(self) -> list[str]:
        """What the model can say of a row."""
        every = ("predict", "predict_proba")
        return [name for name in every if callable(getattr(self.model.estimator, name, None))]

    def row_map(self, model: Fitted, X: Any, response: str) -> engine.RowMap:
        """The fitted model as one map of blocks, its own map of features before it where needed."""
        word = {} if response == "predict" else {"response": response}
        if not self.through:
            found: engine.RowMap = model.estimator.row_map(X, **word)
            return found
        first = model.map.decoded_map(X)
        between = ArraySpec(first.shape, first.dtype)
        return after(first, model.estimator.row_map(between, **word), engine.spec_of(X))

    def inputs(self) -> dict[str, Any]:
        found = super().inputs()
        if not self.model.promised:
            found[self.stage.what] = {"model": models.fingerprint_of(models.load_model(self.model.path))}
        return found

    def paths(self) -> list[str]:
        return [*super().paths(), *([] if self.model.promised else ["model"])]

    def _use_step(self, name: str) -> Step:
        """The step of a model that may still have to be fitted: then bounded by the size of every block."""
        X = self.view.spec(self.name)
        if self.model.answer is None:
            return self.row_map(self.model, X, "predict").step(name, X)
        return bounded_step(name, X, self.model.answer.row_bytes)

    def answer(self) -> ArraySpec:
        """What `predict` gives for the rows: (N,), or (N, t) for several targets."""
        X, learned = self.view.spec(self.name), self.model.answer
        if learned is not None:
            labels = kind_of(self.model.estimator).target == "labels"
            dtype = learned.dtype if labels else np.dtype(np.float64)
            return ArraySpec((X.shape[0], *learned.shape[1:]), dtype)
        row_map = self.row_map(self.model, X, "predict")
        return ArraySpec(row_map.shape, row_map.dtype)


class Predict(Use):
    """Predictions for every row, and probabilities where the model gives them."""

    kind = "predictions"

    def reads(self) -> list[str]:
        return [self.name]

    def plan(self) -> Plan:
        return Plan((self._use_step("predictions"),))

    def promise(self) -> Source:
        assert self.stage.out is not None
        return Source(self.stage.out, {"predictions": self.answer()})

    def run(self, session: Session, run: Run | None, *, force: bool) -> dict[str, Any]:
        del run  # the engine records
        model, X = self.ready(), self.view.array(self.name)
        maps = {_ARRAYS[response]: self.row_map(model, X, response) for response in self.responses()}
        step = min(row_map.grid.step for row_map in maps.values())
        names = getattr(model.estimator, "class_names_", None)
        group = self._group({"model": self.stage.what}, force=force)
        for name, row_map in maps.items():
            row_map = replace(row_map, grid=Grid(row_map.grid.size, step))
            attrs = {"classes": names.tolist()} if names is not None else {}
            out = create_array(group, name, row_map.shape, row_map.dtype, row_map.grids, attrs)
            with session(""):
                engine.write(row_map, out, X, name=name)
        finish_store(group)
        return {"shape": [engine.spec_of(X).shape[0]]}


_ARRAYS = {"predict": "predictions", "predict_proba": "probabilities"}


class Evaluate(Use):
    """Scores of a model on rows whose answers are known, as streamed sums."""

    kind = "scores"

    def __init__(self, stage: Stage, known: Known) -> None:
        super().__init__(stage, known)
        target = str(kind_of(self.model.estimator).target)
        self.target = self.view.first((target,), f"scores need the {target}, give a store that has it")

    def reads(self) -> list[str]:
        return [self.name, self.target, *(["weights"] if self.view.has("weights") else [])]

    def plan(self) -> Plan:
        return Plan((replace(self._use_step("scores"), written=0, files=0),))

    def check_free(self, *, force: bool) -> None:
        if self.stage.out is None:
            return
        out = Path(self.stage.out)
        check_outside(out)
        if not (out.exists() or out.is_symlink()):
            return
        if not force:
            raise StoreError(f"{out} exists already", "choose another path or give --force to replace it")
        if not _holds_scores(out):
            raise StoreError(
                f"{out} holds something else than scores", "choose another path or remove it by hand"
            )

    def arrays(self) -> Mapping[str, ArraySpec]:
        return {}

    def promise(self) -> Source:
        raise JobError(f"stage {self.stage.name} makes scores, not a store of rows", "name another stage")

    def run(self, session: Session, run: Run | None, *, force: bool) -> dict[str, Any]:
        del run, force
        model, X = self.ready(), self.view.array(self.name)
        sides = [self.view.array(name) for name in self.reads()[1:]]
        score = _class_scores if self.target == "labels" else _regression_scores
        with session("sums"):
            results = {**score(self, model, X, sides), "rows": engine.spec_of(X).shape[0]}
        if self.stage.out is not None:
            _write_json(self.stage.out, results)
        return {"results": results}


def _regression_scores(stage: Evaluate, model: Fitted, X: Any, sides: list[Any]) -> dict[str, float]:
    """R2, averaged over the targets, and the root of the mean squared error."""
    row_map = stage.row_map(model, X, "predict")
    count = int(np.prod(engine.spec_of(sides[0]).shape[1:]))
    result = {"result": 8 * (2 * count + 1)}
    weight, total = engine.row_sum(target_sums, row_map.grid, *sides, name="means", **result)
    refuse_no_weight(weight[0])
    errors = partial(error_sums, row_map.whole, total / weight)
    scratch = row_map.scratch + 5 * 8 * count
    missed, spread = engine.row_sum(errors, row_map.grid, X, *sides, name="errors", scratch=scratch, **result)
    varies = (variances(spread, weight[0], total / weight) > 0).all()
    r2 = 1 - missed / spread if varies else np.full(count, np.nan)
    return {"r2": float(r2.mean()), "rmse": float(np.sqrt(missed.sum() / (weight[0] * count)))}


def _class_scores(stage: Evaluate, model: Fitted, X: Any, sides: list[Any]) -> dict[str, float]:
    """The part of the rows whose class is right, and the mean log loss where there are probabilities."""
    response = stage.responses()[-1]
    row_map = stage.row_map(model, X, response)
    classes, codes = model.estimator.classes_, _codes_of(model, stage.view.source)
    one = partial(class_sums, row_map.whole, classes, codes, response == "predict_proba")
    weight, right, loss = engine.row_sum(
        one, row_map.grid, X, *sides, name="scores", scratch=row_map.scratch + 32, result=24
    )
    refuse_no_weight(weight[0])
    scores = {"accuracy": float(right[0] / weight[0])}
    return scores | ({"log_loss": float(loss[0] / weight[0])} if response == "predict_proba" else {})


def _codes_of(model: Fitted, source: Source) -> NDArray[np.intp] | None:
    """The model's label of each class of a store that numbers its classes in another way; -1: not known."""
    learned, names = model.estimator.classes_.tolist(), getattr(model.estimator, "class_names_", None)
    classes = source.classes
    if not classes or (names is None and set(learned) <= set(range(len(classes)))):
        return None  # it learned the numbers
    known = dict(zip(learned, learned, strict=True)) if names is None else _numbers(names.tolist())
    if known == _numbers(classes):
        return None
    if known.keys().isdisjoint(classes):
        raise InputError(
            f"{source.path} has the classes {shown(list(classes))}, {model.path} knows {shown(list(known))}",
            "give a store of the model's classes",
        )
    return np.array([known.get(name, -1) for name in classes])


def _numbers(names: Iterable[Any]) -> dict[Any, int]:
    return {name: number for number, name in enumerate(names)}


def _write_json(path: str, facts: Mapping[str, Any]) -> None:
    target = Path(path)
    unfinished = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json_text(facts) + "\n", encoding="utf-8")
        unfinished.replace(target)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}", "choose another place") from error
    finally:
        unfinished.unlink(missing_ok=True)


def _holds_scores(path: Path) -> bool:
    """Whether a file is what `_write_json` has left for an evaluation."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and "rows" in facts and {"rmse", "accuracy"} & facts.keys() != set()


def _copy_plan(view: View) -> Plan:
    """Side arrays are copied by this process, a block at a time."""
    sides = view.side_specs().values()
    size = sum(spec.nbytes for spec in sides)
    return (
        Plan((Step("side arrays", 0, read=size, written=size, files=len(sides), driver_bytes=size),))
        if sides
        else Plan()
    )


NO_CHOICES = ("ambient_dimension_", "intercept_", "n_features_in_", "n_projections_", "seed_")


def _choices(estimator: Any) -> dict[str, Any]:
    """What was chosen or settled in the fit, as far as it is a number or a word."""
    found = {}
    for name, value in sorted(vars(estimator).items()):
        if name.endswith("_") and not name.startswith("_") and name not in NO_CHOICES:
            value = value.item() if isinstance(value, np.generic) else value
            if isinstance(value, (bool, int, float, str)):
                found[name.rstrip("_")] = value
    return found


STAGES: dict[str, type[Action]] = {
    "featurize": Featurize,
    "gram": Gram,
    "fit": Fit,
    "predict": Predict,
    "evaluate": Evaluate,
}
assert tuple(STAGES) == tuple(COMMANDS)
