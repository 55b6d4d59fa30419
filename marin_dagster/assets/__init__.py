"""Steps as Dagster assets: definitions, translator, op, IO manager and checks."""

from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from marin_dagster._compat import DagsterLibraryRegistry

# Every part of the Dagster integration imports this package; the UI lists the versions of a code
# location's libraries. A checkout that is only on the path has no version.
with suppress(PackageNotFoundError):
    DagsterLibraryRegistry.register(
        "marin-dagster", version("marin-dagster"), is_dagster_package=False
    )
