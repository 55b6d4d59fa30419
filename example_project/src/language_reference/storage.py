"""Read and write the files of a step, on whatever store its output path names.

Paths are plain strings: a folder on local disk or any URL that fsspec knows, such as
`s3://bucket/folder` or `memory://folder`. Nothing else in the project opens a file.
"""

import io
import json
from collections.abc import Iterable
from typing import Any

import fsspec
import numpy as np
import numpy.typing as npt


def join(folder: str, name: str) -> str:
    """The path of a file in a folder; URLs and local paths alike."""
    return f"{folder.rstrip('/')}/{name}"


def list_files(folder: str, suffix: str) -> list[str]:
    """The paths of the folder's files with that suffix, sorted by name."""
    filesystem, root = fsspec.core.url_to_fs(folder)
    names = (path.rsplit("/", 1)[-1] for path in filesystem.ls(root, detail=False))
    return [join(folder, name) for name in sorted(names) if name.endswith(suffix)]


def read_bytes(path: str) -> bytes:
    with fsspec.open(path, "rb") as file:
        content: bytes = file.read()
    return content


def write_bytes(path: str, content: bytes) -> None:
    with fsspec.open(path, "wb") as file:
        file.write(content)


def read_text(path: str) -> str:
    return read_bytes(path).decode("utf-8")


def write_text(path: str, text: str) -> None:
    write_bytes(path, text.encode("utf-8"))


def read_json(path: str) -> Any:
    return json.loads(read_text(path))


def write_json(path: str, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_jsonl(path: str) -> list[Any]:
    # Split on "\n" alone: `str.splitlines` would also cut at separators inside the strings.
    return [json.loads(line) for line in read_text(path).split("\n") if line]


def write_jsonl(path: str, records: Iterable[Any]) -> None:
    lines = (json.dumps(record, ensure_ascii=False, sort_keys=True) for record in records)
    write_text(path, "".join(f"{line}\n" for line in lines))


def read_array(path: str) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(io.BytesIO(read_bytes(path)), allow_pickle=False)
    return array


def write_array(path: str, array: npt.NDArray[Any]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    write_bytes(path, buffer.getvalue())
