"""The graphs that benchmarks run, of trivial steps except where the name differs."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LONG_S = 30.0


def build_steps(graph: str, step_class: Any, resources: Any = None) -> list[Any]:
    """The graph's steps, as our ``StepSpec`` or Marin's."""

    def step(name: str, deps: list[Any], fn: Callable[[str], Any] = trivial) -> Any:
        return step_class(name=name, deps=deps, fn=fn, resources=resources)

    if graph.startswith("chain-"):
        chain: list[Any] = []
        for index in range(int(graph.removeprefix("chain-"))):
            chain.append(step(f"chain_{index}", chain[-1:]))
        return chain
    if graph.startswith("flat-"):
        return [step(f"flat_{index}", []) for index in range(int(graph.removeprefix("flat-")))]
    if graph == "waiting-16":
        return [step(f"waiting_{index}", [], wait) for index in range(16)]
    if graph == "long-8":
        return [step(f"long_{index}", [], wait_long) for index in range(8)]
    rows, columns = (int(number) for number in graph.removeprefix("grid-").split("x"))
    layers: list[list[Any]] = [[]]
    for row in range(rows):
        above = layers[-1]
        fan_in = min(3, len(above))
        layers.append(
            [
                step(f"r{row}_{column}", [above[(column + k) % columns] for k in range(fan_in)])
                for column in range(columns)
            ]
        )
    return [step for layer in layers for step in layer]


def trivial(output_path: str) -> None:
    """Does nothing."""


def wait(output_path: str) -> None:
    """Waits, as for a remote job."""
    time.sleep(0.5)


def wait_long(output_path: str) -> None:
    """Waits long enough for the run's beginning and end not to count."""
    time.sleep(LONG_S)


def finished_steps(steps: int, latency_s: float, step_class: Any) -> list[Any]:
    """Steps whose outputs are finished, on a store that takes ``latency_s`` for each read."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    class SlowFileSystem(LocalFileSystem):
        protocol = "slow"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return path.removeprefix("slow://")

        def cat_file(self, path: str, *args: Any, **kwargs: Any) -> bytes:
            time.sleep(latency_s)
            return bytes(super().cat_file(path, *args, **kwargs))

    fsspec.register_implementation("slow", SlowFileSystem, clobber=True)
    prefix = os.environ["MARIN_PREFIX"]
    if latency_s:
        os.environ["MARIN_PREFIX"] = f"slow://{prefix}"
    specs = [step_class(f"step_{index}", fn=trivial) for index in range(steps)]
    for spec in specs:
        folder = Path(prefix, spec.name_with_hash)
        folder.mkdir(parents=True)
        folder.joinpath(".executor_status").write_text("SUCCESS")
    return specs
