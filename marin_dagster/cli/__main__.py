"""``python -m marin_dagster.cli``."""

from marin_dagster.cli.main import main

main(prog_name="marin-dagster")
