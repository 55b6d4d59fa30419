"""A code location with one step whose output has something of each kind to show, and tricks."""

import base64
from pathlib import Path

from marin_dagster import StepSpec, build_definitions

PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAADAAAAAgCAAAAABxv6TAAAAAJ0lEQVR42mOwgYItUECIzzCqgSYaiFUI449qoI2G"
    "0dQ6mh9GNcD5AIdT0B8d9K0vAAAAAElFTkSuQmCC"
)
"""A chessboard, 48 pixels wide."""

REPORT = """# A report with tricks

<script>window.tricked = "script"</script><img src="x" onerror="window.tricked = 'handler'">
[a link](javascript:window.tricked='link')

![the board](board.png)

"""

TABLE = """name,loss
"a | `b` <img src=x onerror=window.tricked=1>",0.5
**c**,
"""


def report(output_path: str) -> dict[str, float]:
    """Writes its files, and a loss that falls from one attempt to the next."""
    attempts = Path(output_path, "attempts.txt")
    attempts.write_text((attempts.read_text() if attempts.exists() else "") + "x")
    Path(output_path, "board.png").write_bytes(PICTURE)
    Path(output_path, "report.md").write_text(REPORT + "It goes on. " * 100)
    Path(output_path, "table of all.csv").write_text(TABLE)
    Path(output_path, "scores.json").write_text('{"best": NaN, "markup": "<b>bold</b>"}')
    return {"loss": 1 / len(attempts.read_text())}


defs = build_definitions([StepSpec("report", fn=report)])
