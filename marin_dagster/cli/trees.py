"""Graphs as trees of text."""

from collections.abc import Callable, Iterable, Iterator, Sequence


def tree_lines(
    roots: Iterable[str],
    children: Callable[[str], Sequence[str]],
    label: Callable[[str, bool], str],
) -> Iterator[str]:
    """The lines of a tree. What several parents have is expanded once.

    Args:
        roots: at the left.
        children: what is below each.
        label: the text for one, and whether it has been expanded above.
    """
    shown: set[str] = set()
    # Without recursion, so that chains of any length work.
    waiting = [(root, "", "") for root in reversed(list(roots))]
    while waiting:
        one, lead, below = waiting.pop()
        again = one in shown
        yield lead + label(one, again)
        if again:
            continue
        shown.add(one)
        found = list(children(one))
        for number in reversed(range(len(found))):
            is_last = number == len(found) - 1
            branch, more = ("└── ", "    ") if is_last else ("├── ", "│   ")
            waiting.append((found[number], below + branch, below + more))
