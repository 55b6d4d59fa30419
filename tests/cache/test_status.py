"""The status file: a bare token, the old JSON lines, and nothing else is ever a success."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.cache import STATUS
from marin_dagster.cache import OutputDir, Status, read_status, write_status
from marin_dagster.cache.status import parse_status
from marin_dagster.errors import StoreError

SUCCESSES = {
    "bare": b"SUCCESS",
    "line": b"SUCCESS\n",
    "white space": b" \t\r\n SUCCESS \r\n\n",
    "one JSON line": b'{"date": "2024", "status": "SUCCESS", "message": null}\n',
    "the last JSON line counts": b'{"status":"RUNNING"}\n\n{"status":"SUCCESS"}\n\n',
    "a line that is not JSON is passed over": b'{"status":"SUCCESS"}\nTraceback\n',
    "a truncated line is passed over": b'{"status":"SUCCESS"}\n{"stat',
    "a line without status is passed over": b'{"status":"SUCCESS"}\n{"note": 1}\n[1]\n7\n',
}

NO_STATUS = {
    "empty": b"",
    "white space only": b" \r\n\t\n",
    "lower case": b"success",
    "unknown token": b"CANCELED",
    "two tokens": b"SUCCESS SUCCESS",
    "two lines": b"SUCCESS\nSUCCESS",
    "success, then failure": b"SUCCESS\nFAILED",
    "quoted": b'"SUCCESS"',
    "part": b"SUCCES",
    "more": b"SUCCESSFUL",
    "NUL behind": b"SUCCESS\0",
    "zeros": b"\0" * 7,
    "UTF-16": "SUCCESS".encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbfSUCCESS",
    "full width": "ＳＵＣＣＥＳＳ".encode(),
    "binary": bytes(range(128, 256)),
    "a name of Python's enum": b"__members__",
    "JSON string": b'["SUCCESS"]',
    "JSON with unknown status": b'{"status": "DONE"}',
    "the last JSON line is unknown": b'{"status":"SUCCESS"}\n{"status":"CANCELED"}\n',
    "status is not text": b'{"status": ["SUCCESS"]}',
    "deeply nested JSON": b'{"status":' + b"[" * 100_000,
    "HTML": b"<html><body>503 SUCCESS</body></html>",
}


@pytest.mark.parametrize("content", SUCCESSES.values(), ids=SUCCESSES)
def test_a_success_is_read(content: bytes) -> None:
    assert parse_status(content) is Status.SUCCESS


@pytest.mark.parametrize("content", NO_STATUS.values(), ids=NO_STATUS)
def test_everything_else_is_no_status(content: bytes) -> None:
    assert parse_status(content) is None


@pytest.mark.parametrize("status", Status)
def test_every_status_is_read_as_a_token_and_as_a_json_line(status: Status) -> None:
    assert parse_status(status.value.encode()) is status
    assert parse_status(b'{"status": "%s"}\n' % status.value.encode()) is status


def test_a_failure_after_a_success_counts() -> None:
    assert parse_status(b'{"status":"SUCCESS"}\n{"status":"FAILED"}\n') is Status.FAILED


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary())
def test_no_content_at_all_breaks_the_reader(content: bytes) -> None:
    status = parse_status(content)
    assert status is not Status.SUCCESS or b"SUCCESS" in content


def test_a_missing_file_and_a_missing_folder_are_no_status(tmp_path: Path) -> None:
    assert read_status(OutputDir.at(str(tmp_path))) is None
    assert read_status(OutputDir.at(str(tmp_path / "missing"))) is None
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("status", [Status.SUCCESS, Status.FAILED, Status.RUNNING])
def test_a_status_is_written_as_a_bare_token(status: Status, tmp_path: Path) -> None:
    folder = OutputDir.at(str(tmp_path / "new" / "output"))
    write_status(folder, status)
    assert (tmp_path / "new" / "output" / STATUS).read_bytes() == status.value.encode()
    assert read_status(folder) is status


def test_a_shorter_status_replaces_a_longer_one_whole(tmp_path: Path) -> None:
    folder = OutputDir.at(str(tmp_path))
    (tmp_path / STATUS).write_bytes(b'{"status":"RUNNING"}\n' * 100)
    write_status(folder, Status.SUCCESS)
    assert (tmp_path / STATUS).read_bytes() == b"SUCCESS"


def test_a_status_that_cannot_be_read_is_an_error_and_not_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / STATUS).mkdir()
    with pytest.raises(StoreError, match=str(tmp_path / STATUS)):
        read_status(OutputDir.at(str(tmp_path)))
