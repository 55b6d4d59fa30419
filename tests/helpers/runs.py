"""Runs a job through ``marin_executor`` and reads the run's events, for tests with Dagster."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.loader import LoadingContextForTest

from marin_dagster import StepSpec

DATA = Path(__file__).parents[1] / "data"

JOB = "materialize_steps"


class Recorder:
    """Makes step functions and remembers, in order, which of them ran."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def step(
        self, name: str, *deps: Any, result: Any = None, fails: bool = False, **fields: Any
    ) -> StepSpec:
        """A step that writes ``data.txt`` and notes its name; ``fails`` after writing."""

        def build(output_path: str) -> Any:
            self.calls.append(name)
            Path(output_path, "data.txt").write_text(name)
            if fails:
                raise RuntimeError(f"{name} fails on purpose")
            return result

        return StepSpec(name, deps=deps, fn=build, **fields)

    def take(self) -> list[str]:
        """The names noted since the last call."""
        calls, self.calls = self.calls, []
        return calls


@dataclass(frozen=True)
class Run:
    """A finished run."""

    success: bool
    events: list[dg.DagsterEvent]
    run_id: str

    def of_type(self, kind: str) -> list[dg.DagsterEvent]:
        """Events of one type, such as ``STEP_SKIPPED``."""
        return [event for event in self.events if event.event_type_value == kind]

    def steps(self, kind: str) -> list[str]:
        """Step keys of the events of one type, sorted."""
        return sorted(event.step_key for event in self.of_type(kind) if event.step_key)

    def materialized(self) -> dict[str, dg.AssetMaterialization]:
        """The run's materializations by asset key."""
        return {
            event.asset_key.to_user_string(): event.step_materialization_data.materialization
            for event in self.of_type("ASSET_MATERIALIZATION")
            if event.asset_key
        }

    def observed(self) -> list[str]:
        """Keys of the assets that were observed, sorted."""
        return sorted(
            event.asset_key.to_user_string()
            for event in self.of_type("ASSET_OBSERVATION")
            if event.asset_key
        )

    def skipped(self) -> dict[str, str]:
        """Step keys that were skipped, and why."""
        return {event.step_key: event.message or "" for event in self.of_type("STEP_SKIPPED")}

    def error(self, step_key: str) -> str:
        """The whole error text, causes included, of a failed step."""
        for event in self.of_type("STEP_FAILURE"):
            if event.step_key == step_key:
                return str(event.step_failure_data.error)
        raise AssertionError(f"{step_key} has not failed")


def metadata_of(materialization: dg.AssetMaterialization) -> dict[str, Any]:
    """A materialization's metadata as plain values."""
    return {key: value.value for key, value in materialization.metadata.items()}


def status_of(step: Any) -> str | None:
    """A local output's status file; None when there is none."""
    file = Path(step.output_path, ".executor_status")
    return file.read_text() if file.exists() else None


def files_of(step: Any) -> dict[str, bytes]:
    """The files of a local output, hidden ones included, and what they hold."""
    folder = Path(step.output_path)
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }


def is_locked(step: Any) -> bool:
    """Whether a local output has a lock file."""
    return Path(step.output_path, ".executor_status.lock").exists()


def wait_for_step_threads() -> None:
    """Wait until the threads of steps that a run has left behind have ended."""
    for thread in threading.enumerate():
        if thread.name.startswith("marin-step-"):
            thread.join(60)
            assert not thread.is_alive(), thread.name


def _partition_tags(
    job: dg.JobDefinition, partition: str | tuple[str, str] | None
) -> Mapping[str, str]:
    if partition is None:
        return {}
    if isinstance(partition, tuple):
        first, last = partition
        return {
            "dagster/asset_partition_range_start": first,
            "dagster/asset_partition_range_end": last,
        }
    definition = job.partitions_def
    assert definition is not None
    if isinstance(definition, dg.MultiPartitionsDefinition):
        partition = definition.get_partition_key_from_str(partition)
    return definition.get_tags_for_partition_key(partition)


def stale_status(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    name: str,
    partition: str | None = None,
) -> str:
    """What Dagster calls an asset, or a partition of it: ``FRESH``, ``STALE`` or ``MISSING``."""
    resolver = CachingStaleStatusResolver(
        instance, definitions.resolve_asset_graph(), LoadingContextForTest(instance)
    )
    return resolver.get_status(dg.AssetKey.from_user_string(name), partition).value


@contextmanager
def memory_instance() -> Iterator[dg.DagsterInstance]:
    """An instance in memory that several threads can use at once.

    Older releases of Dagster do not see to that themselves: their threads find tables locked.
    """
    with dg.DagsterInstance.ephemeral() as instance:
        storage: Any = instance.event_log_storage
        connect, one_at_a_time = storage._connect, threading.RLock()

        @contextmanager
        def connect_in_turn() -> Iterator[Any]:
            with one_at_a_time, connect() as connection:
                yield connection

        storage._connect = connect_in_turn
        yield instance


def run_job(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    *,
    select: Iterable[str] | None = None,
    config: Mapping[str, Any] | None = None,
    job: str = JOB,
    checks: bool = False,
    partition: str | tuple[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
) -> Run:
    """Run a job in this process, with the executor that the job states.

    Args:
        definitions: where the job is.
        instance: where the run is recorded.
        select: asset keys, all when None.
        config: the executor's config.
        job: the job's name.
        checks: with ``select``, whether the assets' checks are selected, too.
        partition: the key of a partition, or the first and last of a range.
        tags: more tags of the run.
    """
    job_def = definitions.resolve_job_def(job)
    keys = None if select is None else {dg.AssetKey.from_user_string(key) for key in select}
    if keys is not None:
        job_def = job_def.get_subset(
            asset_selection=keys, asset_check_selection=None if checks else set()
        )
    run = instance.create_run_for_job(
        job_def=job_def,
        run_config={"execution": {"config": dict(config)}} if config else {},
        # With a selection, Dagster selects the checks again.
        asset_selection=frozenset(keys) if keys and checks else None,
        tags={**_partition_tags(job_def, partition), **(tags or {})},
    )
    result = execute_run(InMemoryJob(job_def), run, instance, raise_on_error=False)
    return Run(result.success, list(result.all_events), run.run_id)
