"""Lazy artifacts of both sides: one fingerprint, one address, one record."""

import dataclasses
import inspect
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import jax.numpy as jnp
import marin.execution.artifact as marin_artifact
import marin.execution.fingerprint as marin_fingerprint
import marin.execution.lazy as marin_lazy
import numpy as np
import pytest
from rigging.filesystem.cluster_config import region_from_prefix
from rigging.provenance import Provenance

import marin_dagster.lazy as our_lazy
from helpers.runs import run_job
from marin_dagster import StepRunner, build_definitions
from marin_dagster.lazy.cloud_region import region_of_prefix
from marin_dagster.steps.fingerprint import canonical_json, fingerprint_hash
from marin_dagster.steps.protocol import adopted_source, is_pinned

pytestmark = pytest.mark.interop
V = "2026.07.01"
SEEDS = range(40)


class Color(Enum):
    RED = "red"
    BLUE = 2


@dataclass(frozen=True)
class Model:
    layers: int
    inner: Any = None


class Odd:
    def __init__(self, value: Any) -> None:
        self.value = value


def random_value(dice: random.Random, depth: int = 3) -> Any:
    leaves: list[Callable[[], Any]] = [
        lambda: dice.choice([None, True, False, "a", "é\n", "", 0, -3, 1.5, 1e300, float("inf")]),
        lambda: dice.choice(list(Color)),
        lambda: timedelta(seconds=dice.random() * 1e6),
        lambda: Path("/a") / str(dice.random()),
        lambda: {dice.randrange(99) for _ in range(4)},
        lambda: frozenset(dice.choice("abcdef") for _ in range(3)),
        lambda: dice.choice(
            [np.float32, np.dtype("int8"), float, int, bool, str, jnp.bfloat16, Model]
        ),
        lambda: dice.choice([np.float32(0.1), np.int64(7), np.bool_(True)]),
        lambda: np.arange(dice.randrange(5), dtype=dice.choice(["int32", "float64"])),
        lambda: jnp.ones((2, dice.randrange(1, 3))),
        lambda: Odd(dice.randrange(9)),
    ]
    if depth == 0:
        return dice.choice(leaves)()
    branches: list[Callable[[], Any]] = [
        lambda: [random_value(dice, depth - 1) for _ in range(dice.randrange(4))],
        lambda: {str(n): random_value(dice, depth - 1) for n in range(dice.randrange(4))},
        lambda: tuple(random_value(dice, depth - 1) for _ in range(2)),
        lambda: Model(dice.randrange(9), random_value(dice, depth - 1)),
    ]
    return dice.choice([*branches, *branches, *leaves])()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.filterwarnings("ignore::marin_dagster.errors.MarinDagsterWarning")
def test_configurations_have_one_fingerprint(seed: int) -> None:
    value = {"config": random_value(random.Random(seed), 4)}

    ours, marins = canonical_json(value), marin_fingerprint.canonical_json(value)

    assert ours == marins
    assert fingerprint_hash(ours) == marin_fingerprint.fingerprint_hash(marins)


def random_graph(lazy: ModuleType, seed: int) -> list[Any]:
    """The same graph in either side's handles."""
    dice = random.Random(seed)
    made: list[Any] = []
    for number in range(12):
        deps = dice.sample(made, min(len(made), dice.randrange(4)))
        version = dice.choice(["2026.07.01", "2026.01.31.2"])
        if number % 6 == 5:
            made.append(lazy.ArtifactStep.adopt(f"old/{number}", version, f"existing/{number}",
                                                config={"n": number}))  # fmt: skip
        else:
            inputs = {"size": dice.randrange(9), "parts": deps, "out": lazy.OUT}
            made.append(lazy.apply(f"data/{number}", write, version=version, **inputs))
    return made


def write(out: str, size: int, parts: list[str]) -> None:
    Path(out).mkdir(parents=True, exist_ok=True)
    Path(out, "data.txt").write_text(f"{size} of {len(parts)}")


@pytest.mark.parametrize("seed", SEEDS)
def test_handles_have_one_identity(seed: int) -> None:
    ours = [one.lower() for one in random_graph(our_lazy, seed)]
    marins = [one.lower() for one in random_graph(marin_lazy, seed)]

    for our, marin in zip(ours, marins, strict=True):
        assert our.fingerprint_payload == marin.fingerprint_payload
        assert our.hash_attrs == marin.hash_attrs
        assert our.name_with_hash == marin.name_with_hash
        assert our.output_path == marin.output_path
        assert list(our.dep_paths) == list(marin.dep_paths)


class OurTokens(our_lazy.Artifact):
    count: int


class MarinTokens(marin_artifact.Artifact):
    count: int


# One type of artifact, in either side's class.
for kind in (OurTokens, MarinTokens):
    kind.__qualname__ = "Tokens"


def count_up(ran: list[str], tokens: type[Any]) -> Callable[..., Any]:
    def count(out: str, raw: str) -> Any:
        ran.append("tokens")
        return tokens(count=len(Path(raw, "data.txt").read_text()))

    return count


def pair(lazy: ModuleType, tokens: type[Any], ran: list[str]) -> Any:
    """A typed artifact that reads a plain one."""

    def fill(out: str, size: int) -> None:
        ran.append("raw")
        write(out, size, [])

    raw = lazy.apply("raw", fill, version=V, out=lazy.OUT, size=2)
    count = count_up(ran, tokens)
    return lazy.apply("tokens", count, version=V, artifact_type=tokens, out=lazy.OUT, raw=raw)


def record_of(store: Path, name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((store / name / V / ".artifact.json").read_text())
    del document["provenance"]
    return document


def test_what_marin_builds_is_served_to_our_handles_and_marins_own(
    store: Path, instance: dg.DagsterInstance
) -> None:
    ran: list[str] = []
    [built] = marin_lazy.run(pair(marin_lazy, MarinTokens, ran))
    assert (built.count, ran) == (6, ["raw", "tokens"])

    for handles in (pair(our_lazy, OurTokens, ran), pair(marin_lazy, MarinTokens, ran)):
        assert run_job(build_definitions([handles]), instance).success

    assert ran == ["raw", "tokens"]
    assert our_lazy.load(pair(our_lazy, OurTokens, ran)).count == 6  # type: ignore[attr-defined]


def test_what_dagster_builds_is_served_to_marin(
    store: Path, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    assert run_job(build_definitions([pair(our_lazy, OurTokens, ran)]), instance).success

    [served] = marin_lazy.run(pair(marin_lazy, MarinTokens, ran))

    assert (served.count, ran) == (6, ["raw", "tokens"])
    record = marin_artifact.read_record(str(store / "tokens" / V))
    assert record is not None
    assert record.provenance is not None
    # Our own additions are passed over, in a file and in a job's environment.
    stated = json.loads((store / "tokens" / V / ".artifact.json").read_text())["provenance"]
    assert "dagster_run_id" in stated
    assert Provenance.from_json(json.dumps(stated)) == record.provenance
    ours = {name: record_of(store, name) for name in ("raw", "tokens")}
    other = tmp_path / "other"
    monkeypatch.setenv("MARIN_PREFIX", str(other))
    marin_lazy.run(pair(marin_lazy, MarinTokens, ran))
    for name in ("raw", "tokens"):
        theirs = json.loads(json.dumps(record_of(other, name)).replace(str(other), str(store)))
        assert ours[name] == theirs


def test_marins_handles_run_in_dagster_as_they_are(
    store: Path, instance: dg.DagsterInstance
) -> None:
    ran: list[str] = []

    run = run_job(build_definitions([pair(marin_lazy, MarinTokens, ran)]), instance)

    assert run.success
    assert ran == ["raw", "tokens"]
    found = marin_artifact.read_record(str(store / "tokens" / V))
    assert found is not None
    assert found.result == {"count": 6}
    # What Marin's function recorded of the process is put right, and Marin still reads it.
    assert found.provenance is not None
    assert found.provenance.command_line == ()
    stated = json.loads((store / "tokens" / V / ".artifact.json").read_text())["provenance"]
    assert stated["dagster_run_id"] == run.run_id
    spec = build_definitions([pair(marin_lazy, MarinTokens, ran)]).resolve_asset_graph()
    assert spec.get(dg.AssetKey("tokens")).metadata["marin/version"] == V


@pytest.mark.parametrize("lazy", [our_lazy, marin_lazy], ids=["ours", "marins"])
def test_a_handle_of_either_side_says_what_its_step_is(lazy: ModuleType, store: Path) -> None:
    built = lazy.apply("raw", write, version=V, out=lazy.OUT, size=1, parts=[]).lower()
    pinned = lazy.apply("raw", write, version=V, pin="pin", out=lazy.OUT, size=1, parts=[]).lower()
    adopted = lazy.ArtifactStep.adopt("raw", V, "existing").lower()
    moved = dataclasses.replace(built, override_output_path="scratch/raw")

    assert [is_pinned(step) for step in (built, pinned, adopted, moved)] == [0, 1, 0, 0]
    assert [adopted_source(step) for step in (built, pinned, adopted, moved)] == [
        None,
        None,
        "existing",
        None,
    ]
    StepRunner().run([moved])
    assert (store / "scratch/raw/data.txt").read_text() == "1 of 0"


def test_marins_adopted_data_is_registered_by_who_reads_it(
    store: Path, instance: dg.DagsterInstance
) -> None:
    store.joinpath("existing").mkdir(parents=True)
    old = marin_lazy.ArtifactStep.adopt("old", V, "existing", config={"n": 1})
    reader = marin_lazy.apply("new", write, version=V, out=marin_lazy.OUT, size=1, parts=[old])

    definitions = build_definitions([reader])
    run = run_job(definitions, instance)

    assert definitions.resolve_asset_graph().get(dg.AssetKey("old")).is_external
    assert run.success
    record = marin_artifact.read_record(str(store / "old" / V))
    assert record is not None
    assert record.source == str(store / "existing")


@pytest.mark.parametrize(
    "prefix",
    ["gs://marin-us-central1", "gs://marin-eu-west4/a", "gs://other/x", "s3://marin-x", "/marin-x"],
)
def test_a_prefix_is_in_one_region(prefix: str) -> None:
    assert region_of_prefix(prefix) == region_from_prefix(prefix)


@pytest.mark.parametrize("maker", ["for_run", "for_fingerprint"])
def test_contexts_are_made_with_the_same_arguments(maker: str) -> None:
    ours, marins = (
        inspect.signature(getattr(lazy.StepContext, maker)).parameters.values()
        for lazy in (our_lazy, marin_lazy)
    )
    assert [(one.name, one.kind, one.default) for one in ours] == [
        (one.name, one.kind, one.default) for one in marins
    ]
