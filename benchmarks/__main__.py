"""Every benchmark, one after the other, into one Markdown file: benchmarks/results/bench.md.

python -m benchmarks [--full] [NAME ...]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
HELPERS = ("__init__", "__main__", "turns")
NAMES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in HELPERS)
PACKAGES = ("numpy", "scipy", "numba", "scikit-learn", "zarr", "dask", "distributed")


def machine() -> str:
    """Where and of what the figures are."""
    model = platform.processor() or platform.machine()
    if (facts := Path("/proc/cpuinfo")).exists():
        lines = facts.read_text().splitlines()
        model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), model)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False
    )
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    system = f"{model}, {os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    return f"{system}, {versions}; commit {commit.stdout.strip() or 'unknown'}"


def measure(name: str, words: list[str]) -> tuple[str, bool]:
    """The section of one benchmark, in a process of its own, and whether it kept its promises."""
    print(f"== {name}", flush=True)
    command = [sys.executable, "-m", f"benchmarks.{name}", *words]
    with subprocess.Popen(command, cwd=HERE.parent, stdout=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line)
    end = "" if process.returncode == 0 else f"\nended with exit code {process.returncode}\n"
    return f"## {name}\n\n{''.join(lines)}{end}", process.returncode == 0


def main() -> None:
    """Run what is named, else everything, and write the file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}; default: all")
    parser.add_argument("--full", action="store_true", help="the sizes that are quoted, not the short form")
    given = parser.parse_args()
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}")
    measured = [measure(name, [] if given.full else ["--short"]) for name in given.names or NAMES]
    page = HERE / "results" / "bench.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text("\n".join([f"# Benchmarks\n\n{machine()}\n", *(section for section, _ in measured)]))
    print(f"\n{page.relative_to(HERE.parent)}")
    sys.exit(not all(kept for _, kept in measured))


if __name__ == "__main__":
    main()
