"""A Marin process and a Dagster run want the same step at the same moment: it is built once."""

import json
import time
from collections import Counter

import pytest
from marin.execution.step_spec import StepSpec as MarinStep
from marin_peer import is_locked, marin_status
from marin_processes import race_in_dagster, race_with_marin, spawn, start

from marin_dagster.cache import OutputDir, Status, read_record, read_status

pytestmark = pytest.mark.interop

ROUNDS = {"disk": 200, "s3": 60}
"""So many for each of what earlier workers left: 40, and 15 in the bucket, which is slower."""
GUARD_S = 900

STALE = json.dumps({"worker_id": "gone", "timestamp": time.time() - 3600})
BEFORE: list[dict[str, str]] = [
    {},
    {".executor_status": "FAILED"},
    {".executor_status": "RUNNING"},
    {".executor_status": "RUNNING", ".executor_status.lock": STALE},
    # The last: Marin takes an empty lock for none on disk, and cannot read it in a bucket.
    {".executor_status": "FAILED", ".executor_status.lock": ""},
]
"""What earlier workers left in the outputs, in turn."""


@pytest.mark.timeout(GUARD_S)
@pytest.mark.parametrize(("prefix", "rounds"), ROUNDS.items(), indirect=["prefix"])
def test_every_step_is_built_exactly_once_and_nothing_stays_locked(
    prefix: str, rounds: int
) -> None:
    steps = [MarinStep(f"step-{index}", output_path_prefix=prefix) for index in range(rounds)]
    for index, step in enumerate(steps):
        left = BEFORE if "://" not in prefix else BEFORE[:-1]
        for name, content in left[index % len(left)].items():
            OutputDir.at(step.output_path).write(name, content.encode())

    names, barrier = spawn.Queue(), spawn.Barrier(2)
    workers = [
        start(race_with_marin, prefix, names, barrier),
        start(race_in_dagster, prefix, rounds, names, barrier),
    ]
    for worker in workers:
        worker.join(GUARD_S)
    assert [worker.exitcode for worker in workers] == [0, 0]

    winners: Counter[str] = Counter()
    for step in steps:
        folder = OutputDir.at(step.output_path)
        calls = [path.rpartition("call-")[2] for path in folder.fs.glob(folder.file("call-*"))]
        assert len(calls) == 1, f"{step.name} ran {len(calls)} times: {calls}"
        who = calls[0].partition("-")[0]
        winners[who] += 1
        record = read_record(folder)
        assert record is not None
        assert record.result == {"built_by": who}
        assert read_status(folder) is Status.SUCCESS
        assert marin_status(step.output_path) == "SUCCESS"
        assert not is_locked(step.output_path)
        assert not folder.fs.glob(folder.file("*.tmp"))
    print(f"won by {dict(winners)}")
