"""Every internal name of Fray and Iris that this package uses, and nothing else.

Fray's own client submits jobs, as in Marin. The rest goes to the Iris controller's RPC stub: Fray's
client reports a preemption as a failure, cannot find a job that another process has submitted, and
retries an unreachable controller for half an hour. All names are as in ``marin-iris`` 0.2; the
interop tests run the newest release.
"""

import copy
import importlib
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from marin_dagster.errors import EngineTimeoutError, RoutingError

_ANSWER_MS = 10_000
"""Deadline of a request to the controller."""
_SUBMIT_MS = 60_000
"""Deadline of a submission, which may carry the workspace."""
_PATIENCE_S = 10.0
"""How long a submission is retried while the controller does not answer."""
_RETRY_PAUSE_S = 0.5


def fray_module(name: str) -> Any:
    """A module of Fray or Iris.

    Raises:
        RoutingError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RoutingError(
            f"the fray runner needs {name} ({error}). Install marin-dagster[fray], which needs "
            "Python 3.12 or newer"
        ) from error


def is_iris(client: Any) -> bool:
    """Whether a Fray client submits to Iris."""
    return hasattr(client, "_iris")


def iris_client(client: Any) -> Any:
    """The Iris client of a Fray client; inside an Iris task, several Fray clients share one."""
    return client._iris


def check_resources(resources: Any) -> None:
    """Convert a Fray request as a submission does.

    Raises:
        Exception: Iris has no such resource.
    """
    backend = fray_module("fray.iris_backend")
    backend.convert_resources(resources).to_proto()
    backend.convert_constraints(resources)
    backend.convert_container_profile(resources)
    backend.resolve_coscheduling(resources, resources.replicas)


def is_rpc_error(error: Exception, code: str) -> bool:
    """Whether an RPC was answered with this code."""
    return getattr(getattr(error, "code", None), "name", None) == code


class IrisController:
    """The controller that a Fray client submits to, with a deadline on every request."""

    def __init__(self, client: Any) -> None:
        iris = client._iris
        # Copies, so that the caller's client keeps its own stub.
        self._cluster = copy.copy(iris._cluster_client)
        self._stub = self._cluster._client
        self._cluster._client = _ImpatientStub(self._stub)
        self._client = copy.copy(client)
        self._client._iris = copy.copy(iris)
        self._client._iris._cluster_client = self._cluster
        self._messages = fray_module("iris.rpc.controller_pb2").Controller
        self.states = fray_module("iris.rpc.job_pb2")
        """The constants ``JOB_STATE_…`` and ``TASK_STATE_…``."""

    def submit(self, request: Any) -> str:
        """Submit a Fray ``JobRequest``; the job's id.

        Raises:
            EngineTimeoutError: the controller does not answer.
            Exception: it refuses the job.
        """
        job_id: str = self._client.submit(request, adopt_existing=False).job_id
        return job_id

    def list_jobs(self, name: str) -> Sequence[Any]:
        """The jobs of all users whose name contains ``name``."""
        query = self._messages.JobQuery(name_filter=name)
        request = self._messages.ListJobsRequest(query=query)
        jobs: Sequence[Any] = self._stub.list_jobs(request, timeout_ms=_ANSWER_MS).jobs
        return jobs

    def job_states(self, ids: Iterable[str]) -> Mapping[str, int]:
        """The ``JOB_STATE_…`` of each job that the controller knows, by id."""
        request = self._messages.GetJobStateRequest(job_ids=list(ids))
        states: Mapping[str, int] = self._stub.get_job_state(request, timeout_ms=_ANSWER_MS).states
        return states

    def job(self, job_id: str) -> Any:
        """The controller's ``JobStatus`` message about a job."""
        request = self._messages.GetJobStatusRequest(job_id=job_id)
        return self._stub.get_job_status(request, timeout_ms=_ANSWER_MS).job

    def tasks(self, job_id: str) -> Sequence[Any]:
        """The ``TaskStatus`` messages of a job's tasks, one for each replica."""
        request = self._messages.ListTasksRequest(job_id=job_id)
        tasks: Sequence[Any] = self._stub.list_tasks(request, timeout_ms=_ANSWER_MS).tasks
        return tasks

    def fetch_logs(self, job_id: str, cursor: int) -> tuple[Sequence[Any], int]:
        """The log entries of a job's tasks after ``cursor``, and the next cursor."""
        messages = fray_module("finelog.rpc.logging_pb2")
        request = messages.FetchLogsRequest(
            source=f"{job_id}/", match_scope=messages.MATCH_SCOPE_PREFIX, cursor=cursor
        )
        # The log client itself: the cluster client's method retries for half an hour.
        page = self._cluster._log_client.fetch_logs(request)
        return page.entries, max(cursor, page.cursor)

    def terminate(self, job_id: str) -> None:
        """Stop a job; no error if the controller does not know it."""
        try:
            request = self._messages.TerminateJobRequest(job_id=job_id)
            self._stub.terminate_job(request, timeout_ms=_ANSWER_MS)
        except Exception as error:
            if not is_rpc_error(error, "NOT_FOUND"):
                raise

    def page_url(self, job_id: str) -> str:
        """The job's page in the controller's UI."""
        job_name = fray_module("iris.cluster.types").JobName.from_wire(job_id)
        url: str = job_name.dashboard_url(self._cluster._address)
        return url


@dataclass(frozen=True)
class _ImpatientStub:
    """The controller's RPC stub, with a submission that gives up within about a minute."""

    stub: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stub, name)

    def launch_job(self, request: Any, timeout_ms: int | None = None) -> Any:
        """Launch a job with a new name.

        Raises:
            EngineTimeoutError: no answer. Not an RPC error: the cluster client would retry that.
        """
        messages = fray_module("iris.rpc.controller_pb2").Controller
        is_retryable = fray_module("iris.rpc.errors").is_retryable_error
        give_up_at, retried = time.monotonic() + _PATIENCE_S, False
        while True:
            try:
                return self.stub.launch_job(request, timeout_ms=_SUBMIT_MS)
            except Exception as error:
                if retried and is_rpc_error(error, "ALREADY_EXISTS"):
                    # Names are unique: an earlier request arrived, and only its answer was lost.
                    return messages.LaunchJobResponse(job_id=request.name)
                if not is_retryable(error):
                    raise
                if time.monotonic() > give_up_at:
                    # The last request may have arrived, too.
                    with suppress(Exception):
                        self.stub.terminate_job(
                            messages.TerminateJobRequest(job_id=request.name), timeout_ms=_ANSWER_MS
                        )
                    raise EngineTimeoutError(
                        f"the Iris controller does not answer: {error}"
                    ) from error
            retried = True
            time.sleep(_RETRY_PAUSE_S)
