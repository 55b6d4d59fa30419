"""The streams of one step's log, on whatever compute log manager the instance has.

Log managers of cloud storage write local files and upload them. They upload both streams of a log
whenever one of them is closed, and remove the local files; parts of a log they upload in
``capture_logs`` only, which redirects the descriptors of the process.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import IO, Any

from marin_dagster._compat import CloudStorageComputeLogManager, ComputeIOType, ComputeLogManager

logger = logging.getLogger(__name__)


@contextmanager
def log_streams(
    manager: ComputeLogManager, key: Sequence[str]
) -> Iterator[dict[str, IO[Any] | None]]:
    """The open streams ``stdout`` and ``stderr``, each None where the manager keeps no logs.

    When a cloud storage's manager has an ``upload_interval``, what has been written so far is
    uploaded at that interval. At the end, both streams are uploaded once, complete.
    """
    with ExitStack() as stack:
        streams = {
            kind.value: stack.enter_context(opened) for kind, opened in _opened(manager, key)
        }
        if isinstance(manager, CloudStorageComputeLogManager) and manager.upload_interval:
            stack.enter_context(_uploading(manager, key, manager.upload_interval))
        yield streams


def _opened(
    manager: ComputeLogManager, key: Sequence[str]
) -> Iterator[tuple[ComputeIOType, AbstractContextManager[IO[Any] | None]]]:
    """Both streams, in the order in which they must be opened; the first is closed last."""
    out, err = ComputeIOType.STDOUT, ComputeIOType.STDERR
    yield out, manager.open_log_stream(key, out)
    if isinstance(manager, CloudStorageComputeLogManager):
        # Closing the other one uploads this one's file, too.
        manager = manager.local_manager
    yield err, manager.open_log_stream(key, err)


@contextmanager
def _uploading(
    manager: CloudStorageComputeLogManager, key: Sequence[str], interval_s: float
) -> Iterator[None]:
    """Upload what is there every ``interval_s`` seconds.

    The thread has ended before the body's streams are closed: a late upload would leave empty local
    files behind, which readers prefer to what is in the bucket.
    """
    over = threading.Event()

    def upload() -> None:
        while not over.wait(interval_s):
            try:
                manager.on_progress(key)
            except Exception:
                logger.warning("could not upload a part of log %s", "/".join(key), exc_info=True)

    thread = threading.Thread(target=upload, name=f"marin-log-upload-{key[-1]}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
