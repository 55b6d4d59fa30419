"""What noting the reads of a step costs."""

import multiprocessing
import os
import time
from pathlib import Path


def measure_audit(files: int, repeats: int) -> dict[str, float]:
    """Seconds of a function that opens and reads files of 4 KiB, with the audit hook and without.

    The hook cannot be removed, so each turn is a process of its own; the kinds take turns, and the
    shortest of each counts. ``read`` are files of a dependency, ``spread`` the same number in ten
    files to a folder, where the hook looks at each folder once.
    """
    store = Path(os.environ["MARIN_PREFIX"])
    for index in range(files):
        for file in (
            store / "raw_00000000" / f"{index}.bin",
            store / "raw_00000000" / str(index // 10) / f"{index}.bin",
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"x" * 4096)
    found: dict[str, list[float]] = {}
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for _ in range(repeats):
            for spread in (False, True):
                for hook in (False, True):
                    seconds = pool.apply(_read_all, (str(store), files, spread, hook))
                    name = ("spread" if spread else "read") + ("_noted" if hook else "")
                    found.setdefault(name, []).append(seconds)
    return {name: min(seconds) for name, seconds in found.items()}


def _read_all(store: str, files: int, spread: bool, hook: bool) -> float:
    from marin_dagster.runners.output_reads import ReadScope, noting_reads

    raw = f"{store}/raw_00000000"
    scope = ReadScope((store,), (f"{store}/own_00000000", raw)) if hook else None
    with noting_reads(scope):
        started = time.perf_counter()
        for index in range(files):
            path = f"{raw}/{index // 10}/{index}.bin" if spread else f"{raw}/{index}.bin"
            with open(path, "rb") as file:
                file.read()
        return time.perf_counter() - started
