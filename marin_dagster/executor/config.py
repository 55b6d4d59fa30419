"""The executor's configuration: what a run can choose, and its form in the launchpad."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg
from pydantic import ValidationError, create_model

from marin_dagster._compat import (
    RetryMode,
    StepDependencyConfig,
    get_retries_config,
    get_step_dependency_config_field,
    get_tag_concurrency_limits_config,
)
from marin_dagster.errors import RoutingError
from marin_dagster.runners import (
    INLINE,
    Route,
    RoutingConfig,
    RunnerSettings,
    StepOverride,
    runner_types,
)

_LOG_LEVEL = dg.Enum(
    "MarinLogLevel", [dg.EnumValue(level) for level in ("DEBUG", "INFO", "WARNING")]
)
"""No higher level: a log must never lack warnings, which Python logs by default."""

DEFAULT_MAX_CONCURRENT = 8
"""Steps that run at once by default, as in Marin."""


@dataclass(frozen=True)
class ExecutorSettings:
    """The executor's settings for one run."""

    max_concurrent: int
    """Steps that run at once, as configured; see :attr:`limit`."""
    force: bool | tuple[str, ...]
    """Build finished steps again: all selected steps, or those named."""
    retry_failed: bool
    """Build steps whose last attempt failed."""
    dry_run: bool
    """Report what the run would do with each step, and run nothing."""
    log_level: int
    """The lowest level of Python's logging in steps' logs, for loggers without a level."""
    retries: RetryMode
    """Whether Dagster's retry policies apply."""
    tag_concurrency_limits: list[dict[str, Any]]
    """Limits for steps with a tag."""
    step_dependency_config: StepDependencyConfig
    """Which dependencies must have ended before a step may start."""
    routing: Mapping[str, Any]
    """Runners and routes, as configured; see :meth:`routing_config`."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ExecutorSettings":
        """The settings in an executor's config."""
        force = config["force"]
        return cls(
            max_concurrent=config["max_concurrent"],
            force=force if isinstance(force, bool) else tuple(force),
            retry_failed=config["retry_failed"],
            dry_run=config["dry_run"],
            log_level=logging.getLevelNamesMapping()[config["log_level"]],
            retries=RetryMode.from_config(config["retries"]) or RetryMode.ENABLED,
            tag_concurrency_limits=config.get("tag_concurrency_limits") or [],
            step_dependency_config=StepDependencyConfig.from_config(
                config.get("step_dependency_config")
            ),
            routing={name: config[name] for name in RoutingConfig.model_fields if name in config},
        )

    @property
    def limit(self) -> int:
        """Steps that run at once, at least 1.

        Raises:
            ValueError: ``max_concurrent`` is negative. Checked once the run has started, so that
                the run fails with this message.
        """
        return effective_max_concurrent(self.max_concurrent)

    def routing_config(self) -> RoutingConfig:
        """The runners and routes, checked.

        Raises:
            RoutingError: a value is not valid. Checked once the run has started.
        """
        try:
            return RoutingConfig.model_validate(_without_none(self.routing))
        except ValidationError as error:
            raise RoutingError(f"the executor's config: {error}") from error


def effective_max_concurrent(value: int) -> int:
    """``value``, or the default for 0.

    Raises:
        ValueError: it is negative or not an integer.
    """
    if not isinstance(value, int) or value < 0:
        raise ValueError(
            f"max_concurrent = {value!r}: must be 1 or more, or 0 for the default "
            f"({DEFAULT_MAX_CONCURRENT})."
        )
    return value or DEFAULT_MAX_CONCURRENT


def _without_none(value: Any) -> Any:
    """Config without the fields that Dagster fills with None because they are not set."""
    if isinstance(value, Mapping):
        return {name: _without_none(part) for name, part in value.items() if part is not None}
    return [_without_none(part) for part in value] if isinstance(value, list) else value


def config_schema(max_concurrent: int) -> dict[str, dg.Field]:
    """The executor's config fields, with a default for ``max_concurrent``."""
    return {
        "max_concurrent": dg.Field(
            int,
            default_value=max_concurrent,
            description=f"How many steps run at once; 0 means {DEFAULT_MAX_CONCURRENT}.",
        ),
        "force": dg.Field(
            dg.ScalarUnion(scalar_type=bool, non_scalar_schema=[str]),
            default_value=False,
            description=(
                "Build steps although their output is cached: true for every selected step, or "
                "a list of step names, names with hash, or asset keys."
            ),
        ),
        "retry_failed": dg.Field(
            bool,
            default_value=True,
            description=(
                "Build steps again if their last attempt failed. If false, such a step fails "
                "at once."
            ),
        ),
        "dry_run": dg.Field(
            bool,
            default_value=False,
            description=(
                "Report what this run would do with each selected step and why: run, serve, "
                "prune or fail. Reads the store, runs nothing and writes nothing."
            ),
        ),
        "log_level": dg.Field(
            _LOG_LEVEL,
            default_value="INFO",
            description=(
                "The lowest level of Python's logging in a step's log. A level that your code or "
                "python_logs in dagster.yaml sets for a logger overrides it; the root logger's "
                "can only add lines."
            ),
        ),
        **_routing_schema(),
        "retries": get_retries_config(),
        "tag_concurrency_limits": get_tag_concurrency_limits_config(),
        "step_dependency_config": get_step_dependency_config_field(),
    }


def _routing_schema() -> dict[str, dg.Field]:
    types = {name: _field_of(kind.settings) for name, kind in runner_types().items()}
    return {
        "runners": dg.Field(
            dg.Map(str, dg.Selector(types), key_label_name="name"),
            is_required=False,
            description="Runners by name, each with its type and settings.",
        ),
        "routes": dg.Field(
            [_field_of(Route).config_type],
            is_required=False,
            description="Which steps go to which runner. First match wins.",
        ),
        "default": dg.Field(
            str,
            default_value=INLINE,
            description="The runner for steps without resources; inline means in the run worker.",
        ),
        "default_with_resources": dg.Field(
            str,
            is_required=False,
            description=(
                "The runner for steps with resources. Default: the only one in runners; process, "
                "on the run worker's machine, if runners is empty."
            ),
        ),
        "steps": dg.Field(
            dg.Map(str, _field_of(StepOverride).config_type, key_label_name="step"),
            is_required=False,
            description=(
                "Runner, resources and environment of single steps in this run, by step name, name "
                "with hash, or asset key. Overrides all other settings."
            ),
        ),
    }


def _field_of(model: type[RunnerSettings]) -> dg.Field:
    """A runner's settings model as a Dagster config field; runners do not import Dagster."""
    fields: dict[str, Any] = {
        name: (info.annotation, info) for name, info in model.model_fields.items()
    }
    config = create_model(model.__name__, __base__=dg.Config, __doc__=model.__doc__, **fields)
    return config.to_config_schema().as_field()
