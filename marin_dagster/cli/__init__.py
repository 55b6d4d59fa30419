"""The command line, ``marin-dagster``: one module for each command or family of commands.

Modules import at their top only what ``--help`` needs; a command imports the rest when it runs.
"""
