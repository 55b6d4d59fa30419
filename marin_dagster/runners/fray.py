"""``FrayRunner``: steps as Fray jobs, on Iris or whatever Fray's client stands for.

A job is found again by its name, wherever its driver ran. Fray and Iris are imported when the first
step needs them.
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
from marin_dagster.runners.fray_clients import FrayJob, IrisEngine, OtherEngine, fray_module
from marin_dagster.runners.payload import StepCall, pack
from marin_dagster.runners.settings import FraySettings
from marin_dagster.steps import StepLike
from marin_dagster.steps.resources import ResourceConfig


def callers_client() -> Any | None:
    """Fray's current client, in this context or of the Iris job that this is; None without one."""
    current = fray_module("fray.current_client").current_client()
    local = fray_module("fray.local_backend").LocalClient
    return None if isinstance(current, local) else current


class FrayRunner:
    """Runs steps through a Fray client: one given in code, Iris at an address, or the caller's."""

    def __init__(self, name: str, settings: FraySettings, client: Any = None) -> None:
        self._name = name
        self._settings = settings
        self._given = client
        self._connected: Any = None
        self._engines: dict[int, IrisEngine | OtherEngine] = {}
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """What the executor's config calls it."""
        return self._name

    @property
    def engine(self) -> str:
        """Fray's client: the controller's address, or what was given in code."""
        return f"fray {self._settings.address or 'client'}"

    def refuses(self, step: StepLike, request: Request) -> str | None:
        """Why Fray or this client cannot run the step."""
        try:
            client = self._client()
            resources = _fray_resources(request.resources)
        except RoutingError as error:
            return str(error)
        if isinstance(client, fray_module("fray.local_backend").LocalClient):
            return (
                "Fray's LocalClient runs functions in threads of this process: it honours no "
                "resources and cannot stop a step. Give the runner another client or an address; "
                "to run the step on this machine, send it to the runner 'process', or leave a "
                "StepRunner's fray_client out"
            )
        if not _is_iris(client):
            return None
        try:
            backend = fray_module("fray.iris_backend")
            backend.convert_resources(resources).to_proto()
            backend.convert_constraints(resources)
            backend.convert_container_profile(resources)
            backend.resolve_coscheduling(resources, resources.replicas)
        except Exception as error:
            return f"Iris cannot be asked for {resources}: {error}"
        return _out_of_sight(step.output_path, self._settings.shared_disk)

    def submit(self, name: str, call: StepCall, request: Request) -> FrayJob:
        """Start a job.

        Raises:
            EngineError: the controller does not answer, or refuses the job, for example because
                nothing in the cluster is large enough for it.
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
        """The job of that name, whoever submitted it.

        Raises:
            EngineError: the controller does not answer.
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
            raise EngineError(f"{self._name}: looking for job {name}: {error}") from error
        if job is not None and not job.status.state.final:
            engine.poller.watch(job)
        return job

    def close(self) -> None:
        """Close the connection, if it is the runner's own."""
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

    def _engine(self, client: Any) -> "IrisEngine | OtherEngine":
        # Inside an Iris task, each call for the current client gives a new one of the same engine.
        iris = client._iris if _is_iris(client) else None
        key = id(client if iris is None else iris)
        with self._lock:
            if key not in self._engines:
                self._engines[key] = OtherEngine(client) if iris is None else IrisEngine(client)
            return self._engines[key]


def _is_iris(client: Any) -> bool:
    return hasattr(client, "_iris")


def _out_of_sight(output_path: str, shared_disk: bool) -> str | None:
    try:
        local = OutputDir.at(output_path).is_local
    except StoreError as error:
        return str(error)
    if local and not shared_disk:
        return (
            f"its output path {output_path} is on this machine's disk, which Iris's workers do "
            "not see. Set a prefix on an object store, or shared_disk if they do"
        )
    if fsspec.utils.get_protocol(output_path) == "memory":
        return f"its output path {output_path} is in this process's memory"
    return None


def _fray_resources(resources: Any) -> Any:
    """Fray's own request: as it is, or built from ours.

    Raises:
        RoutingError: this version of Fray cannot say it.
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
    """The wrapper's groups; without, the extra of Marin's workspace for the device, as in Marin."""
    if groups is not None:
        return list(groups)
    kind = resources.device.kind
    return [kind] if kind in ("gpu", "tpu") else []
