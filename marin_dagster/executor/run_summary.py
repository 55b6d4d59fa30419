"""``RunSummary``: one line at the end of a run: how many steps were built, served and so on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from marin_dagster._compat import ExecutionPlan
from marin_dagster.events.metadata_keys import CACHE
from marin_dagster.executor.decisions import Decisions
from marin_dagster.steps.text import spoken


@dataclass(eq=False)
class RunSummary:
    """Counts a run's steps by how they ended, from the events that the run yields.

    In a run of several partitions, each partition of a step counts.
    """

    decisions: Decisions
    """For each step, or for each of its partitions."""
    keys_of: Mapping[str, Sequence[str]]
    """The keys in ``decisions`` of each step key."""
    reported: Mapping[str, str]
    """How partitions came about, ``built`` or ``hit``, by output path. Dagster drops the events of
    an op that raises before it has an output."""
    _built: set[str] = field(default_factory=set)
    _served: set[str] = field(default_factory=set)
    _failed: set[str] = field(default_factory=set)
    _succeeded: set[str] = field(default_factory=set)

    @property
    def built(self) -> set[str]:
        """Keys of the steps that were built."""
        return (self._built - self._failed) | self._reported("built")

    def count(self, event: dg.DagsterEvent) -> None:
        """Take an event into account."""
        step_key = event.step_key
        if step_key is None:
            return
        if event.is_step_materialization:
            how = event.step_materialization_data.materialization.metadata.get(CACHE)
            if how is not None:
                key = self._key(step_key, event.partition)
                (self._built if how.value == "built" else self._served).add(key)
        elif event.is_step_failure:
            self._failed.add(step_key)
        elif event.is_step_success:
            self._succeeded.add(step_key)

    def text(self, plan: ExecutionPlan) -> str:
        """How many steps were built, served, pruned and so on, without our checks.

        The time saved is what the builds of the served outputs took, as far as this instance
        recorded it.
        """
        decisions, keys_of = self.decisions, self.keys_of
        others = set(plan.step_keys_to_execute) - keys_of.keys() - decisions.checks
        # Partitions share some steps.
        paths = {
            found.step.output_path: key for key, found in reversed(list(decisions.planned.items()))
        }
        steps = others.union(paths.values())
        served = self._served | decisions.served | self._reported("hit")
        settled = {*self.built, *served, *decisions.pruned}
        failed = {
            key
            for step_key in self._failed - decisions.checks
            for key in keys_of.get(step_key, (step_key,))
            if len(keys_of.get(step_key, ())) < 2 or key not in settled
        }
        groups = {
            "built": self.built,
            f"served{_saved(decisions, served)}": served - failed,
            "pruned": steps & decisions.pruned.keys(),
            "other": others & self._succeeded,
            "failed": steps & failed,
        }
        if not steps:
            steps = set(plan.step_keys_to_execute)
            groups = {"checked": steps & self._succeeded, "failed": steps & self._failed}
        rest = steps.difference(*groups.values())
        counts = {**groups, "not run": rest}
        named = [f"{len(keys)} {what}" for what, keys in counts.items() if keys]
        return f"Result: {', '.join(named)}."

    def _reported(self, how: str) -> set[str]:
        planned = self.decisions.planned
        return {
            key
            for key, found in planned.items()
            if self.reported.get(found.step.output_path) == how
        }

    def _key(self, step_key: str, partition: str | None) -> str:
        keys = self.keys_of.get(step_key, (step_key,))
        of_partition = f"{step_key}[{partition}]"
        return of_partition if of_partition in keys else keys[0]


def _saved(decisions: Decisions, served: set[str]) -> str:
    known = decisions.saved_s.keys() & served
    if not known:
        return ""
    least = "at least " if len(known) < len(served) else ""
    return f" (saved {least}{spoken(sum(decisions.saved_s[key] for key in known))})"
