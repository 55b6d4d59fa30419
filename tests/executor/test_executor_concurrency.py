"""How many steps run at once: counted inside the functions, proved by a barrier, never by a clock.

Where a step must be given the chance to start too early, a correct executor passes however long
that takes; only a faulty one is caught by it.
"""

import threading
from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest

from helpers.runs import Recorder, run_job
from marin_dagster import ResourceConfig, StepSpec, build_definitions

PATIENCE_S = 60.0
"""How long functions wait for each other before a test gives up."""
CHANCE_S = 0.5
"""How long a full house waits for one more guest, who must not come."""


class House:
    """Counts the functions that are inside at the same time."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.peak = 0
        self.calls = 0
        self._inside = 0
        self._lock = threading.Lock()
        self._full = threading.Barrier(size)
        self._too_many = threading.Event()

    def visit(self, output_path: str) -> None:
        """Come in; the first ``size`` guests leave only once all of them have been inside."""
        with self._lock:
            self._inside += 1
            self.calls += 1
            first = self.calls <= self.size
            self.peak = max(self.peak, self._inside)
            if self._inside > self.size:
                self._too_many.set()
        if first:
            self._full.wait(PATIENCE_S)
            self._too_many.wait(CHANCE_S)
        with self._lock:
            self._inside -= 1

    def steps(self, count: int, name: str = "step", **fields: Any) -> list[StepSpec]:
        return [StepSpec(f"{name}_{index}", fn=self.visit, **fields) for index in range(count)]


@pytest.mark.parametrize(
    ("definition", "config", "expected"),
    [
        ({}, {}, 8),
        ({"max_concurrent": 0}, {}, 8),
        ({"max_concurrent": 3}, {}, 3),
        ({"max_concurrent": 3}, {"max_concurrent": 0}, 8),
        ({"max_concurrent": 3}, {"max_concurrent": 5}, 5),
    ],
)
def test_of_44_ready_steps_exactly_max_concurrent_run_at_once(
    definition: dict[str, int],
    config: dict[str, int],
    expected: int,
    instance: dg.DagsterInstance,
) -> None:
    house = House(expected)

    run = run_job(build_definitions(house.steps(44), **definition), instance, config=config)

    assert run.success
    assert house.calls == 44
    assert house.peak == expected


def test_one_at_a_time_is_one_at_a_time(instance: dg.DagsterInstance) -> None:
    house = House(1)

    assert run_job(build_definitions(house.steps(5), max_concurrent=1), instance).success

    assert (house.calls, house.peak) == (5, 1)


def test_a_negative_max_concurrent_in_the_run_config_fails_the_run_and_nothing_runs(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions([recorder.step("raw")])

    run = run_job(definitions, instance, config={"max_concurrent": -1})

    assert not run.success
    assert recorder.calls == []
    (failure,) = run.of_type("PIPELINE_FAILURE")
    assert "max_concurrent = -1: must be 1 or more, or 0" in str(failure.job_failure_data.error)


def test_a_limit_on_the_device_tag_holds_while_other_steps_go_on(
    instance: dg.DagsterInstance,
) -> None:
    gpus, cpus = House(2), House(4)
    steps = [
        *gpus.steps(6, "train", resources=ResourceConfig.with_gpu("H100")),
        *cpus.steps(4, "clean", resources=ResourceConfig.with_cpu()),
    ]
    limits = [{"key": "marin/device", "value": "gpu", "limit": 2}]

    run = run_job(
        build_definitions(steps),
        instance,
        config={"tag_concurrency_limits": limits, "default_with_resources": "inline"},
    )

    assert run.success
    assert (gpus.calls, gpus.peak) == (6, 2)
    assert (cpus.calls, cpus.peak) == (4, 4)


def test_a_step_starts_as_soon_as_its_own_dependencies_are_finished(
    instance: dg.DagsterInstance,
) -> None:
    below_ran = threading.Event()

    def slow(output_path: str) -> None:
        assert below_ran.wait(PATIENCE_S)

    def build(then: Callable[[], None] = lambda: None) -> Callable[[str], None]:
        return lambda output_path: then()

    quick = StepSpec("quick", fn=build())
    below = StepSpec("below", deps=[quick], fn=build(below_ran.set))

    run = run_job(build_definitions([StepSpec("slow", fn=slow), below]), instance)

    assert run.success
