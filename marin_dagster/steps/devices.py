"""Devices that a step can request, and the shapes of TPU slices. Field names are Fray's."""

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from marin_dagster.errors import ResourceError


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
        named = isinstance(self.variant, str) and self.variant != ""
        require(named, "device.variant", self.variant, "a GPU model, or 'auto'")
        require(is_whole(self.count) and self.count >= 1, "device.count", self.count, "1 or more")


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
        shaped = isinstance(self.topology, str) and _TOPOLOGY.fullmatch(self.topology)
        ok = self.topology is None or bool(shaped)
        require(ok, "device.topology", self.topology, "a shape like '2x2x1'")


_TOPOLOGY = re.compile(r"\d+(x\d+)+")

DeviceConfig = CpuConfig | GpuConfig | TpuConfig


@dataclass(frozen=True)
class TpuFamily:
    """One generation of TPUs: names of its slices, and their machines."""

    cores_per_chip: int
    """Divisor of the number in a slice's name; v4 and v5p count cores, the others chips."""
    sizes: tuple[int, ...]
    """Sizes of its slices in chips, as in Fray."""
    largest_machine: int
    """Slices up to this many chips are one machine; larger ones have 4 chips on each machine."""
    host_cpu: int
    """Cores of one machine."""
    host_ram_gb: int
    """Memory of one machine, in GiB."""


def _doubling(first: int, last: int) -> tuple[int, ...]:
    return tuple(first << power for power in range((last // first).bit_length()))


TPU_FAMILIES = {
    "v4": TpuFamily(2, _doubling(4, 2048), 4, 240, 400),
    "v5litepod": TpuFamily(1, _doubling(1, 256), 8, 112, 192),
    "v5p": TpuFamily(2, (*_doubling(4, 4096), 6144), 4, 208, 448),
    "v6e": TpuFamily(1, (1, *_doubling(4, 256)), 8, 180, 720),
}
"""Generations by the first part of a slice's name."""


def tpu_machines(variant: str) -> tuple[int, int]:
    """``(machines, chips on each)`` of a TPU slice type.

    Raises:
        ResourceError: there is no such slice.
    """
    for name, family in TPU_FAMILIES.items():
        for chips in family.sizes:
            if variant == f"{name}-{chips * family.cores_per_chip}":
                return (1, chips) if chips <= family.largest_machine else (chips // 4, 4)
    raise ResourceError(
        f"{variant!r} is not a TPU slice. Write for example 'v4-8', 'v5litepod-16', 'v5p-64', "
        "'v6e-8'."
    )


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def require(holds: bool, name: str, value: Any, expected: str) -> None:
    if not holds:
        raise ResourceError(f"ResourceConfig.{name} = {value!r}: must be {expected}.")
