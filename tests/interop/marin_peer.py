"""What the tests against real marin-core share: steps of both classes, and Marin's readers."""

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import fsspec
from marin.execution.step_spec import StepSpec as MarinStep
from marin.execution.step_status import StatusFile
from rigging.filesystem.distributed_lock import DistributedLease, create_lock

from marin_dagster import StepSpec

CLASSES: tuple[Callable[..., Any], ...] = (MarinStep, StepSpec)
"""Marin's class of steps, and ours."""


def class_name(make: Callable[..., Any]) -> str:
    """A readable parameter id."""
    return "marin" if make is MarinStep else "ours"


class Calls:
    """Makes step functions for any store and remembers, in order, which of them ran."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.broken: set[str] = set()
        """Steps whose function raises after writing its file."""

    def function(self, name: str, result: Any = None) -> Callable[[str], Any]:
        """A function that notes ``name``, writes ``data.txt`` and returns ``result``."""

        def build(output_path: str) -> Any:
            self.names.append(name)
            filesystem, folder = fsspec.core.url_to_fs(output_path)
            filesystem.makedirs(folder, exist_ok=True)
            filesystem.pipe_file(f"{folder}/data.txt", name.encode())
            if name in self.broken:
                raise RuntimeError(f"{name} fails on purpose")
            return result

        return build

    def take(self) -> list[str]:
        """The names noted since the last call, sorted."""
        names, self.names = self.names, []
        return sorted(names)


def small_graph(make: Callable[..., Any], calls: Calls, prefix: str) -> list[Any]:
    """Six plain steps: a chain of three, one that ``calls`` may break, one below it, one alone."""

    def step(name: str, *deps: Any, result: Any = None, **fields: Any) -> Any:
        function = calls.function(name, result)
        return make(name, output_path_prefix=prefix, deps=list(deps), fn=function, **fields)

    tokens = step("raw/tokenize", hash_attrs={"tokenizer": "gpt2", "shards": (1, 2)})
    vocab = step("vocab", tokens, result={"size": 1000, "nested": {"loss": 0.25}})
    train = step("train", tokens, vocab, hash_attrs={"lr": 3e-4}, result={"steps": 7})
    flaky = step("flaky", tokens, hash_attrs={"é": [True, None]})
    report = step("report", flaky, train, override_output_path="reports/latest")
    alone = step("alone", result={})
    return [train, report, alone, flaky, vocab, tokens]


def marin_status(output_path: str) -> str | None:
    """An output's status as Marin reads it."""
    return StatusFile(output_path, worker_id="reader").status


def lock_url(output_path: str) -> str:
    """Where both sides keep the lock of an output."""
    return f"{output_path.rstrip('/')}/.executor_status.lock"


def marin_lock(output_path: str, worker_id: str = "reader") -> DistributedLease:
    """Marin's view of an output's lock."""
    return create_lock(lock_url(output_path), worker_id)


def read_json(output_path: str, name: str) -> dict[str, Any]:
    """A JSON file of an output."""
    filesystem, folder = fsspec.core.url_to_fs(output_path, use_listings_cache=False)
    return json.loads(filesystem.cat_file(f"{folder.rstrip('/')}/{name}"))


def write_file(output_path: str, name: str, content: str) -> None:
    """Put a file into an output's folder."""
    filesystem, folder = fsspec.core.url_to_fs(output_path)
    filesystem.makedirs(folder, exist_ok=True)
    filesystem.pipe_file(f"{folder.rstrip('/')}/{name}", content.encode())


def remove_tree(output_path: str) -> None:
    """Remove an output."""
    filesystem, folder = fsspec.core.url_to_fs(output_path)
    filesystem.rm(folder, recursive=True)


def files_below(prefix: str) -> list[str]:
    """Every file of a store, relative to it."""
    filesystem, folder = fsspec.core.url_to_fs(prefix, use_listings_cache=False)
    filesystem.invalidate_cache()
    root = folder.rstrip("/") + "/"
    return sorted(path.removeprefix(root) for path in filesystem.find(folder))


def age_lock(output_path: str, seconds: float = 120.0) -> None:
    """Make an output's lease look as if its holder had stopped renewing it long ago."""
    lease = read_json(output_path, ".executor_status.lock")
    lease["timestamp"] = time.time() - seconds
    write_file(output_path, ".executor_status.lock", json.dumps(lease))


def is_locked(output_path: str) -> bool:
    """Whether there is a lock file, whatever it contains."""
    filesystem, path = fsspec.core.url_to_fs(lock_url(output_path), use_listings_cache=False)
    filesystem.invalidate_cache()
    return bool(filesystem.exists(path))


def absolute(path: str) -> str:
    """A local path without a scheme, made absolute; anything else as it is."""
    return path if "://" in path else os.path.abspath(path)


def names(steps: Iterable[Any], paths: Sequence[str] | set[str]) -> list[str]:
    """The names of the steps at some output paths, sorted."""
    by_path = {step.output_path: step.name for step in steps}
    return sorted(by_path[path] for path in paths)
