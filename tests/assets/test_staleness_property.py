"""Over random graphs and histories, Dagster's staleness agrees with the cache.

What Dagster calls fresh is always served; what a run has served or built is fresh; what Dagster
calls stale or missing would run, unless an older hash is valid again, which the next run records.
"""

import random
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from helpers.runs import run_job
from marin_dagster import StepSpec, build_definitions
from marin_dagster.cache import CacheState, StepCache

STEPS = 8


def build(output_path: str) -> None:
    """Builds."""


def graph_of(shape: list[list[int]], attributes: list[int]) -> list[StepSpec]:
    steps: list[StepSpec] = []
    for number, deps in enumerate(shape):
        steps.append(
            StepSpec(
                f"step{number}",
                deps=[steps[dep] for dep in deps],
                hash_attrs={"a": attributes[number]},
                fn=build,
            )
        )
    return steps


def fresh_in(
    definitions: dg.Definitions, instance: dg.DagsterInstance, steps: list[StepSpec]
) -> set[str]:
    resolver = CachingStaleStatusResolver(
        instance, definitions.resolve_asset_graph(), LoadingContextForTest(instance)
    )
    return {
        step.name
        for step in steps
        if resolver.get_status(dg.AssetKey(step.name)) == StaleStatus.FRESH
    }


def served_of(steps: list[StepSpec]) -> set[str]:
    return {step.name for step in steps if StepCache().look_up(step).state is CacheState.HIT}


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 12))]
)
def test_dagster_and_the_cache_agree(seed: int, instance: dg.DagsterInstance) -> None:
    dice = random.Random(seed)
    shape = [dice.sample(range(number), min(number, dice.randrange(3))) for number in range(STEPS)]
    attributes = [0] * STEPS
    recorded: dict[str, str] = {}
    for _ in range(6):
        for _ in range(dice.randrange(3)):
            # Few values, so that some changes are reverts.
            attributes[dice.randrange(STEPS)] = dice.randrange(3)
        steps = graph_of(shape, attributes)
        definitions = build_definitions(steps)

        fresh, served = fresh_in(definitions, instance, steps), served_of(steps)
        assert fresh <= served
        for step in steps:
            if step.name in served - fresh:
                assert recorded[step.name] != step.hash_id

        select = None
        if dice.random() < 0.5:
            select = [step.name for step in steps if dice.random() < 0.6] or None
        run = run_job(definitions, instance, select=select)

        touched: set[Any] = set(run.materialized()) | set(run.observed())
        fresh, served = fresh_in(definitions, instance, steps), served_of(steps)
        assert fresh <= served
        assert touched <= served
        by_name = {step.name: step for step in steps}
        recorded |= {name: by_name[name].hash_id for name in touched}
        # What lies above an asset must be known, too, for Dagster to call it fresh.
        assert {name for name in touched if is_known(by_name[name], recorded)} <= fresh
        if select is None and run.success:
            ends = {step.name for step in steps if not any(step in other.deps for other in steps)}
            assert ends <= fresh


def is_known(step: StepSpec, recorded: dict[str, str]) -> bool:
    return recorded.get(step.name) == step.hash_id and all(
        is_known(dep, recorded) for dep in step.deps
    )
