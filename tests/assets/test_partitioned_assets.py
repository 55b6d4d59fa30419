"""Assets of a graph with partitions: keys, dependencies, mappings, and what is left out."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, run_job
from marin_dagster import (
    DagsterMarinTranslator,
    MarinGraph,
    StepOutput,
    StepSpec,
    build_definitions,
    marin_executor,
)
from marin_dagster.errors import GraphError

DAYS = [f"2026-11-{day:02}" for day in range(1, 8)]
DAILY = dg.DailyPartitionsDefinition("2026-11-01", end_date="2026-11-08")
RATES = ["0.1", "0.2", "0.4"]
SWEEP = dg.StaticPartitionsDefinition(RATES)
DAY_AND_RATE = dg.MultiPartitionsDefinition({"day": DAILY, "rate": SWEEP})


def step(name: str, *deps: Any, **attrs: Any) -> StepSpec:
    return StepSpec(name, output_path_prefix="/store", deps=deps, hash_attrs=attrs, fn=print)


def mapping(graph: MarinGraph, reader: str, dep: str) -> Any:
    (spec,) = [spec for spec in graph.specs.values() if spec.key.to_user_string() == reader]
    (found,) = [of.partition_mapping for of in spec.deps if of.asset_key == dg.AssetKey(dep)]
    return found


def test_what_differs_between_partitions_is_left_out_of_the_definition() -> None:
    def steps_for(day: str) -> list[StepSpec]:
        return [step("train", step("words"), day=day, lr=0.1)]

    graph = MarinGraph.of(steps_for, partitions_def=DAILY)

    specs = {spec.key.to_user_string(): spec for spec in graph.specs.values()}
    train, words = specs["train"], specs["words"]
    assert train.partitions_def == DAILY
    assert train.tags == {"lr": "0.1", "dagster/kind/marin": ""}
    for key in ("dagster/uri", "marin/hash_id", "marin/name_with_hash", "marin/attributes"):
        assert key not in train.metadata
        assert key in words.metadata
    assert train.code_version == steps_for(DAYS[0])[0].hash_id
    assert words.partitions_def is None


def test_an_example_alone_does_not_describe_all_partitions() -> None:
    class Owned(DagsterMarinTranslator):
        def get_asset_spec(self, step: Any) -> dg.AssetSpec:
            return super().get_asset_spec(step).merge_attributes(tags={"team": "nlp"})

    graph = MarinGraph.of(
        lambda customer: [step("train", customer=customer, lr=0.1)],
        partitions_def=dg.DynamicPartitionsDefinition(name="customers"),
        example_partitions="ada",
        translator=Owned(),
    )
    (spec,) = graph.specs.values()
    assert spec.tags == {"team": "nlp", "dagster/kind/marin": ""}
    assert not [key for key in spec.metadata if key.startswith("marin/")]
    assert "dagster/uri" not in spec.metadata


def offsets(start: int, end: int) -> dg.TimeWindowPartitionMapping:
    with warnings.catch_warnings(action="ignore"):
        return dg.TimeWindowPartitionMapping(
            start_offset=start, end_offset=end, allow_nonexistent_upstream_partitions=True
        )


def reading(chosen: Callable[[int, Sequence[str]], Sequence[str]], keys: Sequence[str]) -> Any:
    """A graph in which ``b`` reads some partitions of ``a``, which each have their own."""

    def steps_for(key: str) -> list[StepSpec]:
        read = chosen(keys.index(key), keys)
        return [step("a", key=key), step("b", *(step("a", key=one) for one in read), of=key)]

    return steps_for


def readers(mapping: dg.StaticPartitionMapping) -> dict[str, set[str]]:
    of_each = mapping.downstream_partition_keys_by_upstream_partition_key
    return {key: set([of] if isinstance(of, str) else of) for key, of in of_each.items()}


MAPPINGS: list[Any] = [
    pytest.param(DAILY, DAYS, lambda at, keys: [keys[at]], None, id="own"),
    pytest.param(
        DAILY, DAYS, lambda at, keys: keys[max(0, at - 1) : at], offsets(-1, -1), id="day-before"
    ),
    pytest.param(
        DAILY, DAYS, lambda at, keys: keys[max(0, at - 2) : at + 1], offsets(-2, 0), id="window"
    ),
    pytest.param(SWEEP, RATES, lambda at, keys: keys, dg.AllPartitionMapping(), id="all"),
    pytest.param(
        SWEEP,
        RATES,
        lambda at, keys: keys[:1],
        dg.SpecificPartitionsPartitionMapping(["0.1"]),
        id="the-first",
    ),
    pytest.param(
        SWEEP,
        RATES,
        lambda at, keys: keys[max(0, at - 1) : at + 1],
        dg.StaticPartitionMapping({"0.1": {"0.1", "0.2"}, "0.2": {"0.2", "0.4"}, "0.4": {"0.4"}}),
        id="neighbours",
    ),
]


@pytest.mark.parametrize(("definition", "keys", "chosen", "expected"), MAPPINGS)
def test_partition_mappings_come_from_the_graphs(
    definition: Any, keys: Sequence[str], chosen: Any, expected: Any
) -> None:
    graph = MarinGraph.of(reading(chosen, keys), partitions_def=definition)
    found = mapping(graph, "b", "a")
    if isinstance(expected, dg.StaticPartitionMapping):
        # It does not compare.
        found, expected = (readers(one) for one in (found, expected))
    assert found == expected


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning")
def test_mappings_of_multi_partitions_are_by_dimension() -> None:
    def chain(key: dg.MultiPartitionKey) -> list[StepSpec]:
        day, rate = (key.keys_by_dimension[name] for name in ("day", "rate"))
        model: list[StepSpec] = []
        for one in DAYS[: DAYS.index(day) + 1]:
            model = [step("train", *model, day=one, rate=rate)]
        return [step("report", *model, day=day, rate=rate)]

    graph = MarinGraph.of(chain, partitions_def=DAY_AND_RATE)
    assert mapping(graph, "report", "train") is None
    assert mapping(graph, "train", "train") == dg.MultiPartitionMapping(
        {
            "day": dg.DimensionPartitionMapping("day", offsets(-1, -1)),
            "rate": dg.DimensionPartitionMapping("rate", dg.IdentityPartitionMapping()),
        }
    )
    build_definitions(graph).get_repository_def()


def test_a_step_without_time_that_reads_itself_is_left_out_of_the_lineage() -> None:
    """Dagster lets an asset read itself only backwards in time."""

    def steps_for(rate: str) -> list[StepSpec]:
        model: list[StepSpec] = []
        for one in RATES[: RATES.index(rate) + 1]:
            model = [step("train", *model, lr=one)]
        return model

    definitions = build_definitions(steps_for, partitions_def=SWEEP)
    graph = definitions.resolve_asset_graph()
    assert graph.get(dg.AssetKey("train")).parent_keys == set()


WRONG: list[Any] = [
    pytest.param(
        {"steps": [step("a")], "partitions_def": DAILY},
        "partitions_def needs a function from the key of a partition to its steps: steps is a list",
        id="list",
    ),
    pytest.param(
        {"steps": lambda day: [step("a", day=day)]},
        "which takes an argument. If it is the key of a partition, give partitions_def, too",
        id="no-partitions",
    ),
    pytest.param(
        {
            "steps": lambda key: [step("a", key=key)],
            "partitions_def": dg.DynamicPartitionsDefinition(name="customers"),
        },
        "the partitions are dynamic, so the steps are unknown while the graph is loaded. Give keys",
        id="dynamic",
    ),
    pytest.param(
        {
            "steps": lambda key: [step("a", key=key)],
            "partitions_def": dg.DailyPartitionsDefinition("2199-01-01"),
        },
        "there is no partition yet",
        id="none-yet",
    ),
    pytest.param(
        {
            "steps": lambda key: [step("a", key=key)],
            "partitions_def": DAILY,
            "unpartitioned": ["b"],
        },
        "unpartitioned: no step is called 'b'",
        id="unknown-shared",
    ),
    pytest.param(
        {
            "steps": lambda key: [step("a" if key == DAYS[0] else "b", key=key)],
            "partitions_def": DAILY,
        },
        "partitions '2026-11-01' and '2026-11-02' have different steps",
        id="names-differ",
    ),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_graphs_and_partitions_that_do_not_go_together(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError) as raised:
        build_definitions(**given)
    assert message in str(raised.value)


def test_an_ordinary_asset_loads_the_partition_of_its_run(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def steps_for(day: str) -> list[StepSpec]:
        return [recorder.step("train", hash_attrs={"day": day}, result={"day": day})]

    loaded: dict[str, Any] = {}

    @dg.asset(partitions_def=DAILY)
    def report(context: dg.AssetExecutionContext, train: StepOutput) -> None:
        loaded[context.partition_key] = train.result

    @dg.asset(ins={"train": dg.AssetIn(partition_mapping=dg.AllPartitionMapping())})
    def summary(train: dict[str, dict[str, Any]]) -> None:
        loaded["all"] = train

    ours = build_definitions(steps_for, partitions_def=DAILY)
    ordinary = dg.Definitions(
        assets=[report, summary],
        jobs=[
            dg.define_asset_job("daily", selection=["train", "report"]),
            dg.define_asset_job("whole", selection=["summary"]),
        ],
        executor=marin_executor,
    )
    merged = dg.Definitions.merge(ours, ordinary)
    for day in DAYS[:2]:
        assert run_job(merged, instance, job="daily", partition=day).success
    assert loaded == {day: {"day": day} for day in DAYS[:2]}
    missing = run_job(merged, instance, job="whole")
    assert "asset 'train [2026-11-03]' has no materialization with" in missing.error("summary")
    for day in DAYS[2:]:
        assert run_job(ours, instance, partition=day).success
    assert run_job(merged, instance, job="whole").success
    assert loaded["all"] == {day: {"day": day} for day in DAYS}
