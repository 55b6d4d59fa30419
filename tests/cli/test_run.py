"""``marin-dagster run``."""

import shutil
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from cli.conftest import Project

GRAPH = ("-g", "pipeline.py:steps")
ALL = ["raw", "data/clean", "model", "report"]


def ends(result: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["end"] for step in result["steps"]}


def test_only_what_must_run_runs(project: Project, store: Path) -> None:
    first = project("run", "--json", *GRAPH)
    assert first.code == 0, first.err
    assert project.took() == ALL
    assert first.json["counts"] == {"built": 4}
    assert all(step["seconds"] is not None for step in first.json["steps"])

    again = project("run", "--json", *GRAPH).json
    assert project.took() == []
    assert again["counts"] == {"cached": 4}

    shutil.rmtree(next(store.glob("raw_*")))
    project.settings(lr=0.2)
    changed = project("run", "--json", *GRAPH).json
    assert project.took() == ["model", "report"]
    assert ends(changed) == {
        "raw": "pruned",
        "data/clean": "cached",
        "model": "built",
        "report": "built",
    }


def test_piped_each_step_is_a_line_and_the_last_one_the_summary(project: Project) -> None:
    found = project("run", *GRAPH)
    lines = found.out.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [[f"[{n}/4]", "built"] for n in (1, 2, 3, 4)]
    assert lines[-1].startswith("4 steps: 4 built; ")
    assert "\x1b" not in found.out


def test_a_failure_ends_with_1_and_its_reason_and_place(project: Project) -> None:
    project.settings(failing=["model"])

    found = project("run", "--json", *GRAPH)

    assert found.code == 1
    assert ends(found.json) == {
        "raw": "built",
        "data/clean": "built",
        "model": "failed",
        "report": "not run",
    }
    [error] = [step["error"] for step in found.json["steps"] if step["error"]]
    assert error.startswith("RuntimeError: model fails on purpose\n")
    assert f'File "{project.folder}/pipeline.py", line ' in error

    summary = project("run", *GRAPH)
    assert summary.code == 1
    assert "RuntimeError: model fails on purpose" in summary.out
    assert "4 steps: 2 cached, 1 failed, 1 not run; " in summary.out
    assert "Traceback" not in summary.out + summary.err


def test_failed_attempts_are_retried_unless_told_not_to(project: Project) -> None:
    project.settings(failing=["model"])
    project("run", *GRAPH)
    project.settings()
    project.took()

    left = project("run", "--json", *GRAPH, "--no-retry-failed")
    assert (left.code, project.took()) == (1, [])
    assert "its last attempt failed" in left.json["steps"][2]["error"]
    assert project("run", *GRAPH).code == 0
    assert project.took() == ["model", "report"]


@pytest.mark.parametrize(
    ("arguments", "built"),
    [
        (["--force", "model"], ["model"]),
        (["--force", "model", "--force", "raw"], ["raw", "model"]),
        (["--force", "*"], ALL),
        (["--force", "*", "--select", "key:model"], ["model"]),
        (["--select", "key:model"], []),
    ],
)
def test_forced_steps(arguments: list[str], built: list[str], project: Project) -> None:
    project("run", *GRAPH)
    project.took()
    assert project("run", *GRAPH, *arguments).code == 0
    assert sorted(project.took()) == sorted(built)


def test_a_selection_without_its_inputs_is_blocked(project: Project) -> None:
    found = project("run", "--json", *GRAPH, "--select", "key:model")
    assert found.code == 1
    assert ends(found.json) == {"model": "failed"}
    assert "needs 'data/clean'" in found.json["steps"][0]["error"]
    assert project.took() == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--runner", "process"], {"raw": "process", "model": "process"}),
        (["--runner", "model=process"], {"raw": "inline", "model": "process"}),
        (
            ["--runner", "process", "--runner", "model=inline"],
            {"raw": "process", "model": "inline"},
        ),
    ],
)
def test_runners(
    arguments: list[str], expected: dict[str, str], project: Project, dagster_home: Path
) -> None:
    assert project("run", *GRAPH, *arguments).code == 0
    with dg.DagsterInstance.get() as instance:
        for name, runner in expected.items():
            event = instance.get_latest_materialization_event(dg.AssetKey(name))
            assert event is not None
            assert event.asset_materialization is not None
            found = event.asset_materialization.metadata.get("marin/runner")
            assert (found.value if found else "inline") == runner


def test_a_runner_that_does_not_exist_stops_the_run_before_it_begins(
    project: Project, store: Path
) -> None:
    found = project("run", *GRAPH, "--runner", "nowhere")
    assert found.code == 2
    assert "'nowhere'" in found.err
    assert project.took() == []
    assert not store.exists()


def test_the_projects_settings_apply_to_a_run(project: Project, dagster_home: Path) -> None:
    (project.folder / "pyproject.toml").write_text(
        "[tool.marin_dagster]\ngraph = 'pipeline.py:defs'\nmax_concurrent = 1\n"
        "[tool.marin_dagster.execution]\ndefault = 'own'\n"
        "[tool.marin_dagster.execution.runners.own]\nprocess = {}\n"
    )
    found = project("run", "--json")
    assert found.code == 0, found.err
    with dg.DagsterInstance.get() as instance:
        [run] = instance.get_runs()
        assert run.run_id == found.json["run_id"]
        config = run.run_config["execution"]["config"]
        assert (config["max_concurrent"], config["default"]) == (1, "own")
        event = instance.get_latest_materialization_event(dg.AssetKey("raw"))
        assert event is not None
        assert event.asset_materialization is not None
        assert event.asset_materialization.metadata["marin/runner"].value == "own"


def test_the_instance_gets_the_run_and_the_cached_outputs(
    project: Project, store: Path, dagster_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_HOME")
    project("run", *GRAPH)
    shutil.rmtree(next(store.glob("report_*")))
    monkeypatch.setenv("DAGSTER_HOME", str(dagster_home))

    found = project("run", "--json", *GRAPH)

    with dg.DagsterInstance.get() as instance:
        [run] = instance.get_runs()
        assert run.run_id == found.json["run_id"]
        assert run.status is dg.DagsterRunStatus.SUCCESS
        assert run.job_name == "materialize_steps"
        caches = {}
        for key in ("raw", "data/clean", "model", "report"):
            event = instance.get_latest_materialization_event(dg.AssetKey(key.split("/")))
            assert event is not None
            assert event.asset_materialization is not None
            caches[key] = event.asset_materialization.metadata["marin/cache"].value
    assert caches == {"raw": "hit", "data/clean": "hit", "model": "hit", "report": "built"}
    # Nothing is left to record.
    assert project("run", "--json", *GRAPH).json["run_id"] is None
    why = project("plan", "--json", *GRAPH).json["steps"][0]["why"]
    assert why == ["its output is finished"]


def test_definitions_keep_their_keys_retries_and_other_assets(
    project: Project, dagster_home: Path
) -> None:
    (project.folder / "other.py").write_text(
        "import dagster as dg\n"
        "import marin_dagster as md\n"
        "from pipeline import *\n"
        "class Ours(md.DagsterMarinTranslator):\n"
        "    def get_asset_key(self, step): return super().get_asset_key(step).with_prefix('our')\n"
        "def fails_once(output_path):\n"
        "    with open(os.environ['CALLS'], 'a') as calls: calls.write('flaky\\n')\n"
        "    if open(os.environ['CALLS']).read().count('flaky') < 2: raise RuntimeError('first')\n"
        "@dg.asset\n"
        "def unrelated(): raise RuntimeError('ran')\n"
        "ours = md.build_definitions([md.StepSpec('flaky', fn=fails_once)], translator=Ours(),\n"
        "    retry_policy=dg.RetryPolicy(max_retries=1))\n"
        "defs = dg.Definitions.merge(ours, dg.Definitions(assets=[unrelated]))\n"
    )
    found = project("run", "--json", "-g", "other.py:defs")
    assert found.code == 0, found.err
    assert [(one["asset"], one["end"]) for one in found.json["steps"]] == [("our/flaky", "built")]
    assert project.took() == ["flaky", "flaky"]
