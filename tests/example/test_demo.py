"""The example end to end, twice, as ``make demo`` runs it: SQLite, local disk, our executor."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = (ROOT / "scripts" / "demo-instance.yaml").read_text()
STEPS = 10


def demo(home: Path) -> str:
    home.joinpath("dagster").mkdir(exist_ok=True)
    home.joinpath("dagster", "dagster.yaml").write_text(SETTINGS)
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "demo.py")],
        env={
            **os.environ,
            "MARIN_PREFIX": str(home / "store"),
            "DAGSTER_HOME": str(home / "dagster"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def table(output: str) -> dict[str, str]:
    """What became of each step."""
    return dict(re.findall(r"^(\S+) +(ran|cached|not run) .*/store/", output, re.MULTILINE))


def test_the_demo_builds_everything_once(tmp_path: Path) -> None:
    first = demo(tmp_path)
    assert list(table(first).values()) == ["ran"] * STEPS
    report = Path(re.findall(r"^Report: (.*)$", first, re.MULTILINE)[0])
    assert "## What a longer context buys" in report.read_text()
    assert report.with_name("perplexity.png").read_bytes().startswith(b"\x89PNG")
    built = {path: path.stat().st_mtime_ns for path in tmp_path.joinpath("store").rglob("*")}

    second = demo(tmp_path)
    assert list(table(second).values()) == ["cached"] * STEPS
    assert f"0 ran, {STEPS} cached" in second
    assert built == {
        path: path.stat().st_mtime_ns for path in tmp_path.joinpath("store").rglob("*")
    }
    numbers = re.findall(r"ngram-\d +([\d.]+) +\(training text: ([\d.]+)\)", second)
    assert numbers == re.findall(r"ngram-\d +([\d.]+) +\(training text: ([\d.]+)\)", first)
    assert len(numbers) == 3
