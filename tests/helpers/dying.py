"""Processes that die by signal 9 at a chosen change of the store."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from marin_dagster.cache import OutputDir


def killed_at_each_change(output_path: str, body: Callable[[], Any]) -> Iterator[int]:
    """Run ``body`` in processes that die before its first change of a store, its second, and so on.

    Yields after each death, with the output as the process has left it; begins each time with the
    output as it was, and ends when the body lives to its end.
    """
    before = Path(f"{output_path}.before")
    shutil.copytree(output_path, before)
    for number in range(1, 100):
        shutil.rmtree(output_path)
        shutil.copytree(before, output_path)
        pid = os.fork()
        if pid == 0:
            _die_at(number)
            code = 1
            try:
                body()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0, "the body failed by itself"
            assert number > 1, "the body changes nothing"
            return
        assert os.WTERMSIG(status) == signal.SIGKILL
        yield number
    raise AssertionError("the body never ends")


def remove_lock(output_path: str) -> None:
    """Let the lease of a dead process run out at once."""
    Path(output_path, ".executor_status.lock").unlink(missing_ok=True)


def _die_at(number: int) -> None:
    changes = 0

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*arguments: Any) -> Any:
            nonlocal changes
            changes += 1
            if changes == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments)

        return dying

    OutputDir.write = counted(OutputDir.write)  # type: ignore[method-assign]
    OutputDir.delete = counted(OutputDir.delete)  # type: ignore[method-assign]
