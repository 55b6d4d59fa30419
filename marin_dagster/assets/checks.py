"""The asset check ``cache_integrity`` in an op apart from its step's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from marin_dagster.assets.cache_integrity_check import CHECK_NAME, check_spec, evaluate
from marin_dagster.assets.marin_graph import MarinGraph, Steps
from marin_dagster.assets.step_op import StepOp
from marin_dagster.assets.translator import DagsterMarinTranslator
from marin_dagster.events.asset_records import AssetPartition, last_partition_events


def build_marin_checks(
    steps: Steps, *, translator: DagsterMarinTranslator | None = None
) -> Sequence[dg.AssetChecksDefinition]:
    """The check ``cache_integrity`` of each step that a run can build, each in a separate op.

    For assets of :func:`build_marin_assets` that are checked apart from their builds. With
    ``build_marin_assets(…, checks=True)`` the step's op also checks what it built or served, which
    is cheaper. An asset can have one of the two.

    The check passes when the output's record exists, is readable, names the step, its attributes
    and its dependencies, and the output has not drifted. It also passes when no output is finished.
    If Dagster has recorded an output that is now gone, the check warns when a run of the whole
    graph would rebuild it, and otherwise passes and mentions it. It never blocks downstream steps.

    Args:
        steps: the steps of the assets, or a function that returns them, or their graph.
        translator: the translator of the assets.

    Returns:
        The definitions, for ``dg.Definitions(asset_checks=…)``.

    Raises:
        GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
        CollisionError: two steps have one asset key.
    """
    marin = MarinGraph.of(steps, translator=translator)
    # An op for each: in a run that also materializes, Dagster leaves a check out when its step
    # fails, and would leave out every check that shares its op.
    return [
        _check(
            marin.keys[path],
            name,
            StepOp(
                marin.steps[path],
                marin.graph,
                marin.io_manager_key,
                {},
                partitions=marin.partitions,
            ),
        )
        for path, name in marin.op_names.items()
    ]


def _check(key: dg.AssetKey, op_name: str, of_step: StepOp) -> dg.AssetChecksDefinition:
    op = dg.OpDefinition(
        # No name of a step's op has three underscores in a row.
        name=f"{op_name}___{CHECK_NAME}",
        compute_fn=IntegrityOp(of_step),
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

    of_step: StepOp

    def __call__(
        self, context: dg.AssetCheckExecutionContext, inputs: Mapping[str, Any]
    ) -> Iterator[dg.Output[None] | dg.AssetCheckEvaluation]:
        # The key in this job: Definitions.map_asset_specs or a prefix may have changed it.
        (check,) = context.selected_asset_check_keys
        op = self.of_step.at_checked(context.run, context.instance, check.asset_key)
        asset = AssetPartition(check.asset_key, op.partition)
        entry = last_partition_events(context.instance, [asset]).get(asset)
        # Without it, Dagster logs that the op "did not yield expected outputs".
        yield dg.Output(None, CHECK_NAME)
        yield evaluate(op.step, op.graph, asset, entry)
