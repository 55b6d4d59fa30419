"""Lineage from records alone, without the code that made the outputs: what an output was made from,
and what was made from it.

A record states the identities and paths of what its step read. An output that has been removed
still appears where the record of a step that read it names it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from marin_dagster.cache.parallel import map_parallel
from marin_dagster.cache.record import RECORD_FILE, ArtifactRecord, read_record
from marin_dagster.cache.status import STATUS_FILE
from marin_dagster.cache.store import OutputDir
from marin_dagster.errors import RecordError
from marin_dagster.steps.paths import join, output_prefix

RECORDED, MISSING, UNREADABLE = "recorded", "missing", "unreadable"


@dataclass(frozen=True)
class LineageNode:
    """One output."""

    path: str
    identity: str
    """``name_hash``, ``name@version`` of a lazy artifact, or the end of the path if neither is
    known."""
    state: str
    """``recorded``, ``missing`` (no record), or ``unreadable``."""
    reads: tuple[str, ...]
    """Paths of what it was made from, as its record states them."""
    record: ArtifactRecord | None = None


@dataclass(frozen=True)
class Lineage:
    """An output and the outputs in one direction from it."""

    start: str
    """The output's path."""
    nodes: Mapping[str, LineageNode]
    """All outputs by path, the nearest first."""
    next: Mapping[str, tuple[str, ...]]
    """For each path, the next ones: what it was made from, or what was made from it."""


def upstream(path: str) -> Lineage:
    """What an output was made from, directly or not.

    Args:
        path: a local folder or a URL.

    Raises:
        StoreError: the store refused.
    """
    start = join(path, "")
    nodes: dict[str, LineageNode] = {}
    identities: dict[str, str] = {}
    level = [start]
    while level:
        found = map_parallel(_node, {at: at for at in level})
        for at, node in found.items():
            nodes[at] = node
            if node.record is not None and len(node.record.deps) == len(node.reads):
                identities.update(zip(node.reads, node.record.deps, strict=True))
        reads = dict.fromkeys(dep for node in found.values() for dep in node.reads)
        level = [dep for dep in reads if dep not in nodes]
    nodes = {at: _named(node, identities) for at, node in nodes.items()}
    return Lineage(start, nodes, {at: node.reads for at, node in nodes.items()})


def downstream(path: str, prefix: str) -> Lineage:
    """What was made from an output, directly or not, among the records of a store.

    Args:
        path: a local folder or a URL; it need not exist any more.
        prefix: the store to search. Folders inside outputs are not searched.

    Raises:
        StoreError: the store refused.
    """
    start = join(path, "")
    every = map_parallel(_node, {at: at for at in list_outputs(prefix)})
    readers: dict[str, list[str]] = defaultdict(list)
    identities: dict[str, str] = {}
    for at, node in every.items():
        for dep in node.reads:
            readers[dep].append(at)
        if node.record is not None and len(node.record.deps) == len(node.reads):
            identities.update(zip(node.reads, node.record.deps, strict=True))
    nodes: dict[str, LineageNode] = {}
    level = [start]
    while level:
        for at in level:
            nodes[at] = _named(every.get(at) or _node(at), identities)
        reached = dict.fromkeys(reader for at in level for reader in sorted(readers[at]))
        level = [reader for reader in reached if reader not in nodes]
    return Lineage(start, nodes, {at: tuple(sorted(readers[at])) for at in nodes})


def list_outputs(prefix: str) -> list[str]:
    """Paths of the outputs below a prefix: folders with a record or a status.

    Raises:
        StoreError: the store refused.
    """
    outputs: list[str] = []
    level = [join(prefix, "")]
    while level:
        found = map_parallel(lambda at: OutputDir.at(at).entries(), {at: at for at in level})
        level = []
        for at, (files, folders) in found.items():
            if RECORD_FILE in files or STATUS_FILE in files:
                outputs.append(at)
            else:
                level += [join(at, name) for name in folders]
    return outputs


def _node(path: str) -> LineageNode:
    name = path.rpartition("/")[2]
    try:
        record = read_record(OutputDir.at(path))
    except RecordError:
        return LineageNode(path, name, UNREADABLE, ())
    if record is None:
        return LineageNode(path, name, MISSING, ())
    # A name of several parts is a path of several folders.
    parts = path.split("/")[-1 - record.name.count("/") :]
    identity = f"{record.name}@{record.version}" if record.version else "/".join(parts)
    return LineageNode(path, identity, RECORDED, tuple(_reads(record, path)), record)


def _named(node: LineageNode, identities: Mapping[str, str]) -> LineageNode:
    """The node with the identity that a reader's record states, if its own does not."""
    if node.record is not None or node.path not in identities:
        return node
    return LineageNode(node.path, identities[node.path], node.state, ())


def _reads(record: ArtifactRecord, path: str) -> Iterable[str]:
    """Paths of what a step read. A lazy artifact's record has only identities."""
    if record.dep_paths:
        return [join(dep, "") for dep in record.dep_paths]
    prefix = _prefix(record, path)
    deps = [dep if _is_path(dep) else join(prefix, dep.replace("@", "/")) for dep in record.deps]
    return [join(dep, "") for dep in [*deps, *filter(None, [record.source])] if _is_path(dep)]


def _prefix(record: ArtifactRecord, path: str) -> str:
    """The store that holds an output whose address is its name and version."""
    address = f"/{record.name}/{record.version}"
    return path.removesuffix(address) if path.endswith(address) else output_prefix(None)


def _is_path(text: str) -> bool:
    return text.startswith("/") or "://" in text
