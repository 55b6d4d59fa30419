"""Handles, their contexts, and what they become."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pydantic import Field

from marin_dagster import ResourceConfig, StepGraph, StepRunner, StepSpec, remote
from marin_dagster.cache import Attempt, OutputDir, StepCache, read_record
from marin_dagster.errors import (
    AdoptedDataMissingError,
    ArtifactTypeMismatchError,
    CollisionError,
    FingerprintMismatchError,
    GraphError,
    InputsError,
    OutputNotReadyError,
    ResultError,
    StepNameError,
    UndeclaredDependencyError,
    VersionError,
)
from marin_dagster.lazy import (
    OUT,
    Artifact,
    ArtifactStep,
    StepContext,
    apply,
    load,
    lower,
    materialized_config,
)
from marin_dagster.lazy.build_context import (
    BuildContext,
    VersionCodex,
    build_context,
    current_build_context,
)
from marin_dagster.steps.protocol import (
    adopted_source,
    artifact_version,
    code_version,
    data_version,
    is_external,
    is_mutable,
    is_pinned,
)
from marin_dagster.steps.remote import step_resources

V = "2026.07.01"


class Tokens(Artifact):
    count: int


def write(output_path: str, text: str = "data") -> None:
    Path(output_path, "data.txt").write_text(text)


def handle(name: str = "raw", version: str = V, **fields: Any) -> ArtifactStep[Any]:
    defaults: dict[str, Any] = {
        "artifact_type": Artifact,
        "run": lambda config: write(config["out"]),
        "build_config": lambda context: {"out": context.output_path},
    }
    return ArtifactStep(name, version, **{**defaults, **fields})


def build(one: ArtifactStep[Any]) -> Any:
    """Build a handle and all above it, as a scheduler does; returns the loaded artifact."""
    for step in StepGraph.from_steps([one]).steps.values():
        outcome = StepCache().begin(step)
        if isinstance(outcome, Attempt):
            try:
                assert step.fn is not None
                outcome.result = step.fn(step.output_path)
                outcome.commit()
            finally:
                outcome.fail()
    return load(one)


def test_a_step_is_addressed_by_name_and_version(store: Path) -> None:
    step = lower(handle("data/raw"))

    assert step.output_path == str(store / "data/raw" / V)
    assert step.hash_attrs["version"] == V
    assert step.hash_attrs["result_type"] == "marin.execution.artifact.Artifact"
    assert step.writes_record


def test_the_record_says_all(store: Path) -> None:
    raw = handle()
    tokens = ArtifactStep(
        "tokens",
        V,
        Tokens,
        run=lambda config: Tokens(count=config["count"]),
        build_config=lambda context: {"raw": context.artifact_path(raw), "count": 3},
        deps=[raw],
    )

    found = build(tokens)

    assert (found.count, found.path) == (3, str(store / "tokens" / V))
    record = found.record
    assert (record.name, record.version, record.deps) == ("tokens", V, [f"raw@{V}"])
    assert record.config == {"raw": str(store / "raw" / V), "count": 3}
    assert record.result == {"count": 3}
    assert record.result_type == "test_handles.Tokens"
    assert record.fingerprint == tokens.fingerprint()
    assert record.fingerprint_payload == f'{{"count": 3, "raw": "raw@{V}"}}'
    assert record.provenance is not None


def test_what_comes_from_the_context_bears_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    def config(context: StepContext) -> dict[str, Any]:
        return {
            "out": context.output_path,
            "prefix": context.prefix,
            "region": context.region,
            "tpu": context.runtime_arg("tpu"),
        }

    small = handle(build_config=config, runtime_args={"tpu": "v4-8"})
    large = handle(build_config=config, runtime_args={"tpu": "v5p-8"})

    assert small.fingerprint() == large.fingerprint()
    assert small.fingerprint_payload() == (
        '{"out": "<output_path>", "prefix": "<prefix>", "region": "<region>", "tpu": "<tpu>"}'
    )
    before = lower(small).hash_id
    monkeypatch.setenv("MARIN_PREFIX", "/elsewhere")
    assert lower(small).hash_id == before


def test_the_contexts_take_what_marins_take() -> None:
    raw = handle("raw")
    run = StepContext.for_run(
        "/out", "/prefix", region="us-east5", runtime_args={"tpu": "v4-8"}, deps=[raw]
    )
    fingerprint = StepContext.for_fingerprint(["tpu"], [raw])

    assert (run.output_path, run.prefix, run.region) == ("/out", "/prefix", "us-east5")
    assert (run.runtime_arg("tpu"), fingerprint.runtime_arg("tpu")) == ("v4-8", "<tpu>")
    assert (run.artifact_path(raw), fingerprint.artifact_path(raw)) == (
        f"/prefix/raw/{V}",
        f"raw@{V}",
    )
    assert (run.is_fingerprint, fingerprint.is_fingerprint) == (False, True)
    for context in (run, fingerprint):
        with pytest.raises(UndeclaredDependencyError, match="the step uses"):
            context.artifact_path(handle("other"))


def test_the_configuration_of_a_run_can_be_looked_at(store: Path) -> None:
    def config(context: StepContext) -> list[str]:
        return [context.output_path, context.artifact_path(raw), context.runtime_arg("tpu")]

    raw = handle("raw")
    asking = handle("asks", build_config=config, runtime_args={"tpu": "v4-8"}, deps=[raw])

    assert materialized_config(asking, "gs://b") == [f"gs://b/asks/{V}", f"gs://b/raw/{V}", "v4-8"]
    assert not store.exists()


def test_a_dependency_must_be_declared_to_be_asked_for() -> None:
    raw, other = handle("raw"), handle("other")
    asking = handle("asks", build_config=lambda context: context.artifact_path(other), deps=[raw])

    with pytest.raises(UndeclaredDependencyError, match=rf"asks@{V} uses other@{V}"):
        lower(asking)


def test_a_dependency_is_loaded_at_run_time_only() -> None:
    tokens = apply("tokens", lambda n: Tokens(count=n), version=V, artifact_type=Tokens, n=5)

    def config(context: StepContext) -> int:
        return 0 if context.is_fingerprint else context.resolved(tokens).count

    seen: list[int] = []
    reader = handle("reader", run=seen.append, build_config=config, deps=[tokens])
    build(reader)

    assert seen == [5]
    careless = handle("careless", build_config=lambda c: c.resolved(tokens), deps=[tokens])
    with pytest.raises(ValueError, match="is_fingerprint"):
        careless.fingerprint()


def test_an_unknown_runtime_argument_is_an_error() -> None:
    asking = handle(build_config=lambda context: context.runtime_arg("tpu"))

    with pytest.raises(KeyError, match="tpu"):
        lower(asking)


@pytest.mark.parametrize("name", ["", "/raw", "raw/", "a/../b", "s3://b/x"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(StepNameError):
        handle(name)


@pytest.mark.parametrize("version", ["", "v1", "2026.7.1", "2026.07.01.x", "latest", "a/../dev"])
def test_a_bad_version_is_refused(version: str) -> None:
    with pytest.raises(VersionError):
        handle(version=version)


@pytest.mark.parametrize("version", ["2026.07.01", "2026.07.01.3", "dev", "mine-dev"])
def test_a_good_version_is_taken(version: str) -> None:
    assert is_mutable(lower(handle(version=version))) is version.endswith("dev")


def test_a_fixed_version_may_not_depend_on_a_dev_version() -> None:
    dev = handle("raw", "dev")

    with pytest.raises(VersionError, match=rf"fixed@{V} .* raw@dev"):
        lower(handle("fixed", deps=[dev]))
    lower(handle("mutable", "dev", deps=[dev]))


def test_an_expected_fingerprint_is_held_to() -> None:
    good = handle().fingerprint()

    lower(handle(expected_fingerprint=good))
    with pytest.raises(FingerprintMismatchError, match=rf"{good}, but it expects 00000000"):
        lower(handle(expected_fingerprint="00000000"))


@pytest.mark.slow
def test_a_shared_handle_is_lowered_once_and_a_deep_chain_at_all() -> None:
    built: list[str] = []

    def config(name: str) -> Any:
        return lambda context: built.append(name)

    shared = handle("shared", build_config=config("shared"))
    readers = [handle(f"r{n}", build_config=config(f"r{n}"), deps=[shared]) for n in range(3)]
    graph = StepGraph.from_steps(readers)

    assert built.count("shared") == 1
    assert len(graph.steps) == 4
    chain = handle("c0")
    for n in range(1, 3000):
        chain = handle(f"c{n}", deps=[chain])
    assert len(StepGraph.from_steps([chain]).steps) == 3000


def test_two_recipes_at_one_address_are_an_error() -> None:
    def recipe(size: int) -> ArtifactStep[Any]:
        return handle(build_config=lambda context: {"size": size})

    with pytest.raises(CollisionError, match="both write to"):
        StepGraph.from_steps([recipe(1), recipe(2)])
    assert len(StepGraph.from_steps([recipe(1), recipe(1)]).steps) == 1


def test_a_dependency_that_is_no_handle_is_refused() -> None:
    with pytest.raises(GraphError, match="not an ArtifactStep"):
        lower(handle(deps=[StepSpec("plain")]))


def test_inputs_become_dependencies_paths_and_literals(store: Path) -> None:
    raw = handle("raw")
    seen: dict[str, Any] = {}

    def join(parts: Any, out: str, size: int) -> Tokens:
        seen.update(parts=parts, out=out)
        return Tokens(count=size)

    step = apply(
        "joined", join, version=V, artifact_type=Tokens, parts={"a": [raw, (raw,)]}, out=OUT, size=2
    )

    assert step.deps == (raw,)
    path = str(store / "raw" / V)
    assert build(step).count == 2
    assert seen == {"parts": {"a": [path, (path,)]}, "out": str(store / "joined" / V)}
    assert step.fingerprint_payload() == (
        f'{{"out": "<output_path>", "parts": {{"a": ["raw@{V}", ["raw@{V}"]]}}, "size": 2}}'
    )


def test_inputs_that_the_function_cannot_take_are_refused() -> None:
    with pytest.raises(InputsError, match=r"'raw': write does not accept its inputs: .*wrong"):
        apply("raw", write, version=V, output_path=OUT, wrong=1)


def test_a_wrapped_function_keeps_its_resources() -> None:
    wrapped = remote(resources=ResourceConfig(cpu=8), env_vars={"A": "1"})(write)

    step = lower(apply("raw", wrapped, version=V, output_path=OUT))

    assert step_resources(step).cpu == 8
    assert step.fn.env_vars == {"A": "1"}  # type: ignore[union-attr]


def test_out_is_itself_on_the_other_side_of_a_pickle() -> None:
    assert pickle.loads(pickle.dumps({"out": OUT}))["out"] is OUT


WHAT_NOBODY_COULD_LOAD = {
    "async": "never ran",
    "generator": "never ran",
    "dictionary": r"returned \{'count': 1\}. Return None, or an instance of Tokens\.",
    "other type": "returned a Artifact. Return None, or an instance of Tokens",
    "class": "returned the class Tokens itself. Return None, or an instance of Tokens",
}


@pytest.mark.parametrize("kind", WHAT_NOBODY_COULD_LOAD)
def test_what_nobody_could_load_again_is_no_success(kind: str) -> None:
    async def wait(out: str) -> None:
        """Never runs."""

    def generate(out: str) -> Any:
        yield out

    functions: dict[str, Any] = {
        "async": wait,
        "generator": generate,
        "dictionary": lambda out: {"count": 1},
        "other type": lambda out: Artifact(),
        "class": lambda out: Tokens,
    }
    step = apply("tokens", functions[kind], version=V, artifact_type=Tokens, out=OUT)

    with pytest.raises(ResultError, match=rf"tokens@{V}.*{WHAT_NOBODY_COULD_LOAD[kind]}"):
        build(step)


def test_a_recipe_with_the_fields_of_an_adoption_is_built() -> None:
    step = lower(apply("a", lambda **_: None, version=V, adopt_source="s3://x", config=OUT))

    assert adopted_source(step) is None


def test_a_handle_of_another_library_is_refused() -> None:
    class Foreign:
        artifact_type = Artifact

        def lower(self) -> None:
            """As Marin's."""

    with pytest.raises(InputsError, match="another library"):
        apply("a", lambda dep: None, version=V, dep=[Foreign()])


def test_versions_come_from_the_context_of_building() -> None:
    codex = VersionCodex(default=V, overrides={"b": "dev", "typo": "dev"})
    with build_context(BuildContext(codex)):
        versions = [apply(name, write, output_path=OUT).version for name in ("a", "b")]
        assert apply("c", write, version="mine-dev", output_path=OUT).version == "mine-dev"

    assert versions == [V, "dev"]
    assert codex.unused_overrides() == {"typo"}
    assert current_build_context() is None
    with pytest.raises(VersionError, match="'a' has no version"):
        apply("a", write, output_path=OUT)
    with pytest.raises(VersionError, match="'b'"):
        VersionCodex(default=V, overrides={"b": "v1"})


def test_adopted_data_is_registered_where_it_is(tmp_path: Path, store: Path) -> None:
    source = tmp_path / "existing"
    source.mkdir()
    adopted = ArtifactStep.adopt("old", V, str(source), config={"tokenizer": "gpt2"})

    build(adopted)

    assert adopted.path() == str(source)
    record = read_record(OutputDir.at(str(store / "old" / V)))
    assert record is not None
    assert (record.source, record.config) == (str(source), {"tokenizer": "gpt2"})
    assert list(source.iterdir()) == []
    step = lower(adopted)
    assert adopted_source(step) == str(source)
    assert is_external(step)


def test_adopted_data_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    adopted = ArtifactStep.adopt("old", V, str(tmp_path / "nothing"))

    with pytest.raises(AdoptedDataMissingError, match=rf"old@{V} adopts .*nothing"):
        build(adopted)


def test_nothing_is_built_into_a_pin(tmp_path: Path) -> None:
    pinned = handle(override_path=str(tmp_path / "pinned"))
    (tmp_path / "pinned").mkdir()
    (tmp_path / "pinned" / "precious.txt").write_text("data")
    step = lower(pinned)

    assert is_pinned(step)
    assert is_external(step)
    with pytest.raises(AdoptedDataMissingError, match="no run builds a pin"):
        build(pinned)
    assert (tmp_path / "pinned" / "precious.txt").read_text() == "data"


ATTRIBUTES: dict[str, dict[str, Any]] = {
    "fingerprint": {"fingerprint": "ab12"},
    "fingerprint and version": {"fingerprint": "ab12", "version": V},
    "other version": {"fingerprint": "ab12", "version": 3, "result_type": "x", "deps": []},
    "other deps": {"fingerprint": "ab12", "version": V, "result_type": "x", "deps": ["a@dev"]},
}


@pytest.mark.parametrize("override", [None, "scratch/raw"])
@pytest.mark.parametrize("attrs", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_attributes_alone_make_no_lazy_artifact(
    attrs: dict[str, Any], override: str | None
) -> None:
    payload = '{"adopt_source": "/data", "config": null}'
    step = StepSpec(
        "raw",
        hash_attrs=attrs,
        override_output_path=override,
        fingerprint_payload=payload,
        writes_record="deps" in attrs,
        fn=write,
    )

    assert artifact_version(step) is None
    assert (data_version(step), code_version(step)) == (step.hash_id, step.hash_id)
    assert not is_external(step)
    assert not is_mutable(step)


@pytest.mark.parametrize("replaced", [{}, {"fn": write}], ids=["its function", "another"])
@pytest.mark.parametrize("kind", ["built", "adopted", "pinned"])
def test_a_lowered_step_is_known_by_its_handle_or_by_its_shape(
    kind: str, replaced: dict[str, Any]
) -> None:
    one = {
        "built": handle(),
        "adopted": ArtifactStep.adopt("raw", V, "/data"),
        "pinned": handle(override_path="/pin"),
    }[kind]
    step = replace(lower(one), **replaced)

    assert artifact_version(step) == V
    assert data_version(step) == one.fingerprint()
    assert is_pinned(step) == (kind == "pinned")
    assert adopted_source(step) == ("/data" if kind == "adopted" else None)


def wrapped(fn: Callable[[str], Any]) -> Callable[[str], Any]:
    def run(output_path: str) -> Any:
        return fn(output_path)

    # Not functools.wraps, which copies the handle.
    run.__wrapped__ = fn  # type: ignore[attr-defined]
    return run


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda fn: fn,
    "partial": partial,
    "wrapper": wrapped,
    "remote partial of a wrapper": lambda fn: remote(partial(wrapped(fn))),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_lowered_step_with_another_output_path_is_built_there(
    wrap: Callable[[Any], Any], store: Path
) -> None:
    lowered = lower(handle())
    step = replace(lowered, fn=wrap(lowered.fn), override_output_path="scratch/tok")

    assert not is_external(step)
    StepRunner().run([step])

    assert (store / "scratch/tok/data.txt").read_text() == "data"
    assert not (store / "raw").exists()


def test_a_function_that_wraps_itself_holds_no_handle() -> None:
    def run(output_path: str) -> None:
        """Nothing."""

    run.__wrapped__ = run  # type: ignore[attr-defined]
    assert is_pinned(replace(lower(handle()), fn=run, override_output_path="scratch/tok"))


def test_a_handle_is_adopted_or_pinned() -> None:
    with pytest.raises(CollisionError, match="both adopted"):
        handle(adopt_source="/a", override_path="/b")


def test_an_artifact_is_loaded_as_what_it_was_recorded_as(store: Path) -> None:
    tokens = apply("tokens", lambda: Tokens(count=1), version=V, artifact_type=Tokens)
    build(tokens)
    path = str(store / "tokens" / V)

    class Other(Artifact):
        count: str

    with pytest.raises(ArtifactTypeMismatchError, match=r"test_handles\.Tokens"):
        Other.raw_load(path)
    assert Tokens.raw_load(path).count == 1
    file = Path(path, ".artifact.json")
    file.write_text(file.read_text().replace('"count": 1', '"count": "many"'))
    with pytest.raises(OutputNotReadyError, match=r"does not fit test_handles\.Tokens"):
        Tokens.raw_load(path)


def test_a_field_with_an_alias_is_loaded_back() -> None:
    class Aliased(Artifact):
        count: int = Field(alias="N")

    step = apply("a", lambda: Aliased(N=3), version=V, artifact_type=Aliased)

    assert build(step).count == 3


def test_an_artifact_without_a_record_is_its_path(tmp_path: Path) -> None:
    assert Artifact.raw_load(str(tmp_path)).record is None
