"""Peers side by side in one run: our executor, Dagster's, and Marin's StepRunner where installed.

``python benchmarks/run.py [SCENARIO …]`` prints one table for each scenario: seconds, and how many
times as long as ours. Absolute times depend on the machine; the ratios are what to compare. Marin's
peer needs marin-core, so it appears in an environment that has it (Python 3.12). With ``--output``,
``compare.py`` can compare the figures with those of another release.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MEASURES = Path(__file__).with_name("measures.py")

PEERS = {
    "chain-20": ("marin", "process", "in_process", "multiprocess", "step_runner"),
    "flat-100": ("marin", "in_process"),
    "grid-10x10": ("marin", "in_process"),
    "waiting-16": ("marin", "in_process"),
}
"""Graphs and who runs them. Steps are trivial, except the last: each of 16 waits 0.5 s.

``process`` is our executor with steps that ask for resources, so each has a process of its own.
"""


RESULTS: dict[str, dict[str, float]] = {}
"""What was measured, by measurement and arguments."""

POOLED = """
event_log_storage:
  module: marin_dagster.storage
  class: PooledSqliteEventLogStorage
"""


def measure(name: str, *arguments: Any, storage: str = "") -> dict[str, float]:
    """Measure in a process, a store and an instance of its own.

    Args:
        name: the measurement.
        arguments: its arguments.
        storage: lines of the instance's settings.
    """
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "dagster")
        home.mkdir()
        home.joinpath("dagster.yaml").write_text("telemetry: {enabled: false}\n" + storage)
        done = subprocess.run(
            [sys.executable, str(MEASURES), name, *map(json.dumps, arguments)],
            env={
                **os.environ,
                "DAGSTER_HOME": str(home),
                "MARIN_PREFIX": str(Path(folder, "store")),
            },
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    kind = "pooled" if storage else ""
    RESULTS[" ".join(filter(None, [name, *map(str, arguments), kind]))] = measured
    return measured


def compare(graph: str) -> None:
    """Every peer on one graph."""
    has_marin = importlib.util.find_spec("marin") is not None
    peers = [peer for peer in PEERS[graph] if peer != "step_runner" or has_marin]
    measured = {peer: measure("run", graph, peer) for peer in peers}
    print(f"{'':<14}{'seconds':>9}{'ms/step':>9}{'CPU ms/step':>13}{'x ours':>8}")
    for peer, values in measured.items():
        milliseconds = [values[kind] / values["steps"] * 1000 for kind in ("wall", "cpu")]
        print(
            f"{peer:<14}{values['wall']:>9.2f}{milliseconds[0]:>9.1f}{milliseconds[1]:>13.1f}"
            f"{values['wall'] / measured['marin']['wall']:>8.2f}"
        )


def checks() -> None:
    """Runs of everything with checks, and how many times as long as without."""
    for storage_name, storage in (("plain", ""), ("pooled", POOLED)):
        for graph in ("flat-100", "waiting-16"):
            measured = measure("checks", graph, 3, storage=storage)
            for kind in ("create", "build", "serve"):
                checked, plain = measured[f"{kind}_checked"], measured[kind]
                print(
                    f"{storage_name:<7}{graph:<11}{kind:<7}{checked:.2f} s, without {plain:.2f} s "
                    f"({checked / plain:.2f}x)"
                )


def storages() -> None:
    """100 trivial steps on Dagster's own event storage, and on ours that keeps connections."""
    plain = 0.0
    for kind, storage in (("plain", ""), ("pooled", POOLED)):
        for peer in ("marin", "in_process"):
            measured = measure("run", "flat-100", peer, storage=storage)
            milliseconds = measured["wall"] / measured["steps"] * 1000
            plain = plain or milliseconds
            print(f"{kind:<7}{peer:<11}{milliseconds:>7.1f} ms/step ({milliseconds / plain:.2f}x)")


def hits() -> None:
    """Runs of 1,000 cached steps: milliseconds for each, on both event storages."""
    for kind, storage in (("plain", ""), ("pooled", POOLED)):
        measured = measure("hits", 1000, storage=storage)
        print(
            f"{kind:<7} {measured['create']:.1f} ms to plan each, then {measured['new']:.1f} ms to "
            f"record it, or {measured['known']:.1f} ms when it is known"
        )


def scripts() -> None:
    """StepRunner in a script, and how many times as long as Marin's."""
    has_marin = importlib.util.find_spec("marin") is not None
    for what, graphs in (
        ("build", ("flat-40", "chain-20")),
        ("cached", ("flat-40", "flat-1000", "chain-1000")),
        ("dry", ("flat-40", "flat-1000", "chain-1000")),
    ):
        for graph in graphs:
            ours = measure("script", what, graph, "ours")["wall"]
            line = f"{what:<7}{graph:<11}{ours:>8.3f} s"
            if has_marin:
                marins = measure("script", what, graph, "marins")["wall"]
                line += f", Marin's {marins:.3f} s ({ours / marins:.2f}x)"
            print(line)


def partitions() -> None:
    """A sweep of 100 points with three steps each: a run of each point, and one run of all."""
    for runs in ("multi", "single"):
        for peer in ("marin", "in_process"):
            measured = measure("partitions", 100, peer, runs, storage=POOLED)
            milliseconds = measured["wall"] / measured["steps"] * 1000
            print(f"{runs:<8}{peer:<11}{measured['wall']:>7.2f} s{milliseconds:>8.1f} ms/step")


def decision() -> None:
    """What must run of 1,000 finished steps."""
    for where, latency_s in (("local disk", 0.0), ("a store with 50 ms latency", 0.05)):
        measured = measure("decision", 1000, latency_s)
        print(f"{where}: {measured['wall']:.3f} s, a schedule's tick {measured['tick']:.3f} s")


def schedule() -> None:
    """A schedule's tick over 20 steps while runs of another job wait."""
    for unfinished in (0, 100, 400, 1000):
        measured = measure("schedule", unfinished)
        print(
            f"{unfinished:>5,} runs: {measured['cached']:.3f} s with nothing to run, "
            f"{measured['one']:.3f} s with one step to run"
        )


def sensor() -> None:
    """Ticks of the cache sensor over 1,000 finished steps."""
    for where, latency_s in (("local disk", 0.0), ("a store with 50 ms latency", 0.05)):
        measured = measure("sensor", 1000, latency_s)
        print(
            f"{where}: {measured['wall']:.2f} s with nothing new, {measured['first']:.2f} s for "
            f"the first {measured['reported']:.0f} outputs, and {measured['event'] * 1000:.1f} ms "
            "to record each"
        )


def load() -> None:
    """Steps to a resolved job, in layers of 100 with fan-in 3."""
    for steps in (1000, 2000, 5000):
        print(f"{steps:>5,} steps: {measure('load', steps)['wall']:.2f} s")


def imports() -> None:
    """What importing marin_dagster adds to importing dagster."""
    print(f"{measure('import')['wall'] * 1000:.0f} ms")


def memory() -> None:
    """A run of 5,000 trivial steps."""
    measured = measure("memory", 5000)
    print(f"peak {measured['MiB']:.0f} MiB, {measured['wall']:.0f} s")


def audit() -> None:
    """A function that opens 10,000 files, while its reads are noted and while they are not."""
    measured = measure("audit", 10_000, 7)
    for kind, where in (("read", "in one folder"), ("spread", "in 1,000 folders")):
        plain, noted = measured[kind], measured[f"{kind}_noted"]
        print(f"{where}: {plain:.3f} s, noted {noted:.3f} s ({noted / plain:.3f}x)")


def idle() -> None:
    """CPU of a run that waits for 8 processes."""
    print(f"{measure('idle')['share']:.2%}")


SCENARIOS: dict[str, Callable[[], None]] = {
    "audit": audit,
    "checks": checks,
    "storages": storages,
    "hits": hits,
    "scripts": scripts,
    "partitions": partitions,
    "decision": decision,
    "schedule": schedule,
    "sensor": sensor,
    "load": load,
    "imports": imports,
    "memory": memory,
    "idle": idle,
}


def main() -> None:
    """Run the scenarios asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", nargs="*", help=", ".join([*PEERS, *SCENARIOS]))
    parser.add_argument("--output", type=Path, help="write the figures to this JSON file")
    arguments = parser.parse_args()
    chosen = arguments.scenario or [*PEERS, *SCENARIOS]
    for name in chosen:
        if name in PEERS:
            print(f"\n## {name}")
            compare(name)
        elif name in SCENARIOS:
            print(f"\n## {name}: {SCENARIOS[name].__doc__}")
            SCENARIOS[name]()
        else:
            parser.error(f"no scenario {name!r}")
    if arguments.output:
        arguments.output.write_text(json.dumps(RESULTS, indent=1) + "\n")


if __name__ == "__main__":
    main()
