"""What Dagster loads: every step of the graph as an asset."""

import dagster as dg

from language_reference.steps import build_steps
from marin_dagster import DagsterMarinTranslator, StepLike, build_definitions


class OneGroup(DagsterMarinTranslator):
    """All steps in one asset group: the UI then opens the whole lineage, with nothing folded."""

    def get_asset_spec(self, step: StepLike) -> dg.AssetSpec:
        spec = super().get_asset_spec(step)
        return spec.replace_attributes(group_name="language_reference")


defs = build_definitions(build_steps, translator=OneGroup())
