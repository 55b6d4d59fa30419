"""The exit codes of all commands, and errors that end a command with one of them."""

import click

OK = 0
"""Done."""
FAILED = 1
"""A step failed, or a check found something."""
UNUSABLE = 2
"""The command could not do its work: bad arguments, a graph that cannot be loaded, a store that
refuses. click uses the same code for bad arguments."""
INTERRUPTED = 130
"""Ctrl-C."""


class Unusable(click.ClickException):
    """The command cannot do its work."""

    exit_code = UNUSABLE


class Refused(click.ClickException):
    """The command did nothing because of what it found."""

    exit_code = FAILED
