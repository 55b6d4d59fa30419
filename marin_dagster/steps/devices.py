"""Devices that a step can ask for, and the shapes of TPU slices. Field names are Fray's."""

import math
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
        require(bool(self.variant), "device.variant", self.variant, "a GPU model, or 'auto'")
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


DeviceConfig = CpuConfig | GpuConfig | TpuConfig


@dataclass(frozen=True)
class TpuFamily:
    """The shapes of one generation of TPU slices."""

    cores_per_chip: int
    """Divisor of the number in the slice's name; v4 and v5p count cores, the others chips."""
    largest: int
    single_machine: tuple[int, ...]
    """Chip counts that fit on one machine; everything larger has 4 chips on each."""
    host_cpu: int
    host_ram_gb: int


TPU_FAMILIES = {
    "v4": TpuFamily(2, 4096, (4,), 240, 400),
    "v5litepod": TpuFamily(1, 256, (1, 4, 8), 112, 192),
    "v5p": TpuFamily(2, 12288, (4,), 208, 448),
    "v6e": TpuFamily(1, 256, (1, 4, 8), 180, 720),
}


def tpu_machines(variant: str) -> tuple[int, int]:
    """``(machines, chips on each)`` of a TPU slice type.

    Raises:
        ResourceError: there is no such slice.
    """
    name, _, number = variant.partition("-") if isinstance(variant, str) else ("", "", "")
    family = TPU_FAMILIES.get(name)
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


def is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_positive(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value > 0


def require(holds: bool, name: str, value: Any, expected: str) -> None:
    if not holds:
        raise ResourceError(f"ResourceConfig.{name} = {value!r}: must be {expected}.")
