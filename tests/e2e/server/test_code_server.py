"""What the UI and the launchpad see: the code location as a server serializes it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_representation.external_data import RepositorySnap

from helpers.runs import JOB
from marin_dagster import ResourceConfig, StepSpec, build_definitions

CODE_LOCATION = '''
from marin_dagster import StepSpec, build_definitions

def fill(output_path: str) -> None:
    """Fills the output."""

raw = StepSpec("raw/numinamath-1.5", fn=fill)
defs = build_definitions([StepSpec("end", deps=[raw, StepSpec("dump")], fn=fill)])
'''

FIELDS = {
    "max_concurrent",
    "force",
    "retry_failed",
    "dry_run",
    "log_level",
    "runners",
    "routes",
    "default",
    "default_with_resources",
    "steps",
    "retries",
    "tag_concurrency_limits",
    "step_dependency_config",
}


def _fill(output_path: str) -> None:
    """Fills the output."""


def _snapshot(definitions: dg.Definitions) -> RepositorySnap:
    """The code location after a way over the wire."""
    snapshot = RepositorySnap.from_def(definitions.get_repository_def())
    return dg.deserialize_value(dg.serialize_value(snapshot), RepositorySnap)


def _job_snapshot(definitions: dg.Definitions, name: str) -> Any:
    (found,) = (data for data in _snapshot(definitions).job_datas or [] if data.name == name)
    return found.job


def _executor_fields(definitions: dg.Definitions) -> dict[str, Any]:
    """The fields of the executor's config as the launchpad shows them."""
    types = _job_snapshot(definitions, JOB).config_schema_snapshot.all_config_snaps_by_key
    for snapshot in types.values():
        fields = {field.name: field for field in snapshot.fields or []}
        if "retry_failed" in fields:
            return fields
    raise AssertionError("the launchpad shows no field of the executor")


@pytest.fixture
def definitions() -> dg.Definitions:
    raw = StepSpec("raw/books", fn=_fill, resources=ResourceConfig.with_gpu("H100"))
    return build_definitions([StepSpec("end", deps=[raw, StepSpec("dump")], fn=_fill)])


def test_dagster_loads_a_file_with_our_definitions(tmp_path: Path) -> None:
    file = tmp_path / "location.py"
    file.write_text(CODE_LOCATION)

    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-f", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "Validation successful for code location location.py" in done.stdout + done.stderr
    assert not (tmp_path / "store").exists()


def test_every_asset_survives_the_way_to_the_ui(definitions: dg.Definitions) -> None:
    nodes = {node.asset_key.to_user_string(): node for node in _snapshot(definitions).asset_nodes}

    assert set(nodes) == {"raw/books", "dump", "end"}
    assert {edge.parent_asset_key.to_user_string() for edge in nodes["end"].parent_edges} == {
        "raw/books",
        "dump",
    }
    assert nodes["raw/books"].group_name == "default"
    assert nodes["raw/books"].description == "Fills the output."
    assert nodes["raw/books"].metadata["marin/resources"].value["device"]["kind"] == "gpu"
    assert nodes["raw/books"].metadata["dagster/code_references"].code_references
    assert nodes["dump"].job_names == []
    assert set(nodes["end"].job_names) >= {JOB}


def test_the_launchpad_describes_every_field_of_the_executor(definitions: dg.Definitions) -> None:
    fields = _executor_fields(definitions)

    assert set(fields) == FIELDS
    assert [name for name, field in fields.items() if not (field.description or "").strip()] == []


def test_no_field_of_the_executor_is_required_and_the_defaults_are_marins(
    definitions: dg.Definitions,
) -> None:
    fields = _executor_fields(definitions)

    assert [name for name, field in fields.items() if field.is_required] == []
    defaults = {
        name: json.loads(fields[name].default_value_as_json_str)
        for name in ("max_concurrent", "force", "retry_failed", "dry_run")
    }
    assert defaults == {
        "max_concurrent": 8,
        "force": False,
        "retry_failed": True,
        "dry_run": False,
    }


@pytest.mark.parametrize("force", [True, False, [], ["end"], ["end", "raw/books"]])
def test_the_launchpad_accepts_force_as_a_boolean_or_a_list(
    definitions: dg.Definitions, force: Any
) -> None:
    job = definitions.resolve_job_def(JOB)

    validated = dg.validate_run_config(job, {"execution": {"config": {"force": force}}})

    assert validated["execution"]["marin"]["force"] == force


@pytest.mark.parametrize(
    "config", [{"force": "end"}, {"force": [1]}, {"dry_run": "yes"}, {"max_parallel": 3}]
)
def test_the_launchpad_refuses_what_makes_no_sense(
    definitions: dg.Definitions, config: dict[str, Any]
) -> None:
    with pytest.raises(dg.DagsterInvalidConfigError):
        dg.validate_run_config(definitions.resolve_job_def(JOB), {"execution": {"config": config}})
