"""A run worker that dies once a ``dev`` version is built, and the one that resumes its run.

Called as ``resumed_worker.py CALLS RUN_ID_FILE`` with ``DAGSTER_HOME`` set; it dies when there is
no run yet.
"""

import os
import sys
from pathlib import Path

import dagster as dg
from dagster._core.execution.api import execute_run_iterator

from marin_dagster import OUT, StepSpec, apply, build_definitions
from marin_dagster._compat import InMemoryJob

CALLS, RUN_ID = map(Path, sys.argv[1:])


def note(output_path: str, who: str) -> None:
    with CALLS.open("a") as file:
        file.write(f"{who}\n")


fixed = StepSpec("fixed", fn=lambda output_path: note(output_path, "fixed"))
dev = apply("dev", note, version="dev", output_path=OUT, who="dev")
last = StepSpec("last", deps=[fixed, dev.lower()], fn=lambda output_path: note(output_path, "last"))
job = build_definitions([last]).resolve_job_def("materialize_steps")

with dg.DagsterInstance.get() as instance:
    resumed = RUN_ID.exists()
    if resumed:
        run = instance.get_run_by_id(RUN_ID.read_text())
    else:
        run = instance.create_run_for_job(job_def=job, run_config={})
        RUN_ID.write_text(run.run_id)
    done = set()
    for event in execute_run_iterator(InMemoryJob(job), run, instance, resume_from_failure=resumed):
        if event.event_type_value == "STEP_SUCCESS":
            done.add(event.step_key)
        if not resumed and done == {"fixed", "dev"}:
            os._exit(9)
    print(instance.get_run_by_id(run.run_id).status.value)
