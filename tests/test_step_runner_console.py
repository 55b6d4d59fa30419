"""``StepRunner`` in a script: what its console shows."""

import re
import subprocess
import sys

SCRIPT = """
from marin_dagster import OUT, StepRunner, StepSpec, apply

def fail(output_path):
    raise ValueError("no more disks")

artifact = apply("drifted", lambda out, size: None, version="2026.07.01", out=OUT, size={size})
steps = [artifact, StepSpec("bad", fn=fail)]
StepRunner().run([artifact] if {size} == 1 else steps, dry_run={dry_run})
"""


def test_a_script_shows_what_matters_on_its_console() -> None:
    def stderr(size: int, *, dry_run: bool = False) -> str:
        code = SCRIPT.replace("{size}", str(size)).replace("{dry_run}", str(dry_run))
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
        assert done.returncode == (size != 1), done.stderr
        return done.stderr

    planned, first, second = stderr(1, dry_run=True), stderr(1), stderr(2)

    assert "Dry run: would run: drifted/2026.07.01 -> " in planned
    assert "of which 1 to run" in first
    assert "size: 1 -> 2" in second
    logged = second[second.index("STEP_FAILURE") : second.index("Exception Group Traceback")]
    assert "no more disks" in logged
    assert "1 step(s) failed: bad_" in second
    # The frames of the step's function, without those of the libraries that call it.
    # Python 3.13 also knows the lines of a script that it got as an argument.
    frame = r'  File "<string>", line 5, in fail\n(    .*\n)*ValueError: no more disks'
    assert re.search(frame, logged)
    assert "dagster/_core" not in second
    assert "marin_dagster/assets" not in second
    assert "DEBUG" not in planned + first + second
