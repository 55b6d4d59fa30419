"""Functions of steps for every engine. They talk to the test through files beside the output."""

import ctypes
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from helpers.processes import wait_until


def write(output_path: str) -> dict[str, Any]:
    """Writes, prints and returns."""
    Path(output_path, "data.txt").write_text("made")
    print("on stdout")
    print("on stderr", file=sys.stderr)
    return {"pid": os.getpid(), "word": os.environ.get("STEP_WORD")}


def log(output_path: str) -> None:
    """Logs at two levels with each of three loggers."""
    for name in ("", "chatty", "quiet"):
        logging.getLogger(name).debug("debug of %s", name or "root")
        logging.getLogger(name).info("info of %s", name or "root")
        logging.getLogger(name).warning("warning of %s", name or "root")


def raise_error(output_path: str) -> None:
    """Fails as functions do."""
    raise LookupError("no such corpus")


def give_up(output_path: str) -> None:
    """Fails for good, in Dagster's words."""
    import dagster as dg

    class GivenUp(dg.Failure):
        """As people derive their own."""

    count(output_path)
    metadata = {"rows": 3, "page": dg.MetadataValue.url("https://example.com")}
    raise GivenUp("the corpus is empty", metadata=metadata, allow_retries=False)


def ask_for_a_retry(output_path: str) -> None:
    """Asks Dagster for two more attempts, in words of its own."""
    import dagster as dg

    try:
        if count(output_path) < 3:
            raise LookupError("no such corpus yet")
    except LookupError as error:
        raise dg.RetryRequested(max_retries=2, seconds_to_wait=0) from error


def segfault(output_path: str) -> None:
    """Dies in C code."""
    ctypes.string_at(0)


def kill_itself_once(output_path: str) -> None:
    """Dies by SIGKILL the first time."""
    if count(output_path) == 1:
        os.kill(os.getpid(), 9)


def eat_memory(output_path: str) -> None:
    """Wants 6 GiB, and touches them."""
    held = []
    for _ in range(96):
        held.append(bytearray(os.urandom(1)) * (64 << 20))
        time.sleep(0.02)


def wait_to_go(output_path: str) -> dict[str, Any]:
    """Counts itself, starts a child, and waits until the test lets it go on."""
    count(output_path)
    child = subprocess.Popen(["sleep", "600"])
    Path(output_path, "pids").write_text(f"{os.getpid()} {child.pid}")
    print("waiting to go")
    wait_for(beside(output_path, "go"))
    child.kill()
    child.wait()
    return {"pid": os.getpid()}


def beside(output_path: str, name: str) -> Path:
    """A file that belongs to the output and is not in it, so that nobody cleans it up."""
    return Path(f"{output_path}.{name}")


def count(output_path: str) -> int:
    """How often the function has been entered, with this time."""
    entries = beside(output_path, "entries")
    with entries.open("a") as file:
        file.write("entered\n")
    return len(entries.read_text().splitlines())


def wait_for(path: Path) -> None:
    """Wait until a file exists and has content."""
    wait_until(lambda: path.exists() and path.read_text())
