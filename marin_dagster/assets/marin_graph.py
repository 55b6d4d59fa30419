"""``MarinGraph``: a graph of steps, with the keys, specs and op names it has in Dagster."""

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import dagster as dg

from marin_dagster.assets.op_names import op_names
from marin_dagster.assets.partitions import GraphPartitions
from marin_dagster.assets.translator import DagsterMarinTranslator, ascii_name, key_part
from marin_dagster.errors import CollisionError, GraphError
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.duplicate_names import differences
from marin_dagster.steps.protocol import artifact_version, is_external
from marin_dagster.steps.text import summarize

DEFAULT_IO_MANAGER_KEY = "marin_io_manager"

_ONE_GROUP = 40
"""Steps of a graph that the UI still shows well in one group."""
_LONGEST_LABEL = 24
"""Characters of a label in a key; the lineage cuts longer names in the middle."""
_OF_ALL = ("dagster/kind/", "dagster/code_references")
"""Tags and metadata that steps of one name share."""
_NOT_IN_GROUPS = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, eq=False)
class MarinGraph:
    """A graph of steps, and how a translator shows it in Dagster. All builders accept one.

    The translator is called when :attr:`keys` or :attr:`specs` is first read. All mappings are in
    the order of the graph.
    """

    graph: StepGraph
    translator: DagsterMarinTranslator = field(default_factory=DagsterMarinTranslator)
    io_manager_key: str = DEFAULT_IO_MANAGER_KEY
    """Resource key of the :class:`MarinIOManager` that commits and loads the outputs."""
    group_name: str | None = None
    """The group of every asset to which the translator gives none."""
    partitions: GraphPartitions | None = None
    """The steps of each partition; ``graph`` is then that of the reference partition."""
    source: Callable[[], Iterable[StepLike]] | None = None
    """The function that returned the steps, if one did."""
    strict: bool = False
    """Whether undeclared inputs are errors, not warnings."""

    @classmethod
    def of(
        cls,
        steps: "Steps",
        *,
        translator: DagsterMarinTranslator | None = None,
        io_manager_key: str = DEFAULT_IO_MANAGER_KEY,
        group_name: str | None = None,
        partitions_def: dg.PartitionsDefinition[Any] | None = None,
        example_partitions: Sequence[str] | str = (),
        unpartitioned: Iterable[str] | str = (),
        strict: bool = False,
    ) -> "MarinGraph":
        """The value for the argument ``steps`` of a builder.

        With ``partitions_def``, ``steps`` is a function from the key of a partition to the steps of
        that partition. It is called for some partitions here, and for others when they run. All
        must return steps of the same names with the same dependencies. A step whose output path is
        the same in all of them becomes an asset without partitions.

        Args:
            steps: the steps, or a function that returns them, or their graph; a ``MarinGraph`` is
                returned as it is.
            translator: how a step looks in Dagster. Of a partitioned asset, it gets the steps of
                the example partitions.
            io_manager_key: resource key of the :class:`MarinIOManager`.
            group_name: see :func:`build_marin_assets`.
            partitions_def: the partitions. For multi-partitions, the function gets a
                ``MultiPartitionKey``.
            example_partitions: keys of the partitions that are compared while the graph is loaded.
                By default the first, whose steps give the code versions, and four others. Required
                for dynamic partitions, which only an instance knows; they need not exist.
            unpartitioned: names of steps that all partitions share, where the examples cannot
                show it.
            strict: whether undeclared inputs are errors, not warnings: in the code location, and in
                the step that reads one.

        Raises:
            GraphError: the graph is wrong (see :meth:`StepGraph.from_steps`), ``steps`` does not
                fit ``partitions_def``, no partition exists yet, or the graphs of two partitions
                differ in names or dependencies.
            ValueError: a ``MarinGraph`` is given with other settings than its own.
        """
        if isinstance(steps, MarinGraph):
            if (
                translator not in (None, steps.translator)
                or io_manager_key not in (DEFAULT_IO_MANAGER_KEY, steps.io_manager_key)
                or group_name not in (None, steps.group_name)
                or partitions_def is not None
                or strict not in (False, steps.strict)
            ):
                raise ValueError(
                    "this MarinGraph has another translator, io_manager_key, group_name, "
                    "partitions_def or strict: give them to MarinGraph.of alone."
                )
            return steps
        translator = translator or DagsterMarinTranslator()
        if partitions_def is not None:
            if not callable(steps):
                raise GraphError(
                    "partitions_def needs a function from the key of a partition to its steps: "
                    f"steps is a {type(steps).__name__}."
                )
            partitions = GraphPartitions.from_function(
                steps, partitions_def, examples=example_partitions, unpartitioned=unpartitioned
            )
            graph = partitions.steps.reference.graph
            return cls(graph, translator, io_manager_key, group_name, partitions, strict=strict)
        if isinstance(steps, StepGraph):
            return cls(steps, translator, io_manager_key, group_name, strict=strict)
        if not callable(steps):
            graph = StepGraph.from_steps(steps)
            return cls(graph, translator, io_manager_key, group_name, strict=strict)
        if _needs_an_argument(steps):
            raise GraphError(
                f"steps is the function {getattr(steps, '__name__', steps)!r}, which takes an "
                "argument. If it is the key of a partition, give partitions_def, too."
            )
        graph = StepGraph.from_steps(steps())
        return cls(graph, translator, io_manager_key, group_name, source=steps, strict=strict)

    def refreshed(self) -> "MarinGraph":
        """The graph of the steps that the function returns now; itself when they are the same.

        Raises:
            GraphError: the steps have other asset keys than those that Dagster has loaded.
        """
        if self.source is None:
            return self
        graph = StepGraph.from_steps(self.source())
        if graph.steps.keys() == self.graph.steps.keys():
            return self
        now = replace(self, graph=graph)
        before, after = set(self.keys.values()), set(now.keys.values())
        if before != after:
            changed = summarize(sorted(key.to_user_string() for key in before ^ after))
            raise GraphError(
                f"{getattr(self.source, '__name__', 'the function')} returns other assets than "
                f"when the code location was loaded ({changed}). Reload the code location."
            )
        return now

    @cached_property
    def steps(self) -> Mapping[str, StepLike]:
        """The step of each asset, by output path: all of the graph, except steps that belong to
        other partitions."""
        if self.partitions is None:
            return self.graph.steps
        own = self.partitions.steps.reference.steps.values()
        return {step.output_path: step for step in own}

    def keys_in(self, graph: StepGraph) -> Mapping[str, dg.AssetKey]:
        """The asset key of each output path in the graph of a partition."""
        if graph is self.graph:
            return self.keys
        named = {step.name: self.keys[path] for path, step in self.steps.items()}
        return {path: named[step.name] for path, step in graph.steps.items() if step.name in named}

    @cached_property
    def keys(self) -> Mapping[str, dg.AssetKey]:
        """The asset key of each output path, unique within the graph.

        The keys of steps that share a name end with the attributes that differ and the hash,
        ``train_lr-0.1_1a2b3c4d``; those of lazy artifacts end with the version.

        Raises:
            CollisionError: two steps of different names have one key.
        """
        steps = self.steps
        keys = {path: self.translator.get_asset_key(step) for path, step in steps.items()}
        claims: dict[dg.AssetKey, list[str]] = defaultdict(list)
        for path, key in keys.items():
            claims[key].append(path)
        for key, paths in claims.items():
            if len(paths) > 1 and len({steps[path].name for path in paths}) == 1:
                *parents, last = key.path
                for path, suffix in _suffixes(self.graph, paths).items():
                    keys[path] = dg.AssetKey([*parents, key_part(f"{last}_{suffix}")])
        owners: dict[dg.AssetKey, str] = {}
        for path, key in keys.items():
            other = owners.setdefault(key, path)
            if other != path:
                raise CollisionError(
                    f"steps {steps[other].name!r} ({other}) and {steps[path].name!r} ({path}) have "
                    f"one asset key, {key.to_user_string()!r}. Rename one of them, or give it "
                    "another key in the translator."
                )
        return keys

    @cached_property
    def specs(self) -> Mapping[str, dg.AssetSpec]:
        """The asset spec of each output path.

        Raises:
            GraphError: the translator gives a step what it cannot have.
            CollisionError: two steps have one asset key.
        """
        marks = {} if self.partitions is not None else differences(self.graph)
        return {
            path: _described(self._grouped(self._spec(step), step), marks.get(path))
            for path, step in self.steps.items()
        }

    @cached_property
    def op_names(self) -> Mapping[str, str]:
        """The op's name, Dagster's step key, for each output path that a run can build.

        Raises:
            CollisionError: two steps have one asset key.
        """
        built = {
            path: self.keys[path] for path, step in self.steps.items() if not is_external(step)
        }
        names = op_names(built.values())
        return {path: names[key] for path, key in built.items()}

    def _spec(self, step: StepLike) -> dg.AssetSpec:
        translator, keys = self.translator, self.keys
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
                f"step {step.name!r}: the translator gives it partitions, which a step cannot "
                "have: its output is one folder. Give build_definitions a function that returns "
                "the steps of a partition, and partitions_def."
            )
        of_steps = {translator.get_asset_key(dep) for dep in step.deps}
        others = [dep for dep in spec.deps if dep.asset_key not in of_steps]
        if self.partitions is not None:
            return self._partitioned(spec, step, others)
        own = dict.fromkeys(keys[dep.output_path] for dep in step.deps)
        return spec.replace_attributes(key=keys[step.output_path], deps=[*own, *others])

    def _partitioned(
        self, spec: dg.AssetSpec, step: StepLike, others: Sequence[dg.AssetDep]
    ) -> dg.AssetSpec:
        """The spec of a step in a graph with partitions, without what differs between them."""
        assert self.partitions is not None
        steps = self.partitions.steps.reference.steps
        own = [
            dg.AssetDep(self.keys[steps[name].output_path], partition_mapping=mapping)
            for name, mapping in self.partitions.dependencies[step.name].items()
        ]
        spec = spec.replace_attributes(deps=[*own, *others])
        if not self.partitions.is_partitioned(step.name):
            return spec
        samples = [
            self.translator.get_asset_spec(self.partitions.steps.at(key).steps[step.name])
            for key in self.partitions.steps.samples[1:]
        ]
        plain = DagsterMarinTranslator().get_asset_spec(step)
        return spec.replace_attributes(
            partitions_def=self.partitions.definition,
            tags=_common(spec.tags, [sample.tags for sample in samples], plain.tags),
            metadata=_common(
                spec.metadata, [sample.metadata for sample in samples], plain.metadata
            ),
        )

    def _grouped(self, spec: dg.AssetSpec, step: StepLike) -> dg.AssetSpec:
        if spec.group_name is not None:
            return spec
        first, *rest = step.name.split("/")
        group_name = self.group_name
        if group_name is None and rest and len(self.steps) > _ONE_GROUP:
            group_name = ascii_name(first, _NOT_IN_GROUPS)
        return spec if group_name is None else spec.replace_attributes(group_name=group_name)


Steps = StepGraph | MarinGraph | Iterable[StepLike] | Callable[..., Iterable[StepLike]]
"""Steps, or a function that returns them, or their graph; dependencies need not be listed. With
partitions, the function takes the key of a partition."""


def _needs_an_argument(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # it has no signature
        return False
    return False


def _suffixes(graph: StepGraph, paths: Sequence[str]) -> dict[str, str]:
    """Suffixes for the keys of steps that share a name.

    The lineage shows them: first the attributes that differ, then the hash, which is unique.
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


def _common(
    values: Mapping[str, Any], samples: Sequence[Mapping[str, Any]], of_step: Mapping[str, Any]
) -> dict[str, Any]:
    """What is the same in all partitions.

    Args:
        values: tags or metadata of one partition's step.
        samples: those of other partitions'. Without any, what describes the step is left out.
        of_step: what describes a step by default.
    """
    if not samples:
        of_all = of_step.keys() - {key for key in of_step if key.startswith(_OF_ALL)}
        return {key: value for key, value in values.items() if key not in of_all}
    return {
        key: value
        for key, value in values.items()
        if all(key in sample and sample[key] == value for sample in samples)
    }


def _described(spec: dg.AssetSpec, marks: Sequence[str] | None) -> dg.AssetSpec:
    """The spec with a first line that names what sets the step apart."""
    if marks is None:
        return spec
    line = "`" + summarize(marks).replace("`", "'") + "`"
    return spec.replace_attributes(
        description=f"{line}\n\n{spec.description}" if spec.description else line
    )
