"""Which runner takes a step, and the error when none does."""

import importlib.metadata
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from helpers.fake_engine import FakeRunner
from helpers.step_functions import write
from marin_dagster import ResourceConfig, StepSpec, remote
from marin_dagster.errors import ResourceError, RoutingError
from marin_dagster.runners import (
    Request,
    Route,
    Routing,
    RoutingConfig,
    RunnerSettings,
    RunnerType,
    StepOverride,
    routing,
    runner_types,
)

PLAIN = StepSpec("prepare", fn=write)
SMALL = StepSpec("train/small", fn=write, resources=ResourceConfig(cpu=2, ram="8g"))
LARGE = StepSpec("train/large", fn=write, resources=ResourceConfig(cpu=32, ram="256g"))
GPU = StepSpec("train/gpu", fn=write, resources=ResourceConfig.with_gpu("H100"))


def with_fakes(*names: str, **config: Any) -> Routing:
    return Routing(RoutingConfig(**config), {name: FakeRunner(name) for name in names})


def test_without_any_config_resources_mean_a_process_of_this_machine() -> None:
    found = Routing()

    assert found.place(PLAIN).runner == "inline"
    assert not found.chose_process
    assert found.place(SMALL).runner == "process"
    assert found.chose_process


def test_the_only_runner_takes_what_has_resources() -> None:
    found = with_fakes("cluster")

    assert found.place(PLAIN).runner == "inline"
    assert found.place(SMALL).runner == "cluster"
    assert not found.chose_process


def test_several_runners_want_a_choice() -> None:
    found = with_fakes("cluster", "cloud")

    with pytest.raises(RoutingError, match=r"train/small_.*several runners \(cluster, cloud\)"):
        found.place(SMALL)
    assert found.place(PLAIN).runner == "inline"


def test_defaults_are_settings() -> None:
    found = with_fakes("cluster", "cloud", default="cloud", default_with_resources="cluster")

    assert (found.place(PLAIN).runner, found.place(SMALL).runner) == ("cloud", "cluster")


@pytest.mark.parametrize(
    ("route", "taken"),
    [
        (Route(runner="cloud", device="gpu"), {"train/gpu"}),
        (Route(runner="cloud", device="cpu"), {"train/small", "train/large"}),
        (Route(runner="cloud", min_cpu=3), {"train/large"}),
        (Route(runner="cloud", min_ram="9g"), {"train/large"}),
        (Route(runner="cloud", min_ram="8 GiB", min_cpu=2, device="cpu"),
         {"train/small", "train/large"}),
        (Route(runner="cloud", step="train/*"), {"train/small", "train/large", "train/gpu"}),
        (Route(runner="cloud", step="prepare"), {"prepare"}),
        (Route(runner="cloud", step="*", min_cpu=0), {"train/small", "train/large", "train/gpu"}),
        (Route(runner="cloud"), {"prepare", "train/small", "train/large", "train/gpu"}),
    ],
)  # fmt: skip
def test_a_route_takes_what_fits_all_its_conditions(route: Route, taken: set[str]) -> None:
    found = with_fakes("cluster", "cloud", routes=[route], default_with_resources="cluster")

    steps = (PLAIN, SMALL, LARGE, GPU)

    assert {step.name for step in steps if found.place(step).runner == "cloud"} == taken


def test_the_first_route_that_fits_counts() -> None:
    routes = [Route(runner="cloud", min_cpu=16), Route(runner="cluster", device="cpu")]
    found = with_fakes("cluster", "cloud", routes=routes, default_with_resources="inline")

    assert [found.place(step).runner for step in (LARGE, SMALL, GPU)] == [
        "cloud",
        "cluster",
        "inline",
    ]


def test_tag_over_route_and_the_runs_config_over_the_tag() -> None:
    found = with_fakes("cluster", "cloud", "other", routes=[Route(runner="cluster")])

    assert found.place(SMALL).runner == "cluster"
    assert found.place(SMALL, tag="cloud").runner == "cloud"
    override = StepOverride(runner="other")
    assert found.place(SMALL, tag="cloud", override=override).runner == "other"
    assert found.place(SMALL, tag="cloud", override=StepOverride(cpu=4)).runner == "cloud"
    assert found.place(SMALL, tag="inline").runner == "inline"


def test_the_runs_config_changes_resources_and_environment() -> None:
    step = StepSpec(
        "step", fn=remote(resources=SMALL.resources, env_vars={"A": "1", "B": "1"})(write)
    )
    override = StepOverride(ram="32g", disk="1g", env={"B": "2", "C": "2"})

    request = with_fakes("cluster").place(step, override=override).request

    assert (request.resources.cpu, request.resources.ram, request.resources.disk) == (
        2,
        "32g",
        "1g",
    )
    assert request.env_vars == {"A": "1", "B": "2", "C": "2"}


def test_resources_of_the_runs_config_count_for_routes_and_for_steps_without_any() -> None:
    found = with_fakes("cluster", routes=[Route(runner="cluster", min_ram="32g")],
                       default_with_resources="inline")  # fmt: skip

    assert found.place(SMALL, override=StepOverride(ram="64g")).runner == "cluster"
    assert found.place(PLAIN, override=StepOverride(ram="64g")).runner == "cluster"


def test_resources_that_make_no_sense_are_said_with_the_step() -> None:
    with pytest.raises(ResourceError, match=r"train/small_\w+: in this run's config: .*ram"):
        Routing().place(SMALL, override=StepOverride(ram="much"))


def test_the_steps_own_resources_come_before_its_wrappers_and_its_environment_stays() -> None:
    wrapper = remote(resources=LARGE.resources, env_vars={"A": "1"}, pip_packages=["jax"])(write)
    step = StepSpec("step", fn=wrapper, resources=SMALL.resources)

    request = Request.of(step)

    assert request.resources is SMALL.resources
    assert (request.env_vars, request.pip_packages) == ({"A": "1"}, ["jax"])


def test_an_unknown_runner_is_said_with_those_that_there_are() -> None:
    with pytest.raises(
        RoutingError, match=r"train/small_.*no runner 'slurm'. There are: inline, cluster, process"
    ):
        with_fakes("cluster").place(SMALL, tag="slurm")


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"default": "nowhere"}, "default: there is no runner 'nowhere'"),
        ({"default_with_resources": "proces"}, r"default_with_resources: .*mean 'process'"),
        ({"routes": [Route(runner="nowhere", device="tpu")]}, r"routes\[0\].runner: there is no"),
        ({"routes": [Route(runner="process", device="npu")]}, r"routes\[0\].device: 'npu' must be"),
        ({"routes": [Route(runner="inline", min_ram="lots")]}, r"routes\[0\].min_ram: 'lots'"),
    ],
)
def test_a_rule_that_makes_no_sense_is_an_error_before_a_step_meets_it(
    config: dict[str, Any], error: str
) -> None:
    with pytest.raises(RoutingError, match=error):
        with_fakes("cluster", **config)


def test_what_the_runner_cannot_honour_is_said_with_both() -> None:
    step = StepSpec("big", fn=write, resources=ResourceConfig.with_tpu("v4-8"))

    with pytest.raises(RoutingError, match=r"big_\w+ \(.*\): the runner 'process' .*TPUs.*v4-8"):
        Routing().place(step)


@pytest.mark.parametrize(
    ("runners", "error"),
    [
        ({"inline": {"process": {}}}, "this name is reserved"),
        ({"x": {}}, "must have one key, its type"),
        ({"x": {"process": {}, "slurm": {}}}, "must have one key, its type"),
        ({"x": {"kubernetes": {}}}, "must have one key, its type"),
        ({"x": {"process": {"gpu": 1}}}, r"runners.x.process: .*gpu"),
        ({"x": {"process": {"gpus": -1}}}, r"runners.x.process: .*gpus"),
        ({"x": {"slurm": {}}}, r"runners.x.slurm: .*folder"),
    ],
)
def test_a_runner_that_makes_no_sense_is_an_error(runners: Mapping[str, Any], error: str) -> None:
    with pytest.raises(RoutingError, match=f"(?s){error}"):
        Routing(RoutingConfig(runners=runners))


def test_runners_have_names_and_settings_of_their_own() -> None:
    found = Routing(
        RoutingConfig(runners={"process": {"process": {"gpus": 4}}, "big": {"process": None}})
    )

    assert found.runners["process"].settings.gpus == 4  # type: ignore[attr-defined]
    assert found.runners["big"].name == "big"
    assert found.configured == ["process", "big"]


def test_closing_leaves_runners_made_in_code_alone(caplog: pytest.LogCaptureFixture) -> None:
    closed = []

    class Closing(FakeRunner):
        def close(self) -> None:
            closed.append(self.name)
            raise RuntimeError("stuck")

    own, given = Closing("own"), Closing("given")
    found = Routing(given={"given": given})
    found._built["own"] = own

    found.close()

    assert closed == ["own"]
    assert "could not close the runner own" in caplog.text


class PluginSettings(RunnerSettings):
    queue: str = "default"


PLUGIN = RunnerType(PluginSettings, lambda name, settings: FakeRunner(f"{name}-{settings.queue}"))
NO_PLUGIN = object()


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Entry points that installed packages have, by name."""
    registered: dict[str, str] = {}

    def entry_points(*, group: str) -> list[importlib.metadata.EntryPoint]:
        assert group == "marin_dagster.runners"
        return [
            importlib.metadata.EntryPoint(name, value, group) for name, value in registered.items()
        ]

    monkeypatch.setattr(routing, "entry_points", entry_points)
    runner_types.cache_clear()
    yield registered
    runner_types.cache_clear()


def test_a_plug_in_is_a_runner_type(plugins: dict[str, str]) -> None:
    plugins["batch"] = "test_routing:PLUGIN"

    found = Routing(RoutingConfig(runners={"x": {"batch": {"queue": "fast"}}}))

    assert found.runners["x"].name == "x-fast"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("broken", "no_such_module:RUNNER"),
        ("broken", "test_routing:NO_PLUGIN"),
        ("slurm", "test_routing:PLUGIN"),
        ("inline", "test_routing:PLUGIN"),
    ],
)
def test_a_bad_plug_in_is_logged_and_left_out(
    plugins: dict[str, str], name: str, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugins[name] = value
    plugins["batch"] = "test_routing:PLUGIN"

    with caplog.at_level(logging.WARNING):
        types = runner_types()

    assert set(types) == {"process", "fray", "slurm", "batch"}
    assert f"the runner plug-in {value} is left out" in caplog.text
