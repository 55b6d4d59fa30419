"""How many functions run, in numbers: in a graph of 1,000 steps, and in a chain taken up again.

What is there is laid out on disk instead of being built, and only what must run is executed.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import dagster as dg
import pytest

from helpers import chain_job
from helpers.runs import Recorder, memory_instance, run_job, status_of
from marin_dagster import StepSpec, build_definitions

Grid = list[list[StepSpec]]


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance in memory, which takes a thousand events faster."""
    with memory_instance() as made:
        yield made


def grid_of(recorder: Recorder, name: str, rows: int, columns: int, fan_in: int) -> Grid:
    """Rows of steps, each of which reads ``fan_in`` neighbours in the row above, around the edge.

    With a fan-in of 1 these are chains, with one of 3 what a step needs grows by two a row.
    """
    grid: Grid = []
    for row in range(rows):
        above = grid[-1] if grid else []
        reads = [
            [above[(column + k) % columns] for k in range(fan_in if above else 0)]
            for column in range(columns)
        ]
        grid.append(
            [recorder.step(f"{name}_r{row}_c{column}", *reads[column]) for column in range(columns)]
        )
    return grid


def steps_of(grid: Grid) -> list[StepSpec]:
    return [step for row in grid for step in row]


def needed_for(step: StepSpec) -> set[str]:
    """Names of a step and of all that it is made of."""
    found: dict[str, StepSpec] = {}
    waiting = [step]
    while waiting:
        one = waiting.pop()
        if one.name not in found:
            found[one.name] = one
            waiting += one.deps
    return set(found)


def lay_out(steps: Iterable[StepSpec]) -> None:
    """Outputs as a worker leaves them that has succeeded."""
    for step in steps:
        folder = Path(step.output_path)
        folder.mkdir(parents=True)
        folder.joinpath(".executor_status").write_text("SUCCESS")


def let_know(instance: dg.DagsterInstance, steps: Iterable[StepSpec]) -> None:
    """Report the steps' outputs to the instance, as the run that built them did."""
    for step in steps:
        instance.report_runless_asset_event(
            dg.AssetMaterialization(step.name, tags={"dagster/data_version": step.hash_id})
        )


@pytest.mark.slow
def test_of_a_thousand_steps_exactly_those_run_whose_outputs_are_gone_and_needed(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    whole = grid_of(recorder, "whole", 10, 25, 3)
    ends = grid_of(recorder, "ends", 10, 25, 3)
    rows = grid_of(recorder, "rows", 10, 25, 3)
    chains = grid_of(recorder, "chains", 125, 2, 1)
    grids = [whole, ends, rows, chains]
    lost = [rows[-1][4], chains[-1][1]]
    kept = [step for step in rows[-1] + chains[-1] if step not in lost]
    # Everything is there; only the ends are, unknown to Dagster; all ends but one are.
    lay_out([*steps_of(whole), *ends[-1], *kept])
    let_know(instance, [*steps_of(whole), *kept])

    run = run_job(build_definitions([step for grid in grids for step in grid[-1]]), instance)

    needed = needed_for(rows[-1][4]) | needed_for(chains[-1][1])
    # 1 + 3 + 5 + … + 19 steps in the ten rows.
    assert len(needed) == 100 + 125
    assert run.success
    assert sorted(recorder.calls) == sorted(needed)
    assert run.observed() == sorted(step.name for step in [*steps_of(whole), *kept])
    assert set(run.materialized()) == {step.name for step in ends[-1]} | needed
    steps = [step for grid in grids for step in steps_of(grid)]
    assert len(steps) == 1000
    assert run.skipped().keys() == (
        {step.name for step in steps} - set(run.observed()) - run.materialized().keys()
    )
    assert [status_of(step) for step in lost] == ["SUCCESS"] * 2
    exist = {step.name for step in steps if Path(step.output_path).exists()}
    assert exist.isdisjoint(run.skipped())


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the chain's functions note that they ran; the 15th fails."""
    file = tmp_path / "calls.txt"
    monkeypatch.setenv(chain_job.CALLS, str(file))
    monkeypatch.setenv(chain_job.FAILING, "step_15")
    return file


def names(first: int, last: int) -> list[str]:
    return [f"step_{number}" for number in range(first, last + 1)]


@pytest.mark.parametrize("way", ["new run", "re-execution from failure"])
def test_a_chain_of_twenty_whose_fifteenth_failed_runs_six_the_second_time(
    way: str, calls: Path, monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance
) -> None:
    job = chain_job.loadable()
    with dg.execute_job(job, instance) as first:
        assert not first.success
    assert calls.read_text().split() == names(1, 15)
    calls.unlink()
    monkeypatch.delenv(chain_job.FAILING)

    options = None
    if way == "re-execution from failure":
        options = dg.ReexecutionOptions.from_failure(first.run_id, instance)
    with dg.execute_job(job, instance, reexecution_options=options) as second:
        assert second.success
        begun = {event.step_key for event in second.all_events if event.is_step_start}

    assert calls.read_text().split() == names(15, 20)
    # A new run reports the others as cached; one from failure leaves them out.
    assert begun == set(names(15, 20) if options else names(1, 20))
    assert [status_of(step) for step in chain_job.chain()] == ["SUCCESS"] * 20
