"""``map_parallel``: one after another while each look-up is quick, else in threads."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

K = TypeVar("K")
S = TypeVar("S")
T = TypeVar("T")

WIDTH = 64
"""The number of threads."""

_WORTH_A_THREAD_S = 0.002
"""A look-up that takes longer waits for a network. On local disk threads only slow each other down:
1,000 look-ups take 0.04 s in one thread and 0.2 s in 32."""


def map_parallel(look: Callable[[S], T], things: Mapping[K, S]) -> dict[K, T]:
    """``look`` of each thing, by key, in the order of ``things``."""
    found: dict[K, T] = {}
    waiting = iter(things.items())
    for key, thing in waiting:
        began = time.monotonic()
        found[key] = look(thing)
        if time.monotonic() - began > _WORTH_A_THREAD_S:
            break
    rest = dict(waiting)
    if rest:
        with ThreadPoolExecutor(min(WIDTH, len(rest)), "marin-look-up") as pool:
            found.update(zip(rest, pool.map(look, rest.values()), strict=True))
    return found
