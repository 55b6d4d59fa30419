"""What a step needs to run: ``ResourceConfig``, devices, and ``@remote``.

Field names and defaults are Fray's, so that a request means the same to Marin's engines. Fray's own
objects are accepted wherever a request is read.
"""

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar, overload

from marin_dagster.errors import ResourceError
from marin_dagster.steps.protocol import StepLike

P = ParamSpec("P")
R = TypeVar("R")

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtp]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def parse_size(text: str) -> int:
    """Bytes in a size like ``4g``, ``512 MiB`` or ``1.5TB``; every unit is a power of 1,024.

    Raises:
        ResourceError: the text is not a size, or the size is zero.
    """
    match = _SIZE.fullmatch(text.strip()) if isinstance(text, str) else None
    size = int(float(match[1]) * 1024 ** _UNITS[match[2].lower()]) if match else 0
    if size <= 0:
        raise ResourceError(f"{text!r} is not a size. Write for example '4g' or '512m'.")
    return size


@dataclass(frozen=True)
class CpuConfig:
    """No accelerator."""

    kind: ClassVar[str] = "cpu"
    variant: str = "cpu"


@dataclass(frozen=True)
class GpuConfig:
    """NVIDIA GPUs on one machine."""

    kind: ClassVar[str] = "gpu"
    variant: str
    """Model, such as ``H100``, or ``auto`` for any."""
    count: int = 1
    """GPUs for each replica."""

    def __post_init__(self) -> None:
        _require(bool(self.variant), "device.variant", self.variant, "a GPU model, or 'auto'")
        _require(_is_whole(self.count) and self.count >= 1, "device.count", self.count, "1 or more")


@dataclass(frozen=True)
class TpuConfig:
    """A slice of Google TPUs."""

    kind: ClassVar[str] = "tpu"
    variant: str
    """Slice type, such as ``v5p-8``."""
    topology: str | None = None
    """Physical shape, such as ``2x2x1``, when it matters."""

    def __post_init__(self) -> None:
        tpu_machines(self.variant)


DeviceConfig = CpuConfig | GpuConfig | TpuConfig


@dataclass(frozen=True)
class _TpuFamily:
    cores_per_chip: int
    """Divisor of the number in the slice's name; v4 and v5p count cores, the others chips."""
    largest: int
    single_machine: tuple[int, ...]
    """Chip counts that fit on one machine; everything larger has 4 chips on each."""
    host_cpu: int
    host_ram_gb: int


_TPU_FAMILIES = {
    "v4": _TpuFamily(2, 4096, (4,), 240, 400),
    "v5litepod": _TpuFamily(1, 256, (1, 4, 8), 112, 192),
    "v5p": _TpuFamily(2, 12288, (4,), 208, 448),
    "v6e": _TpuFamily(1, 256, (1, 4, 8), 180, 720),
}


def tpu_machines(variant: str) -> tuple[int, int]:
    """``(machines, chips on each)`` of a TPU slice type.

    Raises:
        ResourceError: there is no such slice.
    """
    name, _, number = variant.partition("-") if isinstance(variant, str) else ("", "", "")
    family = _TPU_FAMILIES.get(name)
    if family and number.isdecimal() and int(number) <= family.largest:
        chips, remainder = divmod(int(number), family.cores_per_chip)
        if chips in family.single_machine and not remainder:
            return 1, chips
        if chips > max(family.single_machine) and not remainder and chips % 4 == 0:
            return chips // 4, 4
    raise ResourceError(
        f"{variant!r} is not a TPU slice. Write for example 'v4-8', 'v5litepod-16', 'v5p-64', "
        "'v6e-8'."
    )


@dataclass(frozen=True)
class ResourceConfig:
    """What one replica of a step needs, with Fray's fields and defaults.

    ``memory_gb`` is another way to say ``ram`` and is only an argument, not a field.

    Raises:
        ResourceError: a value that makes no sense, at construction.
    """

    cpu: float = 1
    """Cores."""
    ram: str = ""
    """Memory, such as ``4g`` (the default)."""
    disk: str = "64g"
    """Scratch disk, such as ``64g``."""
    device: Any = field(default_factory=CpuConfig)
    """A :class:`CpuConfig`, :class:`GpuConfig` or :class:`TpuConfig`."""
    preemptible: bool = True
    """Whether the engine may take the machine away."""
    regions: Sequence[str] | None = None
    """Regions to run in; None leaves it to the engine, ``["*"]`` means anywhere."""
    zone: str | None = None
    """Zone to run in."""
    target_cluster: str | None = None
    """Named peer cluster of the engine."""
    replicas: int = 1
    """Machines that start together."""
    device_alternatives: Sequence[str] | None = None
    """Other variants of the device that would do as well."""
    image: str | None = None
    """Container image instead of the engine's default."""
    container_profile: str | None = None
    """Security profile of the container, by name."""
    memory_gb: InitVar[float | None] = None

    def __post_init__(self, memory_gb: float | None) -> None:
        if memory_gb is not None:
            _require(not self.ram, "memory_gb", memory_gb, "given instead of ram, not beside it")
            _require(_is_positive(memory_gb), "memory_gb", memory_gb, "a positive number of GiB")
            object.__setattr__(self, "ram", f"{memory_gb:g}g")
        elif not self.ram:
            object.__setattr__(self, "ram", "4g")
        _require(_is_positive(self.cpu), "cpu", self.cpu, "a positive number of cores")
        for name in ("ram", "disk"):
            try:
                parse_size(getattr(self, name))
            except ResourceError as error:
                raise ResourceError(f"ResourceConfig.{name}: {error}") from None
        _require(_is_whole(self.replicas) and self.replicas >= 1, "replicas", self.replicas, ">= 1")
        _require(
            getattr(self.device, "kind", None) in ("cpu", "gpu", "tpu"),
            "device",
            self.device,
            "a CpuConfig, GpuConfig or TpuConfig",
        )
        for name in ("regions", "device_alternatives"):
            value = getattr(self, name)
            listed = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
            _require(value is None or listed, name, value, "a list of names")
        for name in ("zone", "target_cluster", "image", "container_profile"):
            value = getattr(self, name)
            _require(value is None or (isinstance(value, str) and value != ""), name, value, "text")
        _require(isinstance(self.preemptible, bool), "preemptible", self.preemptible, "a boolean")

    @classmethod
    def with_cpu(cls, **fields: Any) -> "ResourceConfig":
        """A request without an accelerator."""
        return cls(device=CpuConfig(), **fields)

    @classmethod
    def with_gpu(cls, gpu_type: str, count: int = 1, **fields: Any) -> "ResourceConfig":
        """A request for ``count`` GPUs of one model on each replica."""
        return cls(device=GpuConfig(variant=gpu_type, count=count), **fields)

    @classmethod
    def with_tpu(
        cls, tpu_type: str | Sequence[str], *, slice_count: int = 1, **fields: Any
    ) -> "ResourceConfig":
        """A request for ``slice_count`` TPU slices.

        As in Fray, a list names alternatives of the same shape, one replica is asked for each
        machine of each slice, and ``cpu`` and ``ram`` default to half of the machine.

        Raises:
            ResourceError: no such slice, or alternatives of different shapes.
        """
        variants = [tpu_type] if isinstance(tpu_type, str) else list(tpu_type)
        _require(bool(variants), "tpu_type", tpu_type, "at least one slice type")
        _require(_is_whole(slice_count) and slice_count >= 1, "slice_count", slice_count, ">= 1")
        shapes = {variant: tpu_machines(variant) for variant in variants}
        if len(set(shapes.values())) > 1:
            raise ResourceError(
                "alternative TPU slices must have the same number of machines and of chips on "
                f"each machine; got {shapes}."
            )
        family = _TPU_FAMILIES[variants[0].partition("-")[0]]
        fields.setdefault("cpu", family.host_cpu // 2)
        if "memory_gb" not in fields:
            fields.setdefault("ram", f"{family.host_ram_gb // 2}g")
        fields.setdefault("disk", "50g")
        return cls(
            device=TpuConfig(variant=variants[0]),
            replicas=slice_count * shapes[variants[0]][0],
            device_alternatives=variants[1:] or None,
            **fields,
        )

    @property
    def ram_bytes(self) -> int:
        """``ram`` in bytes."""
        return parse_size(self.ram)

    @property
    def disk_bytes(self) -> int:
        """``disk`` in bytes."""
        return parse_size(self.disk)


@dataclass(frozen=True)
class RemoteCallable(Generic[P, R]):
    """A function together with where it should run.

    Calling it runs the function here; a runner unwraps it and carries the rest.
    """

    fn: Callable[P, R]
    """The function itself."""
    resources: ResourceConfig
    """What it needs."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """Environment of the job."""
    pip_dependency_groups: Sequence[str] | None = None
    """Dependency groups of the workspace to install for the job."""
    pip_packages: Sequence[str] | None = None
    """Further packages to install for the job."""
    name: str | None = None
    """Name of the job; the step's name when not given."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function in this thread."""
        return self.fn(*args, **kwargs)


@overload
def remote(fn: Callable[P, R]) -> RemoteCallable[P, R]: ...
@overload
def remote(
    *,
    resources: ResourceConfig | None = ...,
    env_vars: Mapping[str, str] | None = ...,
    pip_dependency_groups: Sequence[str] | None = ...,
    pip_packages: Sequence[str] | None = ...,
    name: str | None = ...,
) -> Callable[[Callable[P, R]], RemoteCallable[P, R]]: ...


def remote(
    fn: Callable[..., Any] | None = None,
    *,
    resources: ResourceConfig | None = None,
    env_vars: Mapping[str, str] | None = None,
    pip_dependency_groups: Sequence[str] | None = None,
    pip_packages: Sequence[str] | None = None,
    name: str | None = None,
) -> Any:
    """Mark a step's function to run as its own job: ``@remote`` or ``@remote(resources=…)``.

    Args:
        fn: the function, when used without parentheses.
        resources: what it needs; one CPU core when not given.
        env_vars: environment of the job.
        pip_dependency_groups: dependency groups of the workspace to install.
        pip_packages: further packages to install.
        name: name of the job.
    """

    def wrap(function: Callable[P, R]) -> RemoteCallable[P, R]:
        return RemoteCallable(
            fn=function,
            resources=resources or ResourceConfig.with_cpu(),
            env_vars=dict(env_vars or {}),
            pip_dependency_groups=pip_dependency_groups,
            pip_packages=pip_packages,
            name=name,
        )

    return wrap(fn) if fn is not None else wrap


def step_function(step: StepLike) -> Callable[[str], Any] | None:
    """The step's plain function, out of a :class:`RemoteCallable` or Marin's."""
    function: Callable[[str], Any] | None = getattr(step.fn, "fn", None)
    return function if _is_remote(step.fn) else step.fn


def step_resources(step: StepLike) -> Any | None:
    """The step's request: its own ``resources``, else its :class:`RemoteCallable`'s, else None.

    Mirrors Marin's order. May be a Fray ``ResourceConfig``, whose fields have the same names.
    """
    if step.resources is not None:
        return step.resources
    fn: Any = step.fn
    return fn.resources if _is_remote(fn) else None


def resources_dict(resources: Any) -> dict[str, Any]:
    """A request as JSON, without the fields that say nothing."""
    fields = dataclasses.asdict(resources)
    # ``kind`` is a field of Fray's devices but a class variable of ours.
    fields["device"] = {"kind": resources.device.kind} | fields["device"]
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in fields.items()
        if value is not None
    }


def _is_remote(fn: Any) -> bool:
    return callable(getattr(fn, "fn", None)) and hasattr(fn, "resources")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def _require(holds: bool, name: str, value: Any, expected: str) -> None:
    if not holds:
        raise ResourceError(f"ResourceConfig.{name} = {value!r}: must be {expected}.")
