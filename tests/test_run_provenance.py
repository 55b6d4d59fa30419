"""Records name the runs that built them, and hold nothing of the instance's."""

import json
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import JOB, run_job
from marin_dagster import OUT, ResourceConfig, StepRunner, StepSpec, apply, build_definitions
from marin_dagster.cache import provenance

SERVER = [
    "dagster", "api", "grpc", "--instance-ref",
    json.dumps({"config_yaml": "storage:\n  postgres:\n    password: s3cr3t\n"}),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _of_a_server(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The process has the command line of a run worker."""
    monkeypatch.setattr(sys, "argv", SERVER)
    provenance._capture_once.cache_clear()
    yield
    provenance._capture_once.cache_clear()


def write(out: str) -> None:
    """Writes what a function that writes its own record would record."""
    Path(out, "provenance.json").write_text(provenance.launch_provenance().to_json())


def graph() -> list[Any]:
    """Each way in which a record is written: here or in a job, by the cache or by the function."""
    job = ResourceConfig(cpu=1, ram="1g")
    handles = [apply(name, write, version="2026.07.01", out=OUT) for name in ("own", "own_job")]
    own, own_job = (handle.lower() for handle in handles)
    object.__setattr__(own_job, "resources", job)
    return [StepSpec("here", fn=write), StepSpec("job", fn=write, resources=job), own, own_job]


def provenances(store: Path) -> dict[str, dict[str, Any]]:
    """Of each record, by the step's name; nothing in the store may hold the secret."""
    files = [path for path in store.rglob("*") if path.is_file()]
    assert [path for path in files if b"s3cr3t" in path.read_bytes()] == []
    records = [json.loads(path.read_bytes()) for path in files if path.name == ".artifact.json"]
    for record in records:
        seen = json.loads(Path(record["output_path"], "provenance.json").read_text())
        assert seen == record["provenance"]
    return {record["name"]: record["provenance"] for record in records}


@pytest.mark.parametrize("executor", ["ours", "in process"])
def test_a_record_names_job_and_run_instead_of_the_run_workers_command_line(
    executor: str, instance: dg.DagsterInstance, store: Path
) -> None:
    others = {} if executor == "ours" else {"executor": dg.in_process_executor}
    run = run_job(build_definitions(graph(), **others), instance)

    assert run.success
    found = provenances(store)
    assert sorted(found) == ["here", "job", "own", "own_job"]
    for stated in found.values():
        assert (stated["dagster_job"], stated["dagster_run_id"]) == (JOB, run.run_id)
        assert stated["command_line"] == []


def test_a_script_is_recorded_with_its_command_line(
    instance: dg.DagsterInstance, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "--fast", "--token=s3cr3t"])

    StepRunner(instance=instance).run(graph())

    [run] = instance.get_runs()
    for stated in provenances(store).values():
        assert stated["command_line"] == ["train.py", "--fast", "--token=***"]
        assert stated["dagster_run_id"] == run.run_id
