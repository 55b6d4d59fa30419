"""The asset check ``cache_integrity``: do the files beside an output agree with its step?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from marin_dagster.assets import Steps, asset_keys, graph_of
from marin_dagster.cache import Status
from marin_dagster.cache.integrity import Integrity, check_integrity
from marin_dagster.cache.many import look_at_all
from marin_dagster.errors import StoreError
from marin_dagster.instance import asset_entries
from marin_dagster.reports import OUTPUT_PATH, last_output_path
from marin_dagster.steps import StepLike
from marin_dagster.steps.protocol import is_external
from marin_dagster.translator import DagsterMarinTranslator

CHECK_NAME = "cache_integrity"


_AT_ONCE = 1
"""Checks of one op. A step that fails leaves those beside its own without a result, and Dagster's
time to load an op's checks grows with the square of their number."""


def build_marin_checks(
    steps: Steps, *, translator: DagsterMarinTranslator | None = None, op_name: str = CHECK_NAME
) -> Sequence[dg.AssetChecksDefinition]:
    """The check ``cache_integrity`` of each step that runs build; an op evaluates up to 25 of them.

    It passes when the output's record is there, can be read, and names the step, its attributes and
    its dependencies, and when the output has not drifted. It blocks nothing. An output that is not
    finished has no result, unless it is the one that Dagster's last materialization tells of: then
    something removed it, and the check fails. In a run that materializes, too, the op of a check
    waits for all of its assets, and is left out when one of them fails.

    Args:
        steps: the steps, or a function that returns them; those of the assets.
        translator: that of the assets.
        op_name: what the names of the ops begin with, unique in the code location.

    Returns:
        The definitions, for ``dg.Definitions(asset_checks=…)``.

    Raises:
        GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
    """
    graph = graph_of(steps)
    keys = asset_keys(graph, translator or DagsterMarinTranslator())
    found = [(keys[path], step) for path, step in graph.steps.items() if not is_external(step)]
    parts = [dict(found[start : start + _AT_ONCE]) for start in range(0, len(found), _AT_ONCE)]
    return [_checks(part, f"{op_name}_{number}") for number, part in enumerate(parts)]


def _checks(steps: Mapping[dg.AssetKey, StepLike], op_name: str) -> dg.AssetChecksDefinition:
    # Names that count: an asset's key may hold what an op's cannot.
    ins = {f"asset_{index}": key for index, key in enumerate(steps)}
    specs = {
        f"check_{index}": dg.AssetCheckSpec(
            CHECK_NAME,
            asset=key,
            description="The record beside the output agrees with the step, and nothing drifted.",
        )
        for index, key in enumerate(steps)
    }
    op = dg.OpDefinition(
        name=op_name,
        compute_fn=IntegrityOp(dict(zip(specs, steps.values(), strict=True))),
        ins={name: dg.In(dg.Nothing) for name in ins},
        outs={name: dg.Out(dg.Nothing, is_required=False) for name in specs},
    )
    checks: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        keys_by_input_name=ins,
        node_def=op,
        check_specs_by_output_name=specs,
        can_subset=True,
        resource_defs=None,
    )
    return checks


@dataclass(frozen=True, eq=False)
class IntegrityOp:
    """The compute function of the checks' op."""

    steps: Mapping[str, StepLike]
    """The step of each output."""

    def __call__(
        self, context: dg.AssetCheckExecutionContext, inputs: Mapping[str, Any]
    ) -> Iterator[dg.AssetCheckResult]:
        # The keys as they are in this job: they may have been changed after build_marin_checks.
        output_of = context.op_execution_context.assets_def.get_output_name_for_asset_check_key
        steps = {
            key.asset_key: self.steps[output_of(key)]
            for key in sorted(context.selected_asset_check_keys)
        }
        looks = look_at_all(_look, steps)
        unfinished = [
            key
            for key, look in looks.items()
            if isinstance(look, Integrity) and look.status not in (Status.SUCCESS, Status.RUNNING)
        ]
        removed = {
            key
            for key, entry in asset_entries(context.instance, unfinished).items()
            if last_output_path(entry) == steps[key].output_path
        }
        for key, look in looks.items():
            if isinstance(look, Integrity) and (look.status is Status.SUCCESS or key in removed):
                yield _result(key, steps[key], look)
        refused = [str(look) for look in looks.values() if isinstance(look, StoreError)]
        if refused:
            raise StoreError("\n".join(refused))


def _look(step: StepLike) -> Integrity | StoreError:
    try:
        return check_integrity(step)
    except StoreError as error:
        return error


def _result(key: dg.AssetKey, step: StepLike, look: Integrity) -> dg.AssetCheckResult:
    faults = look.faults
    if look.status is not Status.SUCCESS:
        status = look.status or "nothing there"
        faults = (f"Dagster knows a build of this output, and it is gone (status: {status}).",)
    metadata: dict[str, Any] = {OUTPUT_PATH: dg.MetadataValue.path(step.output_path)}
    if faults:
        metadata["marin/faults"] = "\n".join(faults)
    if look.drift:
        metadata["marin/drift"] = look.drift.message
    return dg.AssetCheckResult(
        asset_key=key,
        check_name=CHECK_NAME,
        passed=not faults and look.drift is None,
        severity=dg.AssetCheckSeverity.ERROR if faults else dg.AssetCheckSeverity.WARN,
        metadata=metadata,
        description=" ".join(faults) or (look.drift.message if look.drift else None),
    )
