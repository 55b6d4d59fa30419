"""What tests of the cache sensor share: builders outside, ticks, and how Dagster sees an asset."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from helpers.runs import memory_instance, metadata_of
from marin_dagster import DagsterMarinTranslator, MarinIOManager, StepRunner, build_definitions
from marin_dagster.events.asset_records import AssetPartition

SENSOR = "materialize_steps_cache_sensor"


def build_outside(*steps: Any) -> None:
    """Build steps as another deployment does: with another instance, of which only files stay."""
    with memory_instance() as elsewhere:
        StepRunner(instance=elsewhere).run(steps)


@dataclass
class Watch:
    """A deployment whose sensor ticks on demand."""

    instance: dg.DagsterInstance
    steps: Iterable[Any] | Callable[..., Iterable[Any]]
    cursor: str | None = None
    manager: MarinIOManager = field(default_factory=MarinIOManager)
    others: tuple[Any, ...] = ()
    """Assets beside the steps."""
    translator: DagsterMarinTranslator | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of ``build_definitions``, such as ``partitions_def``."""

    @property
    def definitions(self) -> dg.Definitions:
        """The steps with their sensor, and the other assets."""
        ours = build_definitions(
            self.steps, translator=self.translator, cache_sensor=True, **self.settings
        )
        return dg.Definitions.merge(ours, dg.Definitions(assets=self.others))

    def evaluate(self) -> Any:
        """One tick, of which nothing is kept."""
        repository = self.definitions.get_repository_def()
        with dg.build_sensor_context(
            instance=self.instance,
            repository_def=repository,
            cursor=self.cursor,
            resources={"marin_io_manager": self.manager},
        ) as context:
            return repository.get_sensor_def(SENSOR).evaluate_tick(context)

    def tick(self) -> dict[str, Any]:
        """One tick, applied as the daemon does; the events by asset key, or by asset and
        partition, as in ``train [2026-11-01]``."""
        data = self.evaluate()
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        self.cursor = data.cursor
        return {
            str(AssetPartition(event.asset_key, event.partition)): event
            for event in data.asset_events
        }

    def reported(self) -> dict[str, str]:
        """One tick, applied; the events' ``marin/cache`` by asset key."""
        return {key: metadata_of(event)["marin/cache"] for key, event in self.tick().items()}

    @property
    def remembered(self) -> int:
        """How many facts the cursor holds."""
        return len(json.loads(self.cursor or "{}"))

    def stale(self, name: str) -> StaleStatus:
        """An asset's status by Dagster's own resolver."""
        resolver = CachingStaleStatusResolver(
            self.instance,
            self.definitions.resolve_asset_graph(),
            LoadingContextForTest(self.instance),
        )
        return resolver.get_status(dg.AssetKey.from_user_string(name))
