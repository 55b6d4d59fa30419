"""Small files on local disk: replaced as a whole or not at all, never seen in part."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from helpers.cache import GUARD_S
from marin_dagster.cache import OutputDir
from marin_dagster.errors import StoreError

NAME = ".artifact.json"


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    folder = OutputDir.at(str(tmp_path))
    contents = [letter * 2_000_000 for letter in (b"a", b"b")]
    folder.write(NAME, contents[0])
    stop, torn = threading.Event(), []
    reads = 0

    def read() -> None:
        nonlocal reads
        while not stop.is_set():
            content = (tmp_path / NAME).read_bytes()
            reads += 1
            if content not in contents:
                torn.append(len(content))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(100):
        folder.write(NAME, contents[number % 2])
    while reads < 10:
        folder.write(NAME, contents[reads % 2])
    stop.set()
    reader.join(GUARD_S)
    assert not torn
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    folder = OutputDir.at(str(tmp_path))
    contents = [letter * 300_000 for letter in (b"a", b"b", b"c", b"d")]
    barrier = threading.Barrier(len(contents))

    def write(content: bytes) -> None:
        barrier.wait(GUARD_S)
        for _ in range(20):
            folder.write(NAME, content)

    with ThreadPoolExecutor(len(contents)) as pool:
        list(pool.map(write, contents))
    assert folder.read(NAME) in contents
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_an_open_reader_keeps_the_content_that_it_opened(tmp_path: Path) -> None:
    folder = OutputDir.at(str(tmp_path))
    folder.write(NAME, b"old content")
    with (tmp_path / NAME).open("rb") as file:
        folder.write(NAME, b"new")
        assert file.read() == b"old content"


@pytest.mark.parametrize("error", [OSError("full"), KeyboardInterrupt()], ids=repr)
def test_an_interrupted_write_leaves_the_old_content_and_no_litter(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = OutputDir.at(str(tmp_path))
    folder.write(NAME, b"old")

    def refuse(*arguments: Any) -> None:
        raise error

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(StoreError if isinstance(error, OSError) else KeyboardInterrupt):
        folder.write(NAME, b"new")
    assert (tmp_path / NAME).read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_the_temporary_file_is_dotted_and_beside_its_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[tuple[Path, Path]] = []
    replace = os.replace

    def logged(source: str, target: str) -> None:
        moves.append((Path(source), Path(target)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", logged)
    OutputDir.at(str(tmp_path / "new" / "output")).write(NAME, b"x")
    [(source, target)] = moves
    assert target == tmp_path / "new" / "output" / NAME
    assert source.parent == target.parent
    assert source.name.startswith(".")


def test_a_file_where_a_folder_should_be_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match=r"write .*/file/output/\.artifact\.json"):
        OutputDir.at(str(tmp_path / "file" / "output")).write(NAME, b"x")
    assert (tmp_path / "file").read_text() == "x"


def test_deleting_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    OutputDir.at(str(tmp_path / "missing")).delete(NAME)
    assert not (tmp_path / "missing").exists()
