"""Every private name of Dagster that this package imports, and the attribute that it reads.

Those that import SQLAlchemy are in ``_compat_storage``.
They all have these names from Dagster 1.11.16 on; the tests run the lowest and the newest release.
Three more classes read or override private members of their base classes:
``executor.pools.RunSlots`` and the two storages in ``storage``.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dagster._config.config_schema import UserConfigSchema
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.source_asset import SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION
from dagster._core.definitions.utils import DISALLOWED_NAMES
from dagster._core.events import (
    ASSET_CHECK_EVENTS,
    ASSET_EVENTS,
    EVENT_TYPE_TO_PIPELINE_RUN_STATUS,
    AssetMaterializationPlannedData,
    AssetObservationData,
    EngineEventData,
)
from dagster._core.events.log import EventLogEntry, construct_event_record
from dagster._core.execution.api import ExecuteRunWithPlanIterable, execute_run
from dagster._core.execution.context.system import (
    PlanExecutionContext,
    PlanOrchestrationContext,
)
from dagster._core.execution.context_creation_job import PlanExecutionContextManager
from dagster._core.execution.plan.active import ActiveExecution
from dagster._core.execution.plan.execute_plan import _trigger_hook as trigger_hook
from dagster._core.execution.plan.execute_plan import dagster_event_sequence_for_step
from dagster._core.execution.plan.instance_concurrency_context import InstanceConcurrencyContext
from dagster._core.execution.plan.objects import StepFailureData, StepSuccessData
from dagster._core.execution.plan.outputs import StepOutputHandle
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.plan.step import ExecutionStep
from dagster._core.execution.retries import RetryMode, get_retries_config
from dagster._core.execution.step_dependency_config import (
    StepDependencyConfig,
    get_step_dependency_config_field,
)
from dagster._core.execution.tags import get_tag_concurrency_limits_config
from dagster._core.instance import RUNLESS_RUN_ID
from dagster._core.instance.types import _EventListenerLogHandler
from dagster._core.log_manager import (
    DagsterLogHandler,
    DagsterLogManager,
    get_log_record_metadata,
)
from dagster._core.storage.cloud_storage_compute_log_manager import CloudStorageComputeLogManager
from dagster._core.storage.compute_log_manager import (
    CapturedLogContext,
    ComputeIOType,
    ComputeLogManager,
)
from dagster._serdes import ConfigurableClassData
from dagster._utils.cached_method import cached_method
from dagster._utils.interrupts import capture_interrupts
from dagster._utils.log import StructuredLoggerMessage
from dagster_shared.error import SerializableErrorInfo
from dagster_shared.libraries import DagsterLibraryRegistry
from dagster_shared.utils.warnings import _warnings_on

__all__ = [
    "ASSET_CHECK_EVENTS",
    "ASSET_EVENTS",
    "DISALLOWED_NAMES",
    "EVENT_TYPE_TO_PIPELINE_RUN_STATUS",
    "RUNLESS_RUN_ID",
    "WITHOUT_EVENTS",
    "ActiveExecution",
    "AssetCheckEvaluationTargetMaterializationData",
    "AssetMaterializationPlannedData",
    "AssetObservationData",
    "CapturedLogContext",
    "CloudStorageComputeLogManager",
    "ComputeIOType",
    "ComputeLogManager",
    "ConfigurableClassData",
    "DagsterLibraryRegistry",
    "EngineEventData",
    "EventLogEntry",
    "ExecuteRunWithPlanIterable",
    "ExecutionPlan",
    "ExecutionStep",
    "InMemoryJob",
    "InstanceConcurrencyContext",
    "PlanExecutionContext",
    "PlanExecutionContextManager",
    "PlanOrchestrationContext",
    "RetryMode",
    "SerializableErrorInfo",
    "StepDependencyConfig",
    "StepFailureData",
    "StepOutputHandle",
    "StepSuccessData",
    "UserConfigSchema",
    "cached_method",
    "capture_interrupts",
    "dagster_event_sequence_for_step",
    "event_log_entry",
    "execute_run",
    "execution_data",
    "get_log_record_metadata",
    "get_retries_config",
    "get_step_dependency_config_field",
    "get_tag_concurrency_limits_config",
    "notify_subscribers",
    "replace_event_handler",
    "trigger_hook",
    "without_beta_warnings",
]


def execution_data(context: PlanExecutionContext) -> Any:
    """The part of a run's context that does not depend on its plan."""
    return context._execution_data


WITHOUT_EVENTS = {SYSTEM_METADATA_KEY_SOURCE_ASSET_OBSERVATION: True}
"""Metadata of an output for which Dagster makes no materialization, since the op has made them."""


def event_log_entry(record: logging.LogRecord) -> EventLogEntry:
    """The event that Dagster stores for a record of its log."""
    return construct_event_record(
        StructuredLoggerMessage(
            name=record.name,
            message=record.msg,
            level=record.levelno,
            meta=get_log_record_metadata(record),
            record=record,
        )
    )


def replace_event_handler(log: DagsterLogManager, handler: logging.Handler) -> DagsterLogManager:
    """The same log with this handler in place of the one that stores its events."""
    old = log._dagster_handler
    return DagsterLogManager(
        dagster_handler=DagsterLogHandler(
            metadata=old.metadata,
            loggers=old._loggers,
            handlers=[
                handler if isinstance(one, _EventListenerLogHandler) else one
                for one in old._handlers
            ],
        ),
        level=log.level,
        managed_loggers=log._managed_loggers,
    )


def notify_subscribers(instance: Any, entry: EventLogEntry) -> None:
    """Call the listeners of the event's run, as Dagster does once an event is stored."""
    for listener in instance._subscribers[entry.run_id]:
        listener(entry)


@contextmanager
def without_beta_warnings() -> Iterator[None]:
    """Call what Dagster marks as beta, without its warning.

    Dagster's ``disable_dagster_warnings`` also swaps the process's warning filters, which threads
    share. A filter set at import is lost under pytest, which restores its own.
    """
    token = _warnings_on.set(False)
    try:
        yield
    finally:
        _warnings_on.reset(token)
