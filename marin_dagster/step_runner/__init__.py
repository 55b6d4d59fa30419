"""Run steps from a script, with Dagster underneath: ``StepRunner``, ``run`` and ``resolve``."""

from marin_dagster.step_runner.results import StepResults
from marin_dagster.step_runner.runner import StepRunner, resolve, run

__all__ = ["StepResults", "StepRunner", "resolve", "run"]
