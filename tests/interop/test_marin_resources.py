"""A resource request means the same in Fray's class and in ours."""

import dataclasses
from typing import Any, get_args

import pytest
from fray.types import TPU_TOPOLOGIES, TpuType
from fray.types import ResourceConfig as FrayResources
from humanfriendly import InvalidSize
from humanfriendly import parse_size as fray_parse_size

from marin_dagster import ResourceConfig
from marin_dagster.errors import ResourceError
from marin_dagster.steps.resources import parse_size, resources_dict, tpu_machines

pytestmark = pytest.mark.interop

FIELDS = [field.name for field in dataclasses.fields(FrayResources)]


def values(resources: Any) -> dict[str, Any]:
    """Every field that Fray has, with the device as plain values."""
    found = {name: getattr(resources, name) for name in FIELDS}
    return found | {"device": {"kind": resources.device.kind, **vars(resources.device)}}


def test_both_have_the_same_fields_and_the_same_defaults() -> None:
    assert [field.name for field in dataclasses.fields(ResourceConfig)] == FIELDS
    assert values(ResourceConfig()) == values(FrayResources())


@pytest.mark.parametrize("topology", TPU_TOPOLOGIES, ids=lambda topology: topology.name)
def test_a_request_for_each_tpu_slice_of_fray_has_frays_values(topology: Any) -> None:
    expected = FrayResources.with_tpu(topology.name)
    assert values(ResourceConfig.with_tpu(topology.name)) == values(expected)
    assert tpu_machines(topology.name) == (topology.vm_count, topology.chips_per_vm)


def test_a_slice_that_fray_only_names_and_cannot_shape_is_refused_by_both() -> None:
    known = {topology.name for topology in TPU_TOPOLOGIES}
    only_named = [name for name in get_args(TpuType) if name not in known]
    assert len(only_named) > 50
    for name in only_named:
        with pytest.raises(ValueError, match="Unknown TPU"):
            FrayResources.with_tpu(name)
        with pytest.raises(ResourceError, match=name):
            ResourceConfig.with_tpu(name)


MORE: dict[str, Any] = {
    "cpu": 3,
    "ram": "7g",
    "disk": "1t",
    "preemptible": False,
    "regions": ["us-central1", "us-east5"],
    "zone": "us-central1-a",
    "target_cluster": "peer",
    "image": "registry/image:tag",
    "container_profile": "privileged",
}


@pytest.mark.parametrize("fields", [{}, *({name: value} for name, value in MORE.items()), MORE])
def test_further_fields_override_the_defaults_of_every_device_as_in_fray(
    fields: dict[str, Any],
) -> None:
    for make in (
        lambda kind: kind.with_cpu(replicas=2, **fields),
        lambda kind: kind.with_gpu("H100", **fields),
        lambda kind: kind.with_gpu("auto", count=8, **fields),
        lambda kind: kind.with_gpu("A100-80G", 4, replicas=3, **fields),
        lambda kind: kind.with_tpu("v5p-64", **fields),
        lambda kind: kind.with_tpu("v6e-8", slice_count=4, **fields),
        lambda kind: kind.with_tpu(["v5p-8", "v4-8", "v6e-4"], slice_count=2, **fields),
        lambda kind: kind.with_tpu(["v5litepod-16"], **fields),
    ):
        ours, frays = make(ResourceConfig), make(FrayResources)
        assert values(ours) == values(frays)
        assert resources_dict(ours) == resources_dict(frays)


@pytest.mark.parametrize(
    "tpu_type", ["v5p-9", "v4", "v9-8", "h100", "", [], ["v6e-4", "v6e-8"], ["v5p-8", "v5p-16"]]
)
def test_slices_that_fray_refuses_are_refused(tpu_type: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        FrayResources.with_tpu(tpu_type)
    with pytest.raises(ResourceError):
        ResourceConfig.with_tpu(tpu_type)


@pytest.mark.parametrize(
    "size",
    [
        *("1", "100", "13b", "13B", "10k", "1 K", "1kb", "64KiB", "512m", "512 MB", "512MiB", "4g"),
        *("4G", "4 gb", " 4gb ", "4 GiB", "4gib", "0.5g", "1.1g", "1.5TB", "2t", "1 PB", "1pib"),
        # Fray also takes the units of Kubernetes, larger ones, and words.
        *("4Gi", "512Mi", "1Ti", "5 bytes", "1 byte", "4 gigabytes", "1 gigabyte", "3 GBs"),
        *("2 kibibytes", "1E", "1EiB", "4 gigs"),
    ],
)
def test_sizes_are_read_as_fray_reads_them(size: str) -> None:
    assert parse_size(size) == fray_parse_size(size, binary=True)


@pytest.mark.parametrize("size", ["", "g", "four g", "-1g", ".5g", "1e3", "4 g 5", "1,000m", "4x"])
def test_sizes_that_fray_cannot_read_are_refused(size: str) -> None:
    with pytest.raises(InvalidSize):
        fray_parse_size(size, binary=True)
    with pytest.raises(ResourceError):
        ResourceConfig(ram=size or " ")
