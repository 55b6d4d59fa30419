"""Compute logs in a bucket: both streams of each attempt, and parts of them while the step runs."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import dagster as dg
import pytest

from helpers.runs import Run, run_job
from helpers.step_jobs import JOB, PATIENCE_S, log_of, steps_job
from marin_dagster import StepSpec

UPLOAD_INTERVAL_S = 1


class Bucket:
    """The bucket of the instance's logs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._client = boto3.client("s3")

    def files(self) -> dict[str, str]:
        """Content of every log, by the file's name."""
        listed = self._client.list_objects_v2(Bucket=self.name).get("Contents", [])
        return {Path(item["Key"]).name: self._read(item["Key"]) for item in listed}

    def until(self, name: str, holds: Callable[[str], bool]) -> None:
        """Wait for a file with some content."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds(self.files().get(name, "")):
            assert time.monotonic() < deadline, self.files()
            time.sleep(0.1)

    def _read(self, key: str) -> str:
        return str(self._client.get_object(Bucket=self.name, Key=key)["Body"].read().decode())


@pytest.fixture
def bucket(s3_prefix: str) -> Bucket:
    return Bucket(s3_prefix.removeprefix("s3://").partition("/")[0])


@pytest.fixture
def cloud_instance(bucket: Bucket, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance whose compute logs go to the bucket, parts of them once a second."""
    manager = {
        "module": "dagster_aws.s3.compute_log_manager",
        "class": "S3ComputeLogManager",
        "config": {
            "bucket": bucket.name,
            "local_dir": str(tmp_path / "local"),
            "upload_interval": UPLOAD_INTERVAL_S,
        },
    }
    with dg.instance_for_test(overrides={"compute_logs": manager}) as instance:
        yield instance


def _run(instance: dg.DagsterInstance, **functions: Callable[[], None]) -> Run:
    def step(name: str, function: Callable[[], None]) -> StepSpec:
        return StepSpec(name, fn=lambda output_path: function())

    return run_job(steps_job(*[step(*item) for item in functions.items()]), instance, job=JOB)


@pytest.mark.parametrize("stream", ["stdout", "stderr", "both"])
def test_what_steps_write_ends_up_in_the_bucket(
    cloud_instance: dg.DagsterInstance, bucket: Bucket, stream: str
) -> None:
    def talk() -> None:
        if stream != "stderr":
            print("to stdout")
        if stream != "stdout":
            print("to stderr", file=sys.stderr)

    run = _run(cloud_instance, talk=talk)

    assert bucket.files() == {
        "talk.out": "" if stream == "stderr" else "to stdout\n",
        "talk.err": "" if stream == "stdout" else "to stderr\n",
    }
    assert log_of(cloud_instance, run, "talk") == bucket.files()["talk.out"]


def test_parts_are_uploaded_while_steps_run_and_each_step_has_its_own(
    cloud_instance: dg.DagsterInstance, bucket: Bucket
) -> None:
    together = threading.Barrier(2)

    def talker(name: str) -> Callable[[], None]:
        def talk() -> None:
            print(f"{name} begins")
            print(f"{name} warns", file=sys.stderr)
            together.wait(PATIENCE_S)
            bucket.until(f"{name}.out.partial", lambda text: text == f"{name} begins\n")
            bucket.until(f"{name}.err.partial", lambda text: text == f"{name} warns\n")
            print(f"{name} goes on")
            bucket.until(f"{name}.out.partial", lambda text: "goes on" in text)
            print(f"{name} ends")

        return talk

    assert _run(cloud_instance, one=talker("one"), two=talker("two")).success

    files = bucket.files()
    for name in ("one", "two"):
        assert files[f"{name}.out"] == f"{name} begins\n{name} goes on\n{name} ends\n"
        assert files[f"{name}.err"] == f"{name} warns\n"


def test_each_attempt_keeps_its_own_log(cloud_instance: dg.DagsterInstance, bucket: Bucket) -> None:
    attempts: list[int] = []

    def build(output_path: str) -> None:
        attempts.append(len(attempts) + 1)
        print(f"attempt {attempts[-1]}")
        bucket.until("flaky-2.out.partial" if attempts[1:] else "flaky.out.partial", bool)
        if attempts == [1]:
            raise RuntimeError("fails on purpose")

    job = steps_job(StepSpec("flaky", fn=build), op_retry_policy=dg.RetryPolicy(max_retries=1))
    run = run_job(job, cloud_instance, job=JOB)

    assert run.success
    files = bucket.files()
    assert (files["flaky.out"], files["flaky-2.out"]) == ("attempt 1\n", "attempt 2\n")
    keys = [event.logs_captured_data.file_key for event in run.of_type("LOGS_CAPTURED")]
    assert keys == ["flaky", "flaky-2"]
