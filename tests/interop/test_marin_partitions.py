"""One partition that real Marin built is served by a Dagster run of that partition, and the other
way round."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from marin.execution.artifact import read_record as marin_read_record
from marin.execution.step_runner import StepRunner as MarinStepRunner
from marin.execution.step_spec import StepSpec as MarinStep
from marin_peer import CLASSES, Calls, class_name, marin_status

from helpers.runs import metadata_of, run_job, stale_status
from marin_dagster import StepRunner, StepSpec, build_definitions

pytestmark = pytest.mark.interop

DAYS = ["2026-11-01", "2026-11-02"]
DAILY = dg.DailyPartitionsDefinition(DAYS[0], end_date="2026-11-03")
OF_A_DAY = ["evaluate", "prep", "train"]
either_class = pytest.mark.parametrize("make", CLASSES, ids=class_name)


def training(make: Callable[..., Any], calls: Calls, prefix: str) -> Callable[[str], list[Any]]:
    """A day's training, with one tokenizer for all days."""

    def steps_for(day: str) -> list[Any]:
        def step(name: str, *deps: Any, **fields: Any) -> Any:
            function = calls.function(f"{name} {day}", result={"name": name})
            return make(name, output_path_prefix=prefix, deps=list(deps), fn=function, **fields)

        shared = calls.function("tokenizer")
        tokenizer = make("tokenizer", output_path_prefix=prefix, deps=[], fn=shared)
        prep = step("prep", hash_attrs={"day": day})
        return [step("evaluate", step("train", prep, tokenizer))]

    return steps_for


def of(day: str) -> list[str]:
    """The calls of a day's own functions."""
    return [f"{name} {day}" for name in OF_A_DAY]


@either_class
def test_a_day_that_marin_built_is_served_and_the_other_day_is_built(
    make: Callable[..., Any], instance: dg.DagsterInstance, calls: Calls, store: Any
) -> None:
    MarinStepRunner().run(training(MarinStep, calls, str(store))(DAYS[0]))
    assert calls.take() == sorted([*of(DAYS[0]), "tokenizer"])
    definitions = build_definitions(training(make, calls, str(store)), partitions_def=DAILY)

    served = run_job(definitions, instance, partition=DAYS[0])
    assert served.success
    assert calls.take() == []
    built = run_job(definitions, instance, partition=DAYS[1])
    assert built.success

    assert calls.take() == of(DAYS[1])
    assert sorted(served.materialized()) == sorted([*OF_A_DAY, "tokenizer"])
    for run, day, how in ((served, DAYS[0], "hit"), (built, DAYS[1], "built")):
        for name in OF_A_DAY:
            event = run.materialized()[name]
            assert event.partition == day
            assert metadata_of(event)["marin/cache"] == how
            assert stale_status(definitions, instance, name, day) == "FRESH"


@pytest.mark.parametrize("builder", ["run", "script"])
def test_a_day_that_we_built_is_served_by_marin_and_the_other_day_is_built(
    builder: str, instance: dg.DagsterInstance, calls: Calls, store: Any
) -> None:
    steps_for = training(StepSpec, calls, str(store))
    if builder == "run":
        definitions = build_definitions(steps_for, partitions_def=DAILY)
        assert run_job(definitions, instance, partition=DAYS[0]).success
    else:
        StepRunner(instance=instance).run(steps_for, partition_keys=DAYS[:1])
    assert calls.take() == sorted([*of(DAYS[0]), "tokenizer"])
    of_marin = training(MarinStep, calls, str(store))

    MarinStepRunner().run(of_marin(DAYS[0]))
    assert calls.take() == []
    MarinStepRunner().run(of_marin(DAYS[1]))

    assert calls.take() == of(DAYS[1])
    for day in DAYS:
        (evaluate,) = of_marin(day)
        assert marin_status(evaluate.output_path) == "SUCCESS"
        record = marin_read_record(evaluate.output_path)
        assert record is not None
        assert record.result == {"name": "evaluate"}


@either_class
def test_a_day_that_failed_in_marin_resumes_with_its_failed_step(
    make: Callable[..., Any], instance: dg.DagsterInstance, calls: Calls, store: Any
) -> None:
    calls.broken.add(f"train {DAYS[0]}")
    with pytest.raises(RuntimeError):
        MarinStepRunner().run(training(MarinStep, calls, str(store))(DAYS[0]))
    assert calls.take() == sorted([f"prep {DAYS[0]}", "tokenizer", f"train {DAYS[0]}"])
    calls.broken.clear()
    definitions = build_definitions(training(make, calls, str(store)), partitions_def=DAILY)

    assert run_job(definitions, instance, partition=DAYS[0]).success

    assert calls.take() == [f"evaluate {DAYS[0]}", f"train {DAYS[0]}"]
