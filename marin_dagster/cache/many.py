"""One question about many steps: in turn while the answers are quick, else in threads."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from marin_dagster.steps.protocol import StepLike

K = TypeVar("K")
T = TypeVar("T")

WIDTH = 32
"""How many outputs are looked at at once."""

_WORTH_A_THREAD_S = 0.002
"""A look that takes longer waits for something. On local disk threads only get in each other's way:
1,000 looks take 0.04 s in one and 0.2 s in 32."""


def look_at_all(look: Callable[[StepLike], T], steps: Mapping[K, StepLike]) -> dict[K, T]:
    """``look`` of each step, under the key of the step, in the order of ``steps``."""
    found: dict[K, T] = {}
    waiting = iter(steps.items())
    for path, step in waiting:
        began = time.monotonic()
        found[path] = look(step)
        if time.monotonic() - began > _WORTH_A_THREAD_S:
            break
    rest = dict(waiting)
    if rest:
        with ThreadPoolExecutor(min(WIDTH, len(rest)), "marin-look-up") as pool:
            found.update(zip(rest, pool.map(look, rest.values()), strict=True))
    return found
