"""The executor's configuration: what a run can choose, and its form in the launchpad."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from marin_dagster._compat import (
    RetryMode,
    StepDependencyConfig,
    get_retries_config,
    get_step_dependency_config_field,
    get_tag_concurrency_limits_config,
)

DEFAULT_MAX_CONCURRENT = 8
"""Steps that run at once when nobody says otherwise; Marin's default."""


@dataclass(frozen=True)
class ExecutorSettings:
    """One run's choices."""

    max_concurrent: int
    """Steps that run at once, as configured; see :attr:`limit`."""
    force: bool | tuple[str, ...]
    """Build finished steps, too: all selected ones, or those named."""
    retry_failed: bool
    """Build steps whose last attempt failed."""
    dry_run: bool
    """Log what would run, and touch nothing."""
    retries: RetryMode
    """Whether Dagster's retry policies count."""
    tag_concurrency_limits: list[dict[str, Any]]
    """Limits for steps with a tag."""
    step_dependency_config: StepDependencyConfig
    """When a step may start with regard to its dependencies."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ExecutorSettings":
        """The settings in an executor's config."""
        force = config["force"]
        return cls(
            max_concurrent=config["max_concurrent"],
            force=force if isinstance(force, bool) else tuple(force),
            retry_failed=config["retry_failed"],
            dry_run=config["dry_run"],
            retries=RetryMode.from_config(config["retries"]) or RetryMode.ENABLED,
            tag_concurrency_limits=config.get("tag_concurrency_limits") or [],
            step_dependency_config=StepDependencyConfig.from_config(
                config.get("step_dependency_config")
            ),
        )

    @property
    def limit(self) -> int:
        """Steps that run at once, at least 1.

        Raises:
            ValueError: ``max_concurrent`` is negative. Asked for once the run has started, so that
                the run itself fails with this message.
        """
        return effective_max_concurrent(self.max_concurrent)


def effective_max_concurrent(value: int) -> int:
    """``value``, or the default for 0.

    Raises:
        ValueError: it is negative, or no number.
    """
    if not isinstance(value, int) or value < 0:
        raise ValueError(
            f"max_concurrent = {value!r}: must be 1 or more, or 0 for the default "
            f"({DEFAULT_MAX_CONCURRENT})."
        )
    return value or DEFAULT_MAX_CONCURRENT


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
                "Build steps although the cache has their output: true for every selected step, or "
                "a list of step names, names with hash, or asset keys."
            ),
        ),
        "retry_failed": dg.Field(
            bool,
            default_value=True,
            description=(
                "Build steps again whose last attempt failed. When false, such a step fails "
                "at once."
            ),
        ),
        "dry_run": dg.Field(
            bool,
            default_value=False,
            description=(
                "Log the steps that are selected and where they would write, run nothing, and "
                "neither read nor write the store."
            ),
        ),
        "retries": get_retries_config(),
        "tag_concurrency_limits": get_tag_concurrency_limits_config(),
        "step_dependency_config": get_step_dependency_config_field(),
    }
