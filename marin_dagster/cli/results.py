"""The results that ``--json`` prints, by command; their schemas are generated from these."""

from collections.abc import Mapping

from marin_dagster.cli.check import CheckResult
from marin_dagster.cli.diff import DiffResult
from marin_dagster.cli.explain import ExplainResult
from marin_dagster.cli.lineage import LineageResult
from marin_dagster.cli.logs import LogsResult
from marin_dagster.cli.outputs import AdoptResult, InvalidateResult, UnlockResult
from marin_dagster.cli.plan import PlanResult
from marin_dagster.cli.run import RunResult
from marin_dagster.cli.status import StatusResult

RESULTS: Mapping[str, type] = {
    "plan": PlanResult,
    "run": RunResult,
    "status": StatusResult,
    "explain": ExplainResult,
    "unlock": UnlockResult,
    "invalidate": InvalidateResult,
    "adopt": AdoptResult,
    "check": CheckResult,
    "lineage": LineageResult,
    "diff": DiffResult,
    "logs": LogsResult,
}
