"""How commands find a graph: names, defaults in ``pyproject.toml``, prefixes, and what is wrong."""

import pytest

from cli.conftest import Project

ALL = ["raw", "data/clean", "model", "report"]


@pytest.mark.parametrize(
    "name",
    [
        "pipeline:steps",
        "pipeline.py:steps",
        "pipeline.py:report",
        "pipeline.py:make",
        "pipeline.py:defs",
        "{folder}/pipeline.py:defs",
    ],
)
def test_a_name_leads_to_the_same_graph_in_each_form(name: str, project: Project) -> None:
    found = project("plan", "--json", "-g", name.format(folder=project.folder))
    assert found.code == 0, found.err
    assert [step["name"] for step in found.json["steps"]] == ALL
    assert "this module prints" in found.err


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pipeline.py", "names no attribute"),
        (
            "pipeline.py:nothing",
            "no attribute 'nothing'. It has pipeline.py:steps, pipeline.py:defs",
        ),
        ("missing.py:steps", "there is no file"),
        ("missing:steps", "there is no module 'missing'"),
        ("pipeline.py:SETTINGS", "is a dict, not a graph"),
        ("pipeline.py:__doc__", "is a NoneType, not a graph"),
        ("pipeline.py:daily", "takes key"),
        ("broken.py:steps", "broken.py raised ZeroDivisionError: division by zero ("),
        ("broken_syntax.py:steps", "raised SyntaxError"),
        ("broken_call.py:make", "raised KeyError"),
        ("broken_exit.py:steps", "raised SystemExit"),
        ("broken_import.py:steps", "raised ModuleNotFoundError: No module named 'missing'"),
        ("broken_graph.py:steps", "step 'x': hash_attrs.at: "),
        ("broken_empty.py:steps", "has no steps"),
    ],
)
def test_a_wrong_name_gets_one_clear_error(name: str, expected: str, project: Project) -> None:
    files = {
        "": "1 / 0",
        "_syntax": "def",
        "_call": "def make(): return {}['a']",
        "_exit": "raise SystemExit(3)",
        "_import": "import missing",
        "_graph": (
            "from marin_dagster import StepSpec\nsteps = [StepSpec('x', hash_attrs={'at': open})]"
        ),
        "_empty": "steps = []",
    }
    for suffix, text in files.items():
        (project.folder / f"broken{suffix}.py").write_text(text)

    found = project("plan", "-g", name)

    assert found.code == 2
    assert expected in found.err
    assert "Traceback" not in found.err
    assert found.out == ""


def test_the_error_of_a_graphs_code_names_its_line(project: Project) -> None:
    (project.folder / "broken.py").write_text("steps = []\n\n1 / 0\n")
    assert f"({project.folder / 'broken.py'}, line 3)" in project("plan", "-g", "broken.py:x").err


def test_debug_shows_the_traceback(project: Project) -> None:
    (project.folder / "broken.py").write_text("1 / 0")
    found = project("plan", "-g", "broken.py:steps", "--debug")
    assert found.code == 2
    assert "ZeroDivisionError" in found.err.partition("Traceback")[2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-g", "pipeline.py:daily", "--partition", "2026-12-01"], ["raw", "day"]),
        (["-g", "pipeline.py:make", "--partition", "x"], "takes no parameter"),
        (["-g", "pipeline.py:steps", "--partition", "x"], "is not a function"),
        (["-g", "pipeline.py:defs", "--partition", "x"], "is Definitions"),
    ],
)
def test_a_partition_is_the_argument_of_the_graphs_function(
    arguments: list[str], expected: list[str] | str, project: Project
) -> None:
    found = project("plan", "--json", *arguments)
    if isinstance(expected, str):
        assert expected in found.err
    else:
        assert [step["name"] for step in found.json["steps"]] == expected


@pytest.mark.parametrize("below", ["", "a/b"])
def test_the_project_names_the_graph_and_the_prefix(
    below: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = '[tool.marin_dagster]\ngraph = "pipeline.py:steps"\nprefix = "outputs"\n'
    (project.folder / "pyproject.toml").write_text(settings)
    (project.folder / below).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(project.folder / below)
    if below:
        # Another project's file on the way up that says nothing.
        (project.folder / "a" / "pyproject.toml").write_text("[tool.other]\n")
    monkeypatch.delenv("MARIN_PREFIX")

    [first, *_] = project("plan", "--json").json["steps"]

    assert first["path"].startswith(str(project.folder / "outputs" / "raw_"))


def test_the_prefix_is_the_option_then_the_environment_then_the_setting(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = '[tool.marin_dagster]\ngraph = "pipeline.py:steps"\nprefix = "s3://bucket/x"\n'
    (project.folder / "pyproject.toml").write_text(settings)

    def prefix(*arguments: str) -> str:
        [path] = [
            step["path"]
            for step in project("plan", "--json", *arguments, "--select", "raw").json["steps"]
        ]
        return str(path).rpartition("/")[0]

    monkeypatch.setenv("MARIN_PREFIX", "/environment")
    assert prefix() == "/environment"
    assert prefix("--prefix", "/option") == "/option"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("graf = 'x'", "tool.marin_dagster.graf is unknown. The settings are graph, prefix"),
        ("max_concurrent = '3'", "max_concurrent is '3'. Give a value of type int"),
        ("graph = ", "pyproject.toml: "),
        ("", "Name a graph"),
        ("graph = 'pipeline.py:steps'\nexecution = {default = 3}", "execution in pyproject.toml"),
        (
            "graph = 'pipeline.py:steps'\nexecution = {steps = {nothing = {runner = 'process'}}}",
            "There is no step 'nothing'",
        ),
    ],
)
def test_wrong_settings_get_one_clear_error(settings: str, expected: str, project: Project) -> None:
    (project.folder / "pyproject.toml").write_text(f"[tool.marin_dagster]\n{settings}\n")
    found = project("plan")
    assert found.code == 2
    assert expected in found.err


def test_an_attribute_of_an_unknown_instance_is_an_error_of_one_line(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/nowhere/at/all")
    found = project("plan", "-g", "pipeline.py:steps")
    assert found.code == 2
    assert "/nowhere/at/all" in found.err
    assert "Traceback" not in found.err
