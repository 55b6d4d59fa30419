"""Every private name of Dagster that this package imports, and the attribute that it reads.

They all have these names from Dagster 1.11.16 on; the tests run the lowest and the newest release.
One more class reads private attributes: ``executor.pools.RunSlots``, of its base class.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dagster._config.config_schema import UserConfigSchema
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.utils import DISALLOWED_NAMES
from dagster._core.events import (
    AssetMaterializationPlannedData,
    AssetObservationData,
    EngineEventData,
)
from dagster._core.events.log import EventLogEntry
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
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode, get_retries_config
from dagster._core.execution.step_dependency_config import (
    StepDependencyConfig,
    get_step_dependency_config_field,
)
from dagster._core.execution.tags import get_tag_concurrency_limits_config
from dagster._core.instance import RUNLESS_RUN_ID
from dagster._core.storage.cloud_storage_compute_log_manager import CloudStorageComputeLogManager
from dagster._core.storage.compute_log_manager import (
    CapturedLogContext,
    ComputeIOType,
    ComputeLogManager,
)
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._serdes import ConfigurableClassData
from dagster._utils.cached_method import cached_method
from dagster._utils.interrupts import capture_interrupts
from dagster_shared.error import SerializableErrorInfo
from dagster_shared.libraries import DagsterLibraryRegistry
from dagster_shared.utils.warnings import _warnings_on

__all__ = [
    "DISALLOWED_NAMES",
    "RUNLESS_RUN_ID",
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
    "InMemoryJob",
    "InstanceConcurrencyContext",
    "PlanExecutionContext",
    "PlanExecutionContextManager",
    "PlanOrchestrationContext",
    "RetryMode",
    "SerializableErrorInfo",
    "SqliteEventLogStorage",
    "StepDependencyConfig",
    "StepFailureData",
    "StepSuccessData",
    "UserConfigSchema",
    "cached_method",
    "capture_interrupts",
    "dagster_event_sequence_for_step",
    "execute_run",
    "execution_data",
    "get_retries_config",
    "get_step_dependency_config_field",
    "get_tag_concurrency_limits_config",
    "trigger_hook",
    "without_beta_warnings",
]


def execution_data(context: PlanExecutionContext) -> Any:
    """The part of a run's context that does not depend on its plan."""
    return context._execution_data


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
