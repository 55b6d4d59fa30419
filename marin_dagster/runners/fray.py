"""``FrayRunner``: steps as Fray jobs, on Iris or on the engine of any other Fray client.

On Iris, any process can find a job by its name. Fray and Iris are imported when the first step
needs them.
"""

import dataclasses
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec

from marin_dagster.cache import OutputDir
from marin_dagster.errors import EngineError, EngineTimeoutError, RoutingError, StoreError
from marin_dagster.runners.base import Request
from marin_dagster.runners.fray_engine import FrayClientEngine, FrayEngine, FrayJob
from marin_dagster.runners.iris_compat import check_resources, fray_module, iris_client, is_iris
from marin_dagster.runners.iris_engine import IrisEngine
from marin_dagster.runners.payload import StepCall, pack
from marin_dagster.runners.settings import FraySettings
from marin_dagster.steps import StepLike
from marin_dagster.steps.resources import ResourceConfig


def callers_client() -> Any | None:
    """Fray's current client, from the context or from the Iris job that this process is; None if
    there is none."""
    current = fray_module("fray.current_client").current_client()
    local = fray_module("fray.local_backend").LocalClient
    return None if isinstance(current, local) else current


class FrayRunner:
    """Runs steps through a Fray client: one passed in code, one for an Iris address, or the current
    client."""

    def __init__(self, name: str, settings: FraySettings, client: Any = None) -> None:
        self._name = name
        self._settings = settings
        self._given = client
        self._connected: Any = None
        self._engines: dict[int, FrayEngine] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The runner's name in the executor's config."""
        return self._name

    @property
    def engine(self) -> str:
        """The controller's address, or ``client`` for any other client."""
        return f"fray {self._settings.address or 'client'}"

    def refuses(self, step: StepLike, request: Request) -> str | None:
        """Why Fray or its client cannot run the step."""
        try:
            client = self._client()
            resources = _fray_resources(request.resources)
        except RoutingError as error:
            return str(error)
        if isinstance(client, fray_module("fray.local_backend").LocalClient):
            return (
                "Fray's LocalClient runs functions in threads of this process: it ignores "
                "resources and cannot stop a step. Give the runner another client or an address; "
                "to run the step on this machine, route it to the runner 'process', or omit the "
                "StepRunner's fray_client"
            )
        if not is_iris(client):
            return None
        try:
            check_resources(resources)
        except Exception as error:
            return f"Iris does not support {resources}: {error}"
        return _unreachable_output(step.output_path, self._settings.shared_disk)

    def submit(self, name: str, call: StepCall, request: Request) -> FrayJob:
        """Submit a job.

        Raises:
            EngineTimeoutError: the controller does not answer.
            EngineError: it refuses the job, for example because no worker is large enough.
            RoutingError: Fray is not installed, or has no such resource.
        """
        types = fray_module("fray.types")
        engine = self._engine(self._client())
        resources = _fray_resources(request.resources)
        job = types.JobRequest(
            name=name,
            entrypoint=types.Entrypoint.from_callable(engine.entry, args=(pack(call),)),
            resources=resources,
            environment=types.create_environment(
                extras=_dependency_groups(resources, request.pip_dependency_groups),
                pip_packages=request.pip_packages,
                env_vars={**self._settings.env, **request.env_vars},
            ),
            max_retries_failure=0,
            max_retries_preemption=self._settings.max_retries_preemption,
        )
        try:
            submitted = engine.submit(job)
        except EngineTimeoutError as error:
            raise EngineTimeoutError(f"{self._name}: job {name}: {error}") from error
        except Exception as error:
            raise EngineError(f"{self._name} refused job {name}: {error}") from error
        engine.poller.watch(submitted)
        return submitted

    def attach(self, name: str) -> FrayJob | None:
        """The job of that name, submitted by any process; None if the engine does not know it.

        Raises:
            EngineError: the engine does not answer.
        """
        engine = self._engine(self._client())
        try:
            job = engine.find(name)
            if job is not None:
                known = engine.ask([job]).get(name)
                if known is None:
                    return None
                job.report(known)
        except Exception as error:
            raise EngineError(f"{self._name}: cannot look up job {name}: {error}") from error
        if job is not None and not job.status.state.final:
            engine.poller.watch(job)
        return job

    def close(self) -> None:
        """Close the connection, if the runner opened it."""
        with self._lock:
            connected, self._connected = self._connected, None
            for engine in self._engines.values():
                engine.poller.close()
            self._engines.clear()
        if connected is not None:
            connected.shutdown()

    def _client(self) -> Any:
        if self._given is not None:
            return self._given
        if self._settings.address is None:
            return fray_module("fray.current_client").current_client()
        with self._lock:
            if self._connected is None:
                connect = fray_module("fray.iris_backend").FrayIrisClient
                workspace = self._settings.workspace
                self._connected = connect(
                    self._settings.address, workspace=Path(workspace) if workspace else None
                )
            return self._connected

    def _engine(self, client: Any) -> FrayEngine:
        # Inside an Iris task, Fray returns a new current client at each call, for one Iris client.
        kind, key = (
            (IrisEngine, id(iris_client(client)))
            if is_iris(client)
            else (FrayClientEngine, id(client))
        )
        with self._lock:
            if key not in self._engines:
                self._engines[key] = kind(client)
            return self._engines[key]


def _unreachable_output(output_path: str, shared_disk: bool) -> str | None:
    try:
        local = OutputDir.at(output_path).is_local
    except StoreError as error:
        return str(error)
    if local and not shared_disk:
        return (
            f"its output path {output_path} is on this machine's disk, which Iris's workers cannot "
            "access. Use a prefix on an object store, or set shared_disk if they can"
        )
    if fsspec.utils.get_protocol(output_path) == "memory":
        return f"its output path {output_path} is in this process's memory"
    return None


def _fray_resources(resources: Any) -> Any:
    """Fray's ``ResourceConfig``, converted from ours if necessary.

    Raises:
        RoutingError: the installed Fray does not support a field or its value.
    """
    types = fray_module("fray.types")
    if resources is None:
        return types.ResourceConfig.with_cpu()
    if not isinstance(resources, ResourceConfig):
        return resources
    kinds = {"cpu": types.CpuConfig, "gpu": types.GpuConfig, "tpu": types.TpuConfig}
    device = kinds[resources.device.kind]
    return _rebuilt(types.ResourceConfig, resources, device=_rebuilt(device, resources.device))


def _rebuilt(kind: Any, ours: Any, **replaced: Any) -> Any:
    known = {part.name for part in dataclasses.fields(kind)}
    values = {}
    for part in dataclasses.fields(ours):
        value = getattr(ours, part.name)
        if part.name in known:
            values[part.name] = value
        elif value != part.default:
            raise RoutingError(f"the installed Fray has no {part.name} (here {value!r})")
    try:
        return kind(**{**values, **replaced})
    except Exception as error:
        raise RoutingError(f"Fray does not accept {ours}: {error}") from error


def _dependency_groups(resources: Any, groups: Sequence[str] | None) -> list[str]:
    """The wrapper's groups; if None, the device's extra in Marin's workspace, as in Marin."""
    if groups is not None:
        return list(groups)
    kind = resources.device.kind
    return [kind] if kind in ("gpu", "tpu") else []
