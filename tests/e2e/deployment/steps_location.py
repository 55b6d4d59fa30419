"""A code location of steps, merged with assets that have an executor and a resource of their own.

The steps note each call in the folder ``MARIN_STEPS_NOTES``, so that a test sees what ran, and
where it is; those that wait do so until the test lets them go on.
"""

import os
import time
from pathlib import Path
from typing import Any

import dagster as dg

from marin_dagster import DagsterMarinTranslator, StepSpec, build_definitions, marin_executor
from marin_dagster.steps import StepLike

NOTES = "MARIN_STEPS_NOTES"
POOLS = {"pooled": "gpus", "next_pooled": "gpus", "killed": "tpus", "lost": "hosts"}
"""The pool of each step that has one."""


def step(
    name: str,
    *deps: StepSpec,
    fails: int = 0,
    waits: bool = False,
    result: dict[str, Any] | None = None,
) -> StepSpec:
    """A step that fails at its first calls, or waits until it may go on."""

    def build(output_path: str) -> dict[str, Any] | None:
        notes = Path(os.environ[NOTES])
        with notes.joinpath("calls").open("a") as file:
            file.write(f"{name}\n")
        call = notes.joinpath("calls").read_text().split().count(name)
        Path(output_path, "data.txt").write_text(name)
        if call <= fails:
            raise RuntimeError(f"{name} fails on purpose at call {call}")
        while waits and not notes.joinpath(f"{name}.go").exists():
            time.sleep(0.02)
        return result

    return StepSpec(name, deps=deps, fn=build)


class Pooled(DagsterMarinTranslator):
    """Puts steps into pools."""

    def get_pool(self, step: StepLike) -> str | None:
        return POOLS.get(step.name)


def chain(name: str, **middle: Any) -> list[StepSpec]:
    """Before, the step itself, and after it; and one beside them."""
    first = step(f"{name}_before")
    last = step(f"{name}_after", step(name, first, **middle))
    return [last, step(f"{name}_beside")]


class Suffix(dg.ConfigurableResource[Any]):
    """A resource that the other assets bring along."""

    text: str


@dg.asset(ins={"summary": dg.AssetIn(input_manager_key="marin_io_manager")})
def dashboard(context: dg.AssetExecutionContext, summary: dict, suffix: Suffix) -> str:
    """An ordinary asset that reads what a step's function returned."""
    return f"{summary['total']}{suffix.text}"


def graph(job_name: str, *steps: StepSpec) -> dg.Definitions:
    """A graph and its job."""
    return build_definitions(steps, translator=Pooled(), job_name=job_name)


@dg.definitions
def defs() -> dg.Definitions:
    """All of it; made when asked for, since a step's path depends on the environment."""
    patient_job = dg.define_asset_job(
        "patient_job",
        selection=dg.AssetSelection.assets("flaky_after").upstream(),
        executor_def=marin_executor,
        op_retry_policy=dg.RetryPolicy(max_retries=1),
    )
    return dg.Definitions.merge(
        dg.Definitions(
            assets=[dashboard],
            resources={"suffix": Suffix(text=" in all")},
            executor=dg.in_process_executor,
            jobs=[patient_job],
        ),
        graph("summary_job", step("summary", step("clean", step("raw")), result={"total": 7})),
        graph("flaky_job", *chain("flaky", fails=1)),
        graph("broken_job", *chain("broken", fails=2)),
        graph("killed_job", *chain("killed", waits=True)),
        graph("lost_job", *chain("lost", waits=True)),
        graph("pooled_job", step("pooled", waits=True)),
        graph("next_pooled_job", step("next_pooled")),
    )
