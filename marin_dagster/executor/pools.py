"""``RunSlots``: the slots of Dagster's pools that one run holds and waits for."""

import time
from typing import Any

from marin_dagster._compat import InstanceConcurrencyContext

_LOOK_S = 1.0


class RunSlots(InstanceConcurrencyContext):
    """A run's slots, which its steps pass on to each other at once.

    In Dagster, each step whose pool is full claims a slot again after a second, then less and less
    often, up to every 15 seconds; with many steps, these claims take all the time. But Dagster
    assigns a free slot to the next step in the queue. So one query for each pool, every second and
    whenever a step of this run frees a slot, finds the steps that have one.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._pool_of: dict[str, str] = {}
        self._looked_at: dict[str, float] = {}
        self._unassigned: dict[str, frozenset[str]] = {}

    def claim(self, concurrency_key: str, step_key: str, step_priority: int = 0) -> bool:
        """Whether the step has a slot of the pool, now."""
        if step_key in self._pending_claims:
            if step_key in self._waiting(concurrency_key):
                return False
            self._pending_timeouts[step_key] = 0.0
        self._pool_of[step_key] = concurrency_key
        return bool(super().claim(concurrency_key, step_key, step_priority))

    def free_step(self, step_key: str) -> None:
        """Give the step's slot back, if it has one."""
        super().free_step(step_key)
        self._looked_at.pop(self._pool_of.get(step_key, ""), None)

    def _waiting(self, pool: str) -> frozenset[str]:
        """This run's steps that are in the pool's queue and have no slot assigned."""
        now = time.monotonic()
        if now - self._looked_at.get(pool, float("-inf")) > _LOOK_S:
            info = self._instance.event_log_storage.get_concurrency_info(pool)
            self._looked_at[pool] = now
            self._unassigned[pool] = frozenset(
                waiting.step_key
                for waiting in info.pending_steps
                if waiting.run_id == self._run_id
                and waiting.assigned_timestamp is None
                # A pool without slots may have been deleted; Dagster decides then.
                and info.slot_count > 0
            )
        return self._unassigned[pool]
