"""The files in a Slurm job's folder: logs that grow, and the exit codes of its ranks."""

import codecs
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from marin_dagster.runners.payload import run_packed

_PIECE_BYTES = 1 << 20


@dataclass(eq=False)
class Tail:
    """Reads a log file as it grows."""

    path: Path
    offset: int = 0
    rest: str = ""
    """The beginning of an incomplete line."""
    grew: bool = False
    """Whether the last read has found new content."""

    def __post_init__(self) -> None:
        self.stream = "stderr" if self.path.suffix == ".err" else "stdout"
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self, whole_lines: bool, final: bool) -> str:
        """The next piece of new content.

        With ``whole_lines``, an incomplete line waits for its end until the job is ``final``.
        """
        # Opened again each time: only then does a network file system look for new content.
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read(_PIECE_BYTES)
        self.grew = bool(data)
        self.offset += len(data)
        last = final and not data
        text = self.rest + self.decoder.decode(data, last)
        end = text.rfind("\n") + 1 if whole_lines and not last else len(text)
        self.rest = text[end:]
        return text[:end]


def run_step(packed: bytes) -> None:
    """The function that submitit calls on the node."""
    # Submitit ignores SIGTERM, and starts the job again at other signals.
    for number in (signal.SIGTERM, signal.SIGCONT, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    rank, ranks = os.environ["SLURM_PROCID"], os.environ.get("SLURM_STEP_NUM_TASKS", "1")
    folder, code = Path(os.environ["SUBMITIT_FOLDER"]), 1
    for old in folder.glob(f"ended-{rank}-*"):  # of an earlier start of this job
        old.unlink()
    try:
        run_packed(packed)
        code = 0
    finally:
        with suppress(OSError):
            (folder / f"ended-{rank}-{ranks}-{code}").touch()


def exit_code(folder: Path) -> int | None:
    """The highest exit code of a job's ranks; None while one of them runs, or if their files cannot
    be read."""
    try:
        ends = [path.name.split("-") for path in folder.glob("ended-*")]
    except OSError:  # another user's
        return None
    if not ends or len(ends) < int(ends[0][2]):
        return None
    return max(int(end[3]) for end in ends)
