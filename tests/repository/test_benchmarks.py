"""The script that compares two result files of the benchmarks."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

OURS, PEER = "run flat-100 marin", "run flat-100 in_process"


def result(ours: float, peer: float, load: float = 1.0) -> dict[str, Any]:
    return {
        OURS: {"wall": ours, "steps": 100},
        PEER: {"wall": peer, "steps": 100},
        "load 1000": {"wall": load},
    }


@pytest.mark.parametrize(
    ("old", "new", "is_worse"),
    [
        (result(1.0, 1.0), result(1.0, 1.0), []),
        (result(1.0, 1.0), result(3.0, 3.0), []),  # a slower machine
        (result(1.0, 1.0), result(1.5, 1.0), [OURS]),
        (result(1.0, 1.0), result(1.2, 1.0), []),  # noise
        (result(1.5, 1.0), result(1.0, 1.0), []),  # better
        (result(1.0, 1.0), result(1.0, 1.0, load=2.0), ["load 1000"]),
        (result(1.0, 1.0), {}, []),
        ({}, result(9.0, 1.0), []),
    ],
)
def test_figures_that_are_worse_than_before(
    old: dict[str, Any], new: dict[str, Any], is_worse: list[str], tmp_path: Path
) -> None:
    for name, content in {"old": old, "new": new}.items():
        (tmp_path / name).write_text(json.dumps(content))

    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "compare.py"), str(tmp_path / "old"), "new"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    marked = [line for line in done.stdout.splitlines() if line.endswith("WORSE")]
    assert [line.partition(":")[0] for line in marked] == is_worse
    assert done.returncode == bool(is_worse), done.stderr


def test_a_measurement_lands_in_the_result_file(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), "imports", "--output", str(output)],
        check=True,
        capture_output=True,
    )
    assert set(json.loads(output.read_text())) == {"import"}
