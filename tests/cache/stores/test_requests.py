"""Which requests a build in a bucket makes; each takes tens of milliseconds."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from helpers.cache import STATUS, begin, make
from helpers.processes import wait_until
from helpers.unsteady_proxy import DELETES, Hanging, UnsteadyProxy
from marin_dagster.cache import Hit, OutputDir, StepCache
from marin_dagster.cache.parallel import WIDTH

pytestmark = pytest.mark.server

BUILD = [
    "GET .executor_status",  # whether there is something to build
    "GET .executor_status.lock",  # whether another worker builds it
    "PUT .executor_status.lock",  # the lease, on condition that the lock is still as it was read
    "GET .executor_status",  # again: another worker may have finished it in between
    "GET .executor_info",  # never overwritten
    "PUT .executor_info",
    "PUT .executor_status",  # RUNNING
    # The function.
    "PUT .executor_status.lock",  # renewed, on condition that it is still this worker's
    "PUT .artifact.json",
    "PUT .executor_status.lock",  # again: only its holder may write SUCCESS
    "PUT .executor_status",  # SUCCESS
    "GET .executor_status.lock",  # stores delete without a condition
]
"""All but the last, which deletes the lock."""


def test_the_requests_of_a_build_and_of_a_hit(proxy: UnsteadyProxy) -> None:
    # The first lease in a bucket also tests whether the bucket honours conditions.
    begin(make("first")).fail()

    proxy.requests.clear()
    begin(make("step")).commit()
    *requests, last = proxy.requests
    assert requests == BUILD
    assert last.endswith(DELETES)

    proxy.requests.clear()
    assert isinstance(StepCache().begin(make("step")), Hit)
    assert proxy.requests == ["GET .executor_status"]


def test_the_requests_of_a_renewal(proxy: UnsteadyProxy) -> None:
    attempt = begin(make("step"))
    proxy.requests.clear()
    attempt._lease.check()
    attempt._lease.check()
    assert proxy.requests == ["PUT .executor_status.lock"] * 2
    attempt.fail()


def test_as_many_look_ups_as_there_are_threads_reach_the_store_at_once(
    proxy: UnsteadyProxy,
) -> None:
    proxy.strike(Hanging())
    paths = [make(f"step{number}").output_path for number in range(WIDTH)]
    with ThreadPoolExecutor(WIDTH) as pool:
        found = [pool.submit(OutputDir.at(path).read, STATUS) for path in paths]
        try:
            wait_until(lambda: len(proxy.requests) >= WIDTH)
        finally:
            proxy.recover()
    assert [future.result() for future in found] == [None] * WIDTH
