"""``build_marin_assets``: one asset for each step of a graph."""

import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import dagster as dg

from marin_dagster.assets.integrity_check import CHECK_NAME, check_spec
from marin_dagster.assets.op_names import op_name
from marin_dagster.assets.step_op import OUTPUT_NAME, StepOp
from marin_dagster.assets.translator import DagsterMarinTranslator, ascii_name, key_part
from marin_dagster.errors import CollisionError, GraphError, MarinDagsterWarning
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import artifact_version, is_external
from marin_dagster.steps.siblings import differences
from marin_dagster.steps.text import summarize

DEFAULT_IO_MANAGER_KEY = "marin_io_manager"

_ONE_GROUP = 40
"""Steps of a graph that the UI still shows well in one group."""
_LONGEST_LABEL = 24
"""Characters of what tells steps apart; the lineage cuts longer names in the middle."""
_NOT_IN_GROUPS = re.compile(r"[^A-Za-z0-9_]")

Steps = StepGraph | Iterable[StepLike] | Callable[[], Iterable[StepLike]]
"""Steps, or a function that returns them, or their graph; dependencies need not be listed."""

MarinAsset = dg.AssetsDefinition | dg.AssetSpec


def build_marin_assets(
    steps: Steps,
    *,
    translator: DagsterMarinTranslator | None = None,
    io_manager_key: str = DEFAULT_IO_MANAGER_KEY,
    group_name: str | None = None,
    checks: bool = False,
    retry_policy: dg.RetryPolicy | None = None,
) -> Sequence[MarinAsset]:
    """One asset for each step and each of its transitive dependencies.

    Nothing is read or written in the store. A step without a function becomes an external asset:
    data that something else makes.

    Args:
        steps: the steps, or a function that returns them, or their graph.
        translator: how a step looks in Dagster.
        io_manager_key: resource key of the :class:`MarinIOManager` that commits the outputs.
        group_name: the group of every asset to which the translator gives none. Without, a graph of
            up to 40 steps is in Dagster's default group; in a larger one, a step whose name has
            several parts is in the group of the first, ``data`` for ``data/raw``.
        checks: with the check ``cache_integrity`` of each asset that runs build, evaluated by the
            step's own op; :func:`build_marin_checks` has what it compares, and makes checks apart.
        retry_policy: when a run tries a step again, for steps to which the translator gives no
            policy of their own.

    Returns:
        ``AssetsDefinition`` of the steps with a function and ``AssetSpec`` of the others, for
        ``dg.Definitions(assets=…)``.

    Raises:
        GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
        CollisionError: also when two steps have one asset key.
    """
    graph = graph_of(steps)
    translator = translator or DagsterMarinTranslator()
    specs = asset_specs(graph, translator, group_name)
    return step_assets(
        graph, specs, translator, io_manager_key, checks=checks, retry_policy=retry_policy
    )


def step_assets(
    graph: StepGraph,
    specs: Mapping[str, dg.AssetSpec],
    translator: DagsterMarinTranslator,
    io_manager_key: str = DEFAULT_IO_MANAGER_KEY,
    *,
    checks: bool = False,
    retry_policy: dg.RetryPolicy | None = None,
) -> Sequence[MarinAsset]:
    """The assets of a graph whose specs are made; see :func:`build_marin_assets`."""
    keys = {path: spec.key for path, spec in specs.items()}
    _warn_of_shared_names(graph, keys, translator)
    assets: list[MarinAsset] = []
    for path, step in graph.steps.items():
        spec = specs[path]
        if is_external(step):
            # So that ordinary assets load it as they load the others.
            assets.append(spec.with_io_manager_key(io_manager_key))
        else:
            step_op = StepOp(step, graph, io_manager_key, _input_steps(step, spec, keys))
            policy = translator.get_retry_policy(step) or retry_policy
            assets.append(_assets_definition(spec, step_op, translator, policy, checks=checks))
    return assets


def graph_of(steps: Steps) -> StepGraph:
    """The graph of what a user gave as steps.

    Raises:
        GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
    """
    if isinstance(steps, StepGraph):
        return steps
    return StepGraph.from_steps(steps() if callable(steps) else steps)


def asset_specs(
    graph: StepGraph, translator: DagsterMarinTranslator, group_name: str | None = None
) -> dict[str, dg.AssetSpec]:
    """The spec of each step by output path, in the graph's order.

    Args:
        graph: the steps.
        translator: how a step looks in Dagster.
        group_name: as :func:`build_marin_assets` has it.

    Raises:
        GraphError: the translator gives a step what it cannot have.
        CollisionError: two steps have one asset key.
    """
    keys = asset_keys(graph, translator)
    marks = differences(graph)
    return {
        path: _described(
            _grouped(_spec(step, translator, keys), step, graph, group_name), marks.get(path)
        )
        for path, step in graph.steps.items()
    }


def asset_keys(graph: StepGraph, translator: DagsterMarinTranslator) -> Mapping[str, dg.AssetKey]:
    """The key of each output path, unique within the graph.

    Steps that share a name have what tells them apart in the key, ``train_lr-0.1_1a2b3c4d``, and
    lazy artifacts their version.

    Raises:
        CollisionError: two steps of different names have one key.
    """
    keys = {path: translator.get_asset_key(step) for path, step in graph.steps.items()}
    claims: dict[dg.AssetKey, list[str]] = defaultdict(list)
    for path, key in keys.items():
        claims[key].append(path)
    for key, paths in claims.items():
        if len(paths) > 1 and len({graph.steps[path].name for path in paths}) == 1:
            *parents, last = key.path
            for path, suffix in _suffixes(graph, paths).items():
                keys[path] = dg.AssetKey([*parents, key_part(f"{last}_{suffix}")])
    owners: dict[dg.AssetKey, str] = {}
    for path, key in keys.items():
        other = owners.setdefault(key, path)
        if other != path:
            raise CollisionError(
                f"steps {graph.steps[other].name!r} ({other}) and {graph.steps[path].name!r} "
                f"({path}) have one asset key, {key.to_user_string()!r}. Rename one of them, or "
                "give it another key in the translator."
            )
    return keys


def _suffixes(graph: StepGraph, paths: Sequence[str]) -> dict[str, str]:
    """What tells the keys of steps apart that share a name.

    The lineage shows it: first what people call the difference, then the hash, which decides.
    """
    versions = [artifact_version(graph.steps[path]) for path in paths]
    if None not in versions and len(set(versions)) == len(paths):
        return dict(zip(paths, (str(version) for version in versions), strict=True))
    marks = differences(graph)
    labels = {path: "_".join(marks.get(path, ())).replace("=", "-") for path in paths}
    return {
        path: "_".join(filter(None, [label[:_LONGEST_LABEL], graph.steps[path].hash_id]))
        for path, label in labels.items()
    }


def _grouped(
    spec: dg.AssetSpec, step: StepLike, graph: StepGraph, group_name: str | None
) -> dg.AssetSpec:
    if spec.group_name is not None:
        return spec
    first, *rest = step.name.split("/")
    if group_name is None and rest and len(graph.steps) > _ONE_GROUP:
        group_name = ascii_name(first, _NOT_IN_GROUPS)
    return spec if group_name is None else spec.replace_attributes(group_name=group_name)


def _described(spec: dg.AssetSpec, marks: Sequence[str] | None) -> dg.AssetSpec:
    """The spec with a first line of what sets the step apart."""
    if marks is None:
        return spec
    line = "`" + summarize(marks).replace("`", "'") + "`"
    return spec.replace_attributes(
        description=f"{line}\n\n{spec.description}" if spec.description else line
    )


def _warn_of_shared_names(
    graph: StepGraph, keys: Mapping[str, dg.AssetKey], translator: DagsterMarinTranslator
) -> None:
    shared: dict[str, list[str]] = defaultdict(list)
    for path, step in graph.steps.items():
        if keys[path] != translator.get_asset_key(step):
            shared[step.name].append(keys[path].path[-1])
    for name, ends in shared.items():
        warnings.warn(
            f"{len(ends)} steps of this graph are called {name!r}: their asset keys get the "
            f"step's hash or version ({summarize(ends)}), and change with it. Give them names of "
            "their own to keep one history for each.",
            MarinDagsterWarning,
            stacklevel=4,
        )


def _spec(
    step: StepLike, translator: DagsterMarinTranslator, keys: Mapping[str, dg.AssetKey]
) -> dg.AssetSpec:
    spec = translator.get_asset_spec(step)
    if spec.key != translator.get_asset_key(step):
        raise GraphError(
            f"step {step.name!r}: the translator's get_asset_spec gives the key "
            f"{spec.key.to_user_string()!r}, its get_asset_key gives "
            f"{translator.get_asset_key(step).to_user_string()!r}. Change the key in "
            "get_asset_key: dependencies use it, too."
        )
    if spec.partitions_def is not None:
        raise GraphError(
            f"step {step.name!r}: the translator gives it partitions, which a step cannot have: "
            "its output is one folder. Make a step for each partition."
        )
    of_steps = {translator.get_asset_key(dep) for dep in step.deps}
    others = [dep for dep in spec.deps if dep.asset_key not in of_steps]
    own = dict.fromkeys(keys[dep.output_path] for dep in step.deps)
    return spec.replace_attributes(key=keys[step.output_path], deps=[*own, *others])


def _input_steps(
    step: StepLike, spec: dg.AssetSpec, keys: Mapping[str, dg.AssetKey]
) -> dict[str, StepLike]:
    # Of external data Dagster knows only what somebody reported; that it compares by itself.
    built = {keys[dep.output_path]: dep for dep in step.deps if not is_external(dep)}
    return {name: built[key] for name, key in _inputs(spec).items() if key in built}


def _inputs(spec: dg.AssetSpec) -> dict[str, dg.AssetKey]:
    return {f"dep_{index}": dep.asset_key for index, dep in enumerate(spec.deps)}


def _assets_definition(
    spec: dg.AssetSpec,
    step_op: StepOp,
    translator: DagsterMarinTranslator,
    retry_policy: dg.RetryPolicy | None,
    *,
    checks: bool,
) -> dg.AssetsDefinition:
    # By the constructor, not by @asset: a graph of thousands of steps loads 2.5 times faster. The
    # inputs are Nothing: a step reads its dependencies' paths itself.
    # With a check, a run can select either of the two, so neither is required.
    outs = {
        OUTPUT_NAME: dg.Out(dg.Any, io_manager_key=step_op.io_manager_key, is_required=not checks)
    }
    if checks:
        outs[CHECK_NAME] = dg.Out(dg.Nothing, is_required=False)
    op = dg.OpDefinition(
        name=op_name(spec.key),
        description=spec.description,
        compute_fn=step_op,
        ins={name: dg.In(dg.Nothing) for name in _inputs(spec)},
        outs=outs,
        required_resource_keys={step_op.io_manager_key},
        code_version=spec.code_version,
        tags=dict(translator.get_op_tags(step_op.step)),
        pool=translator.get_pool(step_op.step),
        retry_policy=retry_policy,
    )
    return dg.AssetsDefinition(
        keys_by_input_name=_inputs(spec),
        keys_by_output_name={OUTPUT_NAME: spec.key},
        node_def=op,
        specs=[spec],
        check_specs_by_output_name={CHECK_NAME: check_spec(spec.key)} if checks else None,
        can_subset=checks,
    )
