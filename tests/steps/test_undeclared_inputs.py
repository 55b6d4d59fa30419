"""Steps that a function uses, although its step does not depend on them."""

import functools
import operator
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest

from helpers import pipeline_module
from helpers.marin_like import MarinLike
from marin_dagster import OUT, ArtifactStep, apply, remote
from marin_dagster.errors import GraphError, MarinDagsterWarning, UndeclaredInputsError
from marin_dagster.steps import StepGraph, StepSpec
from marin_dagster.steps.undeclared_inputs import check_undeclared_inputs, undeclared_inputs


def _nothing(output_path: str, *more: Any, **named: Any) -> None:
    """Uses only what it gets."""


def _spec(name: str, fn: Any = _nothing, *deps: Any, **fields: Any) -> StepSpec:
    return StepSpec(name, output_path_prefix="/store", fn=fn, deps=deps, **fields)


raw = _spec("raw")
other = _spec("other")
marins = MarinLike("marins", "/store", fn=_nothing)
handle = ArtifactStep.adopt("corpus", "2026.07.01", "/data/corpus")
numbers = apply("numbers", _nothing, version="2026.07.01", output_path=OUT)
registry: dict[str, Any] = {"raw": raw, "other": other}
listed = [raw, other]
everything: list[Any] = [raw, other]
namespace = SimpleNamespace(raw=raw)
path_in_raw = f"{raw.output_path}/part-0/data.txt"
FIXED = "/store/fixed_0123abcd"
fixed = _spec("fixed", override_output_path=FIXED)


@dataclass(frozen=True)
class Settings:
    data: Any
    size: int = 1


@dataclass
class Slotted:
    __slots__ = ("data",)
    data: Any


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    data: Any


class Trainer:
    """Its steps, of which a method names some."""

    shared = other

    def __init__(self) -> None:
        self.data = raw
        self.spare = other

    @property
    def path(self) -> str:
        raise AssertionError("a property was called")

    @property
    def data_path(self) -> str:
        return str(self.data.output_path)

    def __repr__(self) -> str:
        raise AssertionError("repr was called")

    def train(self, output_path: str) -> None:
        print(self.data.output_path, self.path)

    def indirectly(self, output_path: str) -> None:
        self._go()

    def by_property(self, output_path: str) -> None:
        print(self.data_path)

    def by_class(self, output_path: str) -> None:
        print(self.shared)

    def _go(self) -> None:
        print(self.data)

    def nothing(self, output_path: str) -> None:
        """Names none of them."""


@dataclass
class Callable_:
    data: Any

    def __call__(self, output_path: str) -> None:
        helper_of_others(self)


def helper_of_others(value: Any) -> None:
    """Stands for a library."""


def of_global(output_path: str) -> None:
    print(raw.output_path)


def of_helper(output_path: str) -> None:
    of_global(output_path)


@functools.cache
def _cached() -> str:
    return raw.output_path


def of_cached(output_path: str) -> None:
    _cached()


def _decorated(function: Callable[[str], None]) -> Callable[[str], None]:
    @functools.wraps(function)
    def wrapper(output_path: str) -> None:
        function(output_path)

    return wrapper


@_decorated
def of_decorated(output_path: str) -> None:
    print(raw)


def of_nested(output_path: str) -> None:
    def inner() -> str:
        return next(one for one in "ab" if (lambda: raw)())

    inner()


def of_class(output_path: str) -> None:
    print(Trainer().data)


def of_module(output_path: str) -> None:
    print(pipeline_module.in_module.output_path)


def of_import(output_path: str) -> None:
    from helpers.pipeline_module import in_module

    print(in_module)


def of_constant(output_path: str) -> None:
    Path("/store/fixed_0123abcd/data.txt").read_text()


def of_global_path(output_path: str) -> None:
    Path(path_in_raw).read_text()


def of_namespace(output_path: str) -> None:
    print(namespace)


def of_list(output_path: str) -> None:
    print([one.output_path for one in listed])


def of_marins(output_path: str) -> None:
    print(marins.output_path)


def of_handle(output_path: str) -> None:
    print(handle.path())


def of_numbers(output_path: str) -> None:
    print(numbers.path())


def of_default(output_path: str, source: Any = raw, *, also: Any = other) -> None:
    """Reads its defaults."""


def of_registry(output_path: str, name: str = "raw") -> None:
    print(registry[name].output_path)


def of_everything(output_path: str) -> None:
    print(everything[0])


def of_attribute_of_that_name(output_path: str) -> None:
    """Names an attribute as a global is named."""
    print(operator.attrgetter("x")(output_path).raw, output_path.other)


def of_local_of_that_name(output_path: str) -> None:
    raw = Path(output_path)
    print(raw)


def recursive(output_path: str) -> None:
    if output_path:
        recursive_too(output_path)


def recursive_too(output_path: str) -> None:
    print(raw)
    recursive(output_path)


def _closure(*values: Any) -> Callable[[str], None]:
    def fn(output_path: str) -> None:
        print(values)

    return fn


def _ring() -> list[Any]:
    ring: list[Any] = [raw]
    ring.append({"again": ring})
    return ring


def _deep() -> Any:
    value: Any = raw
    for _ in range(3):
        value = Settings([value])
    return value


def used_by(fn: Any, *deps: Any, known: tuple[Any, ...] = (raw, other, fixed)) -> list[str]:
    """The names of the undeclared inputs of a step with a function."""
    graph = StepGraph.from_steps([*known, _spec("reader", fn, *deps)])
    found = undeclared_inputs(graph)
    assert {entry.step for entry in found} <= {graph.steps[graph.path_of("reader")].name_with_hash}
    return sorted(entry.used.partition("_")[0].partition("/")[0] for entry in found)


@pytest.mark.parametrize(
    ("fn", "used"),
    [
        (_nothing, []),
        (of_global, ["raw"]),
        (of_helper, ["raw"]),
        (of_cached, ["raw"]),
        (of_decorated, ["raw"]),
        (of_nested, ["raw"]),
        (of_class, ["other", "raw"]),
        (of_module, ["in"]),
        (of_import, ["in"]),
        (of_constant, ["fixed"]),
        (of_global_path, ["raw"]),
        (of_list, ["other", "raw"]),
        (of_marins, ["marins"]),
        (of_handle, ["corpus"]),
        (of_numbers, ["numbers"]),
        (of_default, ["other", "raw"]),
        (of_registry, ["other", "raw"]),
        (recursive, ["raw"]),
        (remote(of_global), ["raw"]),
        (lambda output_path: raw, ["raw"]),
        (_closure(raw), ["raw"]),
        (_closure(_ring()), ["raw"]),
        (_closure(_deep()), ["raw"]),
        (_closure(PurePosixPath(raw.output_path, "data")), ["raw"]),
        (_closure(f"file://{raw.output_path}/"), ["raw"]),
        (_closure(f"{raw.output_path}0/data", "/store", "raw"), []),
        (functools.partial(_nothing, raw), ["raw"]),
        (functools.partial(_closure(), raw.output_path), ["raw"]),
        (functools.partial(_nothing, more=[{"a": (raw,)}]), ["raw"]),
        (functools.partial(functools.partial(of_global), "x"), ["raw"]),
        (functools.partial(_nothing, settings=Settings(raw)), ["raw"]),
        (functools.partial(_nothing, settings=Slotted(raw)), ["raw"]),
        (functools.partial(_nothing, settings=Model(data=raw)), ["raw"]),
        (Callable_(raw), ["raw"]),
        (Trainer().train, ["raw"]),
        (Trainer().indirectly, ["raw"]),
        (Trainer().by_property, ["raw"]),
        (Trainer().by_class, ["other"]),
        (Trainer().nothing, []),
        (functools.partial(Trainer.train, Trainer()), ["raw"]),
        (of_namespace, []),
        (of_attribute_of_that_name, []),
        (of_local_of_that_name, []),
    ],
)
def test_what_a_function_uses(fn: Any, used: list[str]) -> None:
    assert used_by(fn) == used


def test_a_global_that_no_function_names_is_not_used() -> None:
    assert used_by(_nothing) == []


@pytest.mark.parametrize(
    ("fn", "deps", "used"),
    [
        (of_global, [raw], []),
        (of_global, [_spec("middle", _nothing, raw)], []),
        (of_global, [_spec("middle", _nothing, _spec("below", _nothing, raw))], []),
        (of_global, [other], ["raw"]),
        # Another object with the same output is the same step.
        (of_global, [_spec("raw")], []),
        (of_list, [raw], ["other"]),
        (of_list, [raw, other], []),
        # A dictionary with a dependency is a choice.
        (of_registry, [raw], []),
        (of_marins, [marins], []),
        (of_handle, [handle.lower()], []),
        (of_constant, [fixed], []),
    ],
)
def test_dependencies_are_declared_also_transitive_ones(
    fn: Any, deps: list[Any], used: list[str]
) -> None:
    assert used_by(fn, *deps) == used


@pytest.mark.parametrize("below", [False, True])
def test_a_list_of_all_steps_is_a_register(below: bool) -> None:
    steps = [raw, other]

    def pick(output_path: str) -> None:
        print(steps[0])

    reader = _spec("reader", pick)
    steps.append(_spec("below", _nothing, reader) if below else reader)

    assert undeclared_inputs(StepGraph.from_steps(steps)) == []


def test_a_step_may_use_itself() -> None:
    def fn(output_path: str) -> None:
        print(steps[0].hash_attrs, reader.output_path)

    reader = _spec("reader", fn)
    steps = [reader]

    assert undeclared_inputs(StepGraph.from_steps(steps)) == []


def test_an_output_inside_another_belongs_to_the_inner_step() -> None:
    outer = _spec("outer", override_output_path="/store/outer")
    inner = _spec("inner", override_output_path="/store/outer/inner")

    assert used_by(_closure("/store/outer/inner/x"), outer, known=(inner,)) == ["inner"]
    assert used_by(_closure("/store/outer/inner/x"), inner, known=(outer,)) == []


def test_a_lazy_artifact_uses_its_inputs_and_nothing_else() -> None:
    source = apply("source", _nothing, version="2026.07.01", output_path=OUT)
    reading = apply("reading", of_global, version="2026.07.01", output_path=OUT)
    inputs = [apply("copy", _nothing, version="2026.07.01", output_path=OUT, data=[{"a": source}])]

    found = undeclared_inputs(StepGraph.from_steps([*inputs, reading, raw]))

    assert [(entry.step, entry.used) for entry in found] == [
        ("reading/2026.07.01", raw.name_with_hash)
    ]


def test_a_finding_names_both_steps_and_the_place() -> None:
    reader = _spec("reader", of_global)

    [found] = undeclared_inputs(StepGraph.from_steps([raw, reader]))

    assert (found.step, found.output_path) == (reader.name_with_hash, reader.output_path)
    assert (found.used, found.used_path) == (raw.name_with_hash, raw.output_path)
    assert found.where == "global 'raw'"


def test_a_step_that_is_in_no_graph_is_found_too() -> None:
    reader = _spec("reader", of_global)

    [found] = undeclared_inputs(StepGraph.from_steps([reader]))

    assert found.used == raw.name_with_hash


def test_a_graph_warns_once_and_a_strict_one_raises() -> None:
    reader = _spec("reader", of_default)
    graph = StepGraph.from_steps([reader])

    with pytest.warns(MarinDagsterWarning) as caught:
        check_undeclared_inputs(graph, strict=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_undeclared_inputs(graph, strict=False)
    with pytest.raises(UndeclaredInputsError) as raised:
        check_undeclared_inputs(graph, strict=True)

    [warning] = caught
    assert str(warning.message) == str(raised.value)
    assert isinstance(raised.value, GraphError)
    assert str(raised.value) == (
        f"step {reader.name_with_hash} ({reader.output_path}): its function uses "
        f"{raw.name_with_hash} (default of 'source'), {other.name_with_hash} (default of 'also'), "
        "but the step does not depend on them: a change there does not rebuild it, and a run may "
        "start it first. Add them to deps=[…] of the step."
    )
    assert warning.filename == __file__


def test_many_findings_are_cut_in_the_warnings_only() -> None:
    graph = StepGraph.from_steps([_spec(f"reader-{i}", of_global) for i in range(25)])

    assert len(undeclared_inputs(graph)) == 25
    with pytest.warns(MarinDagsterWarning) as caught:
        check_undeclared_inputs(graph, strict=False)
    assert len(caught) == 21
    assert str(caught[-1].message) == "and 5 more"


def test_code_that_steps_share_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from marin_dagster.steps import static_parts

    decoded: list[str] = []
    get_instructions = static_parts.dis.get_instructions

    def counting(code: Any) -> Any:
        decoded.append(code.co_name)
        return get_instructions(code)

    monkeypatch.setattr(static_parts.dis, "get_instructions", counting)

    def make(number: int) -> Callable[[str], None]:
        def shared(output_path: str) -> None:
            print(number, helper_of_others(raw))

        return shared

    steps = [_spec(f"s{number}", make(number), raw) for number in range(50)]
    steps += [_spec(f"p{number}", functools.partial(of_global, n=number), raw) for number in (1, 2)]

    assert undeclared_inputs(StepGraph.from_steps(steps)) == []
    assert sorted(decoded) == ["of_global", "shared"]


def test_a_collection_without_end_is_cut() -> None:
    class Endless(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("user code ran")

    assert used_by(_closure(Endless([raw]), list(range(100_000)))) == ["raw"]
