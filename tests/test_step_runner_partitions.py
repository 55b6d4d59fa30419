"""``StepRunner.run`` with ``partition_keys``: the partitions of a graph from a script."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, WorkerStatus

from helpers.runs import Recorder, run_job, stale_status, status_of
from marin_dagster import MarinGraph, StepRunner, StepSpec, build_definitions
from marin_dagster.errors import GraphError, OutputNotReadyError, StepsFailedError

DAYS = [f"2026-11-{day:02}" for day in range(1, 4)]
DAILY = dg.DailyPartitionsDefinition("2026-11-01", end_date="2026-11-08")
SOME_DAYS = dg.StaticPartitionsDefinition(DAYS)
RATES = ["0.1", "0.2", "0.4"]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as found:
        yield found


def training(recorder: Recorder, fails: Callable[[str], bool] = lambda _: False) -> Any:
    tokenizer = recorder.step("tokenizer")

    def steps_for(day: str) -> list[StepSpec]:
        prep = recorder.step("prep", hash_attrs={"day": day})
        train = recorder.step("train", prep, tokenizer, fails=fails(day), result={"day": day})
        return [recorder.step("evaluate", train)]

    return steps_for


def resumed(recorder: Recorder) -> Any:
    """Each day's training starts from the day before."""

    def steps_for(day: str) -> list[StepSpec]:
        model: StepSpec | None = None
        for one in DAYS[: DAYS.index(day) + 1]:
            data = recorder.step("prep", hash_attrs={"day": one})
            model = recorder.step("train", data, *([model] if model else []), result={"day": one})
        assert model is not None
        return [model]

    return steps_for


def sweep(recorder: Recorder) -> Any:
    points = {rate: recorder.step("train", hash_attrs={"lr": rate}) for rate in RATES}
    leaderboard = recorder.step("leaderboard", *points.values())
    return lambda rate: [points[rate], leaderboard]


def recorded(instance: dg.DagsterInstance) -> dict[str, set[str]]:
    """The materialized partitions of each asset."""
    return {
        key.to_user_string(): instance.get_materialized_partitions(key)
        for key in instance.get_asset_keys()
    }


def test_partitions_are_built_and_recorded_as_those_of_the_assets(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps_for = training(recorder)

    results = StepRunner(instance=instance).run(steps_for, partition_keys=DAYS[:2])

    assert list(results) == DAYS[:2]
    assert results[DAYS[1]]["train"].result == {"day": DAYS[1]}
    assert sorted(recorder.take()) == sorted(["tokenizer", *["prep", "train", "evaluate"] * 2])
    assert recorded(instance) == {
        "tokenizer": set(),
        **{name: set(DAYS[:2]) for name in ("prep", "train", "evaluate")},
    }
    runs = instance.get_runs()
    assert {run.tags["dagster/partition"] for run in runs} == set(DAYS[:2])
    # The deployment's assets are the same.
    definitions = build_definitions(steps_for, partitions_def=DAILY)
    for name in ("prep", "train", "evaluate"):
        assert stale_status(definitions, instance, name, DAYS[1]) == "FRESH"
    assert run_job(definitions, instance, partition=DAYS[0]).materialized() == {}


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_cached_partitions_start_no_run(
    known: bool,
    recorder: Recorder,
    instance: dg.DagsterInstance,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps_for = training(recorder)
    if known:
        for day in DAYS[:2]:
            definitions = build_definitions(steps_for, partitions_def=DAILY)
            assert run_job(definitions, instance, partition=day).success
    else:
        StepRunner().run(steps_for, partition_keys=DAYS[:2])
    recorder.take()
    runs = len(instance.get_runs())
    capsys.readouterr()

    results = StepRunner(instance=instance).run(steps_for, partition_keys=DAYS[:2])

    assert recorder.take() == []
    assert results[DAYS[0]]["train"].result == {"day": DAYS[0]}
    assert "Nothing to run: all 7 steps are cached." in capsys.readouterr().err
    assert len(instance.get_runs()) == runs
    definitions = build_definitions(steps_for, partitions_def=DAILY)
    for name in ("prep", "train", "evaluate"):
        for day in DAYS[:2]:
            assert stale_status(definitions, instance, name, day) == "FRESH"
            records = dg.AssetRecordsFilter(dg.AssetKey(name), asset_partitions=[day])
            assert len(instance.fetch_materializations(records, limit=9).records) == 1


def test_only_partitions_with_something_to_run_are_runs(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    StepRunner().run(training(recorder), partition_keys=DAYS[1:])
    recorder.take()

    StepRunner(instance=instance).run(training(recorder), partition_keys=DAYS)

    assert recorder.take() == ["prep", "train", "evaluate"]
    (run,) = instance.get_runs()
    assert run.tags["dagster/partition"] == DAYS[0]
    assert recorded(instance)["evaluate"] == set(DAYS)


def test_a_failure_names_its_partition_and_leaves_the_others_alone(recorder: Recorder) -> None:
    steps_for = training(recorder, lambda day: day == DAYS[1])

    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run(steps_for, partition_keys=DAYS)

    (evaluate,) = steps_for(DAYS[1])
    (train,) = evaluate.deps
    assert str(raised.value).startswith(f"1 step(s) failed: {train.name_with_hash} [{DAYS[1]}]")
    (error,) = raised.value.exceptions
    assert error.__notes__[-1] == f"in partition {DAYS[1]}"
    for day in (DAYS[0], DAYS[2]):
        assert status_of(steps_for(day)[0]) == "SUCCESS"
    assert status_of(evaluate) is None
    recorder.take()

    StepRunner().run(training(recorder), partition_keys=DAYS)

    assert recorder.take() == ["train", "evaluate"]


def test_a_shared_step_that_fails_is_tried_once(recorder: Recorder) -> None:
    tokenizer = recorder.step("tokenizer", fails=True)

    def steps_for(day: str) -> list[StepSpec]:
        prep = recorder.step("prep", hash_attrs={"day": day})
        return [recorder.step("train", prep, tokenizer)]

    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run(steps_for, partition_keys=DAYS[:2])

    assert raised.value.message == f"1 step(s) failed: {tokenizer.name_with_hash}"
    assert sorted(recorder.take()) == ["prep", "prep", "tokenizer"]


@pytest.mark.parametrize("keys", [DAYS, DAYS[::-1]], ids=["up", "down"])
def test_a_partition_comes_after_those_that_it_reads(recorder: Recorder, keys: list[str]) -> None:
    results = StepRunner().run(resumed(recorder), partition_keys=keys)

    assert list(results) == keys
    # Its own step of a name, not that of the day before.
    assert {day: results[day]["train"].result for day in keys} == {
        day: {"day": day} for day in keys
    }
    assert recorder.take() == ["prep", "train"] * 3


def test_a_partition_that_is_read_but_not_asked_for_is_not_built(recorder: Recorder) -> None:
    with pytest.raises(StepsFailedError) as raised:
        StepRunner().run(
            MarinGraph.of(resumed(recorder), partitions_def=SOME_DAYS), partition_keys=DAYS[1:2]
        )

    (error,) = raised.value.exceptions
    assert "of another partition, which has no successful output" in str(error)
    assert recorder.take() == ["prep"]


def test_a_leaderboard_comes_last_and_waits_for_points_that_are_not_asked_for(
    recorder: Recorder, instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = StepRunner(instance=instance)

    graph = MarinGraph.of(sweep(recorder), partitions_def=dg.StaticPartitionsDefinition(RATES))

    results = runner.run(graph, partition_keys=RATES[:2])

    assert recorder.take() == ["train", "train"]
    assert "leaderboard_" in (seen := capsys.readouterr().err)
    assert "waits for other partitions, which are not built" in seen
    with pytest.raises(OutputNotReadyError):
        results[RATES[0]]["leaderboard"]
    runs = len(instance.get_runs())
    runner.run(graph, partition_keys=RATES[:2])
    assert len(instance.get_runs()) == runs

    runner.run(sweep(recorder), partition_keys=RATES)

    assert recorder.take() == ["train", "leaderboard"]


def test_a_dry_run_decides_for_all_partitions_together_and_writes_nothing(
    recorder: Recorder, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StepRunner().run(resumed(recorder), partition_keys=DAYS[:1])
    recorder.take()
    before = sorted(store.rglob("*"))
    capsys.readouterr()

    results = StepRunner().run(resumed(recorder), partition_keys=DAYS, dry_run=True)

    assert recorder.take() == []
    assert sorted(store.rglob("*")) == before
    lines = capsys.readouterr().err.splitlines()
    becomes = {line.split(": ")[2].split(" -> ")[0]: line.split(": ")[1] for line in lines}
    steps = {(day, step.name): step for day in DAYS for step in resumed(recorder)(day)}
    assert len(becomes) == 6
    for day, expected in zip(DAYS, ["would be served", "would run", "would run"], strict=True):
        assert becomes[f"{steps[day, 'train'].name_with_hash} [{day}]"] == expected
    with pytest.raises(OutputNotReadyError, match="this was a dry run"):
        results[DAYS[2]]["train"]


def test_a_graph_states_partitions_and_shared_steps(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    multi = dg.MultiPartitionsDefinition(
        {"day": DAILY, "size": dg.StaticPartitionsDefinition(["small", "large"])}
    )

    def steps_for(key: dg.MultiPartitionKey) -> list[StepSpec]:
        data = recorder.step("data")
        return [recorder.step("train", data, hash_attrs=dict(key.keys_by_dimension))]

    graph = MarinGraph.of(
        steps_for,
        partitions_def=multi,
        example_partitions=f"{DAYS[0]}|small",
        unpartitioned=["data"],
    )
    key = f"{DAYS[1]}|large"

    results = StepRunner(instance=instance).run(graph, partition_keys=[key])

    assert results[key]["train"].path
    assert recorded(instance) == {"data": set(), "train": {key}}


class Asking(DefaultRunLauncher):
    """Like Kubernetes': it can say whether a run's worker is alive."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND)


def test_an_instance_that_would_fail_the_runs_gets_the_outputs(
    recorder: Recorder, tmp_path: Path
) -> None:
    (tmp_path / "monitored").mkdir()
    launcher = {"module": __name__, "class": "Asking"}
    overrides = {"run_launcher": launcher, "run_monitoring": {"enabled": True}}
    with dg.DagsterInstance.local_temp(str(tmp_path / "monitored"), overrides) as instance:
        StepRunner(instance=instance).run(training(recorder), partition_keys=DAYS[:2])

        assert instance.get_runs() == []
        assert recorded(instance)["evaluate"] == set(DAYS[:2])


def _each_other(key: str) -> list[StepSpec]:
    def of(one: str) -> StepSpec:
        return StepSpec("a", hash_attrs={"key": one}, fn=print)

    other = {"x": "y", "y": "x"}[key]
    return [of(key), StepSpec("b", deps=[of(other)], hash_attrs={"key": key}, fn=print)]


WRONG: list[Any] = [
    (lambda day: [StepSpec("a")], DAYS[0], "'2026-11-01' is not a list of partitions"),
    (lambda day: [StepSpec("a")], [], r"\[\] is not a list of partitions"),
    ([StepSpec("a")], DAYS, "needs a function from the key of a partition"),
    (MarinGraph.of([StepSpec("a", output_path_prefix="/store")]), DAYS, "has no partitions"),
    (lambda day: 1 / 0, DAYS, "partition '2026-11-01': the function that returns its steps raised"),
    (
        MarinGraph.of(
            lambda day: [StepSpec("a", output_path_prefix="/store", hash_attrs={"day": day})],
            partitions_def=DAILY,
        ),
        [DAYS[0], "2026-13-01"],
        "'2026-13-01' is not among the graph's partitions",
    ),
    (
        lambda key: [StepSpec("a")],
        [dg.MultiPartitionKey({"a": "1", "b": "2"})],
        "the keys are those of multi-partitions",
    ),
    (_each_other, ["x", "y"], "read each other's steps"),
    (_each_other, ["x"], "partition 'x': step 'b' reads 'a' at .* does not have, add its key"),
]


@pytest.mark.parametrize(("steps", "keys", "message"), WRONG)
def test_what_cannot_be_run_by_partition(steps: Any, keys: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        StepRunner().run(steps, partition_keys=keys)
