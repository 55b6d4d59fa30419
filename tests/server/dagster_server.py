"""A real Dagster deployment in one process group, driven over GraphQL as the UI drives it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 120
"""Guard against a hang; no test waits this long when things work."""


@dataclass(frozen=True)
class DagsterServer:
    """A running ``dagster dev`` with one code location."""

    url: str
    home: Path
    log: Path

    def query(self, text: str, **variables: Any) -> dict[str, Any]:
        """Ask GraphQL; an error in the answer raises."""
        request = urllib.request.Request(
            f"{self.url}/graphql",
            data=json.dumps({"query": text, "variables": variables}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            document = json.load(answer)
        if "errors" in document:
            raise RuntimeError(f"GraphQL: {document['errors']}")
        data: dict[str, Any] = document["data"]
        return data

    def runs(self) -> list[str]:
        """Ids of the runs, the newest first."""
        answer = self.query("{ runsOrError { ... on Runs { results { runId } } } }")["runsOrError"]
        return [run["runId"] for run in answer["results"]]

    def launch(self, job: str, config: Mapping[str, Any] | None = None) -> str:
        """Launch a job, as the launchpad does; returns the run's id."""
        repository = self.query(
            "{ repositoriesOrError { ... on RepositoryConnection "
            "{ nodes { name location { name } } } } }"
        )["repositoriesOrError"]["nodes"][0]
        answer = self.query(
            """
            mutation($params: ExecutionParams!) {
              launchRun(executionParams: $params) {
                __typename
                ... on LaunchRunSuccess { run { runId } }
                ... on PythonError { message }
                ... on RunConfigValidationInvalid { errors { message } }
              }
            }
            """,
            params={
                "selector": {
                    "repositoryName": repository["name"],
                    "repositoryLocationName": repository["location"]["name"],
                    "jobName": job,
                },
                "runConfigData": dict(config or {}),
            },
        )["launchRun"]
        if answer["__typename"] != "LaunchRunSuccess":
            raise RuntimeError(f"not launched: {answer}")
        run_id: str = answer["run"]["runId"]
        return run_id

    def terminate(self, run_id: str) -> None:
        """Terminate a run safely, as the UI's button does."""
        answer = self.query(
            "mutation($id: String!) { terminateRun(runId: $id) { __typename } }", id=run_id
        )["terminateRun"]
        if answer["__typename"] != "TerminateRunSuccess":
            raise RuntimeError(f"not terminated: {answer}")

    def status(self, run_id: str) -> str:
        """The run's status, such as ``SUCCESS``."""
        answer = self.query(
            "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }", id=run_id
        )
        status: str = answer["runOrError"]["status"]
        return status

    def wait(self, run_id: str) -> str:
        """Wait until the run has ended; returns its status."""
        ended = ("SUCCESS", "FAILURE", "CANCELED")
        wait_until(lambda: self.status(run_id) in ended, f"run {run_id} to end")
        return self.status(run_id)

    def events(self, run_id: str) -> list[dict[str, Any]]:
        """The run's events: type, step key, message, time in milliseconds."""
        answer = self.query(
            """
            query($id: ID!) {
              logsForRun(runId: $id) {
                ... on EventConnection {
                  events {
                    __typename
                    ... on MessageEvent { stepKey message timestamp }
                    ... on LogsCapturedEvent { fileKey stepKeys }
                  }
                }
              }
            }
            """,
            id=run_id,
        )
        events: list[dict[str, Any]] = answer["logsForRun"]["events"]
        return events

    def logs(self, run_id: str, file_key: str) -> tuple[str, str]:
        """``(stdout, stderr)`` of a step's compute log, as the step's page shows them."""
        answer = self.query(
            "query($key: [String!]!) { capturedLogs(logKey: $key) { stdout stderr } }",
            key=[run_id, "compute_logs", file_key],
        )["capturedLogs"]
        return answer["stdout"] or "", answer["stderr"] or ""


def wait_until(holds: Any, what: str) -> None:
    """Wait until ``holds()`` is true."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {DEADLINE_S} s for {what}")
        time.sleep(0.05)


DIRECTLY = """\
telemetry: {enabled: false}
run_coordinator: {module: dagster._core.run_coordinator, class: DefaultRunCoordinator}
"""
"""Settings of an instance that starts runs itself; without them, the daemon takes its time."""


@contextmanager
def running_server(
    home: Path,
    definitions: Path,
    *,
    settings: str = DIRECTLY,
    folder: Path | None = None,
    **variables: str,
) -> Iterator[DagsterServer]:
    """Start ``dagster dev``, and stop all of it afterwards.

    Args:
        home: folder for the instance.
        definitions: Python file with the code location, or workspace file with several.
        settings: the instance's ``dagster.yaml``.
        folder: where the command is given; by default, here.
        variables: environment variables for the code server and its runs.
    """
    home.mkdir(parents=True, exist_ok=True)
    home.joinpath("dagster.yaml").write_text(settings)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = home / "server.log"
    option = "-w" if definitions.suffix == ".yaml" else "-f"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "dagster", "dev", option, str(definitions)),
                *("-h", "127.0.0.1", "-p", str(port)),
            ],
            cwd=folder,
            env={**os.environ, **variables, "DAGSTER_HOME": str(home)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: server.poll() is not None or _answers(url), "the server to answer")
        if server.poll() is not None:
            raise RuntimeError(f"the server ended:\n{log.read_text()}")
        yield DagsterServer(url, home, log)
    finally:
        os.killpg(server.pid, signal.SIGINT)
        try:
            # Runs and the daemon end at once; the webserver would take a quarter of a minute.
            server.wait(timeout=4)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/server_info", timeout=2).close()
    except (OSError, urllib.error.URLError):
        return False
    return True
