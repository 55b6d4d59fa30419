"""Which figures of one run of the benchmarks are worse than those of another.

``python benchmarks/compare.py OLD.json NEW.json [--noise 0.3]`` prints the figures that both files
have, and exits with 1 when one is worse by more than the noise. Where a peer was measured in the
same run, the ratio to it is compared, since machines differ; else the figure itself.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

Results = Mapping[str, Mapping[str, float]]

OURS_AND_PEER = (("marin", "in_process"), ("ours", "marins"))
"""Arguments that name us and the peer."""
NOT_A_COST = {"steps", "reported"}


def figures(results: Results) -> dict[str, float]:
    """The costs in a result file: ratios to the peer where there is one, else as measured."""
    found: dict[str, float] = {}
    for name, values in results.items():
        words = name.split()
        if any(peer in words for _, peer in OURS_AND_PEER):
            continue
        peer_values: Mapping[str, float] = {}
        for ours, peer in OURS_AND_PEER:
            if ours in words:
                other = " ".join(peer if word == ours else word for word in words)
                peer_values = results.get(other, {})
        for kind, value in values.items():
            if kind in NOT_A_COST:
                continue
            divisor = peer_values.get(kind)
            label = f"{name}: {kind}" + (" / peer" if divisor else "")
            found[label] = value / divisor if divisor else value
    return found


def worse(old: Results, new: Results, noise: float) -> dict[str, tuple[float, float]]:
    """Figures that both have and that are more than ``1 + noise`` times as high as before."""
    before, after = figures(old), figures(new)
    return {
        name: (before[name], after[name])
        for name in before.keys() & after.keys()
        if after[name] > before[name] * (1 + noise)
    }


def main() -> int:
    """Print the comparison; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--noise", type=float, default=0.3, help="0.3: up to 30 % more is noise")
    arguments = parser.parse_args()
    old, new = (json.loads(path.read_text()) for path in (arguments.old, arguments.new))
    before, after = figures(old), figures(new)
    found = worse(old, new, arguments.noise)
    for name in sorted(before.keys() & after.keys()):
        mark = "  WORSE" if name in found else ""
        print(f"{name:<50}{before[name]:>10.3f}{after[name]:>10.3f}{mark}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
