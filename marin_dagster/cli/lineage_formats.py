"""Lineage as a Mermaid flowchart and as OpenLineage events."""

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from marin_dagster.cache import OutputDir
from marin_dagster.cache.lineage import Lineage, LineageNode
from marin_dagster.cache.record import RECORD_FILE

_PRODUCER = "https://github.com/marin-dagster/marin-dagster"
_SCHEMA = "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"


def mermaid(found: Lineage, *, down: bool) -> str:
    """A flowchart; arrows lead from what was read to what was made from it."""
    ids = {path: f"n{number}" for number, path in enumerate(found.nodes)}
    lines = ["flowchart LR"]
    for path, node in found.nodes.items():
        text = node.identity.replace('"', "#quot;")
        ended = "" if node.state == "recorded" else f"<br/>{node.state}"
        lines.append(f'  {ids[path]}["{text}{ended}"]')
    for path, others in found.next.items():
        for other in others:
            source, target = (path, other) if down else (other, path)
            lines.append(f"  {ids[source]} --> {ids[target]}")
    return "\n".join(lines)


def openlineage_events(found: Lineage) -> Iterator[str]:
    """A COMPLETE event for each output that has a record, as JSON."""
    for node in found.nodes.values():
        if node.record is not None:
            yield json.dumps(_event(node), ensure_ascii=False)


def _event(node: LineageNode) -> dict[str, Any]:
    assert node.record is not None
    provenance: Any = node.record.provenance
    when = OutputDir.at(node.path).modified(RECORD_FILE) or datetime.now(UTC)
    # The same output gives the same run at each call.
    run = uuid.uuid5(uuid.NAMESPACE_URL, f"{node.path} {when.isoformat()}")
    return {
        "eventType": "COMPLETE",
        "eventTime": when.isoformat(),
        "producer": _PRODUCER,
        "schemaURL": _SCHEMA,
        "run": {"runId": str(run)},
        "job": {
            "namespace": getattr(provenance, "dagster_job", None) or "marin",
            "name": node.record.name or node.identity,
        },
        "inputs": [_dataset(path) for path in node.reads],
        "outputs": [_dataset(node.path)],
    }


def _dataset(path: str) -> dict[str, str]:
    """A dataset's name by the rules of OpenLineage: bucket and key, or ``file`` and path."""
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return {"namespace": "file", "name": path.removeprefix("file://")}
    bucket, _, key = rest.partition("/")
    return {"namespace": f"{scheme}://{bucket}", "name": key or "/"}
