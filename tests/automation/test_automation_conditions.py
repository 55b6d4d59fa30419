"""Automation conditions on steps and below them: what a cache hit fires, and what a build."""

import asyncio
import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest

from helpers.runs import Recorder, Run, memory_instance, run_job
from marin_dagster import DagsterMarinTranslator, StepSpec, build_definitions

EAGER = dg.AutomationCondition.eager()
SIX = "0 6 * * *"
AUTOMATION = Path(__file__).parents[2] / "docs" / "automation.md"


class Conditions(DagsterMarinTranslator):
    """Gives steps a condition: the named ones, or all that a run can build."""

    def __init__(self, condition: dg.AutomationCondition, *names: str) -> None:
        self._condition = condition
        self._names = names

    def get_asset_spec(self, step: Any) -> dg.AssetSpec:
        spec = super().get_asset_spec(step)
        if step.fn is None or (self._names and step.name not in self._names):
            return spec
        return spec.replace_attributes(automation_condition=self._condition)


class Ticks:
    """Evaluates conditions again and again, as the sensor does, over one instance."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        definitions: dg.Definitions,
        at: datetime.datetime | None = None,
    ) -> None:
        self.instance = instance
        self.definitions = definitions
        self._cursor: Any = None
        self.tick(at)

    def tick(self, at: datetime.datetime | None = None) -> list[str]:
        """Keys of the assets that this tick requests."""
        result = dg.evaluate_automation_conditions(
            self.definitions, self.instance, cursor=self._cursor, evaluation_time=at
        )
        self._cursor = result.cursor
        keys = self.definitions.resolve_asset_graph().get_all_asset_keys()
        return sorted(key.to_user_string() for key in keys if result.get_num_requested(key))

    def run(self, *select: str, **config: Any) -> Run:
        """Run some assets; Dagster lets a tick pass between two requests of one asset."""
        self.tick()
        run = run_job(self.definitions, self.instance, select=select, config=config)
        assert run.success
        return run


@dg.asset(deps=["raw"], automation_condition=EAGER)
def dashboard() -> None:
    """An ordinary asset below a step."""


Graph = Callable[[int], dg.Definitions]


@pytest.fixture
def graph(recorder: Recorder) -> Graph:
    """``raw`` -> ``end``, an eager step, and ``dashboard``, an eager asset; by an attribute."""

    def build(size: int) -> dg.Definitions:
        raw = recorder.step("raw", hash_attrs={"size": size})
        ours = build_definitions([recorder.step("end", raw)], translator=Conditions(EAGER, "end"))
        return dg.Definitions.merge(ours, dg.Definitions(assets=[dashboard]))

    return build


def test_a_build_fires_eager_below_it_and_a_hit_does_not(
    instance: dg.DagsterInstance, graph: Graph
) -> None:
    ticks = Ticks(instance, graph(1))

    assert ticks.run("raw").materialized()
    assert ticks.tick() == ["dashboard", "end"]
    assert ticks.run("end").materialized()
    assert ticks.tick() == []

    assert ticks.run("raw").observed() == ["raw"]
    assert ticks.tick() == []
    assert ticks.run("raw", "end").observed() == ["end", "raw"]
    assert ticks.tick() == []


def test_a_forced_build_fires_eager_below_it(instance: dg.DagsterInstance, graph: Graph) -> None:
    ticks = Ticks(instance, graph(1))
    ticks.run("raw")
    ticks.tick()

    ticks.run("raw", force=True)

    assert ticks.tick() == ["dashboard", "end"]


def test_a_changed_recipe_fires_when_it_is_built_and_an_old_one_when_it_is_back(
    instance: dg.DagsterInstance, graph: Graph
) -> None:
    ticks = Ticks(instance, graph(1))
    ticks.run("raw")
    ticks.tick()

    for size, cache in ((2, "built"), (1, "hit")):
        ticks.definitions = graph(size)
        assert ticks.tick() == []
        materialization = ticks.run("raw").materialized()["raw"]
        assert materialization.metadata["marin/cache"].value == cache
        assert ticks.tick() == ["dashboard", "end"]


def test_a_first_hit_is_news_to_dagster_and_fires_eager(
    instance: dg.DagsterInstance, graph: Graph
) -> None:
    with memory_instance() as elsewhere:
        assert run_job(graph(1), elsewhere).success
    ticks = Ticks(instance, graph(1))

    materialization = ticks.run("raw").materialized()["raw"]

    assert materialization.metadata["marin/cache"].value == "hit"
    assert ticks.tick() == ["dashboard", "end"]


def test_a_pruned_step_fires_nothing(
    recorder: Recorder, instance: dg.DagsterInstance, graph: Graph
) -> None:
    ticks = Ticks(instance, graph(1))
    end = recorder.step("end", recorder.step("raw", hash_attrs={"size": 1}))
    Path(end.output_path).mkdir(parents=True)
    Path(end.output_path, ".executor_status").write_text("SUCCESS")

    run = ticks.run("raw", "end")

    assert list(run.skipped()) == ["raw"]
    assert ticks.tick() == []
    assert recorder.calls == []


def test_a_changed_code_version_fires_for_the_step_and_everything_below_it(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    changed = dg.AutomationCondition.code_version_changed()

    def chain(size: int) -> dg.Definitions:
        above = recorder.step("above")
        tokens = recorder.step("tokens", above, hash_attrs={"size": size})
        return build_definitions([recorder.step("end", tokens)], translator=Conditions(changed))

    ticks = Ticks(instance, chain(1))
    assert ticks.tick() == []

    ticks.definitions = chain(2)

    assert ticks.tick() == ["end", "tokens"]
    assert ticks.tick() == []


@pytest.mark.parametrize(
    ("condition", "when_changed"),
    [
        (EAGER, []),
        (dg.AutomationCondition.on_missing(), []),
        (EAGER | dg.AutomationCondition.code_version_changed(), ["end", "raw"]),
    ],
)
def test_what_was_never_built_is_fired_by_a_changed_recipe_alone(
    recorder: Recorder,
    instance: dg.DagsterInstance,
    condition: dg.AutomationCondition,
    when_changed: list[str],
) -> None:
    def graph(size: int, *added: str) -> dg.Definitions:
        raw = recorder.step("raw", hash_attrs={"size": size})
        steps = [recorder.step(name, raw) for name in ("end", *added)]
        return build_definitions(steps, translator=Conditions(condition))

    ticks = Ticks(instance, graph(1))
    assert ticks.tick() == []
    ticks.definitions = graph(2)
    assert ticks.tick() == when_changed
    assert run_job(ticks.definitions, instance).success
    ticks.tick()

    ticks.definitions = graph(2, "added")
    assert [ticks.tick(), ticks.tick()] == [[], []]


def test_on_cron_fires_once_for_each_tick_and_what_is_cached_is_served(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    end = recorder.step("end", recorder.step("raw"))
    on_cron = Conditions(dg.AutomationCondition.on_cron(SIX))
    definitions = build_definitions([end], translator=on_cron)
    never_built = Ticks(instance, definitions)
    tomorrow = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    assert never_built.tick(tomorrow) == ["end", "raw"]
    assert run_job(definitions, instance).success
    five = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)).replace(hour=5)
    hour = datetime.timedelta(hours=1)
    ticks = Ticks(instance, definitions, at=five)

    assert ticks.tick(five + 2 * hour) == ["end", "raw"]
    assert run_job(definitions, instance).observed() == ["end", "raw"]
    assert ticks.tick(five + 3 * hour) == []
    assert ticks.tick(five + 26 * hour) == ["end", "raw"]


def test_on_cron_below_a_step_that_is_only_served_waits_unless_it_ignores_the_step(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    on_cron = dg.AutomationCondition.on_cron(SIX)

    @dg.asset(deps=["raw"], automation_condition=on_cron)
    def waits() -> None: ...

    @dg.asset(deps=["raw"], automation_condition=on_cron.ignore(dg.AssetSelection.assets("raw")))
    def ignores() -> None: ...

    definitions = dg.Definitions.merge(
        build_definitions([recorder.step("raw")]), dg.Definitions(assets=[waits, ignores])
    )
    assert run_job(definitions, instance).success
    ticks = Ticks(instance, definitions)
    assert run_job(definitions, instance).observed() == ["raw"]
    in_two_days = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)

    assert ticks.tick(in_two_days) == ["ignores"]


def test_eager_waits_until_external_data_is_reported(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    clean = recorder.step("clean", StepSpec("dump"))
    ticks = Ticks(instance, build_definitions([clean], translator=Conditions(EAGER)))
    assert ticks.tick() == []

    instance.report_runless_asset_event(dg.AssetMaterialization("dump"))

    assert ticks.tick() == ["clean"]


@pytest.mark.skipif(
    "FreshnessPolicy" not in vars(dg), reason="this release of Dagster has no FreshnessPolicy"
)
def test_freshness_counts_from_the_build_and_a_hit_does_not_renew_it(
    recorder: Recorder, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster._core.definitions.freshness_evaluator import TimeWindowFreshnessPolicyEvaluator
    from dagster._core.test_utils import freeze_time

    class Daily(DagsterMarinTranslator):
        def get_asset_spec(self, step: Any) -> dg.AssetSpec:
            policy = dg.FreshnessPolicy.time_window(fail_window=datetime.timedelta(days=1))
            return super().get_asset_spec(step).replace_attributes(freshness_policy=policy)

    definitions = build_definitions([recorder.step("raw")], translator=Daily())
    key = dg.AssetKey("raw")
    node = definitions.resolve_asset_graph().get(key)

    def state() -> str:
        evaluated = TimeWindowFreshnessPolicyEvaluator().evaluate_freshness(
            LoadingContextForTest(instance), node
        )
        return asyncio.run(evaluated).value  # type: ignore[arg-type]

    assert state() == "UNKNOWN"
    run_job(definitions, instance)
    assert state() == "PASS"
    with freeze_time(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=2)):
        assert run_job(definitions, instance).observed() == ["raw"]
        assert state() == "FAIL"
        run_job(definitions, instance, config={"force": True})
        assert state() == "PASS"


def test_the_snippets_of_the_page_work_one_after_the_other(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    schedule, nightly, tick, conditions, sensor = re.findall(
        r"```python\n(.*?)```", AUTOMATION.read_text(), re.DOTALL
    )

    def result(snippet: str, size: int = 1) -> dg.Definitions:
        raw = recorder.step("raw", hash_attrs={"size": size})
        namespace: dict[str, Any] = {"steps": [recorder.step("end", raw)]}
        exec(compile(snippet, str(AUTOMATION), "exec"), namespace)
        definitions: dg.Definitions = namespace["defs"]
        dg.Definitions.validate_loadable(definitions)
        return definitions

    for snippet, name in (
        (schedule, "materialize_steps_schedule"),
        (nightly + tick, "nightly"),
    ):
        (found,) = result(snippet).get_repository_def().schedule_defs
        assert (found.name, found.job_name) == (name, "materialize_steps")
    (found,) = result(sensor).get_repository_def().sensor_defs
    assert found.name == "materialize_steps_cache_sensor"
    ticks = Ticks(instance, result(conditions))
    assert ticks.run("raw").materialized()
    assert ticks.tick() == ["end"]
    ticks.run("end")
    ticks.definitions = result(conditions, size=2)
    assert ticks.tick() == ["end", "raw"]
