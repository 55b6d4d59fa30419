"""The results that ``--json`` prints, by command; their schemas are generated from these."""

from collections.abc import Mapping

from marin_dagster.cli.plan import PlanResult
from marin_dagster.cli.run import RunResult

RESULTS: Mapping[str, type] = {"plan": PlanResult, "run": RunResult}
