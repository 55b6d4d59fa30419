"""``--help``: quick, since nothing but click is imported."""

import subprocess
import sys

import pytest

from cli.conftest import Project
from marin_dagster.cli.main import main

HEAVY = ("dagster", "dagster_shared", "fsspec", "pydantic", "rich", "marin_dagster.steps")


@pytest.mark.parametrize("command", [None, *main.commands])
def test_help_imports_nothing_heavy(command: str | None) -> None:
    arguments = [command, "--help"] if command else ["--help"]
    code = (
        "import sys\n"
        "from marin_dagster.cli.main import main\n"
        f"try: main({arguments!r})\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout


@pytest.mark.parametrize("command", main.commands)
def test_each_option_is_documented(command: str) -> None:
    for parameter in main.commands[command].params:
        if parameter.param_type_name == "option":
            assert getattr(parameter, "help", None), f"{command}: {parameter.name}"


def test_an_unknown_command_or_option_exits_with_2(project: Project) -> None:
    assert project("build").code == 2
    assert project("plan", "--no-such-option").code == 2


def test_the_version(project: Project) -> None:
    from importlib.metadata import version

    assert version("marin-dagster") in project("--version").out
