"""The page for those who come from Marin: its snippets work, one after the other."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, run_job, status_of
from marin_dagster import StepSpec, build_definitions

PAGE = Path(__file__).parents[2] / "docs" / "marin.md"


def test_the_snippets_of_the_page_work(
    recorder: Recorder,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_dagster, in_a_script, lazy = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    step: StepSpec = recorder.step("raw")
    # The module of the page's reader.
    for name in ("experiments", "experiments.my_model"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    vars(sys.modules["experiments.my_model"])["steps"] = [step]

    def result(snippet: str) -> dict[str, Any]:
        namespace: dict[str, Any] = {"steps": [step]}
        exec(compile(snippet, str(PAGE), "exec"), namespace)
        return namespace

    dg.Definitions.validate_loadable(result(in_dagster)["defs"])
    result(in_a_script)
    assert status_of(step) == "SUCCESS"

    made = result(lazy)

    assert "a\nrose\nis\na\nrose" in capsys.readouterr().out
    run = run_job(build_definitions([made["tokens"]]), instance)
    # All was built by the snippet.
    assert {found.metadata["marin/cache"].value for found in run.materialized().values()} == {"hit"}
