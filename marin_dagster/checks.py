"""The asset check ``cache_integrity``: do the files beside an output agree with its step?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from marin_dagster.assets import Steps, asset_keys, graph_of
from marin_dagster.cache import Status
from marin_dagster.cache.integrity import check_integrity
from marin_dagster.instance import asset_entries
from marin_dagster.op_names import op_name
from marin_dagster.reports import OUTPUT_PATH, last_output_path
from marin_dagster.steps import StepLike
from marin_dagster.steps.protocol import is_external
from marin_dagster.translator import DagsterMarinTranslator

CHECK_NAME = "cache_integrity"


def build_marin_checks(
    steps: Steps, *, translator: DagsterMarinTranslator | None = None
) -> Sequence[dg.AssetChecksDefinition]:
    """The check ``cache_integrity`` of each step that runs build.

    It passes when the output's record is there, can be read, and names the step, its attributes and
    its dependencies, and when the output has not drifted. It blocks nothing. Where nothing is
    finished there is nothing to check, and it passes, unless Dagster's last materialization tells
    of this output: then something removed it, and the check fails.

    Args:
        steps: the steps, or a function that returns them; those of the assets.
        translator: that of the assets.

    Returns:
        The definitions, for ``dg.Definitions(asset_checks=…)``.

    Raises:
        GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
    """
    graph = graph_of(steps)
    keys = asset_keys(graph, translator or DagsterMarinTranslator())
    # An op for each: in a run that materializes, too, a check is left out when its step fails, and
    # one that shared its op would be left out with it.
    return [_check(keys[path], step) for path, step in graph.steps.items() if not is_external(step)]


def _check(key: dg.AssetKey, step: StepLike) -> dg.AssetChecksDefinition:
    spec = dg.AssetCheckSpec(
        CHECK_NAME,
        asset=key,
        description="The record beside the output agrees with the step, and nothing drifted.",
    )
    op = dg.OpDefinition(
        # Three underscores are in no name of a step's op.
        name=f"{op_name(key)}___{CHECK_NAME}",
        compute_fn=IntegrityOp(step),
        ins={"asset": dg.In(dg.Nothing)},
        outs={"result": dg.Out(dg.Nothing)},
    )
    check: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        keys_by_input_name={"asset": key},
        node_def=op,
        check_specs_by_output_name={"result": spec},
        can_subset=False,
        resource_defs=None,
    )
    return check


@dataclass(frozen=True, eq=False)
class IntegrityOp:
    """The compute function of a check's op."""

    step: StepLike

    def __call__(
        self, context: dg.AssetCheckExecutionContext, inputs: Mapping[str, Any]
    ) -> Iterator[dg.AssetCheckResult]:
        look = check_integrity(self.step)
        faults = look.faults
        # The key as it is in this job: it may have been changed after build_marin_checks.
        (check,) = context.selected_asset_check_keys
        if look.status is not Status.SUCCESS:
            status = look.status or "nothing there"
            entry = asset_entries(context.instance, [check.asset_key]).get(check.asset_key)
            if look.status is Status.RUNNING or last_output_path(entry) != self.step.output_path:
                said = f"Nothing is finished, so there is nothing to check (status: {status})."
            else:
                said = f"Dagster knows a build of this output, and it is gone (status: {status})."
                faults = (said,)
        else:
            drift = look.drift.message if look.drift else None
            said = " ".join(faults) or drift or "The record agrees with the step."
        metadata: dict[str, Any] = {OUTPUT_PATH: dg.MetadataValue.path(self.step.output_path)}
        if faults:
            metadata["marin/faults"] = " ".join(faults)
        if look.drift:
            metadata["marin/drift"] = look.drift.message
        yield dg.AssetCheckResult(
            asset_key=check.asset_key,
            check_name=CHECK_NAME,
            passed=not faults and look.drift is None,
            severity=dg.AssetCheckSeverity.ERROR if faults else dg.AssetCheckSeverity.WARN,
            metadata=metadata,
            description=said,
        )
