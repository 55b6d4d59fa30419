"""The asset check ``cache_integrity``: do the files beside an output agree with its step?"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from marin_dagster.assets.integrity_check import CHECK_NAME, check_spec, evaluate
from marin_dagster.assets.marin_graph import MarinGraph, Steps
from marin_dagster.assets.translator import DagsterMarinTranslator
from marin_dagster.events.asset_records import last_events
from marin_dagster.steps import StepGraph, StepLike


def build_marin_checks(
    steps: Steps, *, translator: DagsterMarinTranslator | None = None
) -> Sequence[dg.AssetChecksDefinition]:
    """The check ``cache_integrity`` of each step that runs build, in an op of its own.

    For assets of :func:`build_marin_assets` that are checked apart from their builds. With
    ``build_marin_assets(…, checks=True)`` the step's own op checks what it has built or served,
    which costs a run less; an asset has one or the other.

    The check passes when the output's record is there, can be read, and names the step, its
    attributes and its dependencies, and when the output has not drifted. It blocks nothing. Where
    nothing is finished there is nothing to check, and it passes. An output that Dagster knows and
    that is gone is a warning when a run of everything would build it again; when nothing needs it,
    the check passes and mentions it.

    Args:
        steps: the steps, or a function that returns them; those of the assets.
        translator: that of the assets.

    Returns:
        The definitions, for ``dg.Definitions(asset_checks=…)``.

    Raises:
        GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
    """
    marin = MarinGraph.of(steps, translator=translator)
    # An op for each: in a run that also materializes, Dagster leaves a check out when its step
    # fails, and would leave out every check that shares its op.
    return [
        _check(marin.keys[path], name, marin.graph.steps[path], marin.graph)
        for path, name in marin.op_names.items()
    ]


def _check(
    key: dg.AssetKey, op_name: str, step: StepLike, graph: StepGraph
) -> dg.AssetChecksDefinition:
    op = dg.OpDefinition(
        # No name of a step's op has three underscores in a row.
        name=f"{op_name}___{CHECK_NAME}",
        compute_fn=IntegrityOp(step, graph),
        ins={"asset": dg.In(dg.Nothing)},
        outs={CHECK_NAME: dg.Out(dg.Nothing, is_required=False)},
    )
    check: dg.AssetChecksDefinition = dg.AssetChecksDefinition.create(
        keys_by_input_name={"asset": key},
        node_def=op,
        check_specs_by_output_name={CHECK_NAME: check_spec(key)},
        can_subset=False,
        resource_defs=None,
    )
    return check


@dataclass(frozen=True, eq=False)
class IntegrityOp:
    """The compute function of a check's op."""

    step: StepLike
    graph: StepGraph

    def __call__(
        self, context: dg.AssetCheckExecutionContext, inputs: Mapping[str, Any]
    ) -> Iterator[dg.AssetCheckEvaluation]:
        # The key as it is in this job: it may have been changed after build_marin_checks.
        (check,) = context.selected_asset_check_keys
        entry = last_events(context.instance, [check.asset_key]).get(check.asset_key)
        yield evaluate(self.step, self.graph, check.asset_key, entry)
