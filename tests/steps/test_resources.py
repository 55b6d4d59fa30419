"""``ResourceConfig``: Fray's fields and defaults, and nonsense refused at construction."""

import dataclasses
import math
from typing import Any

import pytest

from marin_dagster.errors import MarinDagsterError, ResourceError
from marin_dagster.steps import CpuConfig, GpuConfig, ResourceConfig, TpuConfig
from marin_dagster.steps.devices import tpu_machines
from marin_dagster.steps.resources import parse_size, resources_dict

GIB = 1024**3

# Slice, machines and chips on each, as Fray lists them.
TPU_SHAPES = """
v4-8 1 4; v4-16 2 4; v4-32 4 4; v4-64 8 4; v4-128 16 4; v4-256 32 4; v4-512 64 4; v4-1024 128 4;
v4-2048 256 4; v4-4096 512 4; v5litepod-1 1 1; v5litepod-2 1 2; v5litepod-4 1 4; v5litepod-8 1 8;
v5litepod-16 4 4; v5litepod-32 8 4; v5litepod-64 16 4; v5litepod-128 32 4; v5litepod-256 64 4;
v5p-8 1 4; v5p-16 2 4; v5p-32 4 4; v5p-64 8 4; v5p-128 16 4; v5p-256 32 4; v5p-512 64 4;
v5p-1024 128 4; v5p-2048 256 4; v5p-4096 512 4; v5p-8192 1024 4; v5p-12288 1536 4; v6e-1 1 1;
v6e-4 1 4; v6e-8 1 8; v6e-16 4 4; v6e-32 8 4; v6e-64 16 4; v6e-128 32 4; v6e-256 64 4
"""


def test_the_defaults_are_frays() -> None:
    config = ResourceConfig()
    assert dataclasses.asdict(config) == {
        "cpu": 1,
        "ram": "4g",
        "disk": "64g",
        "device": {"variant": "cpu"},
        "preemptible": True,
        "regions": None,
        "zone": None,
        "target_cluster": None,
        "replicas": 1,
        "device_alternatives": None,
        "image": None,
        "container_profile": None,
    }
    assert config.device.kind == "cpu"
    assert (config.ram_bytes, config.disk_bytes) == (4 * GIB, 64 * GIB)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4g", 4 * GIB),
        ("4G", 4 * GIB),
        ("4GiB", 4 * GIB),
        ("4 GB", 4 * GIB),
        ("1.5t", 1536 * GIB),
        ("512m", 512 * 1024**2),
        ("10k", 10_240),
        (" 1p ", 1024**5),
        ("2048", 2048),
        ("4 gigs", 4 * GIB),  # a unit is known by its first letter, as in Fray
    ],
)
def test_sizes_are_read_with_units_that_are_powers_of_1024(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("memory_gb", "ram"), [(16, 16 * GIB), (0.5, GIB // 2), (1.5, GIB * 3 // 2)]
)
def test_memory_gb_is_another_way_to_say_ram(memory_gb: float, ram: int) -> None:
    for config in (
        ResourceConfig(memory_gb=memory_gb),
        ResourceConfig.with_cpu(memory_gb=memory_gb),
        ResourceConfig.with_gpu("H100", memory_gb=memory_gb),
        ResourceConfig.with_tpu("v5p-8", memory_gb=memory_gb),
    ):
        assert config.ram_bytes == ram
        assert "memory_gb" not in dataclasses.asdict(config)


def test_memory_gb_and_ram_together_are_an_error() -> None:
    with pytest.raises(ResourceError, match="memory_gb"):
        ResourceConfig(memory_gb=4, ram="4g")


def test_replacing_a_field_keeps_the_others() -> None:
    config = ResourceConfig.with_tpu("v5p-64", slice_count=2, memory_gb=100, regions=["us-east5"])
    other = dataclasses.replace(config, cpu=7)
    assert dataclasses.asdict(other) == dataclasses.asdict(config) | {"cpu": 7}
    assert dataclasses.replace(config, ram="8g").ram_bytes == 8 * GIB
    assert dataclasses.replace(config) == config


def test_a_nonsense_replacement_is_refused() -> None:
    with pytest.raises(ResourceError, match="cpu"):
        dataclasses.replace(ResourceConfig(), cpu=-1)
    with pytest.raises(ResourceError, match="memory_gb"):
        dataclasses.replace(ResourceConfig(memory_gb=4), memory_gb=8)


NONSENSE: list[dict[str, Any]] = [
    *({"cpu": value} for value in (0, -1, math.nan, math.inf, True, "4", None)),
    *({"memory_gb": value} for value in (0, -1, math.nan, math.inf, True, "4")),
    *({"ram": value} for value in ("0g", "-4g", "lots", "4x", "1e3g", 4, b"4g", "4g 4g")),
    *({"disk": value} for value in ("", "0", "big", 64, None)),
    *({"replicas": value} for value in (0, -1, 1.5, True, "2", None)),
    *({"device": value} for value in ("H100", None, "cpu", 8)),
    *({"regions": value} for value in ("us-east5", [1], [None], {"us": 1})),
    *({"device_alternatives": value} for value in ("v5p-8", [5])),
    *({name: value} for name in ("zone", "target_cluster", "image") for value in ("", 5, ["x"])),
    *({"container_profile": value} for value in ("", 5)),
    *({"preemptible": value} for value in (1, "yes", None)),
]


@pytest.mark.parametrize("fields", NONSENSE, ids=repr)
def test_a_nonsense_value_is_an_error_naming_the_field(fields: dict[str, Any]) -> None:
    [name] = fields
    with pytest.raises(ResourceError, match=rf"ResourceConfig\.{name}\b") as caught:
        ResourceConfig(**fields)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MarinDagsterError)


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "8", None])
def test_a_nonsense_number_of_gpus_is_an_error(count: Any) -> None:
    with pytest.raises(ResourceError, match="count"):
        ResourceConfig.with_gpu("H100", count)


@pytest.mark.parametrize("variant", ["", None, 5, ["H100"]])
def test_a_nonsense_gpu_model_is_an_error(variant: Any) -> None:
    with pytest.raises(ResourceError, match="variant"):
        GpuConfig(variant=variant)


def test_gpus_are_asked_for_by_model_and_count() -> None:
    config = ResourceConfig.with_gpu("H100", 8, cpu=32, ram="256g")
    assert config.device == GpuConfig("H100", 8)
    assert (config.device.kind, config.cpu, config.replicas) == ("gpu", 32, 1)
    assert ResourceConfig.with_gpu("auto").device.count == 1


@pytest.mark.parametrize("shape", TPU_SHAPES.replace("\n", " ").split("; "), ids=str.strip)
def test_every_tpu_slice_that_fray_knows_has_its_shape(shape: str) -> None:
    name, machines, chips = shape.split()
    assert tpu_machines(name) == (int(machines), int(chips))
    assert ResourceConfig.with_tpu(name, slice_count=3).replicas == 3 * int(machines)


@pytest.mark.parametrize(
    ("name", "cpu", "ram"),
    [
        ("v4-8", 120, "200g"),
        ("v5litepod-16", 56, "96g"),
        ("v5p-64", 104, "224g"),
        ("v6e-8", 90, "360g"),
    ],
)
def test_a_tpu_request_defaults_to_half_of_the_machine(name: str, cpu: int, ram: str) -> None:
    config = ResourceConfig.with_tpu(name)
    assert (config.cpu, config.ram, config.disk) == (cpu, ram, "50g")
    assert config.device == TpuConfig(name)
    assert ResourceConfig.with_tpu(name, cpu=1, ram="1g", disk="1g").cpu == 1


def test_a_list_of_tpu_slices_names_alternatives() -> None:
    config = ResourceConfig.with_tpu(["v5p-8", "v4-8"])
    assert config.device == TpuConfig("v5p-8")
    assert config.device_alternatives == ["v4-8"]
    assert ResourceConfig.with_tpu(["v5p-8"]).device_alternatives is None


@pytest.mark.parametrize("variants", [["v6e-4", "v6e-8"], ["v5p-8", "v5p-16"], ["v5p-8", "v9-8"]])
def test_alternatives_of_another_shape_are_an_error(variants: list[str]) -> None:
    with pytest.raises(ResourceError):
        ResourceConfig.with_tpu(variants)


NO_SLICE: list[Any] = [
    *("", "v5p", "v5p-", "v5p-7", "v5p-0", "v5p-12", "v5p-99999", "v5p-08", "v5p--8", "v5p-8 "),
    *("v3-8", "v4-24", "v5litepod-12", "v6e-2", "v6e-12", "v6e-512", "H100", None, 8),
]


@pytest.mark.parametrize("name", NO_SLICE, ids=repr)
def test_a_tpu_slice_that_does_not_exist_is_an_error(name: Any) -> None:
    with pytest.raises(ResourceError, match="TPU"):
        TpuConfig(name)


@pytest.mark.parametrize("topology", ["", "big", 7, "2x", ["2x2"]])
def test_a_nonsense_tpu_topology_is_an_error(topology: Any) -> None:
    with pytest.raises(ResourceError, match="topology"):
        TpuConfig("v5p-8", topology=topology)


def test_a_tpu_topology_is_kept() -> None:
    assert TpuConfig("v5p-8", topology="2x2x1").topology == "2x2x1"


@pytest.mark.parametrize("slice_count", [0, -1, 1.5, True, None])
def test_a_nonsense_number_of_slices_is_an_error(slice_count: Any) -> None:
    with pytest.raises(ResourceError, match="slice_count"):
        ResourceConfig.with_tpu("v5p-8", slice_count=slice_count)


def test_no_tpu_slice_at_all_is_an_error() -> None:
    with pytest.raises(ResourceError, match="tpu_type"):
        ResourceConfig.with_tpu([])


def test_a_request_as_json_leaves_out_what_says_nothing() -> None:
    config = ResourceConfig(device=CpuConfig(), regions=("us-east5", "us-west4"))
    assert resources_dict(config) == {
        "cpu": 1,
        "ram": "4g",
        "disk": "64g",
        "device": {"kind": "cpu", "variant": "cpu"},
        "preemptible": True,
        "regions": ["us-east5", "us-west4"],
        "replicas": 1,
    }
