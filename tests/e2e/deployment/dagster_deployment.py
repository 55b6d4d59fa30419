"""A deployment as teams have it: PostgreSQL, code servers, a webserver and a daemon, each in a
process of its own."""

import json
import pickle
import re
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from steps_location import NOTES

from helpers.dagster_server import DagsterServer
from helpers.processes import Process, free_port, running_process

HERE = Path(__file__).parent
LOCATIONS = {"steps": HERE / "steps_location.py", "reports": HERE / "reports_location.py"}
SETTINGS = {
    "telemetry": {"enabled": False},
    "run_coordinator": {
        "module": "dagster.core.run_coordinator",
        "class": "QueuedRunCoordinator",
        "config": {"dequeue_interval_seconds": 1},
    },
    "concurrency": {"pools": {"default_limit": 1, "granularity": "op"}},
    "run_retries": {"enabled": True},
    "run_launcher": {"module": "process_launcher", "class": "ProcessRunLauncher"},
    "run_monitoring": {
        "enabled": True,
        "poll_interval_seconds": 1,
        "max_resume_run_attempts": 1,
        "free_slots_after_run_end_seconds": 1,
    },
}


@dataclass(frozen=True)
class Deployment:
    """The running processes."""

    server: DagsterServer
    instance: dg.DagsterInstance
    """The same storage, for this process."""
    store: Path
    """Where the steps' outputs are."""
    notes: Path
    """Where the steps note their calls."""

    def launch(self, job: str, location: str = "steps", **options: Any) -> str:
        """:meth:`DagsterServer.launch`."""
        return self.server.launch(job, location=location, **options)

    def run(self, job: str, location: str = "steps", **options: Any) -> str:
        """Launch a job that must succeed; returns the run's id."""
        run_id = self.launch(job, location, **options)
        assert self.server.wait(run_id) == "SUCCESS", self.story(run_id)
        return run_id

    def events(self, run_id: str) -> list[dg.DagsterEvent]:
        """The run's events, as the storage has them."""
        logs = self.instance.all_logs(run_id)
        return [entry.dagster_event for entry in logs if entry.dagster_event is not None]

    def steps(self, run_id: str, kind: str) -> list[str]:
        """Step keys of the run's events of one type, sorted."""
        return sorted(
            event.step_key
            for event in self.events(run_id)
            if event.event_type_value == kind and event.step_key
        )

    def worker(self, run_id: str) -> int:
        """Process id of the run's latest worker."""
        story = self.story(run_id)
        return int(re.findall(r"Started process for .*\(pid: (\d+)\)", story)[-1])

    def story(self, run_id: str) -> str:
        """Everything that the run logs."""
        return "\n".join(
            f"{entry.step_key or ''} {entry.get_dagster_event().event_type_value}: {entry.message}"
            if entry.is_dagster_event
            else f"{entry.step_key or ''}: {entry.user_message}"
            for entry in self.instance.all_logs(run_id)
        )

    def calls(self, *steps: str) -> dict[str, int]:
        """How often each of the steps was called."""
        file = self.notes / "calls"
        names = file.read_text().split() if file.exists() else []
        return {step: names.count(step) for step in steps}

    def let_go(self, step: str) -> None:
        """Let a step go on that waits."""
        self.notes.joinpath(f"{step}.go").touch()

    def output(self, step: str) -> Path:
        """The output folder of a step, when it has one."""
        return next(self.store.glob(f"{step}_????????"), self.store / "none")

    def is_locked(self, step: str) -> bool:
        """Whether somebody has the lease of a step's output."""
        return self.output(step).joinpath(".executor_status.lock").exists()

    def status_of(self, step: str) -> str | None:
        """The status file of a step's output."""
        file = self.output(step) / ".executor_status"
        return file.read_text() if file.exists() else None

    def slots(self, pool: str) -> int:
        """How many slots of the pool are taken."""
        return self.instance.event_log_storage.get_concurrency_info(pool).active_slot_count

    def children(self, run_id: str) -> list[str]:
        """The runs that retry a run."""
        parent = {"dagster/parent_run_id": run_id}
        return [run.run_id for run in self.instance.get_runs(dg.RunsFilter(tags=parent))]

    def value(self, asset: str) -> Any:
        """What an ordinary asset has stored in Dagster's own store."""
        return pickle.loads(self.server.home.joinpath("storage", asset).read_bytes())

    def stale(self, *assets: str) -> dict[str, str]:
        """The assets' freshness in the UI."""
        nodes = self.server.query(
            "query($keys: [AssetKeyInput!]!) { assetNodes(assetKeys: $keys) "
            "{ assetKey { path } staleStatus } }",
            keys=[{"path": [asset]} for asset in assets],
        )["assetNodes"]
        return {"/".join(node["assetKey"]["path"]): node["staleStatus"] for node in nodes}


def by_step(events: list[dg.DagsterEvent]) -> Mapping[str, list[str]]:
    """The types of each step's events, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for event in events:
        if event.step_key and event.event_type_value != "ENGINE_EVENT":
            found[event.step_key].append(event.event_type_value)
    return found


@contextmanager
def running_deployment(folder: Path, postgres: str) -> Iterator[Deployment]:
    """Start everything, and stop it afterwards.

    Args:
        folder: for the instance, the store and the logs.
        postgres: URL of an empty database.
    """
    home, store, notes = folder / "home", folder / "store", folder / "notes"
    for made in (home, store, notes):
        made.mkdir()
    storage = {"storage": {"postgres": {"postgres_url": postgres}}}
    # YAML has all of JSON.
    home.joinpath("dagster.yaml").write_text(json.dumps({**SETTINGS, **storage}))
    variables = {
        "DAGSTER_HOME": str(home),
        "MARIN_PREFIX": str(store),
        NOTES: str(notes),
        "PYTHONPATH": f"{HERE}:{HERE.parents[1]}",
        "DAGSTER_EVENT_LOG_CONSUMER_DAEMON_INTERVAL_SECONDS": "1",
    }
    with ExitStack() as stack, dg.DagsterInstance.from_config(str(home)) as instance:

        def start(name: str, *command: str) -> Process:
            module = (sys.executable, "-m", *command)
            return stack.enter_context(running_process(module, folder / f"{name}.log", **variables))

        ports = {name: free_port() for name in LOCATIONS}
        code_servers = {
            name: start(
                name,
                *("dagster", "api", "grpc", "-f", str(file)),
                *("-h", "127.0.0.1", "-p", str(ports[name]), "--location-name", name),
                "--use-python-environment-entry-point",
            )
            for name, file in LOCATIONS.items()
        }
        for name, code_server in code_servers.items():
            code_server.wait(lambda port=ports[name]: _listens(port))
        workspace = folder / "workspace.yaml"
        locations = [
            {"grpc_server": {"host": "127.0.0.1", "port": port, "location_name": name}}
            for name, port in ports.items()
        ]
        workspace.write_text(json.dumps({"load_from": locations}))
        port, log = free_port(), folder / "webserver.log"
        server = DagsterServer(f"http://127.0.0.1:{port}", home, log)
        webserver = start(
            "webserver",
            *("dagster_webserver", "-w", str(workspace), "-h", "127.0.0.1", "-p", str(port)),
        )
        start("daemon", "dagster._daemon", "run", "-w", str(workspace))
        webserver.wait(server.answers)
        yield Deployment(server, instance, store, notes)


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
