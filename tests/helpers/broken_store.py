"""A store that refuses everything, to prove that nothing touches it."""

from typing import Any

import fsspec


class BrokenFileSystem(fsspec.AbstractFileSystem):
    """A filesystem that refuses everything, to prove that nothing touches the store."""

    protocol = "broken"
    touched: list[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _refuse("__init__")


def _refuse(name: str) -> None:
    BrokenFileSystem.touched.append(name)
    raise OSError(f"the broken filesystem was asked to {name}")


def _refusal(name: str) -> Any:
    return lambda *args, **kwargs: _refuse(name)


for _name, _member in vars(fsspec.AbstractFileSystem).items():
    if callable(_member) and not _name.startswith("__"):
        setattr(BrokenFileSystem, _name, _refusal(_name))
