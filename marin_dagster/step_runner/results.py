"""``StepResults``: the outputs of what a script ran."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from marin_dagster.assets.output_loader import StepOutput
from marin_dagster.cache import OutputDir, read_record, read_status
from marin_dagster.cache.status import Status
from marin_dagster.errors import OutputNotReadyError
from marin_dagster.steps import StepGraph
from marin_dagster.steps.protocol import address


@dataclass(frozen=True)
class StepResults(Mapping[str, StepOutput]):
    """The outputs of a run's steps: by output path, and also by step, handle, name with hash, or a
    name that only one step has."""

    graph: StepGraph
    """The steps that were asked for, with all their dependencies."""
    dry_run: bool = False
    """Whether this was a dry run."""
    own: Mapping[str, str] = field(default_factory=dict)
    """The output path of each name that is the partition's own, where other partitions of the graph
    have steps of the same names."""

    def __getitem__(self, key: Any) -> StepOutput:
        """The finished output.

        Raises:
            KeyError: no such step, or several steps have this name.
            OutputNotReadyError: it is not built: it was not needed, or this was a dry run.
            RecordError: its record cannot be read.
        """
        step = self.graph.steps[self._path(key)]
        folder = OutputDir.at(step.output_path)
        finished = read_status(folder) is Status.SUCCESS
        if not finished and self.dry_run:
            raise OutputNotReadyError(
                f"step {address(step)} ({step.output_path}) is not built: this was a dry run. Call "
                "run() without dry_run to build it."
            )
        if not finished:
            raise OutputNotReadyError(
                f"step {address(step)} ({step.output_path}) is not built: nothing in this "
                "run needed it. Pass it to run()."
            )
        return StepOutput(step.output_path, address(step), read_record(folder))

    def __contains__(self, key: object) -> bool:
        try:
            return self._path(key) in self.graph.steps
        except KeyError:
            return False

    def __iter__(self) -> Iterator[str]:
        return iter(self.graph.steps)

    def __len__(self) -> int:
        return len(self.graph.steps)

    def _path(self, key: Any) -> str:
        if not isinstance(key, str):
            return str((key.lower() if hasattr(key, "lower") else key).output_path)
        return self.own.get(key) or self.graph.path_of(key)
