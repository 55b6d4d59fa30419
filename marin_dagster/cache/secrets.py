"""Removing credentials from text that many people can read, such as the record of an output.

It hides values with a name like a secret's (``--password x``, ``HF_TOKEN=x``, ``"api_key": "x"``),
the user and password of a URL, and keys of well-known forms. In doubt it hides a value: the text is
for people, and nothing is computed from it.
"""

import re
from collections.abc import Iterable, Iterator

HIDDEN = "***"

_SECRET = (
    r"pass(?:word|wd|phrase)s?|secrets?(?:[_-]?key)?|(?:api|access|account|private)[_-]?key"
    # Dagster passes an instance's configuration to its processes as an option, with passwords.
    r"|signature|authorization|instance-ref"
)
_MAYBE_SECRET = r"token|pwd|credentials?"
"""Names that paths, counts and text tokens have, too; :data:`_HARMLESS` matches such values."""
_HARMLESS = r"""\\*["']?(?:[/<]|\d{1,9}(?![\w.]))"""

_EQUALS = r"""\\*["']?\s*[:=]\s*(?:(?:bearer|basic)\s+)?"""
# Quoted, quoted inside a quoted text, bare, or with an opening quote only.
_VALUE = (
    r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'"""
    r"""|(?P<quote>\\+["'])(?:(?!(?<!\\)(?P=quote)).)*(?<!\\)(?P=quote)"""
    r"""|[^\s"'\\&]+|\\*["'].*)"""
)
_NAMED = re.compile(
    rf"(?P<name>(?:{_SECRET}){_EQUALS}|(?:{_MAYBE_SECRET}){_EQUALS}(?!{_HARMLESS})|[?&]sig=)"
    rf"{_VALUE}",
    re.IGNORECASE | re.DOTALL,
)
_OPTION = re.compile(
    rf"(?P<name>[\w.+-]*(?:(?P<secret>{_SECRET})|{_MAYBE_SECRET}))(?:=(?P<value>.*))?",
    re.IGNORECASE | re.DOTALL,
)
_URL_USER = (
    # A password that was not quoted for a URL can contain slashes; a port has digits only.
    re.compile(r"""(?<=://)[^\s"/@:]*:(?!\d+(?:[/?#]|$))[^\s"]*@"""),
    re.compile(r"""(?<=://)[^\s"/]*@"""),
)
_KEYS = re.compile(
    r"""\bhf_[A-Za-z0-9]{20,}              # Hugging Face
    |\bgh[oprsu]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{20,}
    |\b(?:AKIA|ASIA)[0-9A-Z]{16}\b         # AWS
    |\bAIza[\w-]{35}|\bya29\.[\w.-]{20,}   # Google
    |(?<![\w-])sk-(?=[\w-]*\d)[\w-]{20,}   # OpenAI, Anthropic
    |\bxox[abeoprs]-[\w-]{10,}             # Slack
    |\bpypi-[\w-]{50,}|\bdapi[0-9a-f]{32}
    |\beyJ[\w-]+\.eyJ[\w-]+\.[\w-]*        # JSON web token
    |(?<=\bBearer\ )[\w.~+/=-]{16,}
    |-----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)""",
    re.VERBOSE | re.DOTALL,
)


def scrub(text: str) -> str:
    """The text with every credential in it replaced by ``***``; users of URLs are removed."""
    for user in _URL_USER:
        text = user.sub("", text)
    return _KEYS.sub(HIDDEN, _NAMED.sub(rf"\g<name>{HIDDEN}", text))


def scrub_arguments(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments of a command line without credentials, including ``--password x``."""
    option: re.Match[str] | None = None
    for argument in arguments:
        if option is not None and not argument.startswith("--"):
            yield HIDDEN if _is_secret(option, argument) else scrub(argument)
            option = None
            continue
        found = _OPTION.fullmatch(argument)
        value = found["value"] if found else None
        if found and value and _is_secret(found, value):
            yield f"{found['name']}={HIDDEN}"
        else:
            yield scrub(argument)
        option = found if found and value is None and argument.startswith("-") else None


def _is_secret(option: re.Match[str], value: str) -> bool:
    return option["secret"] is not None or re.match(_HARMLESS, value) is None
