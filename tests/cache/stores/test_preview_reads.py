"""What previews cost in a bucket: one listing, and one read of each file that is shown."""

from collections.abc import Callable

import dagster as dg
import pytest

from helpers.runs import metadata_of
from helpers.unsteady_proxy import DELETES, Hanging, UnsteadyProxy
from marin_dagster import MarinIOManager, StepSpec, build_marin_assets
from marin_dagster.cache import OutputDir, store
from marin_dagster.events.metadata_keys import PREVIEW_PREFIX
from marin_dagster.events.previews import MAX_TEXT_BYTES

FILES = {
    "report.md": b"# Title",
    "scores.json": b'{"loss": 0.5}',
    "large.json": b"[" + b" " * MAX_TEXT_BYTES + b"]",
    "weights.bin": b"weights",
    "part/report.md": b"# Below",
}


def write(output_path: str) -> None:
    folder = OutputDir.at(output_path)
    for name, data in FILES.items():
        folder.write(name, data)


def materialize(previews: bool = True, build: Callable[[str], None] = write) -> dict[str, object]:
    """Build the step; the metadata of its materialization."""
    assets = build_marin_assets([StepSpec("report", fn=build)])
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize(
            assets,
            instance=instance,
            resources={"marin_io_manager": MarinIOManager(previews=previews)},
        )
    [materialization] = result.asset_materializations_for_node("report")
    return metadata_of(materialization)


def after_the_commit(proxy: UnsteadyProxy) -> list[str]:
    """Requests since the lease was given back; a listing asks for the bucket."""
    released = max(n for n, asked in enumerate(proxy.requests) if asked.endswith(DELETES))
    return [
        "LIST" if asked.startswith("GET bucket-") else asked
        for asked in proxy.requests[released + 1 :]
    ]


def shown(metadata: dict[str, object]) -> list[str]:
    return [key.removeprefix(PREVIEW_PREFIX) for key in metadata if key.startswith(PREVIEW_PREFIX)]


def test_an_output_is_listed_once_and_only_what_is_shown_is_read(proxy: UnsteadyProxy) -> None:
    metadata = materialize()

    assert after_the_commit(proxy) == ["LIST", "GET report.md", "GET scores.json"]
    assert shown(metadata) == ["report.md", "scores.json"]
    assert metadata["marin/files"] == len(FILES)
    assert metadata["marin/bytes"] == sum(map(len, FILES.values()))


def test_switched_off_they_read_nothing(proxy: UnsteadyProxy) -> None:
    metadata = materialize(previews=False)

    assert after_the_commit(proxy) == ["LIST"]
    assert shown(metadata) == []
    assert metadata["marin/files"] == len(FILES)


def test_a_store_that_hangs_costs_one_patience_and_no_step(
    proxy: UnsteadyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_and_strike(output_path: str) -> None:
        write(output_path)
        monkeypatch.setattr(store, "_PATIENCE_S", 2.0)
        proxy.strike(Hanging("GET", file="report.md"))

    metadata = materialize(build=write_and_strike)
    proxy.recover()

    assert shown(metadata) == []
    assert "GET scores.json" not in proxy.requests
    assert metadata["marin/files"] == len(FILES)
