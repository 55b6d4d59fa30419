"""Schedules that read the cache: what a tick requests, and when and why it skips."""

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import fsspec
import pytest
import sqlalchemy
from fsspec.implementations.local import LocalFileSystem

from helpers.cache import finish
from helpers.runs import JOB, Recorder, memory_instance, run_job
from marin_dagster import (
    DagsterMarinTranslator,
    MarinDagsterWarning,
    MarinIOManager,
    StepCache,
    StepSpec,
    build_definitions,
    build_marin_schedule,
)
from marin_dagster.cache import Attempt
from marin_dagster.errors import StepError, StoreError
from marin_dagster.lazy import OUT, ArtifactStep, apply

DAILY = "0 6 * * *"
SCHEDULE = f"{JOB}_schedule"


@pytest.fixture(scope="module")
def home() -> Iterator[dg.DagsterInstance]:
    """On disk: Dagster refuses to evaluate ticks by an instance in memory."""
    with dg.instance_for_test() as made:
        yield made


@pytest.fixture
def instance(home: dg.DagsterInstance) -> dg.DagsterInstance:
    """The same for all, for its tables take seconds to make, but empty."""
    home.wipe()
    return home


def evaluate(
    definitions: dg.Definitions, instance: dg.DagsterInstance, name: str = SCHEDULE
) -> Any:
    """One tick, with what a code server gives it."""
    repository = definitions.get_repository_def()
    with dg.build_schedule_context(
        instance=instance,
        repository_def=repository,
        resources={"marin_io_manager": MarinIOManager()},
    ) as context:
        return repository.get_schedule_def(name).evaluate_tick(context)


def requested(tick: Any) -> list[str]:
    """Asset keys of the run that a tick requests."""
    assert tick.skip_message is None, tick.skip_message
    (request,) = tick.run_requests
    assert request.run_key is None
    return [key.to_user_string() for key in request.asset_selection]


def skipped(tick: Any) -> str:
    """Why a tick was skipped."""
    assert not tick.run_requests
    reason: str = tick.skip_message
    return reason


def scheduled(*steps: Any) -> dg.Definitions:
    return build_definitions(steps, schedule=DAILY)


def test_everything_runs_once_and_then_the_tick_is_skipped(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = recorder.step("raw")
    definitions = scheduled(recorder.step("end", recorder.step("clean", raw)))

    keys = requested(evaluate(definitions, instance))
    assert keys == ["raw", "clean", "end"]
    run = run_job(definitions, instance, select=keys)

    assert run.success
    assert recorder.take() == ["raw", "clean", "end"]
    assert skipped(evaluate(definitions, instance)) == "Nothing to run: all 3 steps are cached."


def test_a_changed_attribute_selects_the_step_and_what_is_below_it(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    def graph(size: int) -> dg.Definitions:
        raw = recorder.step("raw")
        tokens = recorder.step("tokens", raw, hash_attrs={"size": size})
        train = recorder.step("train", tokens)
        return scheduled(recorder.step("report", train, raw), recorder.step("other", raw))

    run_job(graph(1), instance)
    recorder.take()

    keys = requested(evaluate(graph(2), instance))

    assert keys == ["tokens", "train", "report"]
    run = run_job(graph(2), instance, select=keys)
    assert run.success
    assert recorder.take() == keys
    assert "all 5" in skipped(evaluate(graph(2), instance))
    assert "all 5" in skipped(evaluate(graph(1), instance))


def test_what_only_cached_steps_need_is_not_selected_and_what_others_need_is(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    lost, needed = recorder.step("lost"), recorder.step("needed")
    built = recorder.step("built", lost, needed)
    finish(built)

    tick = evaluate(scheduled(built, recorder.step("new", needed)), instance)

    assert requested(tick) == ["needed", "new"]
    assert skipped(evaluate(scheduled(built), instance)) == (
        "Nothing to run: 1 steps are cached, and nothing needs the other 2."
    )


def test_a_failed_step_is_tried_again_at_the_next_tick(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = scheduled(recorder.step("end", recorder.step("raw", fails=True)))
    assert not run_job(definitions, instance).success

    assert requested(evaluate(definitions, instance)) == ["raw", "end"]


@pytest.mark.parametrize("seed", range(8))
def test_a_tick_requests_exactly_what_a_run_of_the_whole_job_would_build(
    seed: int, recorder: Recorder
) -> None:
    chance = random.Random(seed)
    steps: list[StepSpec] = [StepSpec("dump"), StepSpec("more")]
    for index in range(12):
        deps = chance.sample(steps, min(len(steps), chance.randrange(4)))
        steps.append(recorder.step(f"step_{index}", *deps))
    for step in steps:
        if chance.random() < 0.4:
            finish(step)
    definitions = scheduled(*steps)
    schedule = definitions.get_repository_def().get_schedule_def(SCHEDULE)
    with dg.build_schedule_context(resources={"marin_io_manager": MarinIOManager()}) as context:
        tick = schedule.evaluate_tick(context)

    with memory_instance() as instance:
        run_job(definitions, instance)

    assert sorted(requested(tick) if tick.run_requests else []) == sorted(recorder.take())


def make(out: str, size: int, sources: Any = ()) -> None:
    Path(out, "data.txt").write_text(str(size))


def handle(name: str, version: str, *, sources: Any = ()) -> ArtifactStep[Any]:
    return apply(name, make, version=version, out=OUT, size=1, sources=sources)


def test_lazy_handles_are_lowered_and_dev_versions_always_run(
    instance: dg.DagsterInstance,
) -> None:
    fixed = handle("fixed", "2026.07.01")
    definitions = scheduled(fixed, handle("trial", "dev", sources=[fixed]))
    assert requested(evaluate(definitions, instance)) == ["fixed", "trial"]
    assert run_job(definitions, instance).success

    assert requested(evaluate(definitions, instance)) == ["trial"]


def test_adopted_data_counts_as_finished(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    adopted = ArtifactStep.adopt("old", "2026.07.01", str(tmp_path))
    definitions = scheduled(handle("tokens", "2026.07.01", sources=[adopted]))

    keys = requested(evaluate(definitions, instance))

    assert keys == ["tokens"]
    assert run_job(definitions, instance, select=keys).success
    assert "the only step is cached" in skipped(evaluate(definitions, instance))


def test_missing_external_data_is_named_and_the_tick_skipped(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = StepSpec("raw/dump")
    clean = recorder.step("clean", raw)
    definitions = scheduled(recorder.step("end", clean))

    reason = skipped(evaluate(definitions, instance))

    assert reason.startswith("1 step cannot run: step clean_")
    assert f"'raw/dump' ({raw.output_path})" in reason
    assert "1 step below must wait: end_" in reason
    finish(raw)
    assert requested(evaluate(definitions, instance)) == ["clean", "end"]


def test_of_many_that_cannot_run_a_few_are_named(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    raw = [StepSpec(f"raw/{number:02}") for number in range(30)]
    definitions = scheduled(*(recorder.step(f"clean-{number}", *raw) for number in range(8)))

    reason = skipped(evaluate(definitions, instance))

    assert reason.startswith("8 steps cannot run: step clean-0_")
    assert f"'raw/04' ({raw[4].output_path}) and 25 more, which has no successful output" in reason
    assert reason.endswith("and 3 more")
    assert reason.count("'raw/") == 5 * 5


def test_what_does_not_need_the_missing_data_runs_and_the_log_names_the_rest(
    recorder: Recorder, instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = recorder.step("blocked", recorder.step("raw"), StepSpec("raw/dump"))
    definitions = scheduled(recorder.step("end", blocked), recorder.step("other"))

    keys = requested(evaluate(definitions, instance))

    assert sorted(keys) == ["other", "raw"]
    log = capsys.readouterr().err
    assert "WARNING - 1 step cannot run: step blocked_" in log
    assert "'raw/dump'" in log
    assert "INFO - 2 steps must run: " in log
    assert run_job(definitions, instance, select=keys).success
    assert sorted(recorder.take()) == ["other", "raw"]


def test_a_recipe_that_its_handle_does_not_expect_is_named_and_holds_nothing_else_up(
    instance: dg.DagsterInstance,
) -> None:
    old = handle("data", "2026.07.01")
    assert run_job(build_definitions([old]), instance).success
    new = apply("data", make, version="2026.07.01", out=OUT, size=2)
    object.__setattr__(new, "expected_fingerprint", new.fingerprint())
    reader = handle("reader", "2026.07.01", sources=[new])

    reason = skipped(evaluate(scheduled(reader), instance))
    both = evaluate(scheduled(reader, handle("other", "2026.07.01")), instance)

    assert "size: 1 -> 2" in reason
    assert "1 step below must wait: reader" in reason
    assert requested(both) == ["other"]


@pytest.fixture
def held(recorder: Recorder) -> Iterator[StepSpec]:
    """A step that a live worker is building elsewhere."""
    step = recorder.step("held")
    attempt = StepCache().begin(step)
    assert isinstance(attempt, Attempt)
    yield step
    attempt.fail()


def test_when_all_wait_for_a_worker_elsewhere_the_tick_is_skipped_and_names_it(
    recorder: Recorder, instance: dg.DagsterInstance, held: StepSpec
) -> None:
    owner = StepCache().look_up(held).owner

    reason = skipped(evaluate(scheduled(recorder.step("end", held)), instance))

    assert owner
    assert f"Being built elsewhere: {held.name_with_hash} by {owner}." in reason
    assert "1 step below must wait: end_" in reason


def test_when_something_else_can_start_the_run_waits_for_the_worker_elsewhere_too(
    recorder: Recorder, instance: dg.DagsterInstance, held: StepSpec
) -> None:
    tick = evaluate(scheduled(recorder.step("end", held, recorder.step("raw"))), instance)

    assert sorted(requested(tick)) == ["end", "held", "raw"]


def test_a_lease_is_judged_by_the_io_managers_times(
    recorder: Recorder, instance: dg.DagsterInstance, held: StepSpec
) -> None:
    definitions = scheduled(held)
    repository = definitions.get_repository_def()
    hasty = MarinIOManager(lease_refresh_s=1e-9, lease_stale_s=1e-6)

    with dg.build_schedule_context(
        instance=instance, repository_def=repository, resources={"marin_io_manager": hasty}
    ) as context:
        tick = repository.get_schedule_def(SCHEDULE).evaluate_tick(context)

    assert requested(tick) == ["held"]


def queue(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    keys: list[str] | None,
    job: str = JOB,
) -> dg.DagsterRun:
    """A run of some assets, or of all of the job's, that has not begun yet."""
    job_def = definitions.resolve_job_def(job)
    if keys is None:
        return instance.create_run_for_job(job_def=job_def)
    selection = {dg.AssetKey.from_user_string(key) for key in keys}
    return instance.create_run_for_job(
        job_def=job_def.get_subset(asset_selection=selection), asset_selection=frozenset(selection)
    )


def test_what_an_unfinished_run_is_to_make_is_left_to_it(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = scheduled(recorder.step("end", recorder.step("raw")))
    run = queue(definitions, instance, requested(evaluate(definitions, instance)))

    reason = skipped(evaluate(definitions, instance))

    assert f"Run {run.run_id} (NOT_STARTED) will build raw_" in reason
    instance.report_run_canceled(run)
    assert requested(evaluate(definitions, instance)) == ["raw", "end"]


def test_a_newer_run_that_has_ended_hides_no_older_one_that_waits(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    bad = recorder.step("bad", fails=True)
    definitions = build_definitions([bad, recorder.step("good")], schedule=DAILY)
    waits = instance.create_run_for_job(job_def=definitions.resolve_job_def(JOB))
    assert not run_job(definitions, instance, select=["bad"]).success

    reason = skipped(evaluate(definitions, instance))

    assert f"Run {waits.run_id} (NOT_STARTED) will build bad_" in reason
    assert "good_" in reason


def test_of_many_unfinished_runs_a_few_are_named(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    steps = [recorder.step(f"step-{number}") for number in range(7)]
    definitions = scheduled(*steps)
    for step in steps:
        queue(definitions, instance, [step.name])

    reason = skipped(evaluate(definitions, instance))

    assert reason.count("(NOT_STARTED) will build step-") == 5
    assert reason.endswith(" and 2 more.")


@contextmanager
def selected_from() -> Iterator[list[str]]:
    """The table of each query that any of Dagster's databases is given."""
    read: list[str] = []

    def note(*arguments: Any) -> None:
        read.extend(re.findall(r"^SELECT .*\bFROM (\w+)", arguments[2], re.DOTALL))

    sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
    try:
        yield read
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", note)


@pytest.mark.parametrize(
    ("job", "select"),
    [("others", ["other_0"]), ("others", None), (JOB, None)],
    ids=["selects others", "another job", "our job"],
)
def test_a_tick_reads_no_more_when_more_runs_are_unfinished(
    job: str, select: list[str] | None, recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    others = [dg.AssetsDefinition.from_op(_noop(f"other_{number}")) for number in range(2)]
    other_job = dg.define_asset_job("others", selection=dg.AssetSelection.assets(*others))
    definitions = dg.Definitions.merge(
        scheduled(recorder.step("raw")), dg.Definitions(assets=others, jobs=[other_job])
    )

    read = {}
    for runs in (1, 3):
        while len(instance.get_runs()) < runs:
            queue(definitions, instance, select, job)
        with selected_from() as read[runs]:
            evaluate(definitions, instance)

    assert "runs" in read[1]
    assert read[3] == read[1]


def test_a_tick_that_has_nothing_to_run_reads_no_runs(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw")
    finish(step)
    definitions = scheduled(step)
    queue(definitions, instance, None)

    with selected_from() as read:
        skipped(evaluate(definitions, instance))

    assert "runs" not in read


def _noop(name: str) -> dg.OpDefinition:
    @dg.op(name=name)
    def noop() -> None: ...

    return noop


def test_beside_an_unfinished_run_only_what_does_not_wait_for_it_is_requested(
    recorder: Recorder, instance: dg.DagsterInstance, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = recorder.step("raw")
    definitions = scheduled(recorder.step("end", recorder.step("mid", raw)), recorder.step("new"))
    queue(definitions, instance, ["raw"], job="__ASSET_JOB")

    assert requested(evaluate(definitions, instance)) == ["new"]
    assert "2 steps below must wait: mid_" in capsys.readouterr().err


def test_a_store_that_refuses_fails_the_tick(
    recorder: Recorder, instance: dg.DagsterInstance, broken_store: list[str]
) -> None:
    definitions = scheduled(recorder.step("end", recorder.step("raw")))
    assert broken_store == []

    with pytest.raises(StoreError, match=rf"'{SCHEDULE}'.*2 of 2 outputs.*nothing is launched"):
        evaluate(definitions, instance)


def test_steps_of_one_name_are_requested_by_the_keys_that_their_assets_have(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    small, large = (recorder.step("lm/train", hash_attrs={"size": size}) for size in (1, 2))
    with pytest.warns(MarinDagsterWarning, match="'lm/train'") as caught:
        definitions = scheduled(small, large)
    assert len(caught) == 1
    finish(small)

    keys = requested(evaluate(definitions, instance))

    assert keys == [f"lm/train_size-2_{large.hash_id}"]
    assert run_job(definitions, instance, select=keys).success


class Prefixed(DagsterMarinTranslator):
    def get_asset_key(self, step: Any) -> dg.AssetKey:
        return super().get_asset_key(step).with_prefix("research")


def test_the_translator_of_the_assets_gives_the_keys(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    definitions = build_definitions(
        [recorder.step("raw")], schedule=DAILY, translator=Prefixed(), job_name="nightly"
    )

    assert requested(evaluate(definitions, instance, "nightly_schedule")) == ["research/raw"]


def test_a_schedule_whose_keys_are_not_the_jobs_fails_its_ticks(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw")
    definitions = dg.Definitions.merge(
        build_definitions([step], translator=Prefixed()),
        dg.Definitions(schedules=[build_marin_schedule([step], DAILY)]),
    )

    with pytest.raises(StepError, match=r"selects none of its 1 steps.*translator"):
        evaluate(definitions, instance)


def test_only_steps_that_the_job_selects_are_considered(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    train = recorder.step("train", recorder.step("raw"))
    end = recorder.step("end", train)
    early = dg.define_asset_job("early", selection=["raw", "train"])
    definitions = dg.Definitions.merge(
        build_definitions([end]),
        dg.Definitions(
            jobs=[early], schedules=[build_marin_schedule([end], DAILY, job_name="early")]
        ),
    )

    assert requested(evaluate(definitions, instance, "early_schedule")) == ["raw", "train"]


def test_two_graphs_in_one_location_have_a_schedule_each(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    one, two = (
        build_definitions([recorder.step(name)], job_name=f"{name}_job", schedule=cron)
        for name, cron in (("one", "0 1 * * *"), ("two", "0 2 * * *"))
    )
    merged = dg.Definitions.merge(one, two)
    dg.Definitions.validate_loadable(merged)

    schedules = {found.name: found for found in merged.get_repository_def().schedule_defs}

    assert {name: found.cron_schedule for name, found in schedules.items()} == {
        "one_job_schedule": "0 1 * * *",
        "two_job_schedule": "0 2 * * *",
    }
    assert requested(evaluate(merged, instance, "one_job_schedule")) == ["one"]
    assert requested(evaluate(merged, instance, "two_job_schedule")) == ["two"]


def test_without_a_cron_expression_or_steps_to_build_there_is_no_schedule(
    recorder: Recorder,
) -> None:
    assert not build_definitions([recorder.step("raw")]).get_repository_def().schedule_defs
    external = build_definitions([StepSpec("raw/dump")], schedule=DAILY)
    dg.Definitions.validate_loadable(external)
    assert not external.get_repository_def().schedule_defs


def test_config_tags_time_zone_and_status_reach_dagster(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    step = recorder.step("raw")
    schedule = build_marin_schedule(
        [step],
        ["0 6 * * 1", "0 7 * * 2"],
        name="weekly",
        execution_timezone="Europe/Berlin",
        default_status=dg.DefaultScheduleStatus.RUNNING,
        run_config={"execution": {"config": {"max_concurrent": 3}}},
        tags={"team": "nlp"},
    )
    definitions = dg.Definitions.merge(
        build_definitions([step]), dg.Definitions(schedules=[schedule])
    )

    (request,) = evaluate(definitions, instance, "weekly").run_requests

    job = definitions.resolve_job_def(JOB)
    config = dg.validate_run_config(job, request.run_config)["execution"]["marin"]
    assert config["max_concurrent"] == 3
    assert request.tags["team"] == "nlp"
    assert schedule.cron_schedule == ["0 6 * * 1", "0 7 * * 2"]
    assert schedule.execution_timezone == "Europe/Berlin"
    assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING


def test_a_context_built_for_a_test_needs_only_the_io_manager(recorder: Recorder) -> None:
    schedule = build_marin_schedule([recorder.step("raw")], DAILY)

    with dg.build_schedule_context(resources={"marin_io_manager": MarinIOManager()}) as context:
        assert requested(schedule.evaluate_tick(context)) == ["raw"]


def test_another_resource_under_the_io_managers_key_is_an_error_that_says_so(
    recorder: Recorder,
) -> None:
    schedule = build_marin_schedule([recorder.step("raw")], DAILY, io_manager_key="other")

    with (
        dg.build_schedule_context(resources={"other": dg.mem_io_manager}) as context,
        pytest.raises(StepError, match=rf"'{SCHEDULE}'.*'other' is not a MarinIOManager"),
    ):
        schedule.evaluate_tick(context)


def test_a_tick_makes_the_steps_once_and_reads_each_status_once(
    store: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    made: list[int] = []

    class Counting(LocalFileSystem):
        protocol = "counting"

        @classmethod
        def _strip_protocol(cls, path: str) -> str:
            return str(path).removeprefix("counting://")

        def cat_file(self, path: str, *args: Any, **options: Any) -> bytes:
            read.append(path)
            content: bytes = super().cat_file(path, *args, **options)
            return content

    fsspec.register_implementation("counting", Counting, clobber=True)
    monkeypatch.setenv("MARIN_PREFIX", f"counting://{store}")

    def steps() -> list[StepSpec]:
        made.append(1)
        return [StepSpec(f"step_{index}", fn=make) for index in range(40)]

    definitions = build_definitions(steps, schedule=DAILY)
    for step in steps():
        folder = store / step.name_with_hash
        folder.mkdir(parents=True)
        (folder / ".executor_status").write_text("SUCCESS")
    made_before = len(made)

    for tick in range(2):
        assert "all 40 steps" in skipped(evaluate(definitions, instance))
        assert len(read) == 40 * (tick + 1)

    assert made_before == 2
    assert len(made) == 4
