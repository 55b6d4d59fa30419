"""What the repository promises about itself: the README's graph works, files stay small."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import run_job
from marin_dagster import StepSpec

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(ROOT.glob("docs/*.md"))]
README = (ROOT / "README.md").read_text()
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY: str = PYPROJECT["project"]["urls"]["Repository"]
MAX_LINES = 350


def anchors(page: str) -> set[str]:
    """Links to the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {"#" + re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in headings}


def test_the_graph_in_the_readme_works_when_pasted(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    pipeline = next(block for block in blocks if "build_definitions([total])" in block)
    assert len([line for line in pipeline.splitlines() if line.strip()]) <= 15
    namespace: dict[str, object] = {}
    exec(compile(pipeline, str(tmp_path / "pipeline.py"), "exec"), namespace)
    definitions = namespace["defs"]
    assert isinstance(definitions, dg.Definitions)
    with dg.DagsterInstance.ephemeral() as instance:
        first, second = run_job(definitions, instance), run_job(definitions, instance)
    assert first.success
    assert first.materialized()["total"].metadata["total"].value == 328350
    assert second.success
    assert second.observed() == ["squares", "total"]
    squares = namespace["squares"]
    assert isinstance(squares, StepSpec)
    assert f"  {squares.name_with_hash}/ " in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["README.md", "docs/marin.md", "example_project/README.md"])
def test_a_snippet_that_starts_dagster_keeps_its_history(page: str) -> None:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    starting = [block for block in blocks if re.search(r"\b(dagster|dg) dev\b", block)]
    assert starting
    for block in starting:
        assert re.search(r"\bDAGSTER_HOME=[$~]", block)
        assert "mkdir -p" in block


@pytest.mark.parametrize("left", ["uv.lock", ".venv/bin/python"])
def test_what_an_installation_of_the_example_leaves_is_ignored(left: str) -> None:
    subprocess.run(["git", "check-ignore", "-q", f"example_project/{left}"], cwd=ROOT, check=True)


def test_the_workspace_opens_from_any_folder(tmp_path: Path) -> None:
    workspace = str(ROOT / "workspace.yaml")
    listed = subprocess.run(
        [sys.executable, "-m", "dagster", "job", "list", "-w", workspace],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    assert "Job: materialize_steps" in listed.stdout


def test_the_pictures_in_the_readme_are_there_small_and_described() -> None:
    tags = re.findall(r"<img\s[^>]*>|!\[[^\]]*\]\([^)]*\)", README)
    shown = [re.search(r'src="([^"]+)"[^>]*alt="([^"]+)"', tag) for tag in tags]
    assert len(shown) == 2
    assert None not in shown
    for found in filter(None, shown):
        picture = ROOT / found[1].removeprefix(f"{REPOSITORY}/raw/main/")
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 150_000


def test_links_in_the_readme_work_on_a_page_outside_the_repository() -> None:
    links = re.findall(r'\]\(([^)\s]+)\)|src="([^"]+)"', README)
    assert links
    for link in (first or second for first, second in links):
        assert link.startswith(("https://", "#")), link
        if link.startswith("#"):
            assert link in anchors(README)
        elif link.startswith(REPOSITORY):
            kind, _, path = link.removeprefix(f"{REPOSITORY}/").partition("/main/")
            assert kind in ("blob", "raw", "tree"), link
            assert ROOT.joinpath(path.partition("#")[0]).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" not in link:
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or f"#{anchor}" in anchors(target.read_text()), link


def test_the_source_distribution_has_only_what_its_list_names() -> None:
    listed = PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    # Patterns as in .gitignore: without the slash, README.md is also example_project/README.md.
    assert all(pattern.startswith("/") for pattern in listed)
    assert all(ROOT.joinpath(pattern[1:]).exists() for pattern in listed)


def test_the_versions_in_the_readme_are_those_that_the_suites_run() -> None:
    rows = re.findall(r"^\| (3\.\d+) \| ([^|]+) \|[^|]+\| `make ([^`]+)` \|$", README, re.MULTILINE)
    prefix = "Programming Language :: Python :: "
    supported = [name.removeprefix(prefix) for name in PYPROJECT["project"]["classifiers"]]
    assert {python for python, _, _ in rows} == {name for name in supported if name[0] == "3"}
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    [locked] = [package["version"] for package in packages if package["name"] == "dagster"]
    [needed] = [need for need in PYPROJECT["project"]["dependencies"] if need[:9] == "dagster>="]
    lowest = needed.removeprefix("dagster>=").partition(",")[0]
    versions = {targets: dagster.partition(",")[0] for _, dagster, targets in rows}
    assert versions == {
        "unit": locked,
        "servers": locked,
        "lowest": lowest,
        "interop": "the newest 1.x",
    }
    for target in " ".join(versions).split():
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_version_has_its_changes_and_dagster_knows_it() -> None:
    assert f"## [{PYPROJECT['project']['version']}]" in (ROOT / "CHANGELOG.md").read_text()
    code = "import dagster as dg; import marin_dagster; marin_dagster.{}; "
    code += "print(dg.DagsterLibraryRegistry.get()['marin-dagster'])"
    for name in ("build_marin_assets", "marin_executor"):
        registered = subprocess.check_output([sys.executable, "-c", code.format(name)], text=True)
        assert registered.strip() == version("marin-dagster")


@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "marin_dagster").rglob("*.py")),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_no_file_of_the_package_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES
