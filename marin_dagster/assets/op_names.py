"""Names of ops, which are Dagster's step keys: readable, and one for each asset key of a graph.

An op's name holds letters, digits and underscores only. ``models/llama-3.1-8b`` becomes
``models__llama_3_1_8b``. If two keys of one graph would share such a plain name, both are spelled
out, ``models__llama_dash_3_dot_1_dash_8b``; a key can be read back from its spelled-out name, so no
two keys share one.
"""

import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping

import dagster as dg

from marin_dagster._compat import DISALLOWED_NAMES

_BETWEEN_PARTS = "__"
_SLASH = "_slash_"
_WORDS = {"-": "_dash_", ".": "_dot_", "_": "_under_"}
_CHARACTERS = {word: char for char, word in _WORDS.items()}
_TOKEN = re.compile(r"_(?:dash|dot|under|slash)_|_u([0-9a-f]+)_|__|.", re.DOTALL)


def op_names(keys: Iterable[dg.AssetKey]) -> Mapping[dg.AssetKey, str]:
    """The op's name for each asset key of one graph; their order does not matter.

    The plain name joins the key's parts by two underscores and has ``_`` for every character that
    is not a letter or a digit. A key has its spelled-out name instead when another key of the graph
    could have the same name, or when Dagster or Python reserve the plain name (``class``). No name
    has three underscores in a row.
    """
    names = {key: (_plain(key), _spelled_out(key)) for key in dict.fromkeys(keys)}
    claims = Counter(name for both in names.values() for name in set(both))
    return {
        key: spelled if claims[plain] > 1 or "___" in plain or _is_reserved(plain) else plain
        for key, (plain, spelled) in names.items()
    }


def _plain(key: dg.AssetKey) -> str:
    return _BETWEEN_PARTS.join(re.sub(r"[^A-Za-z0-9]", "_", part) for part in key.path)


def _spelled_out(key: dg.AssetKey) -> str:
    """A name that no other key has.

    The parts of the key are joined by two underscores. ``-`` becomes ``_dash_``, ``.`` becomes
    ``_dot_``, and any other character its code point, such as ``_u3d_`` for ``=``. Underscores stay
    as they are, unless the name could then be another key's (``x__y`` beside ``x/y``): then each
    becomes ``_under_``, and a slash ``_slash_``. A reserved name gets two underscores at its end.
    """
    name = _BETWEEN_PARTS.join(_spelled(part, r"[^A-Za-z0-9_]") for part in key.path)
    if "___" in name or _read(name) != list(key.path):
        name = _SLASH.join(_spelled(part, r"[^A-Za-z0-9]") for part in key.path)
    # Two underscores begin a part, and no part is empty: no other key has this name.
    return name + _BETWEEN_PARTS if _is_reserved(name) else name


def _is_reserved(name: str) -> bool:
    return name in DISALLOWED_NAMES or keyword.iskeyword(name)


def _spelled(part: str, unwanted: str) -> str:
    return re.sub(unwanted, lambda char: _WORDS.get(char[0], f"_u{ord(char[0]):x}_"), part)


def _read(name: str) -> list[str]:
    """The parts of the key with this spelled-out name."""
    parts = [""]
    for token in _TOKEN.finditer(name):
        if token[0] in (_BETWEEN_PARTS, _SLASH):
            parts.append("")
        elif token[1]:
            parts[-1] += chr(int(token[1], 16))
        else:
            parts[-1] += _CHARACTERS.get(token[0], token[0])
    return parts
