"""``@remote``: a function together with what it needs, and which request of a step counts."""

import pickle
from dataclasses import dataclass
from typing import Any

from marin_dagster.steps import (
    RemoteCallable,
    ResourceConfig,
    StepSpec,
    remote,
    step_function,
    step_resources,
)

GPU = ResourceConfig.with_gpu("H100", 8)
CPU = ResourceConfig(cpu=2)


def build(output_path: str, factor: int = 2) -> str:
    """Returns where it builds."""
    return output_path * factor


def test_the_bare_decorator_asks_for_one_core() -> None:
    wrapped = remote(build)
    assert wrapped.fn is build
    assert wrapped.resources == ResourceConfig()
    assert (wrapped.env_vars, wrapped.pip_packages, wrapped.name) == ({}, None, None)


def test_the_decorator_with_arguments_keeps_all_of_them() -> None:
    environment = {"A": "1"}
    wrapped = remote(
        resources=GPU,
        env_vars=environment,
        pip_dependency_groups=["gpu"],
        pip_packages=["einops"],
        name="job",
    )(build)
    environment["A"] = "changed later"
    assert wrapped == RemoteCallable(build, GPU, {"A": "1"}, ["gpu"], ["einops"], "job")


def test_calling_it_runs_the_function_here() -> None:
    assert remote(build)("x", factor=3) == "xxx"


def test_it_can_be_pickled_for_another_process() -> None:
    wrapped = RemoteCallable(build, GPU, {"A": "1"})
    assert pickle.loads(pickle.dumps(wrapped)) == wrapped


def test_the_steps_own_resources_go_before_the_functions() -> None:
    step = StepSpec("a", fn=remote(resources=CPU)(build), resources=GPU)
    assert step_resources(step) is GPU
    assert step_function(step) is build


def test_the_functions_resources_count_when_the_step_has_none() -> None:
    assert step_resources(StepSpec("a", fn=remote(resources=CPU)(build))) is CPU


def test_a_plain_function_asks_for_nothing() -> None:
    step = StepSpec("a", fn=build)
    assert step_resources(step) is None
    assert step_function(step) is build


def test_a_step_without_function_has_none() -> None:
    step = StepSpec("a", resources=GPU)
    assert step_function(step) is None
    assert step_resources(step) is GPU


@dataclass(frozen=True)
class FrayLike:
    """Marin's own wrapper: another class with the same fields."""

    fn: Any
    resources: Any

    def __call__(self, output_path: str) -> Any:
        return self.fn(output_path)


def test_marins_own_wrapper_is_unwrapped_too() -> None:
    step = StepSpec("a", fn=FrayLike(build, CPU))
    assert step_function(step) is build
    assert step_resources(step) is CPU


def test_a_callable_object_with_an_attribute_called_fn_is_not_unwrapped() -> None:
    @dataclass
    class Partial:
        fn: Any

        def __call__(self, output_path: str) -> Any:
            return self.fn(output_path)

    step = StepSpec("a", fn=Partial(build))
    assert step_function(step) is step.fn
    assert step_resources(step) is None
