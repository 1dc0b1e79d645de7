"""How kernels are compiled: cache, lock, fallback, switch."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gramian.errors import GramianWarning, InputError
from gramian.kernels import _jit

SOURCE = Path(__file__).parents[1] / "src"


def _double(x):
    return 2 * x


def _triple(x):
    return 3 * x


@pytest.mark.parametrize(("value", "wanted"), [(None, False), ("", False), ("plain", True)])
def test_switch_selects_the_plain_twins(monkeypatch, value, wanted):
    monkeypatch.delenv(_jit.SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(_jit.SWITCH, value)
    assert _jit.plain() is wanted


def test_switch_refuses_other_values(monkeypatch):
    monkeypatch.setenv(_jit.SWITCH, "plane")
    with pytest.raises(InputError, match="GRAMIAN_KERNELS is 'plane'; set it to 'plain'"):
        _jit.plain()


@pytest.mark.parametrize(
    "value",
    [2.5, 3, np.ones((2, 3)), np.ones((3, 2)).T, np.ones((2, 2))[::-1], np.broadcast_to(1.0, (2, 2))],
    ids=["float", "int", "C", "F", "strided", "read-only"],
)
def test_the_signature_that_is_compiled_is_the_one_that_is_called(value):
    double = _jit.kernel(_double)
    double(value)
    assert len(double.dispatcher.overloads) == 1


def test_first_call_waits_for_the_lock_of_the_cache():
    triple = _jit.kernel(_triple)
    folder = triple.dispatcher.stats.cache_path
    os.makedirs(folder, exist_ok=True)
    done = threading.Event()

    def call():
        triple(np.float32(2))
        done.set()

    with open(os.path.join(folder, "gramian.lock"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        thread = threading.Thread(target=call)
        thread.start()
        assert not done.wait(0.3)
    assert done.wait(60)
    thread.join()


def test_features_are_those_that_kernels_are_compiled_for():
    code = "from gramian.kernels._jit import supports; print(supports('sse4.2'), supports('avx512f'))"
    command, form = (
        [sys.executable, "-c", code],
        {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse4.2"},
    )
    done = subprocess.run(command, env={**os.environ, **form}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


TWICE = """
from gramian.kernels._jit import kernel

@kernel
def twice(x):
    return x + x
"""


@pytest.fixture
def environment(tmp_path):
    """Finds a module `twice` and this package; caches where numba does by itself."""
    (tmp_path / "twice.py").write_text(TWICE)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA_", "XDG_"))}
    paths = os.pathsep.join([str(tmp_path), str(SOURCE)])
    return kept | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path / "home")}


def start(argument, environment, then=""):
    code = f"from twice import twice; print(twice({argument})); {then}"
    command = [sys.executable, "-c", code]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_goes_without_a_cache_where_no_folder_is_writable(environment, tmp_path):
    for folder in ("__pycache__", "home"):
        (tmp_path / folder).touch()  # a file: nobody, not even root, makes a folder of it
    out, errors = start(21, environment, "print(twice(1.5))").communicate()
    assert out.split() == ["42", "3.0"]
    assert errors.count("GramianWarning") == 1
    assert "compiled kernels cannot be kept" in errors
    assert "set NUMBA_CACHE_DIR to a writable folder" in errors


def test_processes_that_fill_a_cache_at_once_lose_no_entry(environment):
    for process in [start(argument, environment) for argument in ("1", "1.5")]:
        process.communicate()
    hits = "print(twice(1.5), sum(twice.dispatcher.stats.cache_hits.values()))"
    assert start(1, environment, hits).communicate()[0].split() == ["2", "3.0", "2"]


def test_compiles_without_a_cache_when_writing_to_it_fails(monkeypatch):
    kernel = _jit.kernel(_double)

    def full(signature):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kernel.dispatcher, "compile", full)
    monkeypatch.setattr(_jit, "_warned", [])
    with pytest.warns(GramianWarning, match="No space left on device"):
        assert kernel(np.int8(3)) == 6
    assert kernel(np.int16(3)) == 6  # no second warning
