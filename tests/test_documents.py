"""The documents are true: their code runs, their commands exist, their map is the order that is enforced."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
LAYERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0][
    "layers"
]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def tasks() -> set[str]:
    return set(re.findall(r"(?m)^([a-z-]+):.*## ", text("Makefile")))


def test_python_of_the_readme_runs_as_pasted(tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", text("README.md"), re.DOTALL))
    assert code
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, check=True)


def test_job_of_the_readme_is_one(tmp_path: Path) -> None:
    from gramian.job import parse_job

    words = re.findall(r"```toml\n(.*?)```", text("README.md"), re.DOTALL)
    assert [len(parse_job(tomllib.loads(word), base=tmp_path).stages) for word in words] == [3]


def test_commands_of_the_readme_exist() -> None:
    from gramian.cli import app

    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert set(re.findall(r"(?m)^gramian ([a-z]+)", text("README.md"))) <= known


@pytest.mark.parametrize("name", DOCUMENTS)
def test_tasks_that_are_named_exist(name: str) -> None:
    spans = re.findall(r"`(make [^`]*)`|(?m:^(make .*)$)", text(name))
    words = [word for first, second in spans for word in (first or second).partition("#")[0].split()[1:]]
    assert {word for word in words if re.fullmatch(r"[a-z-]+", word)} <= tasks()


def test_help_lists_every_task() -> None:
    shown = subprocess.run(
        ["make", "--silent", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = set(re.findall(r"(?m)^\.PHONY: ([a-z-]+)", text("Makefile")))
    assert set(re.findall(r"(?m)^make ([a-z-]+)", shown)) == targets


def test_map_of_modules_is_the_enforced_order() -> None:
    table = text("ARCHITECTURE.md").partition("## The map")[2].partition("\n## ")[0]
    shown = [name for row in re.findall(r"(?m)^\| (`.*?) \|", table) for name in re.findall(r"`(\w+)`", row)]
    enforced = [name for layer in LAYERS for name in re.findall(r"\w+", layer)]
    present = {path.stem for path in (ROOT / "src" / "gramian").iterdir() if not path.name.startswith("_")}
    assert shown == [name for name in enforced if name in present]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", text(name))
    assert not [link for link in links if not re.match("https?:", link) and not (ROOT / link).exists()]
