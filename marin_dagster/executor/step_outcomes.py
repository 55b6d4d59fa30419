"""``StepOutcome``: what a run does with a step, and why; the same for real and dry runs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from marin_dagster.assets.previous_builds import PreviousBuilds
from marin_dagster.cache.cache import CacheState
from marin_dagster.cache.expected_reasons import ExpectedReasons
from marin_dagster.executor.decisions import Decisions
from marin_dagster.executor.run_steps import by_graph
from marin_dagster.steps.protocol import address
from marin_dagster.steps.text import markdown_cell, summarize

RUN, SERVED, PRUNED, BLOCKED = "run", "served", "pruned", "blocked"

_MOST_ROWS = 100
_MOST_REASONS = 3
_LONGEST_REASON = 300


@dataclass(frozen=True)
class StepOutcome:
    """What a run does with one step."""

    name: str
    """The step's name with hash or address; the step key of an ordinary asset."""
    path: str | None
    """Its output path; None for an ordinary asset."""
    becomes: str
    """``run``, ``served``, ``pruned`` or ``blocked``."""
    reasons: tuple[str, ...]
    """Why, at least one line."""
    roots: tuple[str, ...] = ()
    """Names of the changed steps because of which it runs."""
    changed_itself: bool = False
    """Whether the step itself changed."""
    compared_with: str | None = None
    """Path of the earlier output that the reasons refer to."""

    @property
    def why(self) -> str:
        """The reasons in one line."""
        return "; ".join(self.reasons)


def find_outcomes(
    step_keys: Iterable[str], decisions: Decisions, history: PreviousBuilds
) -> dict[str, StepOutcome]:
    """The outcome of each step of a run, by step key: ours in topological order, then others.

    Checks are left out.
    """
    expected = _expected(decisions, history)
    # Not sorted again: Dagster's sort is quadratic in the length of a chain.
    keys = dict.fromkeys([*decisions.planned, *step_keys])
    return {key: _outcome(key, decisions, expected) for key in keys if key not in decisions.checks}


def dry_run_line(outcome: StepOutcome) -> str:
    """What a real run would do with a step."""
    would = "would run" if outcome.becomes == RUN else f"would be {outcome.becomes}"
    roots = [root for root in outcome.roots if root != outcome.name]
    because = f"; because of {summarize(roots)}" if roots else ""
    where = f" -> {outcome.path}" if outcome.path else ""
    return f"Dry run: {would}: {outcome.name}{where}: {outcome.why}{because}"


def outcomes_table(outcomes: Iterable[StepOutcome]) -> str:
    """The outcomes as a Markdown table: changed steps first, at most 100 rows."""
    order = (RUN, BLOCKED, SERVED, PRUNED)
    rows = sorted(
        outcomes, key=lambda outcome: (not outcome.changed_itself, order.index(outcome.becomes))
    )
    lines = ["| step | becomes | why | because of |", "|---|---|---|---|"]
    for outcome in rows[:_MOST_ROWS]:
        cells = (
            outcome.name,
            outcome.becomes,
            _few(outcome.reasons),
            "its own change"
            if outcome.changed_itself and len(outcome.roots) == 1
            else summarize(outcome.roots),
        )
        lines.append(f"| {' | '.join(map(markdown_cell, cells))} |")
    if left_out := Counter(outcome.becomes for outcome in rows[_MOST_ROWS:]):
        lines += ["", f"And more: {', '.join(f'{n} {what}' for what, n in left_out.items())}."]
    return "\n".join(lines)


def _expected(decisions: Decisions, history: PreviousBuilds) -> dict[str, ExpectedReasons]:
    running = {
        key
        for key, look in decisions.looks.items()
        if not _is_settled(key, decisions) and look.state is not CacheState.RUNNING
    }
    found: dict[str, ExpectedReasons] = {}
    for graph, key_of in by_graph(decisions.planned):
        mine = {path: key for path, key in key_of.items() if key in running}
        expected = history.expected_reasons(
            graph,
            {path: decisions.looks[key] for path, key in mine.items()},
            {path: decisions.planned[key].asset for path, key in mine.items()},
        )
        found.update((key, expected) for key in mine.values())
    return found


def _is_settled(key: str, decisions: Decisions) -> bool:
    """Whether the step's function does not run."""
    return any(
        key in part
        for part in (
            decisions.cached,
            decisions.pruned,
            decisions.blocked,
            decisions.unreachable,
            decisions.unroutable,
            decisions.done,
        )
    )


def _outcome(
    key: str, decisions: Decisions, expected: Mapping[str, ExpectedReasons]
) -> StepOutcome:
    ours = decisions.planned.get(key)
    name, path = (address(ours.step), ours.step.output_path) if ours else (key, None)
    if key in decisions.unreachable:
        missing = summarize(decisions.unreachable[key])
        return StepOutcome(name, path, BLOCKED, (f"needs steps that cannot run: {missing}",))
    if ours is None:
        return StepOutcome(name, path, RUN, ("an ordinary asset: runs every time",))
    if key in decisions.blocked:
        return StepOutcome(name, path, BLOCKED, (str(decisions.blocked[key]),))
    if key in decisions.unroutable:
        return StepOutcome(name, path, BLOCKED, (str(decisions.unroutable[key]),))
    if key in decisions.pruned:
        return StepOutcome(name, path, PRUNED, (decisions.pruned[key],))
    if key in decisions.done:
        return StepOutcome(name, path, SERVED, ("built by an earlier worker of this run",))
    if key in decisions.cached:
        new = "" if key in decisions.served else "; this run records it as a materialization"
        drift = decisions.drifted.get(key)
        why = (f"its output is finished{new}", *([drift.message] if drift else []))
        return StepOutcome(name, path, SERVED, why)
    if key not in expected:
        owner = decisions.looks[key].owner
        return StepOutcome(
            name, path, RUN, (f"{owner} is building it: waits for that, and serves the output",)
        )
    mine = expected[key]
    reasons = mine.reasons.get(ours.step.output_path)
    roots = mine.roots.get(ours.step.output_path, ())
    steps = ours.op.graph.steps
    return StepOutcome(
        name,
        path,
        RUN,
        reasons.lines if reasons else ("its output is not finished",),
        roots=tuple(dict.fromkeys(address(steps[root]) for root in roots)),
        changed_itself=ours.step.output_path in roots,
        compared_with=reasons.compared_with if reasons else None,
    )


def _few(reasons: tuple[str, ...]) -> str:
    lines = [line for reason in reasons for line in reason.splitlines()]
    more = len(lines) - _MOST_REASONS
    text = "; ".join([*lines[:_MOST_REASONS], *([f"and {more} more"] if more > 0 else [])])
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "…"
