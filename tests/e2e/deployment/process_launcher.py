"""A run launcher that can do what ``K8sRunLauncher`` does, with processes instead of pods."""

import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from dagster._core.launcher import DefaultRunLauncher
from dagster._core.launcher.base import (
    CheckRunHealthResult,
    LaunchRunContext,
    ResumeRunContext,
    WorkerStatus,
)
from dagster._core.storage.dagster_run import DagsterRun
from dagster._grpc.types import ExecuteRunArgs, ResumeRunArgs

PROCESS = "test/process"
"""Run tag: the run gets a worker of its own."""
PID = "test/pid"
"""Run tag with the worker's process id."""


class ProcessRunLauncher(DefaultRunLauncher):
    """Has code servers start runs, as Dagster does by default, and starts tagged runs itself.

    Of the latter it starts each worker by the command line that a pod would have, knows whether
    the worker still lives, and starts another one that resumes the run. The daemon starts and
    watches the workers; the webserver ends them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def launch_run(self, context: LaunchRunContext) -> None:
        if PROCESS not in context.dagster_run.tags:
            super().launch_run(context)
        else:
            self._start(context, ExecuteRunArgs)

    @property
    def supports_resume_run(self) -> bool:
        return True

    def resume_run(self, context: ResumeRunContext) -> None:
        self._start(context, ResumeRunArgs)

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        if PROCESS not in run.tags:
            # The code server looks after it.
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        code = self._workers[run.run_id].poll()
        if code is None:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        status = WorkerStatus.FAILED if code else WorkerStatus.SUCCESS
        return CheckRunHealthResult(status, f"exit code {code}")

    def terminate(self, run_id: str) -> bool:
        run = self._instance.get_run_by_id(run_id)
        if run is None or PROCESS not in run.tags:
            return super().terminate(run_id)
        self._instance.report_run_canceling(run)
        # As Kubernetes does when a job is deleted.
        os.kill(int(run.tags[PID]), signal.SIGTERM)
        return True

    def _start(
        self,
        context: LaunchRunContext | ResumeRunContext,
        arguments: type[ExecuteRunArgs] | type[ResumeRunArgs],
    ) -> None:
        run_id = context.dagster_run.run_id
        origin = context.job_code_origin
        assert origin is not None
        command: Sequence[str] = arguments(
            job_origin=origin,
            run_id=run_id,
            instance_ref=self._instance.get_ref(),
            set_exit_code_on_failure=True,
        ).get_command_args()
        self._workers[run_id] = worker = subprocess.Popen(command)
        self._instance.add_run_tags(run_id, {PID: str(worker.pid)})
