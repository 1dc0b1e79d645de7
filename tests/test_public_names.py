"""The public names, what an import costs, and what no tracked file may contain."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest

import gramian

ROOT = Path(__file__).parents[1]


def loaded_by(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after one statement."""
    code = f"{statement}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "statement", ["import gramian", "import gramian.kernels", "import gramian; dir(gramian)"]
)
def test_import_loads_neither_dask_nor_zarr_nor_sklearn(statement: str) -> None:
    assert not {"dask", "distributed", "zarr", "fsspec", "sklearn", "pandas", "numba"} & loaded_by(statement)


def test_import_of_the_package_loads_no_numpy() -> None:
    assert "numpy" not in loaded_by("import gramian")


@pytest.mark.parametrize("name", gramian.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(gramian, name).__name__.rpartition(".")[2] == name


ESTIMATORS = [name for name in gramian.__all__ if hasattr(getattr(gramian, name), "get_params")]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_parameter_of_an_estimator_is_documented_with_its_default(name: str) -> None:
    estimator = getattr(gramian, name)
    said = re.findall(r"(?m)^(\w+) : \S.*, default (.+)$", inspect.getdoc(estimator))
    assert {found: ast.literal_eval(default) for found, default in said} == estimator().get_params()


def test_dir_lists_the_public_names() -> None:
    assert set(gramian.__all__) < set(dir(gramian))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'no_such_name'"):
        _ = gramian.no_such_name


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(gramian.__file__).read_text())
    block = next(
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    assert sorted(alias.name for node in block.body for alias in node.names) == sorted(gramian.__all__)


@pytest.mark.parametrize("module", ["gram", "ingest"])
def test_function_keeps_its_name_when_its_module_is_imported_first(module: str) -> None:
    code = f"import gramian.{module}, gramian; assert callable(gramian.{module}), gramian.{module}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", gramian.kernels.__all__)
def test_public_kernel_resolves(name: str) -> None:
    assert callable(getattr(gramian.kernels, name))


def tracked_text() -> dict[str, str]:
    """Name and content of each tracked text file."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    texts = {}
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            texts[name] = content.decode()
    return texts


# Brackets, so that this file does not find itself.
FOREIGN = {
    "a path of one machine": r"(?<![\w.<{$-])/(w[o]rk|r[o]ot|h[o]me/\w+|U[s]ers/\w+|t[m]p/\w+)/(?!\*)",
    "an address of a registry": r"pyp[i]\.org|python[h]osted|registry\.np[m]|index-ur[l]\s*[=h]",
    "the number of an issue": r"(?<![\w/&])(i[s]sue|pull reques[t]|P[R]|G[H])[ -]?#?\d+\b",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_tracked_files_speak_of_the_project_alone(kind: str) -> None:
    pattern = re.compile(FOREIGN[kind], re.IGNORECASE)
    texts = tracked_text()
    found = [
        f"{name}: {line}"
        for name, text in texts.items()
        for line in text.splitlines()
        if pattern.search(line)
    ]
    assert not found


def test_requirements_are_hashed() -> None:
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert [file.name for file in files] == ["build.txt", "dev.txt", "run.txt"]
    for file in files:
        requirements = re.split(r"\n(?=[\w])", re.sub(r"(?m)^ *#.*\n?", "", file.read_text()))
        assert not [text for text in requirements if not re.search(r"^\S+==\S+[\s\S]*--hash=sha256:", text)]


def test_requirements_agree_on_every_version() -> None:
    files = sorted((ROOT / "requirements").glob("*.txt"))
    pins = [set(re.findall(r"(?m)^([\w.-]+)==(\S+)", file.read_text())) for file in files]
    for ours, theirs in permutations(pins, 2):
        shared = {name for name, _ in ours} & {name for name, _ in theirs}
        assert {pin for pin in ours if pin[0] in shared} == {pin for pin in theirs if pin[0] in shared}
