"""``@remote``: where a function should run, and reading that from any step."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, overload

from marin_dagster.steps.protocol import StepLike
from marin_dagster.steps.resources import ResourceConfig

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class RemoteCallable(Generic[P, R]):
    """A function together with where it should run.

    Calling it runs the function in this thread; a runner reads the other fields.
    """

    fn: Callable[P, R]
    """The function itself."""
    resources: ResourceConfig
    """The resources that it needs."""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """Environment of the job."""
    pip_dependency_groups: Sequence[str] | None = None
    """Dependency groups of the workspace to install for the job."""
    pip_packages: Sequence[str] | None = None
    """More packages to install for the job."""
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
        resources: what it needs; one CPU core by default.
        env_vars: environment of the job.
        pip_dependency_groups: dependency groups of the workspace to install.
        pip_packages: more packages to install.
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
    return function if is_remote(step.fn) else step.fn


def step_resources(step: StepLike) -> Any | None:
    """The step's request: its own ``resources``, else its :class:`RemoteCallable`'s, else None.

    Mirrors Marin's order. May be a Fray ``ResourceConfig``, whose fields have the same names.
    """
    if step.resources is not None:
        return step.resources
    fn: Any = step.fn
    return fn.resources if is_remote(fn) else None


def is_remote(fn: Any) -> bool:
    """Whether ``fn`` is a :class:`RemoteCallable`, ours or Marin's."""
    return callable(getattr(fn, "fn", None)) and hasattr(fn, "resources")


def written_function(step: StepLike) -> tuple[Callable[..., Any] | None, str | None]:
    """The function inside wrappers and partials, and its docstring.

    For a callable object: its ``__call__``, and the docstring of that or else of the class.
    """
    function: Any = step_function(step)
    seen: set[int] = set()  # a wrapper may name itself
    while function is not None:
        seen.add(id(function))
        if isinstance(function, functools.partial):
            function = function.func
        elif is_remote(function):
            function = function.fn
        elif hasattr(function, "__wrapped__") and id(function.__wrapped__) not in seen:
            function = function.__wrapped__
        elif inspect.isroutine(function):
            return function, _clean(function.__doc__)
        else:
            call = type(function).__call__
            return call, _clean(call.__doc__ or type(function).__doc__)
    return None, None


def _clean(doc: str | None) -> str | None:
    return inspect.cleandoc(doc) if doc else None
