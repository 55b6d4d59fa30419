"""A bucket that accepts connections and never answers: one clear error for each promise, soon."""

from contextlib import suppress
from datetime import timedelta

import fsspec
import pytest

from helpers.cache import LOCK, RECORD, STATUS, begin, build, lease, make
from helpers.unsteady_proxy import Hanging, UnsteadyProxy
from marin_dagster.cache import (
    Attempt,
    CacheState,
    LeaseTiming,
    OutputDir,
    StepCache,
    client_options,
    object_lock,
    store,
)
from marin_dagster.cache.cache import LookUp
from marin_dagster.cache.heartbeat import keeper
from marin_dagster.cache.lease import parse_lease
from marin_dagster.cache.parallel import WIDTH
from marin_dagster.cache.previous_outputs import PreviousOutputs
from marin_dagster.cache.reasons import find_reasons
from marin_dagster.errors import StoreTimeoutError
from marin_dagster.steps.protocol import StepLike

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("hurry")]

TRIES = 2
"""How often the lock's client asks in these tests before it gives up."""


@pytest.fixture
def hurry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both clients wait for seconds where they wait for a minute elsewhere."""
    if "proxy" in request.fixturenames:
        request.getfixturevalue("proxy")
        # Connected before that: making a client reads files, and a busy machine takes its time.
        read(STATUS)
    monkeypatch.setattr(store, "_PATIENCE_S", 3.0)
    monkeypatch.setattr(store, "_AWAY_S", 0.5)
    monkeypatch.setattr(object_lock, "_TIMEOUTS", {"connect_timeout": "1s", "timeout": "1s"})
    retries = {"max_retries": TRIES - 1, "retry_timeout": timedelta(seconds=30)}
    monkeypatch.setattr(object_lock, "_RETRIES", retries)


def read(name: str) -> bytes | None:
    # Of a store that has recovered; on a busy machine the first answer may take its time.
    folder = OutputDir.at(make("step").output_path)
    for _ in range(10):
        with suppress(StoreTimeoutError):
            return folder.read(name)
    return folder.read(name)


def holder() -> str | None:
    found = parse_lease(read(LOCK))
    return found.worker_id if found else None


def where(name: str) -> str:
    return f" {make('step').output_path}/{name}: "


def check_left(attempt: Attempt, status: bytes = b"RUNNING") -> None:
    """The attempt has ended, its lease runs out, and the next worker takes over."""
    assert attempt._ended
    assert attempt._lease not in keeper._held
    assert read(STATUS) == status
    assert holder() == attempt._lease.worker_id
    build(make("step"), {"loss": 0.5}, StepCache(LeaseTiming(stale_s=0.2, poll_s=0.01)))
    assert (read(STATUS), read(LOCK)) == (b"SUCCESS", None)


@pytest.mark.parametrize("file", [STATUS, LOCK])
def test_a_look_up_says_which_file_the_store_gave_no_answer_about(
    proxy: UnsteadyProxy, file: str
) -> None:
    attempt = begin(make("step"))
    proxy.strike(Hanging(file=file))
    with pytest.raises(StoreTimeoutError, match=where(file)):
        StepCache().look_up(make("step"))
    proxy.recover()
    attempt.fail()


def test_many_look_ups_wait_for_a_bucket_once(
    proxy: UnsteadyProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    steps = [make(f"step{number}") for number in range(100)]
    assert all(step.output_path.startswith("s3://") for step in steps)
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path))
    elsewhere = build(make("elsewhere"))
    proxy.strike(Hanging())
    look_up, asked = StepCache.look_up, []

    def counted(self: StepCache, step: StepLike) -> LookUp:
        asked.append(step)
        return look_up(self, step)

    monkeypatch.setattr(StepCache, "look_up", counted)
    found = StepCache().look_up_many([*steps, elsewhere])
    assert found[elsewhere.output_path].state is CacheState.HIT
    states = {found[step.output_path].state for step in steps}
    assert states == {CacheState.UNKNOWN}
    # Those that were under way already, and the one elsewhere.
    assert len(asked) <= WIDTH + 1


def test_reasons_wait_for_a_bucket_once(
    proxy: UnsteadyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = [begin(make(name)) for name in ("a/one", "b/two")]
    list_folder, asked = OutputDir._ls, []

    def counted(self: OutputDir) -> list[str]:
        asked.append(self.url)
        return list_folder(self)

    monkeypatch.setattr(OutputDir, "_ls", counted)
    proxy.strike(Hanging())
    earlier = PreviousOutputs()
    for attempt in attempts:
        (line,) = find_reasons(attempt, earlier).lines
        assert line.endswith(f"earlier outputs of {attempt.step.name} cannot be read")
    assert len(asked) == 1
    proxy.recover()
    for attempt in attempts:
        attempt.fail()


@pytest.mark.parametrize("file", [STATUS, LOCK])
def test_beginning_says_which_file_the_store_gave_no_answer_about(
    proxy: UnsteadyProxy, file: str
) -> None:
    proxy.strike(Hanging(file=file))
    with pytest.raises(StoreTimeoutError, match=where(file)):
        begin(make("step"))
    proxy.recover()
    assert (read(STATUS), read(LOCK)) == (None, None)


def test_beginning_leaves_the_lease_to_run_out_when_the_store_goes_away_after_it(
    proxy: UnsteadyProxy,
) -> None:
    held = set(keeper._held)
    fault = proxy.strike(Hanging("PUT", STATUS))
    with pytest.raises(StoreTimeoutError, match=where(STATUS)):
        begin(make("step"))
    assert fault.hits == 1
    assert proxy.requests[-1] == f"PUT {STATUS}"
    assert set(keeper._held) == held
    proxy.recover()
    assert (read(STATUS), holder() is None) == (None, False)


def test_committing_asks_no_second_time(proxy: UnsteadyProxy) -> None:
    attempt = begin(make("step"))
    attempt.result = {"loss": 0.0}
    fault = proxy.strike(Hanging())
    with pytest.raises(StoreTimeoutError, match=where(LOCK)):
        attempt.commit()
    attempt.fail()
    assert fault.hits == 1 + TRIES  # the put that renews the lease, then a read
    proxy.recover()
    assert read(RECORD) is None
    check_left(attempt)


def test_a_renewal_whose_put_hangs_is_tried_again(proxy: UnsteadyProxy) -> None:
    attempt = begin(make("step"))
    fault = proxy.strike(Hanging("PUT", LOCK, times=1))
    attempt.commit()
    assert fault.hits == 1
    assert read(STATUS) == b"SUCCESS"


@pytest.mark.parametrize("file", [RECORD, STATUS])
def test_committing_leaves_all_as_it_is_when_the_store_goes_away_in_the_middle(
    proxy: UnsteadyProxy, file: str
) -> None:
    attempt = begin(make("step"))
    attempt.result = {"loss": 0.0}
    proxy.strike(Hanging("PUT", file))
    proxy.requests.clear()
    with pytest.raises(StoreTimeoutError, match=where(file)):
        attempt.commit()
    # Neither a further question nor a word about failure.
    assert proxy.requests[-1] == f"PUT {file}"
    proxy.recover()
    check_left(attempt)


def test_failing_raises_nothing_and_asks_no_second_time(
    proxy: UnsteadyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = begin(make("step"))
    fault = proxy.strike(Hanging())
    attempt.fail()
    assert fault.hits == 1 + TRIES  # the put that renews the lease, then a read
    logged = [record for record in caplog.records if record.name.startswith("marin_dagster")]
    assert [record.levelname for record in logged] == ["ERROR"]
    assert where(LOCK) in logged[0].getMessage()
    proxy.recover()
    check_left(attempt)


def test_an_attempt_that_is_left_touches_no_foreign_lock(proxy: UnsteadyProxy) -> None:
    attempt = begin(make("step"))
    proxy.strike(Hanging("GET", LOCK))
    OutputDir.at(make("step").output_path).write(LOCK, lease("foreign-1").encode())
    with pytest.raises(StoreTimeoutError):
        attempt.commit()
    proxy.recover()
    attempt.fail()
    assert holder() == "foreign-1"
    assert read(STATUS) == b"RUNNING"


def test_a_release_without_an_answer_does_not_undo_the_success(proxy: UnsteadyProxy) -> None:
    attempt = begin(make("step"))
    proxy.strike(Hanging("POST"))
    attempt.commit()
    proxy.recover()
    assert (read(STATUS), holder()) == (b"SUCCESS", attempt._lease.worker_id)


@pytest.mark.parametrize("file", [STATUS, LOCK])
def test_a_store_that_hangs_for_a_moment_is_asked_again(
    proxy: UnsteadyProxy, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    configured = {"config_kwargs": {"read_timeout": 1}}
    monkeypatch.setitem(fsspec.config.conf, "s3", configured)
    monkeypatch.setattr(store, "_PATIENCE_S", 60.0)
    attempt = begin(make("step"))
    fault = proxy.strike(Hanging("GET", file, times=1))
    found = StepCache().look_up(make("step"))
    assert (found.state, found.owner) == (CacheState.RUNNING, attempt._lease.worker_id)
    assert fault.hits == 1
    attempt.commit()


def test_reading_a_file_is_one_request_whether_there_is_one_or_not(
    proxy: UnsteadyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_PATIENCE_S", 60.0)  # nothing hangs here
    build(make("step"))
    for step, state in ((make("step"), CacheState.HIT), (make("none"), CacheState.MISS)):
        proxy.requests.clear()
        assert StepCache().look_up(step).state is state
        assert proxy.requests == [f"GET {STATUS}"]


def test_what_the_user_configured_for_s3_stands(
    monkeypatch: pytest.MonkeyPatch, proxy: UnsteadyProxy
) -> None:
    def client() -> object:
        return client_options.options_for("s3://bucket/x")["config_kwargs"]

    retries = {"retries": {"max_attempts": client_options._S3_RETRIES}}
    connections = {"max_pool_connections": client_options._S3_CONNECTIONS}
    assert client() == {**connections, **retries}
    monkeypatch.setitem(fsspec.config.conf, "s3a", {"config_kwargs": {"read_timeout": 5}})
    assert client() == {"read_timeout": 5, **connections, **retries}
    own = {"retries": {"mode": "standard"}, "max_pool_connections": 5}
    monkeypatch.setitem(fsspec.config.conf, "s3a", {"config_kwargs": own})
    assert client() == own
    monkeypatch.delitem(fsspec.config.conf, "s3a")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "3")
    client_options._aws_attempts.cache_clear()
    assert client() == connections
    monkeypatch.setattr(store, "_PATIENCE_S", 60.0)  # nothing hangs here
    OutputDir.at(make("step").output_path).read(STATUS)
    attempts = OutputDir.at(make("step").output_path).fs.s3.meta.config.retries
    assert attempts["total_max_attempts"] == 3


def test_the_client_of_s3_asks_again_for_as_long_as_stated(
    proxy: UnsteadyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_PATIENCE_S", 60.0)  # nothing hangs here
    for _ in range(2):
        folder = OutputDir.at(make("step").output_path)
        folder.read(STATUS)
    # botocore changes the options that it is given; the filesystem must stay the same one.
    assert OutputDir.at(folder.url).fs is folder.fs
    retries = folder.fs.s3.meta.config.retries
    assert retries == {"total_max_attempts": client_options._S3_RETRIES + 1, "mode": "legacy"}


def test_a_listing_that_hangs_ends_like_any_other_question(proxy: UnsteadyProxy) -> None:
    folder = OutputDir.at(make("step").output_path)
    proxy.strike(Hanging("GET", file=""))
    with pytest.raises(TimeoutError):
        folder.files()
    proxy.recover()


@pytest.mark.parametrize(
    ("configured", "setting", "expected"),
    [
        ({"requester_pays": True}, "request_payer", True),
        (
            {"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}},
            "server_side_encryption",
            "AES256",
        ),
    ],
)
def test_what_a_bucket_asks_of_every_request_is_asked_of_the_locks_too(
    s3_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    configured: dict[str, object],
    setting: str,
    expected: object,
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", configured)
    folder = OutputDir.at(f"{s3_prefix}/step")

    assert object_lock._s3_settings(folder.fs, "bucket")[setting] == expected
    begin(make("step", output_path_prefix=s3_prefix)).commit()


def test_a_key_that_is_configured_has_no_token_of_the_environment(
    s3_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", {"key": "own", "secret": "own"})
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-the-environment")
    folder = OutputDir.at(f"{s3_prefix}/step")

    provided = object_lock._s3_settings(folder.fs, "bucket")["credential_provider"]()

    assert (provided["access_key_id"], provided["token"]) == ("own", None)
    begin(make("step", output_path_prefix=s3_prefix)).commit()


def test_the_users_own_concurrency_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_options.options_for("s3://bucket/x")["max_concurrency"] == 1
    monkeypatch.setitem(fsspec.config.conf, "s3", {"max_concurrency": 4})
    assert "max_concurrency" not in client_options.options_for("s3://bucket/x")
