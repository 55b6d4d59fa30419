"""A stand-in for Marin's own ``StepSpec``, and the golden identities."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from marin_dagster.steps import StepSpec

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Random examples on a machine that may be busy."""

GOLDEN = Path(__file__).parents[1] / "data" / "golden" / "step_identity.json"


@dataclass(frozen=True, eq=False)
class MarinLike:
    """The same fields, cached properties and naive recursion as Marin's class."""

    name: str
    output_path_prefix: str | None = None
    deps: list[Any] = field(default_factory=list)
    hash_attrs: dict[str, Any] = field(default_factory=dict)
    override_output_path: str | None = None
    fingerprint_payload: str | None = None
    writes_record: bool = False
    fn: Callable[[str], Any] | None = None
    resources: Any = None

    @cached_property
    def dep_paths(self) -> list[str]:
        return [dep.output_path for dep in self.deps]

    @cached_property
    def dep_names(self) -> list[str]:
        return [dep.name_with_hash for dep in self.deps]

    @cached_property
    def hash_id(self) -> str:
        content = json.dumps(
            {"name": self.name, "attrs": self.hash_attrs, "deps": sorted(self.dep_names)},
            sort_keys=True,
        )
        return hashlib.sha256(content.encode("utf-8")).hexdigest()[:8]

    @cached_property
    def name_with_hash(self) -> str:
        return f"{self.name}_{self.hash_id}"

    @cached_property
    def output_path(self) -> str:
        if self.override_output_path is not None:
            return self.override_output_path
        return f"{self.output_path_prefix}/{self.name_with_hash}"


def golden_graphs() -> list[list[dict[str, Any]]]:
    """The 40 graphs that were recorded from real marin-core."""
    graphs: list[list[dict[str, Any]]] = json.loads(GOLDEN.read_text())["graphs"]
    return graphs


def build_golden(
    graph: list[dict[str, Any]], classes: Callable[[int], Any] = lambda index: StepSpec
) -> list[Any]:
    """The steps of one recorded graph; ``classes`` has the class of the step at an index."""
    steps: list[Any] = []
    for index, node in enumerate(graph):
        fields: Mapping[str, Any] = {
            "output_path_prefix": node["output_path_prefix"],
            "deps": [steps[dep] for dep in node["deps"]],
            "hash_attrs": node["hash_attrs"],
            "override_output_path": node["override_output_path"],
        }
        steps.append(classes(index)(node["name"], **fields))
    return steps


def chain(length: int, make: Callable[..., Any] = StepSpec, prefix: str = "/store") -> list[Any]:
    """A chain of steps, the first without dependencies."""
    steps: list[Any] = []
    for index in range(length):
        steps.append(make(f"s{index}", output_path_prefix=prefix, deps=steps[-1:]))
    return steps
