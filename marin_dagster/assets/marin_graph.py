"""``MarinGraph``: a graph of steps, with the keys, specs and op names it has in Dagster."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import dagster as dg

from marin_dagster.assets.op_names import op_names
from marin_dagster.assets.translator import DagsterMarinTranslator, ascii_name, key_part
from marin_dagster.errors import CollisionError, GraphError
from marin_dagster.steps import StepGraph, StepLike
from marin_dagster.steps.protocol import artifact_version, is_external
from marin_dagster.steps.siblings import differences
from marin_dagster.steps.text import summarize

DEFAULT_IO_MANAGER_KEY = "marin_io_manager"

_ONE_GROUP = 40
"""Steps of a graph that the UI still shows well in one group."""
_LONGEST_LABEL = 24
"""Characters of a label in a key; the lineage cuts longer names in the middle."""
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

    @classmethod
    def of(
        cls,
        steps: "Steps",
        *,
        translator: DagsterMarinTranslator | None = None,
        io_manager_key: str = DEFAULT_IO_MANAGER_KEY,
        group_name: str | None = None,
    ) -> "MarinGraph":
        """The value for the argument ``steps`` of a builder.

        Args:
            steps: the steps, or a function that returns them, or their graph; a ``MarinGraph`` is
                returned as it is.
            translator: how a step looks in Dagster.
            io_manager_key: resource key of the :class:`MarinIOManager`.
            group_name: see :func:`build_marin_assets`.

        Raises:
            GraphError: the graph is wrong; see :meth:`StepGraph.from_steps`.
            ValueError: a ``MarinGraph`` is given with other settings than its own.
        """
        if isinstance(steps, MarinGraph):
            if (
                translator not in (None, steps.translator)
                or io_manager_key not in (DEFAULT_IO_MANAGER_KEY, steps.io_manager_key)
                or group_name not in (None, steps.group_name)
            ):
                raise ValueError(
                    "this MarinGraph has another translator, io_manager_key or group_name: give "
                    "them to MarinGraph.of alone."
                )
            return steps
        if not isinstance(steps, StepGraph):
            steps = StepGraph.from_steps(steps() if callable(steps) else steps)
        return cls(steps, translator or DagsterMarinTranslator(), io_manager_key, group_name)

    @cached_property
    def keys(self) -> Mapping[str, dg.AssetKey]:
        """The asset key of each output path, unique within the graph.

        The keys of steps that share a name end with the attributes that differ and the hash,
        ``train_lr-0.1_1a2b3c4d``; those of lazy artifacts end with the version.

        Raises:
            CollisionError: two steps of different names have one key.
        """
        steps = self.graph.steps
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
        marks = differences(self.graph)
        return {
            path: _described(self._grouped(self._spec(step), step), marks.get(path))
            for path, step in self.graph.steps.items()
        }

    @cached_property
    def op_names(self) -> Mapping[str, str]:
        """The op's name, Dagster's step key, for each output path that a run can build.

        Raises:
            CollisionError: two steps have one asset key.
        """
        built = {
            path: self.keys[path]
            for path, step in self.graph.steps.items()
            if not is_external(step)
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
                "have: its output is one folder. Make a step for each partition."
            )
        of_steps = {translator.get_asset_key(dep) for dep in step.deps}
        others = [dep for dep in spec.deps if dep.asset_key not in of_steps]
        own = dict.fromkeys(keys[dep.output_path] for dep in step.deps)
        return spec.replace_attributes(key=keys[step.output_path], deps=[*own, *others])

    def _grouped(self, spec: dg.AssetSpec, step: StepLike) -> dg.AssetSpec:
        if spec.group_name is not None:
            return spec
        first, *rest = step.name.split("/")
        group_name = self.group_name
        if group_name is None and rest and len(self.graph.steps) > _ONE_GROUP:
            group_name = ascii_name(first, _NOT_IN_GROUPS)
        return spec if group_name is None else spec.replace_attributes(group_name=group_name)


Steps = StepGraph | MarinGraph | Iterable[StepLike] | Callable[[], Iterable[StepLike]]
"""Steps, or a function that returns them, or their graph; dependencies need not be listed."""


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


def _described(spec: dg.AssetSpec, marks: Sequence[str] | None) -> dg.AssetSpec:
    """The spec with a first line that names what sets the step apart."""
    if marks is None:
        return spec
    line = "`" + summarize(marks).replace("`", "'") + "`"
    return spec.replace_attributes(
        description=f"{line}\n\n{spec.description}" if spec.description else line
    )
