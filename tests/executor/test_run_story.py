"""A run's first event, a table of what becomes of its steps, and its last line, the result."""

from pathlib import Path

import dagster as dg
import pytest

from helpers.runs import Recorder, Run, run_job
from marin_dagster import StepSpec, build_definitions
from marin_dagster.executor.run_summary import spoken


def rows(run: Run) -> dict[str, list[str]]:
    """The first event's table: what becomes of each step, why, and because of which steps."""
    first = run.of_type("ENGINE_EVENT")[0]
    table = first.engine_event_data.metadata["marin/steps"].value
    cells = [[cell.strip() for cell in line.split(" | ")] for line in table.splitlines()[2:]]
    return {row[0].removeprefix("| ").rpartition("\\_")[0]: row[1:] for row in cells}


def result(instance: dg.DagsterInstance, run: Run) -> str:
    """The line with which the run's log ends."""
    messages = [entry.user_message for entry in instance.all_logs(run.run_id)]
    (line,) = [text for text in messages if text.startswith("Result: ")]
    return line


def chain(recorder: Recorder, lr: int) -> list[StepSpec]:
    """raw -> train -> evaluate -> report, of which train has an attribute."""
    raw = recorder.step("raw")
    train = recorder.step("train", raw, hash_attrs={"lr": lr})
    evaluate = recorder.step("evaluate", train)
    return [raw, train, evaluate, recorder.step("report", evaluate, raw)]


def test_the_first_event_names_the_step_that_changed_itself(
    recorder: Recorder, instance: dg.DagsterInstance
) -> None:
    run_job(build_definitions(chain(recorder, 1)), instance)
    new = build_definitions(steps := chain(recorder, 2))

    # In parts: what a step runs for is known although that step is built by now.
    part = run_job(new, instance, select=["raw", "train"])
    rest = run_job(new, instance)

    assert rows(part)["raw"][:2] == ["served", "its output is finished"]
    assert rows(part)["train"] == ["run", "attribute lr: 1 -> 2", "its own change |"]
    assert list(rows(part)) == ["train", "raw"]
    train = steps[1].name_with_hash.replace("_", "\\_")
    assert {name: row[-1].strip(" |") for name, row in rows(rest).items()} == {
        "evaluate": train,
        "report": train,
        "raw": "",
        "train": "",
    }


def test_an_asset_has_a_hash_of_its_own_beside_the_full_one(recorder: Recorder) -> None:
    def hashes(lr: int) -> dict[str, tuple[str, str]]:
        graph = build_definitions(chain(recorder, lr)).resolve_asset_graph()
        return {
            node.key.to_user_string(): (
                node.metadata["marin/own_hash"],
                node.metadata["marin/hash_id"],
            )
            for node in graph.asset_nodes
        }

    old, new = hashes(1), hashes(2)

    changed_itself = [name for name in old if old[name][0] != new[name][0]]
    changed = [name for name in old if old[name][1] != new[name][1]]
    assert changed_itself == ["train"]
    assert sorted(changed) == ["evaluate", "report", "train"]


def test_a_table_is_bounded(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    many = [recorder.step(f"step{n}") for n in range(105)]
    last = recorder.step("last", *many)

    run = run_job(build_definitions([last]), instance, config={"dry_run": True})

    table = run.of_type("ENGINE_EVENT")[0].engine_event_data.metadata["marin/steps"].value
    assert len(table.splitlines()) == 104
    assert table.endswith("And more: 6 run.")


def test_a_run_ends_with_its_result(recorder: Recorder, instance: dg.DagsterInstance) -> None:
    raw, _, evaluate, report = chain(recorder, 1)
    first = run_job(build_definitions([report]), instance)
    Path(evaluate.output_path, ".executor_status").unlink()
    bad = recorder.step("bad", fails=True)
    below = recorder.step("below", bad)
    again = run_job(build_definitions([report, below, recorder.step("new")]), instance)
    with dg.DagsterInstance.ephemeral() as other:
        elsewhere = result(other, run_job(build_definitions([raw]), other))

    assert result(instance, first) == "Result: 4 built."
    assert result(instance, again).startswith("Result: 1 built, 3 served (saved 0.")
    assert result(instance, again).endswith(" s), 1 pruned, 1 failed, 1 not run.")
    assert elsewhere == "Result: 1 served."


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (7.46, "7.5 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (41 * 60, "41 min"),
        (3599.9, "1 h 0 min"),
        (12_000, "3 h 20 min"),
    ],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert spoken(seconds) == text
