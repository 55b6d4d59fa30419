"""What becomes of a step looks the same wherever it runs, and whichever executor runs it."""

import getpass
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers import outcome_jobs
from helpers.runs import metadata_of

OUTCOMES = {
    "STEP_START",
    "STEP_OUTPUT",
    "ASSET_MATERIALIZATION",
    "ASSET_OBSERVATION",
    "ASSET_CHECK_EVALUATION",
    "HANDLED_OUTPUT",
    "STEP_SUCCESS",
    "STEP_FAILURE",
    "STEP_SKIPPED",
    "STEP_UP_FOR_RETRY",
    "STEP_RESTARTED",
}
"""Events of a step's outcome; the others are of the machinery that ran it."""
OF_THE_DAY = {"marin/duration_s", "marin/built_at", "marin/output_path", "marin/commit"}
OF_THE_RUNNER = {"marin/runner", "marin/job"}

Story = list[tuple[str, dict[str, Any]]]

CHECKED: tuple[str, dict[str, Any]] = ("ASSET_CHECK_EVALUATION", {})


def materialized(**cache: Any) -> Story:
    """The events of a step that is built, or served as if it were."""
    output = {"marin/files": 2, "marin/bytes": 11, "marin/preview/page.md": "# Page"}
    metadata = {f"marin/{name}": value for name, value in cache.items()}
    return [
        ("STEP_START", {}),
        ("STEP_OUTPUT", {}),
        ("ASSET_MATERIALIZATION", {**output, **metadata}),
        ("HANDLED_OUTPUT", {}),
        ("STEP_OUTPUT", {}),
        CHECKED,
        ("STEP_SUCCESS", {}),
    ]


FIRST = materialized(cache="built", reason="First build")
AGAIN = materialized(cache="built", reason="Its output was removed from the store")
HIT = materialized(cache="hit", reason="Nothing ran", built_by=getpass.getuser())
OBSERVED = [
    ("STEP_START", {}),
    ("ASSET_OBSERVATION", {"marin/cache": "hit", "marin/reason": "Nothing ran"}),
    CHECKED,
    ("STEP_SUCCESS", {}),
]
FAILED = [("STEP_START", {}), ("STEP_FAILURE", {})]
SKIPPED = [("STEP_SKIPPED", {}), CHECKED]

EVERYWHERE = {"fresh": FIRST, "found": HIT, "broken": FAILED, "below": []}
"""Ran, cached, failed, and upstream-failed."""
UNDER_OURS = {"gone": SKIPPED, "known": OBSERVED}
UNDER_THEIRS = {"gone": AGAIN, "known": HIT}
"""They start every op that is selected, and every op materializes its asset."""

LAST_WORDS = "Dependencies for step below failed: ['broken']. Not executing."


@dataclass(frozen=True)
class Reported:
    """What a run reported of its steps."""

    stories: dict[str, Story]
    """Of each step: its events, with our metadata, in order."""
    runners: dict[str, str]
    """Which runner built what, by the events."""
    last_words: list[str]
    """The log's line about the step below the one that failed."""


@pytest.fixture
def sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """An instance that other processes can open, too."""
    home = tmp_path / "dagster"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    # Where other processes find what this one imports.
    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", str(tests))
    with dg.DagsterInstance.get() as instance:
        yield instance


def build(instance: dg.DagsterInstance, *names: str) -> None:
    keys = [dg.AssetKey(name) for name in names]
    job = outcome_jobs.loadable("in process")
    with dg.execute_job(job, instance, asset_selection=keys) as result:
        assert result.success


def run(way: str, instance: dg.DagsterInstance) -> Reported:
    """A run in which every outcome occurs.

    ``known`` is in the cache and materialized in the instance, ``found`` is in the cache only, and
    ``gone`` is in the cache no more.
    """
    build(instance, "gone", "known")
    with dg.DagsterInstance.ephemeral() as elsewhere:
        build(elsewhere, "found")
    [known] = outcome_jobs.steps(None)[0].deps
    shutil.rmtree(known.deps[0].output_path)
    with dg.execute_job(outcome_jobs.loadable(way), instance) as result:
        assert not result.success
        run_id, events = result.run_id, result.all_events
    stories: dict[str, Story] = {"below": []}
    runners = {}
    for event in events:
        if event.step_key and event.event_type_value in OUTCOMES:
            metadata = our_metadata(event)
            if "marin/runner" in metadata:
                runners[event.step_key] = metadata["marin/runner"]
            if "marin/reason" in metadata:
                # What follows names the step, or a time.
                metadata["marin/reason"] = re.split("[:;]", metadata["marin/reason"])[0]
            own = {key: metadata[key] for key in metadata.keys() - OF_THE_DAY - OF_THE_RUNNER}
            stories.setdefault(event.step_key, []).append((event.event_type_value, own))
    last_words = [log.user_message for log in instance.all_logs(run_id) if log.step_key == "below"]
    return Reported(stories, runners, [words for words in last_words if "Dependencies" in words])


def our_metadata(event: dg.DagsterEvent) -> dict[str, Any]:
    if event.event_type_value == "ASSET_MATERIALIZATION":
        return metadata_of(event.step_materialization_data.materialization)
    if event.event_type_value == "ASSET_OBSERVATION":
        observation = event.asset_observation_data.asset_observation
        return {key: value.value for key, value in observation.metadata.items()}
    if event.event_type_value == "STEP_FAILURE":
        # Whatever carries it, what the function printed arrives.
        assert outcome_jobs.FAILURE in str(event.step_failure_data.error)
    return {}


@pytest.mark.parametrize(
    ("way", "runner"), [("threads", None), ("process", "process"), ("engine", "engine")]
)
def test_under_our_executor_the_events_are_the_same_wherever_a_step_runs(
    way: str, runner: str | None, sqlite: dg.DagsterInstance
) -> None:
    reported = run(way, sqlite)

    assert reported.stories == {**EVERYWHERE, **UNDER_OURS}
    assert reported.runners == ({"fresh": runner} if runner else {})
    assert reported.last_words == [LAST_WORDS]


@pytest.mark.parametrize("way", ["in process", "multiprocess"])
def test_under_dagsters_executors_they_differ_for_what_would_not_have_started_only(
    way: str, sqlite: dg.DagsterInstance
) -> None:
    reported = run(way, sqlite)

    assert reported.stories == {**EVERYWHERE, **UNDER_THEIRS}
    assert reported.last_words == [LAST_WORDS]
