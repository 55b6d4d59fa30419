"""``marin-dagster check``, in a terminal, as annotations, in a CI job and as a pre-commit hook."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cli.conftest import Project

ROOT = Path(__file__).parents[2]
HEAD = """
from marin_dagster import Artifact, ArtifactStep, ResourceConfig, StepSpec, build_definitions

def build(output_path):
    pass

"""
CYCLE = """
a = StepSpec("a", fn=build)
b = StepSpec("b", deps=[a], fn=build)
object.__setattr__(a, "deps", (b,))
steps = [b]
"""
GRAPHS = {
    "cycle": CYCLE,
    "cycle in definitions": CYCLE + "defs = build_definitions(steps)",
    "duplicate": """
steps = [StepSpec(name, fn=build, override_output_path="same") for name in "ab"]
""",
    "two attributes": """
bad = StepSpec("bad", hash_attrs={"f": build}, fn=build)
below = StepSpec("below", deps=[bad], fn=build)
steps = [below, StepSpec("worse", hash_attrs={"x": {1, 2}}, fn=build)]
""",
    "name": "steps = [StepSpec('../up', fn=build)]",
    "not a step": "steps = [StepSpec('x', deps=['raw'], fn=build)]",
    "raises": "steps = [1 / 0]",
    "asset key": "steps = [StepSpec('a b', fn=build), StepSpec('a:b', fn=build)]",
    "resources": """
steps = [StepSpec("big", fn=build, resources=ResourceConfig.with_gpu("H100", count=4096))]
""",
    "absolute": """
attrs = {"at": "/data/x", "url": "https://host/x", "sep": "/", "at_home": ["~/x"]}
steps = [StepSpec("x", hash_attrs=attrs, fn=build)]
""",
    "no function": "steps = [StepSpec('reads', deps=[StepSpec('given')], fn=build)]",
    "dependency's path": """
one = StepSpec("one", fn=build)
steps = [StepSpec("two", deps=[one], hash_attrs={"reads": one.output_path}, fn=build)]
""",
    "undeclared": """
one = StepSpec("one", fn=build)
def reads_one(output_path):
    open(one.output_path)
steps = [StepSpec("two", fn=reads_one)]
""",
    "undeclared in definitions": """
one = StepSpec("one", fn=build)
def reads_one(output_path):
    open(one.output_path)
defs = build_definitions([StepSpec("two", fn=reads_one)])
""",
    "sound": "steps = [StepSpec('x', fn=build)]",
}


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("cycle", [("error", "cycle", "in a ring: b -> a -> b", None)]),
        ("cycle in definitions", [("error", "cycle", "in a ring", None)]),
        ("duplicate", [("error", "duplicate-address", "both write to", "b")]),
        (
            "two attributes",
            [
                ("error", "attribute", "step 'bad': hash_attrs.f: ", "bad"),
                ("error", "attribute", "step 'worse': hash_attrs.x: ", "worse"),
            ],
        ),
        ("name", [("error", "name", "contains '..'", "../up")]),
        ("not a step", [("error", "graph", "'raw' is a str, not a step", None)]),
        ("raises", [("error", "load", "ZeroDivisionError", None)]),
        ("asset key", [("error", "asset-key", "have one asset key", None)]),
        ("resources", [("error", "runner", "the runner 'process' cannot run it", "big")]),
        (
            "absolute",
            [
                ("warning", "absolute-path", "hash_attrs.at_home[0] is an absolute path", "x"),
                ("warning", "absolute-path", "hash_attrs.at is an absolute path (/data/x)", "x"),
            ],
        ),
        ("no function", [("warning", "missing-function", "has no function", "given")]),
        (
            "dependency's path",
            [
                ("warning", "absolute-path", "hash_attrs.reads is an absolute path", "two"),
                ("warning", "warning", "contains the output path of a dependency", None),
            ],
        ),
        ("undeclared", [("warning", "undeclared-input", "its function uses one_", "two")]),
        (
            "undeclared in definitions",
            [("warning", "undeclared-input", "its function uses one_", "two")],
        ),
        ("sound", []),
    ],
)
def test_each_mistake_is_found(
    graph: str,
    expected: list[tuple[str, str, str, str | None]],
    project: Project,
    store: Path,
) -> None:
    (project.folder / "broken.py").write_text(HEAD + GRAPHS[graph])
    attribute = "defs" if "defs" in GRAPHS[graph] else "steps"

    found = project("check", "--json", "-g", f"broken.py:{attribute}")

    findings = found.json["findings"]
    assert [(one["level"], one["rule"], one["step"]) for one in findings] == [
        (level, rule, step) for level, rule, _, step in expected
    ]
    for finding, (_, _, text, _) in zip(findings, expected, strict=True):
        assert text in finding["message"]
        assert finding["file"] == str(project.folder / "broken.py")
        assert finding["line"] >= 1
    has_error = any(level == "error" for level, *_ in expected)
    assert found.code == int(has_error)
    assert project("check", "-g", f"broken.py:{attribute}", "--strict").code == int(bool(expected))
    assert not store.exists()


def test_a_place_is_the_function_or_the_graphs_definition(project: Project) -> None:
    (project.folder / "broken.py").write_text(HEAD + GRAPHS["resources"])
    [finding] = project("check", "--json", "-g", "broken.py:steps").json["findings"]
    lines = (project.folder / "broken.py").read_text().splitlines()
    assert lines[finding["line"] - 1] == "def build(output_path):"
    (project.folder / "broken_too.py").write_text(HEAD + CYCLE)
    [finding] = project("check", "--json", "-g", "broken_too.py:steps").json["findings"]
    lines = (project.folder / "broken_too.py").read_text().splitlines()
    assert lines[finding["line"] - 1] == "steps = [b]"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("default = 'nowhere'", "'nowhere'"),
        ("steps = {nothing = {runner = 'process'}}", "There is no step 'nothing'"),
        ("routes = [{runner = 'far', step = 'mod*'}]", "'far'"),
        ("runners = {own = {proces = {}}}", "proces"),
    ],
)
def test_unknown_runners_in_the_projects_settings(
    settings: str, expected: str, project: Project
) -> None:
    (project.folder / "pyproject.toml").write_text(
        f"[tool.marin_dagster]\ngraph = 'pipeline.py:defs'\n"
        f"[tool.marin_dagster.execution]\n{settings}\n"
    )
    found = project("check", "--json")
    assert found.code == 1
    assert expected in found.json["findings"][0]["message"]


def test_annotations_name_files_from_the_repositorys_root(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "broken.py").write_text(HEAD + "steps = [StepSpec('a%b,c\\nd', fn=build)]")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.folder.parent))

    found = project("check", "-g", "broken.py:steps")

    [line] = found.out.splitlines()
    assert line.startswith("::error file=project/broken.py,line=4,title=marin-dagster%3A name::")
    assert "a%25b,c" in line
    assert "1 step: 1 error, 0 warnings." in found.err
    assert not project("check", "--no-github", "-g", "broken.py:steps").out.startswith("::")


def test_a_wrong_name_is_no_finding(project: Project) -> None:
    assert project("check", "-g", "broken.py:steps").code == 2
    assert project("check").code == 2


@pytest.mark.parametrize(("graph", "code"), [("cycle", 1), ("sound", 0)])
@pytest.mark.parametrize("recipe", ["workflow", "hook"])
def test_the_recipes_fail_a_pull_request_with_a_cycle(
    recipe: str, graph: str, code: int, project: Project
) -> None:
    (project.folder / "broken.py").write_text(HEAD + GRAPHS[graph])
    (project.folder / "pyproject.toml").write_text("[tool.marin_dagster]\ngraph='broken.py:steps'")
    page = (ROOT / "docs" / "command-line.md").read_text()
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    if recipe == "workflow":
        [workflow] = [block for block in blocks if "jobs" in block]
        last = workflow["jobs"]["check"]["steps"][-1]["run"]
        command = last.removeprefix("uv run ")
    else:
        [config] = [block for block in blocks if "repos" in block]
        [wanted] = config["repos"][0]["hooks"]
        [hook] = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
        assert hook["id"] == wanted["id"]
        command = hook["entry"]
    # The scripts of the environment that runs the tests, as `uv run` and a shell find them.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        command.split(), env={**os.environ, "PATH": path}, capture_output=True, check=False
    )

    assert done.returncode == code, done.stderr
