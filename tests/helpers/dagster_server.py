"""A real Dagster webserver, driven over GraphQL as the UI drives it, and ``dagster dev``."""

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.processes import answers, free_port, running_process, wait_until


@dataclass(frozen=True)
class DagsterServer:
    """A running webserver."""

    url: str
    home: Path
    log: Path

    def answers(self) -> bool:
        """Whether it is there."""
        return answers(f"{self.url}/server_info")

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

    def launch(
        self,
        job: str,
        config: Mapping[str, Any] | None = None,
        *,
        location: str | None = None,
        assets: Sequence[str] = (),
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Launch a job, as the launchpad does; returns the run's id.

        Args:
            job: its name.
            config: the run's config.
            location: the job's code location; the only one when None.
            assets: keys of the assets to select; all when empty.
            tags: the run's tags.
        """
        nodes = self.query(
            "{ repositoriesOrError { ... on RepositoryConnection "
            "{ nodes { name location { name } } } } }"
        )["repositoriesOrError"]["nodes"]
        [repository] = [
            node for node in nodes if location is None or node["location"]["name"] == location
        ]
        selection = [{"path": key.split("/")} for key in assets]
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
                    **(
                        {"assetSelection": selection, "assetCheckSelection": []}
                        if selection
                        else {}
                    ),
                },
                "runConfigData": dict(config or {}),
                "executionMetadata": {
                    "tags": [{"key": key, "value": value} for key, value in (tags or {}).items()]
                },
            },
        )["launchRun"]
        return _launched(answer)

    def backfill(self, assets: Sequence[str], partitions: Sequence[str]) -> None:
        """Launch a backfill, as the dialog "Materialize" does.

        Args:
            assets: keys of the assets.
            partitions: keys of the partitions.
        """
        answer = self.query(
            """
            mutation($params: LaunchBackfillParams!) {
              launchPartitionBackfill(backfillParams: $params) {
                __typename
                ... on PythonError { message }
              }
            }
            """,
            params={
                "assetSelection": [{"path": key.split("/")} for key in assets],
                "partitionNames": list(partitions),
            },
        )["launchPartitionBackfill"]
        if answer["__typename"] != "LaunchBackfillSuccess":
            raise RuntimeError(f"not launched: {answer}")

    def reexecute(self, run_id: str) -> str:
        """Re-execute a run from its failure, as the UI's button does; returns the new run's id."""
        answer = self.query(
            """
            mutation($params: ReexecutionParams!) {
              launchRunReexecution(reexecutionParams: $params) {
                __typename
                ... on LaunchRunSuccess { run { runId } }
                ... on PythonError { message }
              }
            }
            """,
            params={"parentRunId": run_id, "strategy": "FROM_FAILURE"},
        )["launchRunReexecution"]
        return _launched(answer)

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
        # Every question costs the webserver some work.
        wait_until(lambda: self.status(run_id) in ended, f"run {run_id} to end", every_s=0.25)
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
    port = free_port()
    server = DagsterServer(f"http://127.0.0.1:{port}", home, home / "server.log")
    command = (
        *(sys.executable, "-m", "dagster", "dev"),
        *("-w" if definitions.suffix == ".yaml" else "-f", str(definitions)),
        *("-h", "127.0.0.1", "-p", str(port)),
    )
    variables["DAGSTER_HOME"] = str(home)
    with running_process(command, server.log, folder=folder, **variables) as process:
        process.wait(server.answers)
        yield server


def _launched(answer: dict[str, Any]) -> str:
    if answer["__typename"] != "LaunchRunSuccess":
        raise RuntimeError(f"not launched: {answer}")
    run_id: str = answer["run"]["runId"]
    return run_id
