"""``RunSummary``: one line at the end of a run: how many steps were built, served and so on."""

from dataclasses import dataclass, field

import dagster as dg

from marin_dagster._compat import ExecutionPlan
from marin_dagster.events.metadata_keys import CACHE
from marin_dagster.executor.decisions import Decisions
from marin_dagster.steps.text import spoken


@dataclass(eq=False)
class RunSummary:
    """Counts a run's steps by how they ended, from the events that the run yields."""

    _built: set[str] = field(default_factory=set)
    _served: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)
    _succeeded: set[str] = field(default_factory=set)

    @property
    def built(self) -> set[str]:
        """Keys of the steps that were built."""
        return self._built - self._failed

    def count(self, event: dg.DagsterEvent) -> None:
        """Take an event into account."""
        key = event.step_key
        if key is None:
            return
        if event.is_step_materialization:
            how = event.step_materialization_data.materialization.metadata.get(CACHE)
            if how is not None:
                (self._built if how.value == "built" else self._served).add(key)
        elif event.is_step_failure:
            self._failed.add(key)
        elif event.is_step_success:
            self._succeeded.add(key)

    def text(self, plan: ExecutionPlan, decisions: Decisions) -> str:
        """How many steps were built, served, pruned and so on, without our checks.

        The time saved is what the builds of the served outputs took, as far as this instance
        recorded it.
        """
        steps = set(plan.step_keys_to_execute) - decisions.checks
        served = self._served | decisions.served
        groups = {
            "built": self.built,
            f"served{_saved(decisions, served)}": served - self._failed,
            "pruned": decisions.pruned.keys(),
            "other": self._succeeded - decisions.planned.keys() - decisions.checks,
            "failed": self._failed - decisions.checks,
        }
        rest = steps.difference(*groups.values())
        counts = {**groups, "not run": rest}
        named = [f"{len(keys)} {what}" for what, keys in counts.items() if keys]
        return f"Result: {', '.join(named) or 'no steps'}."


def _saved(decisions: Decisions, served: set[str]) -> str:
    known = decisions.saved_s.keys() & served
    if not known:
        return ""
    least = "at least " if len(known) < len(served) else ""
    return f" (saved {least}{spoken(sum(decisions.saved_s[key] for key in known))})"
