"""WHERE a step's function runs. No Dagster."""

from marin_dagster.runners.inline import run_inline

__all__ = ["run_inline"]
