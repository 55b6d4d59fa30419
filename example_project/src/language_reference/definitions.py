"""What Dagster loads: every step of the graph as an asset."""

from language_reference.steps import build_steps
from marin_dagster import build_definitions

defs = build_definitions(build_steps)
