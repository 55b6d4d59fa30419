"""``build_marin_assets``: one asset for each step of a graph."""

from collections import defaultdict
from collections.abc import Sequence

import dagster as dg

from marin_dagster.assets.cache_integrity_check import CHECK_NAME, check_spec
from marin_dagster.assets.marin_graph import DEFAULT_IO_MANAGER_KEY, MarinGraph, Steps
from marin_dagster.assets.partition_builds import PartitionedStepOp
from marin_dagster.assets.step_op import OUTPUT_NAME, StepOp
from marin_dagster.assets.translator import DagsterMarinTranslator
from marin_dagster.errors import warn
from marin_dagster.steps import StepLike
from marin_dagster.steps.protocol import is_external
from marin_dagster.steps.text import summarize
from marin_dagster.steps.undeclared_inputs import check_undeclared_inputs

MarinAsset = dg.AssetsDefinition | dg.AssetSpec


def build_marin_assets(
    steps: Steps,
    *,
    translator: DagsterMarinTranslator | None = None,
    io_manager_key: str = DEFAULT_IO_MANAGER_KEY,
    group_name: str | None = None,
    checks: bool = False,
    retry_policy: dg.RetryPolicy | None = None,
    backfill_policy: dg.BackfillPolicy | None = None,
) -> Sequence[MarinAsset]:
    """One asset for each step and each of its transitive dependencies.

    Reads and writes nothing in the store. A step without a function becomes an external asset.

    Args:
        steps: the steps, or a function that returns them, or their graph.
        translator: how a step looks in Dagster.
        io_manager_key: resource key of the :class:`MarinIOManager` that commits the outputs.
        group_name: group of the assets to which the translator gives none. By default, a graph of
            up to 40 steps is in Dagster's default group; in a larger graph, a step whose name has
            several parts is in the group of the first part, ``data`` for ``data/raw``.
        checks: adds the check ``cache_integrity`` to each asset that a run can build, evaluated in
            the step's op; see :func:`build_marin_checks` for what it compares.
        retry_policy: when a run retries a failed step, unless the translator gives the step a
            policy.
        backfill_policy: how many partitions a run of a backfill builds: one by default, some with
            ``dg.BackfillPolicy.multi_run(n)``, all with ``dg.BackfillPolicy.single_run()``. A run
            of several partitions builds them side by side.

    Returns:
        ``AssetsDefinition`` of the steps with a function and ``AssetSpec`` of the others, for
        ``dg.Definitions(assets=…)``.

    Raises:
        GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
        CollisionError: two steps have one asset key.
        UndeclaredInputsError: functions use steps that theirs do not depend on, and the graph is
            strict. If it is not, that is a warning.
    """
    marin = MarinGraph.of(
        steps, translator=translator, io_manager_key=io_manager_key, group_name=group_name
    )
    check_undeclared_inputs(marin.graph, strict=marin.strict)
    _warn_of_shared_names(marin)
    assets: list[MarinAsset] = []
    for path, step in marin.steps.items():
        if is_external(step):
            # So that other assets can load it as an input.
            assets.append(marin.specs[path].with_io_manager_key(marin.io_manager_key))
        else:
            policy = marin.translator.get_retry_policy(step) or retry_policy
            definition = _assets_definition(
                marin, step, policy, checks=checks, backfill_policy=backfill_policy
            )
            assets.append(definition)
    return assets


def _warn_of_shared_names(marin: MarinGraph) -> None:
    shared: dict[str, list[str]] = defaultdict(list)
    for path, step in marin.steps.items():
        if marin.keys[path] != marin.translator.get_asset_key(step):
            shared[step.name].append(marin.keys[path].path[-1])
    for name, ends in shared.items():
        warn(
            f"{len(ends)} steps of this graph are called {name!r}: their asset keys get the "
            f"step's hash or version ({summarize(ends)}), and change with it. Give them different "
            "names to keep one history for each."
        )


def _input_steps(marin: MarinGraph, step: StepLike) -> dict[str, StepLike]:
    # Without external data: Dagster compares the versions that were reported to it. Without
    # partitioned assets: Dagster compares their events, not versions.
    partitions = marin.partitions
    built = {
        marin.keys[path]: dep
        for dep in step.deps
        for path in (dep.output_path,)
        if path in marin.keys
        and not is_external(dep)
        and not (partitions is not None and partitions.is_partitioned(dep.name))
    }
    inputs = _inputs(marin.specs[step.output_path])
    return {name: built[key] for name, key in inputs.items() if key in built}


def _partitioned_inputs(marin: MarinGraph, step: StepLike) -> dict[str, str]:
    if marin.partitions is None:
        return {}
    partitioned = {
        marin.keys[path]: dep.name
        for path, dep in marin.steps.items()
        if marin.partitions.is_partitioned(dep.name) and not is_external(dep)
    }
    inputs = _inputs(marin.specs[step.output_path])
    return {name: partitioned[key] for name, key in inputs.items() if key in partitioned}


def _inputs(spec: dg.AssetSpec) -> dict[str, dg.AssetKey]:
    return {f"dep_{index}": dep.asset_key for index, dep in enumerate(spec.deps)}


def _assets_definition(
    marin: MarinGraph,
    step: StepLike,
    retry_policy: dg.RetryPolicy | None,
    *,
    checks: bool,
    backfill_policy: dg.BackfillPolicy | None,
) -> dg.AssetsDefinition:
    # By the constructor, not by @asset: a graph of thousands of steps loads 2.5 times faster. The
    # inputs are Nothing: a step reads its dependencies' paths itself.
    spec = marin.specs[step.output_path]
    # With a check, a run can select either of the two, so neither is required.
    outs = {
        OUTPUT_NAME: dg.Out(dg.Any, io_manager_key=marin.io_manager_key, is_required=not checks)
    }
    if checks:
        outs[CHECK_NAME] = dg.Out(dg.Nothing, is_required=False)
    op = dg.OpDefinition(
        name=marin.op_names[step.output_path],
        description=spec.description,
        compute_fn=(PartitionedStepOp if marin.partitions is not None else StepOp)(
            step,
            marin.graph,
            marin.io_manager_key,
            _input_steps(marin, step),
            _partitioned_inputs(marin, step),
            marin.partitions,
            strict=marin.strict,
        ),
        ins={name: dg.In(dg.Nothing) for name in _inputs(spec)},
        outs=outs,
        required_resource_keys={marin.io_manager_key},
        code_version=spec.code_version,
        tags=dict(marin.translator.get_op_tags(step)),
        pool=marin.translator.get_pool(step),
        retry_policy=retry_policy,
    )
    return dg.AssetsDefinition(
        keys_by_input_name=_inputs(spec),
        keys_by_output_name={OUTPUT_NAME: spec.key},
        node_def=op,
        specs=[spec],
        check_specs_by_output_name={CHECK_NAME: check_spec(spec.key)} if checks else None,
        can_subset=checks,
        backfill_policy=backfill_policy if spec.partitions_def is not None else None,
    )
