"""Completion of step names, in a real bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Project

BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["explain", "mo"], ["model"]),
        (["explain", "re"], ["report"]),
        (["status", "raw", ""], ["data/clean", "model", "raw", "report"]),
        (["explain", "-g", "other.py:steps", "twi"], ["twin_", "twin_"]),
        (["explain", "-g", "broken.py:steps", ""], []),
        (["run", "--force", "data"], ["data/clean"]),
        (["inv"], ["invalidate"]),
    ],
)
def test_bash_completes_steps(words: list[str], expected: list[str], project: Project) -> None:
    (project.folder / "pyproject.toml").write_text("[tool.marin_dagster]\ngraph='pipeline.py:defs'")
    (project.folder / "broken.py").write_text("1 / 0")
    (project.folder / "other.py").write_text(
        "from marin_dagster import StepSpec\n"
        "steps = [StepSpec('twin', hash_attrs={'n': n}, fn=print) for n in range(2)]\n"
    )
    script = (
        'eval "$(_MARIN_DAGSTER_COMPLETE=bash_source marin-dagster)"\n'
        'COMP_WORDS=(marin-dagster "$@")\n'
        "COMP_CWORD=$#\n"
        "_marin_dagster_completion marin-dagster\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        [str(BASH), "-c", script, "bash", *words],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    found = sorted(done.stdout.split())
    if any("_" in name for name in expected):
        assert [name.partition("_")[0] for name in found] == ["twin", "twin"]
    else:
        assert found == expected
    assert done.stderr == ""
