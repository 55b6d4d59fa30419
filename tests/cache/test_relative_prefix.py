"""A relative ``MARIN_PREFIX``: data, status, lock, record and reads share one resolved folder."""

import os
from pathlib import Path

import pytest

from helpers.cache import INFO, RECORD, STATUS, python

pytestmark = pytest.mark.slow

RUN = """
import os, sys
from pathlib import Path
from marin_dagster.cache import Hit, StepCache
from marin_dagster.steps import StepGraph, StepSpec

def first(output_path):
    Path(output_path, "data.txt").write_text("first")
    os.makedirs(sys.argv[1], exist_ok=True)
    os.chdir(sys.argv[1])

def last(output_path):
    assert os.path.isabs(output_path)
    assert Path(read.output_path, "data.txt").read_text() == "first"
    assert Path(output_path, ".executor_status.lock").exists()
    Path(output_path, "data.txt").write_text("last")

read = StepSpec("first", fn=first)
graph = StepGraph.from_steps([StepSpec("last", deps=[read], fn=last)])
for step in graph.steps.values():
    found = StepCache().begin(step)
    if isinstance(found, Hit):
        print("hit", step.name)
        continue
    step.fn(step.output_path)
    assert found.folder.path == step.output_path
    found.commit()
    print("built", step.name)
for step in graph.steps.values():
    print(step.output_path)
"""


@pytest.mark.parametrize("prefix", ["./store", "inner/../store"])
def test_two_working_directories_have_one_store_each_whatever_a_step_does(
    prefix: str, tmp_path: Path
) -> None:
    env = {**os.environ, "MARIN_PREFIX": prefix}
    elsewhere = tmp_path / "elsewhere"
    for cwd in (tmp_path / "one", tmp_path / "two"):
        cwd.mkdir()
        built = python(RUN, str(elsewhere), cwd=cwd, env=env).split()
        assert built[:4] == ["built", "first", "built", "last"]
        outputs = [Path(path) for path in built[4:]]
        assert {path.parent for path in outputs} == {cwd / "store"}
        for output in outputs:
            files = {path.name for path in output.iterdir()}
            assert files == {"data.txt", STATUS, INFO, RECORD}
        assert {path.name for path in cwd.iterdir()} <= {"store", "inner"}
        assert not list(elsewhere.iterdir())

        again = python(RUN, str(elsewhere), cwd=cwd, env=env).split()
        assert again == ["hit", "first", "hit", "last", *map(str, outputs)]
