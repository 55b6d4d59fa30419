"""WHETHER an output is built: the status-file cache beside each output, on fsspec. No Dagster."""

from marin_dagster.cache.attempt import Attempt, Hit
from marin_dagster.cache.cache import CacheState, LookUp, StepCache
from marin_dagster.cache.drift import Drift, DriftLog, find_drift
from marin_dagster.cache.lease import LeaseTiming
from marin_dagster.cache.provenance import Provenance, RunIdentity, built_as, launch_provenance
from marin_dagster.cache.record import ArtifactRecord, read_record, write_record
from marin_dagster.cache.status import Status, read_status, write_status
from marin_dagster.cache.store import OutputDir

__all__ = [
    "ArtifactRecord",
    "Attempt",
    "CacheState",
    "Drift",
    "DriftLog",
    "Hit",
    "LeaseTiming",
    "LookUp",
    "OutputDir",
    "Provenance",
    "RunIdentity",
    "Status",
    "StepCache",
    "built_as",
    "find_drift",
    "launch_provenance",
    "read_record",
    "read_status",
    "write_record",
    "write_status",
]
