"""Builds the example pipeline through Dagster, and shows what ran and what came out.

The run is recorded in the instance of ``DAGSTER_HOME`` and the outputs lie below ``MARIN_PREFIX``;
``make demo`` sets both.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from marin_dagster.cache import Folder, read_record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example_project" / "src"))

from language_reference.definitions import defs

QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


def materialize_steps() -> dg.JobDefinition:
    """The example's job, found again by Dagster through this function."""
    return defs.resolve_job_def("materialize_steps")


def main() -> int:
    """Run the job once; returns the exit code."""
    with dg.DagsterInstance.get() as instance:
        result = dg.execute_job(
            dg.reconstructable(materialize_steps), instance=instance, run_config=QUIET
        )
        rows = _rows(result.all_events)
    print(f"\n{'step':<20} {'':<8} {'seconds':>8}  path")
    for name, (what, seconds, path) in rows.items():
        print(f"{name:<20} {what:<8} {seconds:>8}  {path}")
    counts = [what for what, _, _ in rows.values()]
    print(f"\n{counts.count('ran')} ran, {counts.count('cached')} cached, of {len(counts)} steps")
    if not result.success:
        print("The run failed; `make ui` shows why.", file=sys.stderr)
        return 1
    _print_numbers(rows)
    print(f"\nReport: {rows['report'][2]}/report.md\n`make ui` shows the same in Dagster.")
    return 0


def _rows(events: Sequence[dg.DagsterEvent]) -> dict[str, tuple[str, str, str]]:
    """For each step in the graph's order: what became of it, seconds, and its output path."""
    definitions = [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)]
    specs = {asset.key: asset.get_asset_spec() for asset in definitions}
    found: dict[dg.AssetKey, tuple[str, str]] = {}
    for event in events:
        key = event.asset_key
        if key is None:
            continue
        if event.event_type_value == "ASSET_OBSERVATION":
            found[key] = ("cached", "")
        elif event.event_type_value == "ASSET_MATERIALIZATION":
            metadata = event.step_materialization_data.materialization.metadata
            if metadata["marin/cache"].value == "hit":
                found[key] = ("cached", "")
            else:
                found[key] = ("ran", f"{metadata['marin/duration_s'].value:.2f}")
    return {
        key.to_user_string(): (
            *found.get(key, ("not run", "")),
            str(specs[key].metadata["dagster/uri"]),
        )
        for key in specs
    }


def _print_numbers(rows: dict[str, tuple[str, str, str]]) -> None:
    record = read_record(Folder.at(rows["evaluate"][2]))
    numbers = record.result if record and record.result else {}
    print("\nperplexity of the held-out text (a model that knows nothing: the vocabulary's size)")
    for name, value in numbers.items():
        measure, _, model = name.partition("/")
        if measure == "val_perplexity":
            train = numbers[f"train_perplexity/{model}"]
            print(f"  {model:<10} {value:>7.1f}   (training text: {train:.1f})")


if __name__ == "__main__":
    sys.exit(main())
