"""A run worker dies, and another one resumes its run."""

import os
import subprocess
import sys
from pathlib import Path

WORKER = Path(__file__).with_name("resumed_worker.py")
PATIENCE_S = 120


def test_a_resumed_run_builds_no_dev_version_again(tmp_path: Path) -> None:
    home, calls = tmp_path / "dagster", tmp_path / "calls"
    home.mkdir()

    def work() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, str(WORKER), str(calls), str(tmp_path / "run_id")],
            env={**os.environ, "DAGSTER_HOME": str(home)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    died = work()
    assert died.returncode == 9, died.stderr
    assert sorted(calls.read_text().split()) == ["dev", "fixed"]

    resumed = work()

    assert resumed.stdout.strip() == "SUCCESS", resumed.stderr
    assert sorted(calls.read_text().split()) == ["dev", "fixed", "last"]
