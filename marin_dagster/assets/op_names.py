"""Names of ops, which are Dagster's step keys: readable, and a different one for each asset key.

An op's name holds letters, digits and underscores only. What else is in a key is spelled out:
``models/ngram-4`` becomes ``models__ngram_dash_4``. The name depends on the key alone, so that
graphs merge and runs can be compared; the key can be read back from it, so that no two keys share
a name.
"""

import keyword
import re

import dagster as dg

from marin_dagster._compat import DISALLOWED_NAMES

_BETWEEN_PARTS = "__"
_SLASH = "_slash_"
_WORDS = {"-": "_dash_", ".": "_dot_", "_": "_under_"}
_CHARACTERS = {word: char for char, word in _WORDS.items()}
_TOKEN = re.compile(r"_(?:dash|dot|under|slash)_|_u([0-9a-f]+)_|__|.", re.DOTALL)


def op_name(key: dg.AssetKey) -> str:
    """The name of the op of an asset's step. It never has three underscores in a row.

    The parts of the key are joined by two underscores. ``-`` becomes ``_dash_``, ``.`` becomes
    ``_dot_``, and any other character its code point, such as ``_u3d_`` for ``=``. Underscores stay
    as they are, unless the name could then be another key's (``x__y`` beside ``x/y``): then each
    becomes ``_under_``, and a slash ``_slash_``. What Dagster or Python reserve (``class``) gets
    two underscores at its end.
    """
    name = _BETWEEN_PARTS.join(_spelled(part, r"[^A-Za-z0-9_]") for part in key.path)
    if "___" in name or _read(name) != list(key.path):
        name = _SLASH.join(_spelled(part, r"[^A-Za-z0-9]") for part in key.path)
    # Two underscores begin a part, and no part is empty: this is no other key's name.
    reserved = name in DISALLOWED_NAMES or keyword.iskeyword(name)
    return name + _BETWEEN_PARTS if reserved else name


def _spelled(part: str, unwanted: str) -> str:
    return re.sub(unwanted, lambda char: _WORDS.get(char[0], f"_u{ord(char[0]):x}_"), part)


def _read(name: str) -> list[str]:
    """The parts of the key that a name stands for, read from left to right."""
    parts = [""]
    for token in _TOKEN.finditer(name):
        if token[0] in (_BETWEEN_PARTS, _SLASH):
            parts.append("")
        elif token[1]:
            parts[-1] += chr(int(token[1], 16))
        else:
            parts[-1] += _CHARACTERS.get(token[0], token[0])
    return parts
