"""``marin-dagster lineage``: from records alone, up and down, on disk and in a bucket."""

import json
import shutil
import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from cli.conftest import Project
from marin_dagster.cache import lineage as records

LAZY = """
from pathlib import Path
from marin_dagster import Artifact, ArtifactStep
def build(config):
    return Artifact()
old = ArtifactStep.adopt("old/raw", "2026.01.01", SOURCE)
def config(*deps):
    return lambda ctx: {"reads": [ctx.artifact_path(dep) for dep in deps]}
tokens = ArtifactStep("tokens", "2026.07.01", Artifact, build, config(old), deps=[old])
model = ArtifactStep("models/lm", "2026.07.02", Artifact, build, config(tokens), deps=[tokens])
steps = [model]
"""


@pytest.fixture
def built(project: Project, store: Path) -> Callable[[str], str]:
    """Builds the graph; finds the path of a step by its name."""
    assert project("run", "-g", "pipeline.py:steps").code == 0
    (project.folder / "pipeline.py").unlink()  # lineage needs no code

    def path(name: str) -> str:
        [found] = store.glob(f"{name}_*")
        return str(found)

    return path


def names(project: Project, *arguments: str) -> list[tuple[str, str]]:
    outputs = project("lineage", "--json", *arguments).json["outputs"]
    return [(one["identity"].rpartition("_")[0], one["state"]) for one in outputs]


def test_up_and_down(project: Project, built: Callable[[str], str]) -> None:
    up = project("lineage", "--json", built("report")).json
    assert names(project, built("report")) == [
        ("report", "recorded"),
        ("model", "recorded"),
        ("data/clean", "recorded"),
        ("raw", "recorded"),
    ]
    assert up["outputs"][0]["next"] == [built("model"), built("data/clean")]
    assert up["outputs"][0]["built_by"]
    assert up["outputs"][0]["dagster_run_id"]
    assert [name for name, _ in names(project, "--down", built("data/clean"))] == [
        "data/clean",
        "model",
        "report",
    ]


def test_an_address_below_the_prefix(project: Project, built: Callable[[str], str]) -> None:
    path = built("data/clean")
    address = "data/" + Path(path).name
    assert project("lineage", "--json", address).json["path"] == path
    assert project("lineage", "--json", "--prefix", "/nowhere", address).code == 1


def test_an_output_that_was_removed_does_not_end_the_chain(
    project: Project, built: Callable[[str], str]
) -> None:
    clean = built("data/clean")
    shutil.rmtree(clean)
    identity = f"data/{Path(clean).name}"

    up = project("lineage", "--json", built("model")).json["outputs"]
    assert [(one["identity"], one["state"]) for one in up[1:]] == [(identity, "missing")]
    down = project("lineage", "--json", "--down", clean).json["outputs"]
    assert down[0]["identity"] == identity
    assert [Path(one["path"]).name.partition("_")[0] for one in down[1:]] == ["model", "report"]


def test_an_unreadable_record_does_not_stop_the_others(
    project: Project, built: Callable[[str], str]
) -> None:
    Path(built("model"), ".artifact.json").write_text('{"name": ')  # cut off
    assert names(project, built("report"))[1:] == [
        ("model", "unreadable"),
        ("data/clean", "recorded"),
        ("raw", "recorded"),
    ]


def test_a_path_that_no_record_knows(project: Project, store: Path) -> None:
    found = project("lineage", "nothing_12345678")
    assert found.code == 1
    assert "no record names it" in found.err


def test_lazy_artifacts_and_adopted_data(project: Project, store: Path, tmp_path: Path) -> None:
    source = tmp_path / "old-data"
    source.mkdir()
    (project.folder / "other.py").write_text(LAZY.replace("SOURCE", repr(str(source))))
    assert project("run", "-g", "other.py:steps").code == 0

    up = project("lineage", "--json", "models/lm/2026.07.02").json["outputs"]
    assert [one["identity"] for one in up] == [
        "models/lm@2026.07.02",
        "tokens@2026.07.01",
        "old/raw@2026.01.01",
        "old-data",
    ]
    down = project("lineage", "--json", "--down", str(source)).json["outputs"]
    assert [one["identity"] for one in down[1:]] == [one["identity"] for one in up[2::-1]]


def test_the_tree_explains_each_output_once(project: Project, built: Callable[[str], str]) -> None:
    lines = project("lineage", built("report")).out.splitlines()
    assert [line.partition("_")[0] for line in lines] == [
        "report",
        "├── model",
        "│   └── data/clean",
        "│       └── raw",
        "└── data/clean",
    ]
    assert lines[-1].endswith("(shown above)")


@pytest.mark.parametrize("down", [False, True])
def test_mermaid_arrows_lead_to_what_was_made(
    down: bool, project: Project, built: Callable[[str], str]
) -> None:
    start = built("raw" if down else "data/clean")
    arguments = ["--down"] if down else []
    lines = project("lineage", "--format", "mermaid", *arguments, start).out.splitlines()
    assert lines[0] == "flowchart LR"
    nodes = dict(line.strip().split("[", 1) for line in lines if "[" in line)
    [raw] = [node for node, label in nodes.items() if label.startswith('"raw_')]
    [clean] = [node for node, label in nodes.items() if label.startswith('"data/clean_')]
    assert f"  {raw} --> {clean}" in lines


def test_openlineage_events(project: Project, built: Callable[[str], str]) -> None:
    shown = project("lineage", "--format", "openlineage", built("data/clean")).out
    first, second = [json.loads(line) for line in shown.splitlines()]
    assert first["eventType"] == "COMPLETE"
    assert datetime.fromisoformat(first["eventTime"]).tzinfo is not None
    assert str(uuid.UUID(first["run"]["runId"])) == first["run"]["runId"]
    assert first["job"] == {"namespace": "materialize_steps", "name": "data/clean"}
    assert first["inputs"] == [{"namespace": "file", "name": built("raw")}]
    assert first["outputs"] == [{"namespace": "file", "name": built("data/clean")}]
    assert second["inputs"] == []
    assert project("lineage", "--format", "openlineage", built("data/clean")).out == shown


def test_in_a_bucket(project: Project, s3_prefix: str) -> None:
    arguments = ("-g", "pipeline.py:steps", "--prefix", s3_prefix)
    assert project("run", *arguments).code == 0
    raw = project("status", "--json", *arguments, "raw").json["steps"][0]["path"]

    down = project("lineage", "--json", "--down", raw).json["outputs"]

    assert len(down) == 4
    assert all(one["path"].startswith(s3_prefix) for one in down)
    event = json.loads(project("lineage", "--format", "openlineage", raw).out.splitlines()[0])
    bucket, _, key = raw.removeprefix("s3://").partition("/")
    assert event["outputs"] == [{"namespace": f"s3://{bucket}", "name": key}]


def test_folders_inside_outputs_and_links_are_not_searched(tmp_path: Path) -> None:
    for folder in ("group/one", "group/one/inside", "two"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / ".artifact.json").write_text("{}")
    (tmp_path / "group" / "loop").symlink_to(tmp_path)
    assert sorted(records.list_outputs(str(tmp_path))) == [
        str(tmp_path / "group" / "one"),
        str(tmp_path / "two"),
    ]
