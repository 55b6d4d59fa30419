"""A code location with sweeps, a lazy artifact, results of each kind, and a job that dies."""

import os
import signal
import warnings
from pathlib import Path
from typing import Any

from marin_dagster import OUT, ResourceConfig, StepSpec, apply, build_definitions
from marin_dagster.errors import MarinDagsterWarning

RESULT = {"loss": 0.5, "best": "step 3", "converged": True, "curve": [3, 2]}


def tokenize(out: str) -> None:
    """Tokenizes the corpus."""
    Path(out, "tokens.txt").write_text("a b c")


def train(output_path: str) -> dict[str, Any]:
    """Trains a model."""
    return RESULT


def die(output_path: str) -> None:
    """Dies without a word."""
    os.kill(os.getpid(), signal.SIGKILL)


VERSION = os.environ.get("SWEEP_VERSION", "first")
"""The test changes it, and with it two attributes of every point of the sweep."""
changing = {"note": VERSION, "seed": len(VERSION)}
tokens = apply("data/tokens", tokenize, version="2026.07.01", out=OUT).lower()
named = {f"models/ngram-{order}": {"order": order, **changing} for order in (2, 3)}
sweep = [StepSpec(name, deps=[tokens], hash_attrs=own, fn=train) for name, own in named.items()]
points = [StepSpec("train", hash_attrs={"lr": lr, "size": 1}, fn=train) for lr in (0.1, 0.2)]
dies = StepSpec("dies", fn=die, resources=ResourceConfig(ram="256m"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore", MarinDagsterWarning)
    defs = build_definitions([*sweep, *points, dies])
