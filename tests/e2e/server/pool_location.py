"""A code location whose steps share a pool and wait until they may end."""

import os
import time
from pathlib import Path

from marin_dagster import DagsterMarinTranslator, StepLike, StepSpec, build_definitions

POOL = "gpus"


class PoolTranslator(DagsterMarinTranslator):
    """Puts every step in the pool."""

    def get_pool(self, step: StepLike) -> str:
        return POOL


def wait_to_go(output_path: str) -> None:
    """Notes the process that runs it, and waits for the file ``go``."""
    store = Path(os.environ["MARIN_PREFIX"])
    Path(f"{output_path}.pid").write_text(str(os.getpid()))
    while not Path(store, "go").exists():
        time.sleep(0.01)


defs = build_definitions(
    [StepSpec(f"pooled/{number}", fn=wait_to_go) for number in range(5)],
    translator=PoolTranslator(),
)
