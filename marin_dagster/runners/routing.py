"""Routing: which runner runs a step.

From weak to strong: the defaults; the executor's routes, in order; the step's ``marin/runner`` tag;
the step's entry in the run's config, which can also override the step's resources.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError

from marin_dagster.errors import ResourceError, RoutingError
from marin_dagster.runners.base import Request, Runner
from marin_dagster.runners.settings import (
    FraySettings,
    ProcessSettings,
    Route,
    RoutingConfig,
    RunnerSettings,
    SlurmSettings,
    StepOverride,
)
from marin_dagster.steps import StepLike
from marin_dagster.steps.protocol import address
from marin_dagster.steps.resources import ResourceConfig, parse_size
from marin_dagster.steps.text import did_you_mean, shown

logger = logging.getLogger(__name__)

INLINE = "inline"
"""The name for no runner: the step's function runs in the run worker's thread."""
PROCESS = "process"
ENTRY_POINTS = "marin_dagster.runners"
"""Entry point group for the :class:`RunnerType` of other packages."""


@dataclass(frozen=True)
class RunnerType:
    """A kind of runner."""

    settings: type[RunnerSettings]
    """The model of its settings; becomes part of the executor's config."""
    build: Callable[[str, Any], Runner]
    """Creates a runner from its name and settings."""


def _process(name: str, settings: ProcessSettings) -> Runner:
    from marin_dagster.runners.process import ProcessRunner

    return ProcessRunner(name, settings)


def _fray(name: str, settings: FraySettings) -> Runner:
    from marin_dagster.runners.fray import FrayRunner

    return FrayRunner(name, settings)


def _slurm(name: str, settings: SlurmSettings) -> Runner:
    try:
        from marin_dagster.runners.slurm import SlurmRunner
    except ImportError as error:
        raise RoutingError(f"runners.{name}: {error}. Install marin-dagster[slurm].") from error
    return SlurmRunner(name, settings)


_BUILT_IN = {
    PROCESS: RunnerType(ProcessSettings, _process),
    "fray": RunnerType(FraySettings, _fray),
    "slurm": RunnerType(SlurmSettings, _slurm),
}


@cache
def runner_types() -> Mapping[str, RunnerType]:
    """Every runner type: built in, or registered by an installed package.

    A plug-in that cannot be loaded, or has the name of a built-in type, is logged and left out.
    """
    types = dict(_BUILT_IN)
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            if entry.name in types or entry.name == INLINE:
                raise ValueError(f"there is already a runner type {entry.name!r}")
            loaded = entry.load()
            if not isinstance(loaded, RunnerType):
                raise TypeError(f"it is a {type(loaded).__name__}, not a RunnerType")
        except Exception as error:
            logger.warning("the runner plug-in %s is left out: %s", entry.value, error)
        else:
            types[entry.name] = loaded
    return types


@dataclass(frozen=True)
class Placement:
    """A step's runner, and what the step asks of it."""

    runner: str
    request: Request


INLINE_PLACEMENT = Placement(INLINE, Request())


@dataclass(eq=False)
class Routing:
    """One run's runners and rules."""

    config: RoutingConfig = field(default_factory=RoutingConfig)
    given: Mapping[str, Runner] = field(default_factory=dict)
    """Runners that were passed in code, by name."""
    chose_process: bool = False
    """Whether a step has gone to the ``process`` runner because none is configured."""
    _built: dict[str, Runner] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._built.update(self.given)
        for name, kinds in self.config.runners.items():
            self._built[name] = _build(name, kinds)
        if PROCESS not in self._built:
            self._built[PROCESS] = _process(PROCESS, ProcessSettings())
        self._check_rules()

    @property
    def runners(self) -> Mapping[str, Runner]:
        """Every runner of this run except ``inline``, by name."""
        return self._built

    @property
    def configured(self) -> list[str]:
        """Names of the runners in the config or passed in code."""
        return [*self.given, *(name for name in self.config.runners if name not in self.given)]

    def place(
        self, step: StepLike, *, tag: str | None = None, override: StepOverride | None = None
    ) -> Placement:
        """Choose a step's runner.

        Args:
            step: the step.
            tag: its ``marin/runner`` tag.
            override: its entry in the run's config.

        Raises:
            RoutingError: the runner does not exist, refuses the step, or is ambiguous.
            ResourceError: the run's config has invalid resources for the step.
        """
        request = Request.of(step)
        if override is not None:
            request = _overridden(step, request, override)
        name = (override and override.runner) or tag or self._routed(step, request)
        where = f"step {address(step)} ({step.output_path})"
        if fault := _environment_fault(request.env_vars):
            raise RoutingError(f"{where}: {fault}.")
        if name == INLINE:
            if override is not None and override.env:
                raise RoutingError(
                    f"{where}: this run's config sets its env, but it runs inline, in the "
                    "environment of the run worker. Set its runner, too."
                )
            return Placement(INLINE, request)
        if name not in self._built:
            raise RoutingError(f"{where}: {self._unknown(name)}")
        fault = self._built[name].refuses(step, request)
        if fault is not None:
            raise RoutingError(
                f"{where}: the runner {name!r} cannot run it: {fault}. Route the step to another "
                "runner, or change its request."
            )
        return Placement(name, request)

    def close(self) -> None:
        """Close the runners at the end of a run, except those that were passed in code."""
        for name, runner in self._built.items():
            if name in self.given:
                continue
            try:
                runner.close()
            except Exception:
                logger.exception("could not close the runner %s", name)

    def _check_rules(self) -> None:
        """Report errors in the rules now, not when a step matches one."""
        asked = {"default": self.config.default}
        if self.config.default_with_resources is not None:
            asked["default_with_resources"] = self.config.default_with_resources
        for number, route in enumerate(self.config.routes):
            asked[f"routes[{number}].runner"] = route.runner
            if route.device not in (None, "cpu", "gpu", "tpu"):
                raise RoutingError(
                    f"routes[{number}].device: {route.device!r} must be cpu, gpu or tpu."
                )
            if route.min_ram is not None:
                try:
                    parse_size(route.min_ram)
                except ResourceError as error:
                    raise RoutingError(f"routes[{number}].min_ram: {error}") from None
        for where, name in asked.items():
            if name != INLINE and name not in self._built:
                raise RoutingError(f"{where}: {self._unknown(name)}")

    def _unknown(self, name: str) -> str:
        known = [INLINE, *self._built]
        hint = did_you_mean(name, known)
        return f"there is no runner {name!r}. There are: {', '.join(known)}.{hint}"

    def _routed(self, step: StepLike, request: Request) -> str:
        for route in self.config.routes:
            if _matches(route, step, request.resources):
                return route.runner
        if request.resources is None:
            return self.config.default
        if self.config.default_with_resources is not None:
            return self.config.default_with_resources
        if len(self.configured) > 1:
            raise RoutingError(
                f"step {address(step)} ({step.output_path}): no route matches it, and there are "
                f"several runners ({', '.join(self.configured)}). Add a route, or set "
                "default_with_resources."
            )
        if not self.configured:
            self.chose_process = True
            return PROCESS
        return self.configured[0]


def _build(name: str, kinds: Mapping[str, Any]) -> Runner:
    types = runner_types()
    if name == INLINE:
        raise RoutingError(f"runners.{INLINE}: this name is reserved for the run worker's thread.")
    if len(kinds) != 1 or not kinds.keys() <= types.keys():
        raise RoutingError(
            f"runners.{name} must have one key, its type ({', '.join(types)}), but has "
            f"{', '.join(kinds) or 'none'}."
        )
    [(kind, settings)] = kinds.items()
    try:
        return types[kind].build(name, types[kind].settings.model_validate(settings or {}))
    except ValidationError as error:
        raise RoutingError(f"runners.{name}.{kind}: {error}") from error


def _matches(route: Route, step: StepLike, resources: Any) -> bool:
    if route.step is not None and not fnmatchcase(step.name, route.step):
        return False
    if resources is None:
        return route.device is None and route.min_cpu is None and route.min_ram is None
    return (
        (route.device is None or resources.device.kind == route.device)
        and (route.min_cpu is None or resources.cpu >= route.min_cpu)
        and (route.min_ram is None or parse_size(resources.ram) >= parse_size(route.min_ram))
    )


def _environment_fault(environment: Mapping[str, Any]) -> str | None:
    for name, value in environment.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            return f"{name!r} cannot be the name of an environment variable"
        if not isinstance(value, str) or "\0" in value:
            return f"the environment variable {name} is {shown(value)}, not text"
    return None


def _overridden(step: StepLike, request: Request, override: StepOverride) -> Request:
    fields = override.model_dump(include={"cpu", "ram", "disk"}, exclude_none=True)
    resources = request.resources
    if fields:
        try:
            resources = replace(resources or ResourceConfig(), **fields)
        except ResourceError as error:
            raise ResourceError(f"step {address(step)}: in this run's config: {error}") from None
    environment = {**request.env_vars, **override.env}
    return replace(request, resources=resources, env_vars=environment)
