"""The cache tree that real Marin left behind: read as Marin reads it, served, and carried on."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.cache import INFO, LOCK, RECORD, STATUS, nothing, tree
from marin_dagster.cache import (
    Attempt,
    CacheState,
    Hit,
    OutputDir,
    StepCache,
    read_record,
    read_status,
)
from marin_dagster.cache import lease as lease_module
from marin_dagster.steps import StepGraph, StepSpec

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
OUTPUTS: dict[str, dict[str, Any]] = json.loads((GOLDEN / "marin_cache.expected.json").read_text())[
    "outputs"
]
HELD_SINCE = json.loads((GOLDEN / "marin_cache" / "held" / LOCK).read_text())["timestamp"]


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A copy of the tree."""
    return Path(shutil.copytree(GOLDEN / "marin_cache", tmp_path / "store"))


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """This host's clock, just when the held lease of the tree was renewed."""
    clock = SimpleNamespace(time=lambda: HELD_SINCE + clock.age, monotonic=lambda: 0.0, age=0.0)
    monkeypatch.setattr(lease_module, "time", clock)
    return clock


def at(golden: Path, name: str) -> StepSpec:
    """A step whose output is one of the tree's."""
    return StepSpec("step", override_output_path=str(golden / name), fn=nothing)


def test_the_whole_tree_is_covered() -> None:
    cached = {
        str(path.parent.relative_to(GOLDEN / "marin_cache"))
        for path in (GOLDEN / "marin_cache").rglob(STATUS)
    }
    assert cached == OUTPUTS.keys()
    assert len(OUTPUTS) == 15


@pytest.mark.parametrize("name", OUTPUTS)
def test_status_and_record_are_read_as_marin_reads_them(name: str, golden: Path) -> None:
    before = tree(golden)
    folder = OutputDir.at(str(golden / name))
    assert read_status(folder) == OUTPUTS[name]["status"]
    record = read_record(folder)
    assert (record and record.model_dump(mode="json")) == OUTPUTS[name]["record"]
    assert tree(golden) == before


STATES = {"SUCCESS": CacheState.HIT, "FAILED": CacheState.FAILED, None: CacheState.MISS}


def test_the_whole_tree_is_looked_up_at_once(golden: Path, now: SimpleNamespace) -> None:
    before = tree(golden)
    steps = {name: at(golden, name) for name in OUTPUTS}
    found = StepCache().look_up_many(steps.values())
    for name, step in steps.items():
        look_up = found[step.output_path]
        if name == "held":
            assert (look_up.state, look_up.owner) == (CacheState.RUNNING, "host-a-123")
        else:
            assert look_up.state is STATES[OUTPUTS[name]["status"]], name
    assert tree(golden) == before


def test_a_held_output_is_a_miss_once_its_lease_is_stale(
    golden: Path, now: SimpleNamespace
) -> None:
    now.age = 90
    assert StepCache().look_up(at(golden, "held")).state is CacheState.RUNNING
    now.age = 91
    assert StepCache().look_up(at(golden, "held")).state is CacheState.MISS


@pytest.mark.parametrize(
    "name", [name for name, output in OUTPUTS.items() if output["status"] == "SUCCESS"]
)
def test_every_finished_output_is_served_and_left_as_it_is(name: str, golden: Path) -> None:
    before = tree(golden)
    hit = StepCache().begin(at(golden, name))
    assert isinstance(hit, Hit)
    assert (hit.record and hit.record.model_dump(mode="json")) == OUTPUTS[name]["record"]
    assert tree(golden) == before


def test_marins_own_graph_is_all_cached(golden: Path) -> None:
    def step(name: str, *deps: StepSpec, **attrs: Any) -> StepSpec:
        return StepSpec(name, output_path_prefix=str(golden), deps=deps, hash_attrs=attrs)

    def attrs(name: str) -> dict[str, Any]:
        return dict(OUTPUTS[name]["record"]["config"])

    tokens = step("tokenize", **attrs("tokenize_193a5d77"))
    vocab = step("build_vocab", tokens, **attrs("build_vocab_6d865420"))
    train = step("train", vocab, tokens, **attrs("train_7a0735de"))
    flaky = step("flaky", tokens)
    graph = StepGraph.from_steps([train, flaky])
    found = StepCache().look_up_many(graph.steps.values())
    states = {Path(path).name: look_up.state for path, look_up in found.items()}
    assert states == {
        "tokenize_193a5d77": CacheState.HIT,
        "build_vocab_6d865420": CacheState.HIT,
        "train_7a0735de": CacheState.HIT,
        "flaky_5d093f4e": CacheState.FAILED,
    }


@pytest.mark.parametrize("name", ["flaky_5d093f4e", "empty_status", "existing"])
def test_an_unfinished_output_is_built_where_it_lies(name: str, golden: Path) -> None:
    data = {path.name for path in (golden / name).iterdir() if path.name[0] != "."}
    info = golden / name / INFO
    old_info = info.read_bytes() if info.exists() else None
    attempt = StepCache().begin(at(golden, name))
    assert isinstance(attempt, Attempt)
    attempt.commit()
    assert (golden / name / STATUS).read_text() == "SUCCESS"
    assert {path.name for path in (golden / name).iterdir()} == {*data, STATUS, INFO, RECORD}
    assert old_info is None or info.read_bytes() == old_info


def test_a_held_output_is_taken_over_once_its_lease_is_stale(
    golden: Path, now: SimpleNamespace
) -> None:
    now.age = 91
    attempt = StepCache().begin(at(golden, "held"))
    assert isinstance(attempt, Attempt)
    lock = json.loads((golden / "held" / LOCK).read_text())
    assert lock.keys() == {"worker_id", "timestamp"}
    assert lock["worker_id"] != "host-a-123"
    attempt.commit()
    assert not (golden / "held" / LOCK).exists()


def test_our_files_have_marins_form(golden: Path) -> None:
    attempt = StepCache().begin(StepSpec("new", output_path_prefix=str(golden), fn=nothing))
    assert isinstance(attempt, Attempt)
    attempt.commit()
    ours, marins = Path(attempt.folder.path), golden / "train_7a0735de"
    for name in (RECORD, INFO):
        mine, theirs = (json.loads((folder / name).read_text()) for folder in (ours, marins))
        assert list(mine) == list(theirs)
        for key in mine.keys() - {"deps", "dep_paths", "dependencies", "config"}:
            if mine[key] is not None and theirs[key] is not None:
                assert type(mine[key]) is type(theirs[key]), key
    assert list(json.loads((ours / RECORD).read_text())["provenance"]) == list(
        json.loads((marins / RECORD).read_text())["provenance"]
    )
    assert (ours / STATUS).read_bytes() == (marins / STATUS).read_bytes()
