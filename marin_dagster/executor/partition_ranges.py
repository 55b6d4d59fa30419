"""Runs of several partitions: their decisions, one for each partition, as those of Dagster's steps.

Such a run has one Dagster step for each asset, which builds all partitions of the asset.
"""

from dataclasses import replace

from marin_dagster.executor.decisions import Decisions
from marin_dagster.executor.run_steps import by_step_key


def as_steps(decisions: Decisions) -> Decisions:
    """The decisions about partitions as decisions about Dagster's steps.

    A step is pruned when all of its partitions are, and cached when none of them must be built.
    Every other step runs in a thread, where each partition is built, served or refused; one that
    all partitions share is served without a thread if the instance has recorded its output.
    """
    keys_of = by_step_key(decisions.planned)
    if all(keys == [step_key] for step_key, keys in keys_of.items()):
        return decisions
    first = {step_key: keys[0] for step_key, keys in keys_of.items()}
    pruned = {
        # Partitions share some steps, and then the reason.
        step_key: decisions.pruned[keys[0]]
        if decisions.planned[keys[0]].asset.partition is None
        else f"none of {len(keys)} partitions is needed: {decisions.pruned[keys[0]]}"
        for step_key, keys in keys_of.items()
        if decisions.pruned.keys() >= set(keys)
    }
    places = {
        decisions.planned[key].step_key: place
        for key, place in sorted(decisions.places.items(), key=lambda item: item[1].runner)
    }
    return replace(
        decisions,
        planned={step_key: decisions.planned[key] for step_key, key in first.items()},
        looks={step_key: decisions.looks[key] for step_key, key in first.items()},
        places=places,
        pruned=pruned,
        drifted={},
        cached=frozenset(
            step_key
            for step_key, keys in keys_of.items()
            if decisions.cached.union(decisions.pruned) >= set(keys) and step_key not in pruned
        ),
        served=frozenset(
            step_key
            for step_key, keys in keys_of.items()
            if decisions.planned[first[step_key]].asset.partition is None
            and decisions.served.union(decisions.pruned) >= set(keys)
            and step_key not in pruned
        ),
        saved_s={},
        blocked={},
        unreachable={
            key: missing
            for key, missing in decisions.unreachable.items()
            if key not in decisions.planned
        },
        forced=frozenset(decisions.planned[key].step_key for key in decisions.forced),
        done=frozenset(
            step_key for step_key, keys in keys_of.items() if decisions.done >= set(keys)
        ),
        expected_hits=frozenset(),
    )
