"""A store that ignores the conditions of conditional puts: leases in it are refused."""

import threading
import time
from collections.abc import Sequence

import pytest

from helpers.cache import GUARD_S, LOCK, STATUS, begin, make
from helpers.unsteady_proxy import Careless, UnsteadyProxy
from marin_dagster.cache import Attempt, OutputDir
from marin_dagster.errors import StoreError


def puts_of_locks(proxy: UnsteadyProxy) -> int:
    return proxy.requests.count(f"PUT {LOCK}")


@pytest.mark.parametrize(
    ("ignored", "named"),
    [
        (("if-match", "if-none-match"), "If-None-Match"),
        (("if-none-match",), "If-None-Match"),
        (("if-match",), "If-Match"),
    ],
    ids=["both", "If-None-Match", "If-Match"],
)
def test_of_two_workers_none_gets_a_lease_that_both_could_hold(
    proxy: UnsteadyProxy, ignored: Sequence[str], named: str
) -> None:
    proxy.strike(Careless(method="PUT", ignored=tuple(ignored)))
    outcomes: list[object] = []

    def wait(seconds: float) -> None:
        if any(isinstance(outcome, Attempt) for outcome in outcomes):
            raise TimeoutError("waits for the other worker, which holds the lease")
        time.sleep(0.01)

    def work(name: str, start: threading.Barrier) -> None:
        start.wait(GUARD_S)
        try:
            outcomes.append(begin(make(name), wait=wait))
        except Exception as error:
            outcomes.append(error)

    names = [f"step{number}" for number in range(8)]
    for name in names:
        start = threading.Barrier(2)
        workers = [threading.Thread(target=work, args=(name, start)) for _ in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(GUARD_S)

    assert len(outcomes) == 2 * len(names)
    assert {type(outcome) for outcome in outcomes} == {StoreError}
    assert all(f"ignores conditional puts ({named})" in str(error) for error in outcomes)
    for name in names:
        folder = OutputDir.at(make(name).output_path)
        assert folder.read(LOCK) is None
        assert folder.read(STATUS) is None


def test_a_store_that_honours_them_is_asked_once(proxy: UnsteadyProxy) -> None:
    first = begin(make("first"))
    asked = puts_of_locks(proxy)
    second = begin(make("second"))

    assert asked == 3
    assert puts_of_locks(proxy) == 4
    for attempt in (first, second):
        attempt.fail()
