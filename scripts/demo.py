"""Builds the example pipeline through Dagster, and prints what ran and the results.

The run is launched from ``workspace.yaml``, as the UI launches it, so that it belongs to the code
location that ``make ui`` shows. It is recorded in the instance of ``DAGSTER_HOME``, which must
start runs itself (as ``scripts/demo-instance.yaml`` does). Outputs go to ``MARIN_PREFIX``.
``make demo`` sets both.
"""

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

import dagster as dg

from marin_dagster.cache import OutputDir, read_record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example_project" / "src"))

from language_reference.definitions import defs

ROOT = Path(__file__).resolve().parents[1]
QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


def main() -> int:
    """Run the job once; returns the exit code."""
    print("Building the example pipeline ...", flush=True)
    with dg.DagsterInstance.get() as instance:
        run = _run_job(instance, "materialize_steps")
        logged = (entry.dagster_event for entry in instance.all_logs(run.run_id))
        rows = _rows(event for event in logged if event)
    print(f"\n{'step':<20} {'':<8} {'seconds':>8}  path")
    for name, (what, seconds, path) in rows.items():
        print(f"{name:<20} {what:<8} {seconds:>8}  {path}")
    counts = [what for what, _, _ in rows.values()]
    print(f"\n{counts.count('ran')} ran, {counts.count('cached')} cached, of {len(counts)} steps")
    if not run.is_success:
        print("The run failed; `make ui` shows why.", file=sys.stderr)
        return 1
    _print_numbers(rows)
    print(f"\nReport: {rows['report'][2]}/report.md\n`make ui` shows the same in Dagster.")
    return 0


def _run_job(instance: dg.DagsterInstance, job: str) -> dg.DagsterRun:
    """Launch a job of the workspace, and wait until its run has ended."""
    run_id = str(uuid.uuid4())
    launched = subprocess.run(
        [
            *(sys.executable, "-m", "dagster", "job", "launch"),
            *("-w", "workspace.yaml", "-j", job, "--run-id", run_id),
            *("--config-json", json.dumps(QUIET)),
        ],
        cwd=ROOT,
        check=False,
        # Lines of the code server are among it; they matter only when the launch fails.
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    run = instance.get_run_by_id(run_id)
    while launched.returncode == 0 and run is not None and not run.is_finished:
        time.sleep(0.2)
        run = instance.get_run_by_id(run_id)
    if run is None or not run.is_success:
        print(launched.stdout, file=sys.stderr)
    return run or sys.exit(f"Dagster could not launch {job}.")


def _rows(events: Iterable[dg.DagsterEvent]) -> dict[str, tuple[str, str, str]]:
    """For each step in the graph's order: what the run did with it, seconds, output path."""
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
    record = read_record(OutputDir.at(rows["evaluate"][2]))
    numbers = record.result if record and record.result else {}
    print("\nperplexity of the held-out text (random guesses: the vocabulary's size)")
    for name, value in numbers.items():
        measure, _, model = name.partition("/")
        if measure == "val_perplexity":
            train = numbers[f"train_perplexity/{model}"]
            print(f"  {model:<10} {value:>7.1f}   (training text: {train:.1f})")


if __name__ == "__main__":
    sys.exit(main())
