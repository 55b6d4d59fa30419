"""The order in which a run reports its steps."""

import dagster as dg
import pytest
from dagster._core.execution.api import create_execution_plan

from helpers.runs import JOB
from marin_dagster import StepSpec, build_definitions
from marin_dagster.executor.decisions import unreachable
from marin_dagster.executor.run_steps import steps_in_order


def nothing(output_path: str) -> None:
    """Writes nothing."""


def test_dependencies_come_first_also_in_a_long_chain() -> None:
    # The names sort against the chain.
    chain: list[StepSpec] = []
    for number in range(300, 0, -1):
        chain.append(StepSpec(f"step_{number}", deps=chain[-1:], fn=nothing))
    job = build_definitions(chain, checks=False).resolve_job_def(JOB)

    order = steps_in_order(create_execution_plan(job))

    assert [step.key for step in order] == [step.name for step in chain]


@pytest.mark.parametrize(
    ("blocked", "hits", "lost"),
    [
        ({"a"}, set(), {"b": ("a",), "c": ("a", "b"), "d": ("c",)}),
        ({"a"}, {"b"}, {"c": ("a",), "d": ("c",)}),
        ({"a"}, {"c"}, {"b": ("a",)}),
        ({"a", "b"}, set(), {"c": ("a", "b"), "d": ("c",)}),
        (set(), set(), {}),
    ],
)
def test_what_is_downstream_of_a_blocked_step_misses_all_that_cannot_run(
    blocked: set[str], hits: set[str], lost: dict[str, tuple[str, ...]]
) -> None:
    executable = {"d": {"c"}, "c": {"a", "b"}, "b": {"a"}, "a": set(), "other": set()}

    assert unreachable(executable, blocked, hits) == lost


def test_ordinary_ops_have_their_place() -> None:
    @dg.asset(deps=["step"])
    def reader() -> None: ...

    steps = build_definitions([StepSpec("step", fn=nothing)], checks=False)
    defs = dg.Definitions.merge(steps, dg.Definitions(assets=[reader]))
    job = defs.resolve_implicit_global_asset_job_def()

    assert [step.key for step in steps_in_order(create_execution_plan(job))] == ["step", "reader"]
