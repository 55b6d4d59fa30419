"""``StepReferences``: the step to which a step, a handle, a path or a text refers."""

from pathlib import PurePath
from typing import Any

from marin_dagster.steps.graph import StepGraph
from marin_dagster.steps.paths import join
from marin_dagster.steps.protocol import Handle, address, handle_of

_LONGEST_PATH = 4_096


class StepReferences:
    """Output paths of a graph's steps, and of other steps and handles that it is asked for."""

    def __init__(self, graph: StepGraph) -> None:
        self.names = {path: address(step) for path, step in graph.steps.items()}
        """The address of every step that is known, by output path."""
        self._folders = {_plain(path): path for path in graph.steps}
        self._by_address = {name: path for path, name in self.names.items()}
        self._handles = {
            id(handle): path
            for path, step in graph.steps.items()
            if (handle := handle_of(step)) is not None
        }

    def path_of(self, value: Any) -> str | None:
        """The output path of a step or handle, or that to which a text or path belongs; None for
        any other value."""
        if isinstance(value, str):
            return self._owner(value)
        if isinstance(value, PurePath):
            return self._owner(str(value))
        kind = type(value)
        if hasattr(kind, "name_with_hash") and hasattr(kind, "output_path"):
            return self._path_of_step(value)
        if isinstance(value, Handle) or (
            hasattr(kind, "lower") and hasattr(value, "artifact_type") and hasattr(kind, "path")
        ):
            return self._path_of_handle(value)
        return None

    def _path_of_step(self, step: Any) -> str | None:
        try:
            path = str(step.output_path)
            self.names.setdefault(path, address(step))
        except Exception:  # not in the graph, and no valid step
            return None
        return path

    def _path_of_handle(self, handle: Any) -> str | None:
        known = self._handles.get(id(handle))
        if known is not None:
            return known
        try:
            name = f"{handle.name}/{handle.version}"
            path = self._by_address.get(name) or str(handle.path())
        except Exception:
            return None
        self.names.setdefault(path, name)
        return path

    def _owner(self, text: str) -> str | None:
        """The output path that a text is, or below which it lies."""
        if "/" not in text or len(text) > _LONGEST_PATH or "\n" in text:
            return None
        folder = _plain(text)
        while folder:
            if folder in self._folders:
                return self._folders[folder]
            folder = folder.rpartition("/")[0]
        return None


def _plain(path: str) -> str:
    """A path or URL without doubled and trailing slashes; a local one without a scheme."""
    return join(path.removeprefix("file://"), "")
