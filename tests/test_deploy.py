"""What the compose file and the Dockerfile promise; a running engine is not needed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from dask.utils import parse_bytes

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
LASTING = ("scheduler", "worker")


def option(command: list[str], name: str) -> str:
    """The value of ``--name=value`` or ``--name value``."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if word == name:
            return following
    raise AssertionError(f"{name} is not in {command}")


def test_services_are_a_scheduler_workers_and_a_job() -> None:
    assert set(SERVICES) == {"scheduler", "worker", "job"}


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_open_to_this_machine_alone(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].get("ports", []))


def test_workers_can_be_scaled() -> None:
    worker = SERVICES["worker"]
    assert not {"ports", "container_name", "hostname"} & set(worker)


@pytest.mark.parametrize("name", SERVICES)
def test_memory_is_limited(name: str) -> None:
    assert parse_bytes(SERVICES[name]["mem_limit"]) >= 2**29


def test_worker_has_an_explicit_limit_within_that_of_its_container() -> None:
    worker = SERVICES["worker"]
    assert parse_bytes(option(worker["command"], "--memory-limit")) <= 0.75 * parse_bytes(
        worker["mem_limit"] + "ib"
    )


@pytest.mark.parametrize("name", LASTING)
def test_health_is_checked_by_a_command_without_spaces(name: str) -> None:
    kind, *command = SERVICES[name]["healthcheck"]["test"]
    assert kind == "CMD"
    assert command[:3] == ["gramian", "health", name]
    assert not [word for word in command if " " in word]


@pytest.mark.parametrize("name", LASTING)
def test_service_starts_again_until_it_is_stopped(name: str) -> None:
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_job_ends_by_itself() -> None:
    assert SERVICES["job"]["restart"] == "no"


@pytest.mark.parametrize("name", LASTING)
def test_health_is_asked_where_the_process_answers(name: str) -> None:
    service = SERVICES[name]
    port = option(service["command"], "--dashboard-address").removeprefix(":")
    assert service["healthcheck"]["test"][-1] == f"http://localhost:{port}"


@pytest.mark.parametrize("name", ["worker", "job"])
def test_clients_wait_for_a_healthy_scheduler(name: str) -> None:
    assert SERVICES[name]["depends_on"]["scheduler"] == {"condition": "service_healthy"}


def test_job_uses_the_scheduler() -> None:
    port = option(SERVICES["scheduler"]["command"], "--port")
    assert option(SERVICES["job"]["command"], "--scheduler") == f"tcp://scheduler:{port}"


@pytest.mark.parametrize("name", SERVICES)
def test_every_process_sees_the_same_data_and_runs(name: str) -> None:
    assert set(SERVICES[name]["volumes"]) == {"data:/data", "runs:/runs"}


def test_job_keeps_intermediate_data_where_workers_see_it() -> None:
    scratch = SERVICES["job"]["environment"]["DASK_GRAMIAN__SCRATCH"]
    assert scratch in [volume.partition(":")[2] for volume in SERVICES["worker"]["volumes"]]


def test_job_leaves_the_number_of_workers_alone() -> None:
    # `docker compose run` puts what it depends on back to the scale in the file.
    assert "worker" not in SERVICES["job"]["depends_on"]


def test_job_shows_an_address_of_this_machine() -> None:
    shown = SERVICES["job"]["environment"]["DASK_DISTRIBUTED__DASHBOARD__LINK"]
    published = [port.rpartition(":")[0] for port in SERVICES["scheduler"]["ports"]]
    assert shown.removeprefix("http://").removesuffix("/status") in published


def test_image_runs_as_a_user_of_its_own() -> None:
    last = re.findall(r"(?m)^USER (\S+)", (ROOT / "Dockerfile").read_text())[-1]
    assert last not in ("root", "0")


def test_image_installs_nothing_without_a_hash() -> None:
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install[^&\n]*", text)
    assert installs
    assert all("--require-hashes" in install or "--no-deps" in install for install in installs)


def test_image_needs_no_more_than_the_classic_builder_has() -> None:
    assert not re.search(r"(?m)^#\s*syntax=|--mount=|<<", (ROOT / "Dockerfile").read_text())
