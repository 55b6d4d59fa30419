"""The steps of a graph as JSON, for another process: ``python -m marin_dagster.cli.graph_dump``."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marin_dagster.errors import MarinDagsterError


def dump_steps(name: str, folder: Path, partition: str | None) -> dict[str, Mapping[str, Any]]:
    """What a comparison needs of each step, by output path."""
    from marin_dagster.cache.record import as_recorded
    from marin_dagster.cli.graph_names import load_named
    from marin_dagster.steps.protocol import address, attributes, data_version

    graph = load_named(name, folder=folder, partition=partition).graph()
    return {
        path: {
            "name": step.name,
            "address": address(step),
            "version": data_version(step),
            "attributes": as_recorded(attributes(step)),
            "deps": {address(dep): dep.name for dep in step.deps},
        }
        for path, step in graph.steps.items()
    }


def main() -> int:
    """Print the steps of the graph that the arguments name, or what is wrong with it."""
    name, partition = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    try:
        steps = dump_steps(name, Path.cwd(), partition)
    except MarinDagsterError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    print(json.dumps({"steps": steps}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
