"""Removing credentials from text that many people can read, such as the record of an output.

It hides values with a name like a secret's (``--password x``, ``HF_TOKEN=x``, ``"api_key": "x"``),
the user and password of a URL, and keys of well-known forms. In doubt it hides a value: the text is
for people, and nothing is computed from it.

Regular expressions find the names, :func:`_end_of_value` finds where a value ends. Quantifiers that
could backtrack over long texts are possessive (``*+``), so that the time grows with the length.
"""

import re
from collections.abc import Iterable, Iterator

HIDDEN = "***"

_WORD = r"(?:(?<![^\W_])|(?<=\\[nrt])|(?-i:(?<=[a-z0-9])(?=[A-Z])))"
"""Where a word starts: ``pass`` in ``db_pass``, ``dbPass`` and after an escaped newline, not in
``bypass``."""
_SECRET = (
    r"(?:pass(?:word|wd|phrase)s?|secrets?(?:[_-]?(?:key(?:[_-]?base)?|value|id))?"
    r"|(?:api|access|account|private)[_-]?keys?|(?:api|access|auth|refresh)[_-]?tokens?"
    # Dagster passes an instance's configuration to its processes as an option, with passwords.
    rf"|signature|authorization|instance-ref|{_WORD}(?:pass|pw))"
)
_MAYBE_SECRET = rf"(?:token(?:[_-]?id)?|pwd|credentials?|{_WORD}auth|(?-i:[A-Z0-9]_KEY))"
"""Names that paths, counts and text tokens have, too; :data:`_HARMLESS` matches such values."""
_HARMLESS = (
    r"""\\*+["']?+(?:<|(?:\.{1,2}|~|\w{1,9}:/)?/"""
    r"""|-?\d{1,9}(?![\w.])|\[[\d,\s]*+\]|(?:none|null|true|false)\b)"""
)

_EQUALS = (
    # ``name=``, ``"name":`` and, in a pair or a list of arguments, ``"name",``
    r"""(?:\\*+["']?+\s*+[:=]++>?+|\\*+["']\s*+,)[^\S\n]*+"""
    # A quoted value on the next line; :data:`_VALUE` has indented lines.
    r"""(?:\n(?=["'])|\\++n(?=\\++["']))?+(?:(?:bearer|basic)\s++)?+"""
)
_OPTION_START = r"(?<![\w-])--?(?=\w)[\w.-]*?"
"""In the text of a shell command, whose options have their values after a space."""
_NAME = re.compile(
    rf"{_SECRET}{_EQUALS}|{_MAYBE_SECRET}{_EQUALS}(?!{_HARMLESS})|[?&](?:sig|key)="
    rf"|{_OPTION_START}(?:{_SECRET}\s++|{_MAYBE_SECRET}\s++(?!--|{_HARMLESS}))"
    # curl's ``--user name:password``; Docker's has numbers.
    rf"""|(?<![\w-])(?:-u|--(?:[\w-]*-)?user)(?:=|\s++)["']?+[^\s:/"'\\]++:(?!\d++(?:\s|$))""",
    re.IGNORECASE,
)

_QUOTED = r"""(?P<quote>(?P<one>\\*+["'])(?:(?P=one){2})?+).*?(?:(?<!\\)(?P=quote)|\Z)"""
"""A text in quotes, or to its end. A quote with other backslashes than the first is part of it."""
_SHELL_APOSTROPHE = r"""'[^'\\]*+(?:'\\*+"'\\*+"'[^']*+)++'"""
_BARE = r"""(?:[^\s"'\\&]|\\++(?!["'nrt]))"""
"""A character of a value without quotes. An escaped newline, tab or quote ends such a value."""
_NEWLINE = r"(?:\n|\\+n)"
_VALUE = re.compile(
    # The indented lines below a name in YAML.
    rf"{_NEWLINE}(?P<indent>\ ++|-\ ).*?(?={_NEWLINE}(?!(?P=indent))|\Z)"
    rf"|(?P<bracket>[\w.]*+[\[({{])"
    rf"|{_SHELL_APOSTROPHE}"
    # With a prefix (``b"x"``), or with unquoted characters before or after (``a"b c"d``).
    rf"""|(?:[bfru]{{1,2}}(?=\\*["'])|{_BARE}++(?=["']\w))?+{_QUOTED}(?:\w{_BARE}*+)?+"""
    rf"|{_BARE}++",
    re.IGNORECASE | re.DOTALL,
)
_BRACKETS = re.compile(rf"(?P<open>[\[({{])|(?P<close>[\])}}])|{_QUOTED}", re.DOTALL)

_OPTION = re.compile(
    rf"(?P<name>[\w.+-]*(?:(?P<secret>{_SECRET})|{_MAYBE_SECRET}|(?P<user>(?<=-)u(?:ser)?)))"
    r"(?:=(?P<value>.*))?",
    re.IGNORECASE | re.DOTALL,
)
_LOGIN = re.compile(r"(?P<user>[^\s:/]+:)(?!\d+$).+", re.DOTALL)
_URL_USER = (
    # A password that was not quoted for a URL can contain slashes; a port has digits only.
    re.compile(r"""(?<=://)[^\s"/@:]*:(?!\d+(?:[/?#]|$))(?:(?!://)[^\s"])*@"""),
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
    |(?<![\w-])eyJ[\w-]+\.eyJ[\w-]+\.[\w-]*  # JSON web token
    |(?<=\bBearer\ )[\w.~+/=-]{16,}
    |-----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)""",
    re.VERBOSE | re.DOTALL,
)


def scrub(text: str) -> str:
    """The text with every credential in it replaced by ``***``; users of URLs are removed."""
    for user in _URL_USER:
        text = user.sub("", text)
    return _KEYS.sub(HIDDEN, "".join(_without_named(text)))


def scrub_arguments(arguments: Iterable[str]) -> Iterator[str]:
    """The arguments of a command line without credentials, including ``--password x``.

    All values of an option with a plural name, such as ``--passwords x y``, are hidden.
    """
    option: re.Match[str] | None = None
    more_values = False
    for argument in arguments:
        found = _OPTION.fullmatch(argument)
        opens = found if found and found["value"] is None and argument.startswith("-") else None
        # A password can start with "--".
        certain = option is not None and option["secret"] is not None and not more_values
        if option is not None and (certain or not argument.startswith("--")):
            yield _hidden(option, argument)
            more_values = opens is None and (option["secret"] or "").lower().endswith("s")
            option = option if more_values else opens
            continue
        if found and found["value"]:
            yield f"{found['name']}={_hidden(found, found['value'])}"
        else:
            yield scrub(argument)
        option, more_values = opens, False


def _hidden(option: re.Match[str], value: str) -> str:
    """What to show of an option's value."""
    if option["user"] is not None:
        login = _LOGIN.fullmatch(value)
        return f"{login['user']}{HIDDEN}" if login else scrub(value)
    harmless = option["secret"] is None and re.match(_HARMLESS, value, re.IGNORECASE)
    return scrub(value) if harmless else HIDDEN


def _without_named(text: str) -> Iterator[str]:
    """The parts of the text, with ``***`` for the values of secret names."""
    at = 0
    while name := _NAME.search(text, at):
        yield text[at : name.end()]
        at = _end_of_value(text, name.end())
        if at > name.end():
            yield HIDDEN
    yield text[at:]


def _end_of_value(text: str, start: int) -> int:
    """Where the value that starts here ends: that of a bracket with its closing bracket."""
    value = _VALUE.match(text, start)
    if value is None:
        return start
    if value["bracket"] is None:
        return value.end()
    depth = 0
    for token in _BRACKETS.finditer(text, value.end() - 1):
        depth += (token["open"] is not None) - (token["close"] is not None)
        if depth == 0:
            return token.end()
    return len(text)
