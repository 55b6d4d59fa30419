"""The reference in the docs and the schemas of the commands' JSON agree with the commands."""

import subprocess
import sys
from pathlib import Path

from marin_dagster.cli.main import main
from marin_dagster.cli.results import RESULTS

ROOT = Path(__file__).parents[2]


def test_the_reference_and_the_schemas_are_up_to_date() -> None:
    script = str(ROOT / "scripts" / "cli-reference")
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_command_with_json_has_a_schema() -> None:
    with_json = {
        name
        for name, command in main.commands.items()
        if any(parameter.name == "as_json" for parameter in command.params)
    }
    assert set(RESULTS) == with_json
