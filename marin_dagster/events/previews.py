"""Small files at the top of an output, as metadata that Dagster shows on its materialization.

Markdown (``*.md``), pictures (``*.png``), tables (``*.csv``) and JSON (``*.json``), in this order,
each kind sorted by name. Limits: four files and 128 KiB for an output, 64 KiB for a picture, 32 KiB
for any other file; a table shows its first 20 rows and columns. Dagster keeps metadata in its event
log, in four copies on SQLite, so larger previews would bloat it. A link on disk that leads out of
the output is not shown.
"""

import base64
import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import dagster as dg
from pydantic_core import from_json, to_json

from marin_dagster.cache import OutputDir
from marin_dagster.errors import StoreError
from marin_dagster.events.metadata_keys import PREVIEW_PREFIX

MAX_FILES = 4
MAX_BYTES = 128 * 1024
MAX_PICTURE_BYTES = 64 * 1024
MAX_TEXT_BYTES = 32 * 1024
MAX_ROWS = 20
MAX_COLUMNS = 20
MAX_CELL = 200
"""Characters in a cell of a table."""
MAX_DEPTH = 20
"""Levels of nested JSON: Dagster and the page read it recursively."""
MAX_PIXELS = 25_000_000
"""Pixels of a picture: a few bytes can unpack to gigabytes in a browser."""

_PNG = re.compile(rb"\x89PNG\r\n\x1a\n.{4}IHDR(.{4})(.{4})", re.DOTALL)
_IMAGE = re.compile(r"!\[([^\[\]\n]*)\]\((?:<([^<>\n]+)>|([^()\s]+))\)")
"""An image in Markdown; its path in angle brackets, or bare. No part matches a character with which
an image or a path begins, so a search takes time linear in the text."""
_MAX_INTEGER = 10**15
"""A browser's numbers hold smaller integers exactly; a column with a larger one is text."""


def previews_of(
    folder: OutputDir, files: Mapping[str, int], log: Callable[[str], None]
) -> dict[str, dg.MetadataValue[Any]]:
    """The previews of an output. A file whose content does not match its name has none.

    Args:
        folder: the output.
        files: size in bytes of each file by its path in the folder.
        log: called with a message when the store fails to return a file.

    Returns:
        Metadata by ``marin/preview/<file name>``.
    """
    reader = _Reader(folder, files)
    shown: dict[str, dg.MetadataValue[Any]] = {}
    for make, name in _candidates(files):
        if len(shown) == MAX_FILES:
            break
        try:
            shown[PREVIEW_PREFIX + name] = make(reader, name)
        except StoreError as error:
            # Do not wait again for a store that does not answer.
            log(f"no more previews: {error}")
            break
        except Exception:
            # The output is committed by now: no content of a file may make its step fail.
            continue
    return shown


@dataclass
class _Reader:
    """Reads files within the limits, each picture once."""

    folder: OutputDir
    files: Mapping[str, int]
    left: int = MAX_BYTES
    pictures: dict[str, bytes] = field(default_factory=dict)

    def picture(self, name: str) -> str:
        """The picture as a data URI; each use reduces the bytes left."""
        data = self.pictures.get(name)
        if data is None:
            # So that a file which is not a picture is also read only once.
            self.pictures[name] = b""
            data = self._read(name, MAX_PICTURE_BYTES)
            header = _PNG.match(data)
            if header is None:
                raise ValueError("not a picture")
            width, height = (int.from_bytes(side, "big") for side in header.groups())
            if not 0 < width * height <= MAX_PIXELS:
                raise ValueError("too many pixels")
            self.pictures[name] = data
        if not 0 < len(data) <= self.left:
            raise ValueError("not a picture, or over the limit")
        self.left -= len(data)
        return "data:image/png;base64," + base64.b64encode(data).decode()

    def text(self, name: str) -> str:
        """The file's text."""
        data = self._read(name, MAX_TEXT_BYTES)
        if b"\0" in data:
            raise ValueError("not text")
        text = data.decode("utf-8-sig")
        self.left -= len(data)
        return text

    def _read(self, name: str, limit: int) -> bytes:
        # Do not read a file without bytes: it may be a pipe, which never ends.
        if not 0 < self.files[name] <= min(limit, self.left):
            raise ValueError("nothing to show, or too large")
        if self.folder.is_local and not _is_inside(self.folder, name):
            raise ValueError("a link that leads out of the output")
        data = self.folder.read(name) or b""
        if len(data) > min(limit, self.left):
            raise ValueError("has grown since it was listed")
        return data


def _is_inside(folder: OutputDir, name: str) -> bool:
    root = os.path.realpath(folder.path)
    return os.path.realpath(folder.file(name)).startswith(os.path.join(root, ""))


def _candidates(files: Mapping[str, int]) -> Iterator[tuple["_Maker", str]]:
    for ending, make in _MAKERS.items():
        for name in sorted(files):
            # A page cannot show a name that is unprintable or not valid Unicode.
            if "/" not in name and name.lower().endswith(ending) and name.isprintable():
                yield make, name


def _picture(reader: _Reader, name: str) -> dg.MetadataValue[Any]:
    alternative = re.sub(r"([\\\[\]`*_<>!])", r"\\\1", name)
    return dg.MetadataValue.md(f"![{alternative}]({reader.picture(name)})")


def _markdown(reader: _Reader, name: str) -> dg.MetadataValue[Any]:
    def inlined(image: re.Match[str]) -> str:
        target = unquote(image[2] or image[3]).removeprefix("./")
        if target not in reader.files or "/" in target:
            return image[0]
        try:
            return f"![{image[1]}]({reader.picture(target)})"
        except ValueError:
            return image[0]

    text = reader.text(name)
    if not text.strip():
        raise ValueError("nothing to show")
    return dg.MetadataValue.md(_IMAGE.sub(inlined, text))


def _json(reader: _Reader, name: str) -> dg.MetadataValue[Any]:
    # NaN and infinity as text: a browser's JSON has neither.
    plain = json.loads(to_json(json.loads(reader.text(name)), inf_nan_mode="strings"))
    _check_depth(plain)
    if isinstance(plain, (dict, list)):
        return dg.MetadataValue.json(plain)
    return dg.MetadataValue.text(json.dumps(plain))


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise ValueError("too deep to show")
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            _check_depth(item, depth + 1)


def _table(reader: _Reader, name: str) -> dg.MetadataValue[Any]:
    lines = csv.reader(io.StringIO(reader.text(name), newline=""))
    head, *rows = [line for line in lines if line] or [[]]
    width = max(len(line) for line in [head, *rows])
    if width == 0:
        raise ValueError("nothing to show")
    top = [row + [""] * (width - len(row)) for row in rows[:MAX_ROWS]]
    columns = {
        title: _typed([row[index] for row in top])
        for index, title in enumerate(_titles(head, min(width, MAX_COLUMNS)))
    }
    cut = [f"the first {MAX_ROWS} of {len(rows)} rows"] if len(rows) > MAX_ROWS else []
    cut += [f"the first {MAX_COLUMNS} of {width} columns"] if width > MAX_COLUMNS else []
    return dg.MetadataValue.table(
        [
            dg.TableRecord({title: cells[index] for title, (_, cells) in columns.items()})
            for index in range(len(top))
        ],
        schema=dg.TableSchema(
            columns=[dg.TableColumn(title, kind) for title, (kind, _) in columns.items()],
            constraints=dg.TableConstraints(other=cut) if cut else None,
        ),
    )


def _titles(head: list[str], width: int) -> list[str]:
    """A title for each column; a missing or repeated title gets the column's number."""
    titles: dict[str, None] = {}
    for index in range(width):
        title = _short(head[index]) if index < len(head) and head[index].strip() else "column"
        while title in titles or title == "column":
            title += f" {index + 1}"
        titles[title] = None
    return list(titles)


def _typed(cells: list[str]) -> tuple[str, list[str | int | float | None]]:
    """The type and the values of a column: numbers when each cell is a JSON number, which ``007``
    is not; else text."""
    try:
        values = {cell: from_json(cell, allow_inf_nan=False) for cell in cells if cell.strip()}
    except ValueError:
        values = {}
    kinds = {type(value) for value in values.values()}
    fit = kinds <= {int, float} and all(
        abs(value) < _MAX_INTEGER if isinstance(value, int) else math.isfinite(value)
        for value in values.values()
    )
    if not kinds or not fit:
        return "string", [_short(cell) for cell in cells]
    return "int" if kinds == {int} else "float", [values.get(cell) for cell in cells]


def _short(text: str) -> str:
    return text if len(text) <= MAX_CELL else text[:MAX_CELL] + "…"


_Maker = Callable[[_Reader, str], dg.MetadataValue[Any]]
_MAKERS: dict[str, _Maker] = {
    ".md": _markdown,  # first, so that a report's pictures appear in the report
    ".png": _picture,
    ".csv": _table,
    ".json": _json,
}
