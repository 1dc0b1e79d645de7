"""Folds, choices and the table of results."""

import tracemalloc
import warnings
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, LeaveOneOut, RepeatedKFold, ShuffleSplit

from gramian.errors import GramianWarning, InputError, InputTypeError
from gramian.selection import (
    MOST_SPLITS,
    choose,
    count_parts,
    folds_bytes,
    make_folds,
    refuse_constant,
    refuse_empty,
    relative_scores,
    variances,
    warn_edge,
)


def split_rows(folds):
    return [
        (folds.rows(train), folds.rows(test)) for train, test in zip(folds.train, folds.test, strict=True)
    ]


@pytest.mark.parametrize("kind", ["rows", "classes", "splitter"])
def test_making_folds_stays_within_what_is_planned(kind):
    n = 200_000
    cv = KFold(3, shuffle=True, random_state=0) if kind == "splitter" else 5
    classes = np.random.default_rng(0).integers(0, 7, n) if kind == "classes" else None
    tracemalloc.start()
    make_folds(cv, n, seed=0, classes=classes)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < folds_bytes(cv, n, classes=classes is not None) + (1 << 18)


@given(st.integers(2, 60), st.integers(2, 7), st.integers(0, 2**40))
def test_numbered_folds_test_every_row_once(n, cv, seed):
    cv = min(cv, n)
    folds = make_folds(cv, n, seed=seed)
    tested = np.concatenate([test for _, test in split_rows(folds)])
    assert sorted(tested) == list(range(n))


@given(st.integers(2, 60), st.integers(2, 7), st.integers(0, 2**40))
def test_numbered_folds_differ_by_one_row_at_most(n, cv, seed):
    folds = make_folds(min(cv, n), n, seed=seed)
    sizes = [len(test) for _, test in split_rows(folds)]
    assert max(sizes) - min(sizes) <= 1


def test_training_rows_are_all_others():
    for train, test in split_rows(make_folds(4, 30, seed=1)):
        assert sorted([*train, *test]) == list(range(30))


def test_folds_follow_from_the_seed():
    assert (make_folds(5, 100, seed=3).parts == make_folds(5, 100, seed=3).parts).all()


def test_another_seed_gives_other_folds():
    assert (make_folds(5, 100, seed=3).parts != make_folds(5, 100, seed=4).parts).any()


@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_classes_are_shared_out_evenly(seed, cv):
    classes = np.random.default_rng(seed).integers(0, 3, 50)
    folds = make_folds(cv, 50, seed=seed, classes=classes)
    counts = np.array([np.bincount(classes[test], minlength=3) for _, test in split_rows(folds)])
    assert (np.ptp(counts, axis=0) <= 1).all()


def test_rows_of_a_class_are_shuffled():
    first, second = (make_folds(2, 40, seed=s, classes=np.repeat([0, 1], 20)).parts for s in (0, 1))
    assert (first != second).any()


@given(st.integers(0, 2**32 - 1), st.integers(2, 5))
def test_groups_stay_whole(seed, cv):
    groups = np.random.default_rng(seed).integers(0, 9, 60)
    groups[:9] = np.arange(9)
    for train, test in split_rows(make_folds(cv, 60, seed=seed, groups=groups)):
        assert not set(groups[train]) & set(groups[test])


def test_groups_fill_the_folds_evenly():
    folds = make_folds(3, 60, seed=0, groups=np.repeat(np.arange(12), 5))
    assert [len(test) for _, test in split_rows(folds)] == [20, 20, 20]


SPLITTERS = {
    "KFold": KFold(4),
    "GroupKFold": GroupKFold(3),
    "ShuffleSplit": ShuffleSplit(6, test_size=0.3, random_state=0),
    "RepeatedKFold": RepeatedKFold(n_splits=3, n_repeats=3, random_state=0),
}


@pytest.mark.parametrize("name", SPLITTERS)
def test_a_splitter_is_taken_at_its_word(name):
    groups = np.arange(30) % 6 if name == "GroupKFold" else None
    wanted = list(SPLITTERS[name].split(np.zeros((30, 1)), None, groups))
    found = split_rows(make_folds(SPLITTERS[name], 30, seed=0, groups=groups))
    for (train, test), (wanted_train, wanted_test) in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(train, np.sort(wanted_train))
        np.testing.assert_array_equal(test, np.sort(wanted_test))


@pytest.mark.parametrize("name", SPLITTERS)
def test_everything_holds_each_row_once(name):
    groups = np.arange(30) % 6 if name == "GroupKFold" else None
    folds = make_folds(SPLITTERS[name], 30, seed=0, groups=groups)
    members = [folds.rows((part,)) for part in folds.everything]
    assert sorted(np.concatenate(members)) == list(range(30))


def test_disjoint_splits_need_no_more_parts_than_folds():
    assert make_folds(KFold(4), 30, seed=0).n_parts == 4


def test_an_iterable_of_splits():
    splits = ((np.arange(5), np.arange(5, 8)), (np.arange(3, 8), np.array([True] * 2 + [False] * 6)))
    found = split_rows(make_folds(iter(splits), 8, seed=0))
    assert [list(test) for _, test in found] == [[5, 6, 7], [0, 1]]


@pytest.mark.parametrize(
    ("cv", "message"),
    [
        (1, "cv is 1"),
        (9, "cv is 9 for 8 rows"),
        ([], "cv holds no split"),
        ([([0, 1], [1, 2])], "split 0 of cv tests rows that it trains on"),
        ([([0, 1], [])], "the test rows of split 0"),
        ([([0, 1], [8])], "reach index 8 of 8 rows"),
        ([([0, 0], [1])], "hold a row twice"),
    ],
)
def test_bad_folds_are_refused(cv, message):
    with pytest.raises(InputError, match=message):
        make_folds(cv, 8, seed=0)


def test_more_splits_than_can_be_numbered_are_refused():
    n = MOST_SPLITS + 1
    for cv in (LeaveOneOut(), (([0], [1]) for _ in count())):
        with pytest.raises(InputError, match="cv gives more than 16,384 splits"):
            make_folds(cv, n, seed=0)
    with pytest.raises(InputError, match="cv is 40000"):
        make_folds(40_000, 50_000, seed=0)


@pytest.mark.parametrize(
    ("cv", "error", "message"),
    [
        (np.array(5), InputTypeError, "cv is array"),
        (KFold, InputTypeError, "cv is <class"),
        ([1, 2], InputError, "split 0 of cv is 1"),
        ([([0], [1], [2])], InputError, "split 0 of cv is"),
        (GroupKFold(3), InputError, "cv cannot split these rows"),
    ],
)
def test_what_splits_nothing_is_refused(cv, error, message):
    with pytest.raises(error, match=message):
        make_folds(cv, 8, seed=0)


def test_a_word_is_no_cv():
    with pytest.raises(InputTypeError, match="cv is 'five'"):
        make_folds("five", 8, seed=0)


def test_fewer_groups_than_folds_are_refused():
    with pytest.raises(InputError, match="cv is 3 for 2 groups"):
        make_folds(3, 8, seed=0, groups=np.arange(8) % 2)


def test_parts_are_counted_without_rows():
    assert [count_parts(cv) for cv in (4, KFold(3), [])] == [4, 7, 11]


# ---------------------------------------------------------------------------------------- choices

PARAMS = [{"alpha": alpha} for alpha in (100.0, 1.0, 0.01)]


def test_the_best_mean_wins():
    assert choose(PARAMS, np.array([[0.1, 0.5, 0.4], [0.3, 0.2, 0.4]]), "best").index == 2


def test_a_tie_goes_to_the_simpler():
    assert choose(PARAMS, np.array([[0.1, 0.5, 0.5]]), "best").index == 1


def test_rounding_does_not_decide():
    assert choose(PARAMS, np.array([[0.1, 0.5, 0.5 + 1e-14]]), "best").index == 1


def test_one_standard_error_takes_the_simplest_within_it():
    scores = np.array([[0.6, 0.85, 0.9], [0.6, 0.65, 0.7]])  # best .8, its standard error .1
    assert choose(PARAMS, scores, "one_se").index == 1


def test_an_unknown_selection_is_refused():
    with pytest.raises(InputError, match="selection is 'median'"):
        choose(PARAMS, np.zeros((2, 3)), "median")


def test_the_table_has_the_keys_and_values_of_a_grid_search():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 3)), rng.standard_normal(30)
    search = GridSearchCV(Ridge(), {"alpha": [100.0, 1.0, 0.01]}, cv=3).fit(X, y).cv_results_
    scores = np.array([search[f"split{f}_test_score"] for f in range(3)])
    table = choose(PARAMS, scores, "best").results
    assert set(table) == {key for key in search if "time" not in key}
    for key in set(table) - {"params"}:
        np.testing.assert_allclose(table[key], np.asarray(search[key], float))
    assert table["params"] == search["params"]


def test_scores_are_relative_to_the_variance():
    errors = np.array([[8.0, 30.0], [0.0, 0.0]])
    np.testing.assert_allclose(relative_scores(errors, 4.0, np.array([2.0, 10.0])), [1 - (1 + 0.75) / 2, 1])


def test_a_constant_target_counts_as_perfect():
    np.testing.assert_allclose(relative_scores(np.array([[8.0, 0.0]]), 4.0, np.array([2.0, 0.0])), [0.5])


@pytest.mark.parametrize(("train", "test", "side"), [(0.0, 1.0, "training"), (1.0, 0.0, "test")])
def test_rows_of_a_split_without_weight_are_refused(train, test, side):
    with pytest.raises(InputError, match=f"the {side} rows of split 2 all have weight zero"):
        refuse_empty(2, train, test)


def test_rounding_is_no_variance():
    values = np.full(7, 0.1)
    squares = np.array([((values - values.mean()) ** 2).sum() + 1e-34])
    assert variances(squares, 7.0, np.array([0.1])) == 0


def test_a_constant_target_is_refused():
    with pytest.raises(InputError, match="y is constant"):
        refuse_constant(np.zeros(2))


@pytest.mark.parametrize(("value", "word"), [(1.0, "lower"), (9.0, "upper")])
def test_the_edge_of_a_grid_is_named(value, word):
    with pytest.warns(GramianWarning, match=f"alpha = {value:g} is the {word} edge of its grid, 1 to 9"):
        warn_edge("alpha", value, [9.0, 3.0, 1.0])


@pytest.mark.parametrize(
    ("value", "grid", "sides"),
    [(3.0, [9.0, 3.0, 1.0], {}), (3.0, [3.0], {}), (9.0, [1.0, 9.0], {"upper": False})],
)
def test_no_warning_where_nothing_lies_beyond(value, grid, sides):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_edge("alpha", value, grid, **sides)
