"""``ResourceConfig``: what a step needs to run.

Field names and defaults are Fray's, so that a request means the same to Marin's engines. Wherever
a request is read, Fray's objects are accepted, too.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

from marin_dagster.errors import ResourceError
from marin_dagster.steps.devices import (
    TPU_FAMILIES,
    CpuConfig,
    DeviceConfig,
    GpuConfig,
    TpuConfig,
    is_positive,
    is_whole,
    require,
    tpu_machines,
)


def parse_size(text: str) -> int:
    """Bytes in a size like ``4g``, ``512 MiB`` or ``1.5 terabytes``, as Fray reads them: every
    unit is a power of 1,024.

    Raises:
        ResourceError: the text is not a size, or the size is zero.
    """
    import humanfriendly  # slow to import, and only needed where steps are defined

    try:
        size = humanfriendly.parse_size(text, binary=True) if isinstance(text, str) else 0
    except humanfriendly.InvalidSize:
        size = 0
    if size <= 0:
        raise ResourceError(f"{text!r} is not a size. Write for example '4g' or '512m'.")
    return int(size)


@dataclass(frozen=True)
class ResourceConfig:
    """What one replica of a step needs, with Fray's fields and defaults.

    ``memory_gb`` is another way to set ``ram``; it is an argument, not a field.

    Raises:
        ResourceError: a value that makes no sense, at construction.
    """

    cpu: float = 1
    """Cores."""
    ram: str = ""
    """Memory, such as ``4g`` (the default)."""
    disk: str = "64g"
    """Scratch disk, such as ``64g``."""
    device: DeviceConfig = field(default_factory=CpuConfig)
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
    """Variants of the device that are acceptable instead."""
    image: str | None = None
    """Container image instead of the engine's default."""
    container_profile: str | None = None
    """Security profile of the container, by name."""
    memory_gb: InitVar[float | None] = None

    def __post_init__(self, memory_gb: float | None) -> None:
        if memory_gb is not None:
            require(not self.ram, "memory_gb", memory_gb, "given instead of ram, not beside it")
            require(is_positive(memory_gb), "memory_gb", memory_gb, "a positive number of GiB")
            object.__setattr__(self, "ram", f"{memory_gb:g}g")
        elif not self.ram:
            object.__setattr__(self, "ram", "4g")
        require(is_positive(self.cpu), "cpu", self.cpu, "a positive number of cores")
        for name in ("ram", "disk"):
            try:
                parse_size(getattr(self, name))
            except ResourceError as error:
                raise ResourceError(f"ResourceConfig.{name}: {error}") from None
        require(is_whole(self.replicas) and self.replicas >= 1, "replicas", self.replicas, ">= 1")
        require(
            getattr(self.device, "kind", None) in ("cpu", "gpu", "tpu"),
            "device",
            self.device,
            "a CpuConfig, GpuConfig or TpuConfig",
        )
        for name in ("regions", "device_alternatives"):
            value = getattr(self, name)
            listed = isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value)
            require(value is None or listed, name, value, "a list of names")
        for name in ("zone", "target_cluster", "image", "container_profile"):
            value = getattr(self, name)
            require(value is None or (isinstance(value, str) and value != ""), name, value, "text")
        require(isinstance(self.preemptible, bool), "preemptible", self.preemptible, "a boolean")

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
        require(bool(variants), "tpu_type", tpu_type, "at least one slice type")
        require(is_whole(slice_count) and slice_count >= 1, "slice_count", slice_count, ">= 1")
        shapes = {variant: tpu_machines(variant) for variant in variants}
        if len(set(shapes.values())) > 1:
            raise ResourceError(
                "alternative TPU slices must have the same number of machines and of chips on "
                f"each machine; got {shapes}."
            )
        family = TPU_FAMILIES[variants[0].partition("-")[0]]
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


def resources_dict(resources: Any) -> dict[str, Any]:
    """A request as JSON, without the fields that are None."""
    fields = dataclasses.asdict(resources)
    # ``kind`` is a field of Fray's devices but a class variable of ours.
    fields["device"] = {"kind": resources.device.kind} | fields["device"]
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in fields.items()
        if value is not None
    }
