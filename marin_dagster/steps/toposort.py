"""Walking step graphs without recursion, so that chains of any length work."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from marin_dagster.errors import CycleError, GraphError
from marin_dagster.steps.text import shown

S = TypeVar("S")

_NO_MORE: Any = object()


def deps_first(
    terminals: Iterable[S],
    *,
    stop: Callable[[Any], bool] = lambda step: False,
    check: Callable[[Any, str], None] | None = None,
) -> list[S]:
    """``terminals`` and everything they depend on, each object once, dependencies first.

    The order is the depth-first post-order of the terminals as given, the order in which Marin
    schedules. Only ``deps`` is read, so it is safe before any hash exists.

    Args:
        terminals: where the walk starts.
        stop: steps for which this is true are left out, with everything upstream of them.
        check: called with each object and its location; raises when it is not a step (by default)
            or not a handle.

    Raises:
        CycleError: naming every step of the ring.
        GraphError: something that is not a step, naming the step that depends on it.
    """
    check = check or _check_is_step
    order: list[S] = []
    done: set[int] = set()
    for terminal in terminals:
        check(terminal, "steps")
        if id(terminal) in done or stop(terminal):
            continue
        trail: dict[int, S] = {id(terminal): terminal}
        waiting: list[Iterator[S]] = [_deps(terminal)]
        while waiting:
            dep = next(waiting[-1], _NO_MORE)
            if dep is _NO_MORE:
                waiting.pop()
                key, step = trail.popitem()
                done.add(key)
                order.append(step)
                continue
            check(dep, f"deps of step {_name(next(reversed(trail.values())))!r}")
            if id(dep) in trail:
                raise CycleError(_describe_ring(list(trail.values()), dep))
            if id(dep) not in done and not stop(dep):
                trail[id(dep)] = dep
                waiting.append(_deps(dep))
    return order


def _check_is_step(value: Any, where: str) -> None:
    # On the class: on the object, it would compute hashes before rings are detected.
    if not (hasattr(type(value), "name_with_hash") and hasattr(type(value), "output_path")):
        raise GraphError(
            f"{where}: {shown(value)} is a {type(value).__name__}, not a step. "
            "Give StepSpec objects."
        )


def _name(step: Any) -> str:
    return str(step.name)


def _deps(step: Any) -> Iterator[Any]:
    return iter(step.deps)


def _describe_ring(trail: list[Any], repeated: Any) -> str:
    start = next(index for index, step in enumerate(trail) if step is repeated)
    ring = [step.name for step in trail[start:]]
    return (
        f"steps depend on each other in a ring: {' -> '.join([*ring, ring[0]])} "
        "(each depends on the next). Remove one of these dependencies."
    )
