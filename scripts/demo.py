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
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import dagster as dg

from marin_dagster.cache import OutputDir, read_record

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "example_project" / "src"))

from language_reference.definitions import defs

ROOT = Path(__file__).resolve().parents[1]
QUIET = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}


def main() -> int:
    """Run the job once; returns the exit code."""
    print("Loading the example pipeline, and launching a run of it ...", flush=True)
    paths = _output_paths()
    counts: Counter[str] = Counter()
    with dg.DagsterInstance.get() as instance:
        run_id = _launch(instance, "materialize_steps")
        print(f"\n{'step':<20} {'':<8} {'seconds':>8}  path", flush=True)
        for event in _events(instance, run_id):
            if (row := _row(event)) and event.asset_key:
                what, seconds = row
                counts[what] += 1
                name = event.asset_key.to_user_string()
                print(f"{name:<20} {what:<8} {seconds:>8}  {paths[name]}", flush=True)
        run = instance.get_run_by_id(run_id)
    print(f"\n{counts['ran']} ran, {counts['cached']} cached, of {len(paths)} steps")
    if run is None or not run.is_success:
        print("The run failed; `make ui` shows why.", file=sys.stderr)
        return 1
    _print_numbers(paths["evaluate"])
    print(f"\nReport: {paths['report']}/report.md\n`make ui` shows the same in Dagster.")
    return 0


def _launch(instance: dg.DagsterInstance, job: str) -> str:
    """Launch a job of the workspace; returns the run's id."""
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
    if launched.returncode != 0 or instance.get_run_by_id(run_id) is None:
        sys.exit(f"{launched.stdout}\nDagster could not launch {job}.")
    return run_id


def _events(instance: dg.DagsterInstance, run_id: str) -> Iterator[dg.DagsterEvent]:
    """The events of a run as they come, until it has ended."""
    cursor = None
    while True:
        run = instance.get_run_by_id(run_id)
        found = instance.get_records_for_run(run_id, cursor=cursor)
        cursor = found.cursor
        for record in found.records:
            if event := record.event_log_entry.dagster_event:
                yield event
        if run is None or (run.is_finished and not found.records):
            return
        time.sleep(0.2)


def _output_paths() -> dict[str, str]:
    """Each step's output path, by its asset's name."""
    definitions = [asset for asset in defs.assets or () if isinstance(asset, dg.AssetsDefinition)]
    return {
        asset.key.to_user_string(): str(asset.get_asset_spec().metadata["dagster/uri"])
        for asset in definitions
    }


def _row(event: dg.DagsterEvent) -> tuple[str, str] | None:
    """What the run did with a step, and in how many seconds; None for other events."""
    if event.event_type_value == "ASSET_OBSERVATION":
        return "cached", ""
    if event.event_type_value != "ASSET_MATERIALIZATION":
        return None
    metadata = event.step_materialization_data.materialization.metadata
    if metadata["marin/cache"].value == "hit":
        return "cached", ""
    return "ran", f"{metadata['marin/duration_s'].value:.2f}"


def _print_numbers(evaluation: str) -> None:
    record = read_record(OutputDir.at(evaluation))
    numbers = record.result if record and record.result else {}
    print("\nperplexity of the held-out text (random guesses: the vocabulary's size)")
    for name, value in numbers.items():
        measure, _, model = name.partition("/")
        if measure == "val_perplexity":
            train = numbers[f"train_perplexity/{model}"]
            print(f"  {model:<10} {value:>7.1f}   (training text: {train:.1f})")


if __name__ == "__main__":
    sys.exit(main())
