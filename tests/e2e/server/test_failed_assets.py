"""What the UI calls failed after a run of which part fails, asked as the UI asks."""

import shutil
from pathlib import Path
from typing import Any

from helpers.dagster_server import DagsterServer

LOCATION = Path(__file__).with_name("failing_location.py")


def latest(server: DagsterServer, *names: str) -> dict[str, dict[str, Any]]:
    """What the asset graph knows of each asset."""
    answer = server.query(
        """
        query($keys: [AssetKeyInput!]!) {
          assetsLatestInfo(assetKeys: $keys) {
            assetKey { path }
            latestMaterialization { runId timestamp }
            latestRun { id status endTime }
            unstartedRunIds
            inProgressRunIds
          }
        }
        """,
        keys=[{"path": [name]} for name in names],
    )["assetsLatestInfo"]
    return {info["assetKey"]["path"][0]: info for info in answer}


def looks_failed(info: dict[str, Any]) -> bool:
    """The rule by which the asset graph paints an asset red."""
    run, built = info["latestRun"], info["latestMaterialization"]
    if run is None or run["status"] != "FAILURE":
        return False
    return built is None or (
        built["runId"] != run["id"] and float(built["timestamp"]) <= 1000 * run["endTime"]
    )


def test_only_what_failed_is_red(server: DagsterServer, store: Path) -> None:
    names = ("raw", "ready", "broken", "below")
    first = server.launch("part")
    assert server.wait(first) == "SUCCESS"
    [raw] = store.glob("raw_????????")
    shutil.rmtree(raw)

    run = server.launch("everything")

    assert server.wait(run) == "FAILURE"
    events = {(event["__typename"], event.get("stepKey")) for event in server.events(run)}
    assert ("ExecutionStepSkippedEvent", "raw") in events
    assert ("ObservationEvent", "ready") in events
    infos = latest(server, *names)
    assert [name for name in names if looks_failed(infos[name])] == ["broken", "below"]
    for name in ("raw", "ready"):
        assert infos[name]["latestMaterialization"]["runId"] == first
        assert not infos[name]["unstartedRunIds"] + infos[name]["inProgressRunIds"]


def test_force_with_an_unknown_name_makes_nothing_red(server: DagsterServer) -> None:
    names = ("raw", "ready", "broken", "below")
    assert server.wait(server.launch("part")) == "SUCCESS"
    before = latest(server, *names)
    force = {"execution": {"config": {"force": ["redy"]}}}

    run = server.launch("everything", force)

    assert server.wait(run) == "FAILURE"
    infos = latest(server, *names)
    assert [name for name in names if looks_failed(infos[name])] == []
    for name in names:
        built = before[name]["latestMaterialization"]
        assert infos[name]["latestMaterialization"] == built
        assert not infos[name]["unstartedRunIds"] + infos[name]["inProgressRunIds"]
    answer = server.query(
        """
        query($id: ID!) {
          logsForRun(runId: $id) {
            ... on EventConnection {
              events { ... on RunFailureEvent { error { message } } }
            }
          }
        }
        """,
        id=run,
    )["logsForRun"]
    [message] = [event["error"]["message"] for event in answer["events"] if event]
    assert "force names 'redy', but this run has no such step. Did you mean 'ready'" in message
