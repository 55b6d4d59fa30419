"""Every private Dagster name that this package imports, and nothing else.

All of them have these names from Dagster 1.11.16 on; the tests run the lowest and the newest
release.
"""

from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData,
)
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.definitions.utils import DISALLOWED_NAMES
from dagster._core.events import (
    AssetMaterializationPlannedData,
    AssetObservationData,
    DagsterEvent,
    DagsterEventType,
    EngineEventData,
)
from dagster._core.execution.api import ExecuteRunWithPlanIterable, execute_run
from dagster._core.execution.context.system import (
    PlanExecutionContext,
    PlanOrchestrationContext,
    StepExecutionContext,
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
from dagster._core.storage.event_log.base import AssetEntry
from dagster._utils.cached_method import cached_method
from dagster._utils.interrupts import capture_interrupts
from dagster._utils.warnings import disable_dagster_warnings
from dagster_shared.error import SerializableErrorInfo
from dagster_shared.libraries import DagsterLibraryRegistry

__all__ = [
    "DISALLOWED_NAMES",
    "RUNLESS_RUN_ID",
    "ActiveExecution",
    "AssetCheckEvaluationTargetMaterializationData",
    "AssetEntry",
    "AssetMaterializationPlannedData",
    "AssetObservationData",
    "CapturedLogContext",
    "CloudStorageComputeLogManager",
    "ComputeIOType",
    "ComputeLogManager",
    "DagsterEvent",
    "DagsterEventType",
    "DagsterLibraryRegistry",
    "EngineEventData",
    "ExecuteRunWithPlanIterable",
    "ExecutionPlan",
    "InMemoryJob",
    "InstanceConcurrencyContext",
    "PlanExecutionContext",
    "PlanExecutionContextManager",
    "PlanOrchestrationContext",
    "RetryMode",
    "SerializableErrorInfo",
    "StepDependencyConfig",
    "StepExecutionContext",
    "StepFailureData",
    "StepSuccessData",
    "cached_method",
    "capture_interrupts",
    "dagster_event_sequence_for_step",
    "disable_dagster_warnings",
    "execute_run",
    "get_retries_config",
    "get_step_dependency_config_field",
    "get_tag_concurrency_limits_config",
    "trigger_hook",
]
