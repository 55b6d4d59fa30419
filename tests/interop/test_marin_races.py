"""A Marin process and one of ours want the same step at the same moment: it is built once."""

import json
import time
from collections import Counter
from pathlib import Path

import pytest
from marin.execution.step_spec import StepSpec as MarinStep
from marin_peer import is_locked, marin_status, write_file
from marin_processes import PATIENCE_S, race_with_marin, race_with_ours, spawn, start

from marin_dagster.cache import Folder, Status, read_record, read_status

pytestmark = pytest.mark.interop

ROUNDS = 60

STALE = json.dumps({"worker_id": "gone", "timestamp": time.time() - 3600})
BEFORE: list[dict[str, str]] = [
    {},
    {".executor_status": "FAILED"},
    {".executor_status": "RUNNING"},
    {".executor_status": "RUNNING", ".executor_status.lock": STALE},
    {".executor_status": "FAILED", ".executor_status.lock": ""},
]
"""What earlier workers left in the outputs, in turn."""


def test_every_step_is_built_exactly_once_and_nothing_stays_locked(tmp_path: Path) -> None:
    prefix = str(tmp_path / "store")
    steps = [MarinStep(f"step-{index}", output_path_prefix=prefix) for index in range(ROUNDS)]
    for index, step in enumerate(steps):
        for name, content in BEFORE[index % len(BEFORE)].items():
            write_file(step.output_path, name, content)

    barrier = spawn.Barrier(2)
    workers = [start(race, prefix, ROUNDS, barrier) for race in (race_with_marin, race_with_ours)]
    for worker in workers:
        worker.join(PATIENCE_S)
    assert [worker.exitcode for worker in workers] == [0, 0]

    winners: Counter[str] = Counter()
    for step in steps:
        calls = Path(step.output_path, "calls").read_text().splitlines()
        assert len(calls) == 1, f"{step.name} ran {len(calls)} times: {calls}"
        winners.update(calls)
        folder = Folder.at(step.output_path)
        record = read_record(folder)
        assert record is not None
        assert record.result == {"built_by": calls[0]}
        assert read_status(folder) is Status.SUCCESS
        assert marin_status(step.output_path) == "SUCCESS"
        assert not is_locked(step.output_path)
        assert not list(Path(step.output_path).glob("*.tmp"))
    print(f"won by {dict(winners)}")
