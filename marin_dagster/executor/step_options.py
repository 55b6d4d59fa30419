"""``RunOptions``: the options of each step of a run, made from the run's decisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marin_dagster.assets.previous_builds import PreviousBuilds
from marin_dagster.assets.step_control import PartitionRange, StepOptions
from marin_dagster.cache import DriftLog
from marin_dagster.executor.decisions import Decisions
from marin_dagster.runners import INLINE_PLACEMENT, Runner


@dataclass(frozen=True)
class RunOptions:
    """Makes the options of a run's steps; implements :class:`OptionsOf`."""

    decisions: Decisions
    """For each step, or for each of its partitions."""
    keys_of: Mapping[str, Sequence[str]]
    """The keys in ``decisions`` of each step key."""
    runners: Mapping[str, Runner]
    """Every runner of the run, by name."""
    history: PreviousBuilds
    """Earlier builds of the run's steps."""
    log_levels: Mapping[str, int]
    """The lowest level of Python's loggers in the steps' jobs, by name."""
    retry_failed: bool
    """Whether steps are built whose last attempt failed."""
    from_script: bool
    """Whether the run's process is the user's script."""
    drifts: DriftLog
    """Warns of drifted outputs."""
    failures: dict[str, list[BaseException]] | None
    """Receives what steps raise, by step key."""
    range: PartitionRange
    """What the partitions of the run share."""

    def __call__(self, key: str, *, again: bool) -> StepOptions:
        """The options of a step; ``again`` when this run has tried it before."""
        decisions = self.decisions
        keys = self.keys_of.get(key, (key,))
        if len(keys) == 1:
            return self._options(keys[0], key, again=again)
        needed = [one for one in keys if one not in decisions.pruned and one not in decisions.done]
        partitions = {
            str(decisions.planned[one].op.run_partition): self._options(one, key, again=again)
            for one in needed
        }
        # The options of a step that all partitions share: one of them needs it.
        chosen = min(needed, key=lambda one: (one in decisions.blocked, one in decisions.cached))
        return self._options(chosen, key, again=again, partitions=partitions)

    def _options(
        self,
        key: str,
        step_key: str,
        *,
        again: bool,
        partitions: Mapping[str, StepOptions] | None = None,
    ) -> StepOptions:
        decisions, failures = self.decisions, self.failures
        return StepOptions(
            is_ours=key in decisions.planned,
            place=decisions.places.get(key, INLINE_PLACEMENT),
            runners=self.runners,
            failures=None if failures is None else failures.setdefault(step_key, []),
            force=key in decisions.forced,
            # A failure in this run, before a retry, is not a failure of an earlier run.
            retry_failed=self.retry_failed or again,
            hit_expected=key in decisions.expected_hits,
            observe=key in decisions.served,
            drift=decisions.drifted.get(key),
            refused=decisions.blocked.get(key),
            partitions=partitions or {},
            range=self.range,
            history=self.history,
            from_script=self.from_script,
            drifts=self.drifts,
            log_levels=self.log_levels,
        )
