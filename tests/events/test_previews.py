"""Small files at the top of an output show on its materialization, whatever is in them."""

import base64
import json
import os
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.runs import JOB, memory_instance, run_job
from marin_dagster import (
    MarinIOManager,
    StepSpec,
    build_definitions,
    build_marin_assets,
    marin_executor,
)
from marin_dagster.cache import OutputDir
from marin_dagster.errors import StoreTimeoutError
from marin_dagster.events.metadata_keys import PREVIEW_PREFIX
from marin_dagster.events.previews import (
    _IMAGE,
    MAX_BYTES,
    MAX_CELL,
    MAX_FILES,
    MAX_PICTURE_BYTES,
    MAX_ROWS,
    MAX_TEXT_BYTES,
)

Files = Mapping[str, bytes | str]


def png(size: int = 0, side: int = 4) -> bytes:
    """A square picture of one colour, filled up to ``size`` bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    picture = b"\x89PNG\r\n\x1a\n" + chunk(
        b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    )
    picture += chunk(b"IDAT", zlib.compress((b"\0" + b"\x7f" * side) * side))
    rest = size - len(picture) - 24
    return picture + (chunk(b"teXt", b" " * rest) if rest >= 0 else b"") + chunk(b"IEND", b"")


def writes(files: Files) -> Callable[[str], None]:
    def build(output_path: str) -> None:
        for name, content in files.items():
            path = Path(output_path, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return build


def previews(
    build: Callable[[str], None],
    instance: dg.DagsterInstance,
    manager: MarinIOManager | None = None,
) -> dict[str, dg.MetadataValue[Any]]:
    """What the event log has of a step's previews, by file name and in their order."""
    step = StepSpec("report", fn=build)
    definitions = build_definitions([step])
    if manager is not None:
        job = dg.define_asset_job(JOB, selection="*", executor_def=marin_executor)
        definitions = dg.Definitions(
            build_marin_assets([step]), resources={"marin_io_manager": manager}, jobs=[job]
        )
    run = run_job(definitions, instance)
    assert run.success
    event = instance.get_latest_materialization_event(dg.AssetKey("report"))
    assert event
    assert event.asset_materialization
    return {
        key.removeprefix(PREVIEW_PREFIX): value
        for key, value in event.asset_materialization.metadata.items()
        if key.startswith(PREVIEW_PREFIX)
    }


def shown(files: Files, instance: dg.DagsterInstance) -> dict[str, dg.MetadataValue[Any]]:
    return previews(writes(files), instance)


def table_of(content: str | bytes, instance: dg.DagsterInstance) -> tuple[list[Any], list[Any]]:
    """``(columns, rows)`` of a CSV file's preview."""
    table = shown({"t.csv": content}, instance)["t.csv"].value
    assert isinstance(table, dg.TableMetadataValue)
    columns = [(column.name, column.type) for column in table.schema.columns]
    return columns, [[record.data[name] for name, _ in columns] for record in table.records]


def test_each_kind_is_shown_as_what_it_is(instance: dg.DagsterInstance) -> None:
    picture = png()

    found = shown(
        {"d.json": '{"a": [1, null]}', "c.csv": "x\n1\n", "b.png": picture, "a.md": "# Title"},
        instance,
    )

    uri = "data:image/png;base64," + base64.b64encode(picture).decode()
    assert list(found) == ["a.md", "b.png", "c.csv", "d.json"]
    assert found["a.md"] == dg.MetadataValue.md("# Title")
    assert found["b.png"] == dg.MetadataValue.md(f"![b.png]({uri})")
    assert isinstance(found["c.csv"], dg.TableMetadataValue)
    assert found["d.json"] == dg.MetadataValue.json({"a": [1, None]})


def test_only_files_at_the_top_with_those_endings_are_shown(instance: dg.DagsterInstance) -> None:
    found = shown(
        {
            "deep/report.md": "below",
            ".notes.md": "hidden",
            "data.txt": "text",
            "md": "no ending",
            "a.MD": "in capitals",
        },
        instance,
    )

    assert list(found) == ["a.MD"]


def test_a_hit_that_is_materialized_shows_its_files_too(instance: dg.DagsterInstance) -> None:
    build = writes({"report.md": "# Found"})
    with memory_instance() as elsewhere:
        assert list(previews(build, elsewhere)) == ["report.md"]

    assert previews(build, instance) == {"report.md": dg.MetadataValue.md("# Found")}


def test_they_can_be_switched_off(instance: dg.DagsterInstance) -> None:
    build = writes({"report.md": "# Private"})

    assert previews(build, instance, MarinIOManager(previews=False)) == {}


def test_a_file_at_its_limit_is_shown_and_one_above_it_is_not(instance: dg.DagsterInstance) -> None:
    found = shown(
        {
            "fits.png": png(MAX_PICTURE_BYTES),
            "over.png": png(MAX_PICTURE_BYTES + 1),
            "fits.md": "x" * MAX_TEXT_BYTES,
            "over.md": "x" * (MAX_TEXT_BYTES + 1),
        },
        instance,
    )

    assert list(found) == ["fits.md", "fits.png"]


def test_an_output_has_at_most_four_in_the_order_of_kind_and_name(
    instance: dg.DagsterInstance,
) -> None:
    found = shown({f"{n}.{kind}": "[1]" for n in range(3) for kind in ("json", "md")}, instance)

    assert list(found) == ["0.md", "1.md", "2.md", "0.json"]
    assert len(found) == MAX_FILES


def test_files_for_which_no_room_is_left_make_way_for_smaller_ones(
    instance: dg.DagsterInstance,
) -> None:
    half = MAX_BYTES // 2
    found = shown(
        {"a.png": png(half), "b.png": png(half - 100), "c.png": png(half), "d.json": "[1]"},
        instance,
    )

    assert list(found) == ["a.png", "b.png", "d.json"]


def test_pictures_of_a_report_are_shown_in_it(instance: dg.DagsterInstance) -> None:
    picture = png()
    uri = "data:image/png;base64," + base64.b64encode(picture).decode()
    text = (
        "![one](chart.png) ![two](./chart.png) ![three](with%20space.png) "
        "![four](<with space.png>) ![no](none.png) ![no](https://example.org/chart.png) "
        "![no](deep/chart.png) ![no](broken.png) [link](chart.png)"
    )

    found = shown(
        {
            "report.md": text,
            "chart.png": picture,
            "with space.png": picture,
            "deep/chart.png": picture,
            "broken.png": b"no picture",
        },
        instance,
    )

    assert found["report.md"].value == (
        f"![one]({uri}) ![two]({uri}) ![three]({uri}) ![four]({uri}) ![no](none.png) "
        "![no](https://example.org/chart.png) ![no](deep/chart.png) ![no](broken.png) "
        "[link](chart.png)"
    )


def test_a_report_that_repeats_a_picture_stays_within_the_room(
    instance: dg.DagsterInstance,
) -> None:
    text = "![a](a.png) " * 10

    found = shown({"a.md": text, "a.png": png(MAX_PICTURE_BYTES - 1000)}, instance)

    assert found["a.md"].value.count("data:image/png") == 2
    assert found["a.md"].value.count("(a.png)") == 8
    assert list(found) == ["a.md"]


def test_what_only_looks_like_the_beginning_of_pictures_is_left_as_it_is(
    instance: dg.DagsterInstance,
) -> None:
    image = "\n![a](a.png)"
    left = MAX_TEXT_BYTES - len(image)
    begun = {f"{n}.md": (part * left)[:left] for n, part in enumerate(["![", "![](<", "![](a"])}

    found = shown({"a.png": png()} | {name: text + image for name, text in begun.items()}, instance)

    for name, text in begun.items():
        assert found[name].value.startswith(f"{text}\n![a](data:image/png;base64,"), name


def test_no_part_of_a_picture_reads_on_where_the_next_may_begin() -> None:
    alternative, bracketed, bare = re.findall(r"\[\^[^+*]*\][+*]", _IMAGE.pattern)

    # A text that begins one everywhere takes each character once, not once for each beginning.
    for part, begins in ((alternative, "["), (bracketed, "<"), (bare, "(")):
        taken = re.match(part, "a" + begins + "a")
        assert taken
        assert taken[0] == "a", part


def test_a_file_that_is_no_picture_is_read_once(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    read = OutputDir.read

    def noted(self: OutputDir, name: str) -> bytes | None:
        asked.append(name)
        return read(self, name)

    monkeypatch.setattr(OutputDir, "read", noted)
    text = "![a](a.png) " * 10

    assert shown({"a.md": text, "a.png": b"no picture"}, instance)["a.md"].value == text
    assert asked.count("a.png") == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.md", ""),
        ("blank.md", " \n"),
        ("latin.md", "caf\xe9".encode("latin-1")),
        ("binary.csv", b"a,b\n\0\1\n"),
        ("empty.csv", ""),
        ("lines.csv", "\n\n\n"),
        ("half.json", '{"a": '),
        ("surrogate.json", r'"\ud800"'),
        ("nested.json", "[" * 10_000 + "]" * 10_000),
        ("deep.json", "[" * 100 + "]" * 100),
        ("digits.json", "9" * 5_000),
        ("empty.png", b""),
        ("text.png", b"GIF89a"),
        ("cut.png", png()[:20]),
        ("bomb.png", png()[:16] + struct.pack(">II", 60_000, 60_000) + png()[24:]),
        ("flat.png", png()[:16] + struct.pack(">II", 0, 5) + png()[24:]),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_left_out(
    name: str, content: str | bytes, instance: dg.DagsterInstance
) -> None:
    found = shown({name: content, "good.json": "[1]"}, instance)

    assert list(found) == ["good.json"]


def test_a_file_that_cannot_be_read_is_left_out_and_the_log_says_so(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    read = OutputDir.read

    def away(self: OutputDir, name: str) -> bytes | None:
        if name.endswith(".md"):
            asked.append(name)
            raise StoreTimeoutError(f"the store did not read {name}")
        return read(self, name)

    monkeypatch.setattr(OutputDir, "read", away)

    # Whoever waited once for a store that hangs does not wait for it three times.
    assert shown({"a.md": "a", "b.md": "b", "c.json": "[1]"}, instance) == {}
    assert asked == ["a.md"]


def test_what_is_no_plain_file_is_left_alone(instance: dg.DagsterInstance) -> None:
    def build(output_path: str) -> None:
        os.mkfifo(Path(output_path, "pipe.json"))
        Path(output_path, "dangling.md").symlink_to("nowhere")
        Path(output_path, "folder.md").mkdir()
        Path(output_path, "good.json").write_text("[1]")

    assert list(previews(build, instance)) == ["good.json"]


def test_links_show_only_what_lies_in_the_output(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    for name in ("p.md", "p.png"):
        tmp_path.joinpath(name).write_bytes(png() if name == "p.png" else b"private")

    def build(output_path: str) -> None:
        folder = Path(output_path)
        (folder / "deep").mkdir()
        (folder / "deep" / "report.md").write_text("![p](out.png)")
        (folder / "in.md").symlink_to("deep/report.md")
        (folder / "out.md").symlink_to(tmp_path / "p.md")
        (folder / "out.png").symlink_to(tmp_path / "p.png")
        # What lies beside it has a name that begins with the output's.
        beside = folder.with_name(folder.name + "-private")
        beside.mkdir()
        (beside / "p.md").write_text("private")
        (folder / "up.md").symlink_to(f"../{beside.name}/p.md")

    assert previews(build, instance) == {"in.md": dg.MetadataValue.md("![p](out.png)")}


def test_an_output_behind_a_link_is_shown(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    def build(output_path: str) -> None:
        Path(output_path, "a.md").write_text("# Title")
        Path(output_path).rename(tmp_path / "moved")
        Path(output_path).symlink_to(tmp_path / "moved")

    assert previews(build, instance) == {"a.md": dg.MetadataValue.md("# Title")}


@pytest.mark.parametrize(
    "name", ["with space.md", "größe 漢字.md", "a|b`c`.md", "<b>.md", "[x](y).md"]
)
def test_a_file_may_have_any_name_that_can_be_printed(
    name: str, instance: dg.DagsterInstance
) -> None:
    assert shown({name: "# Title"}, instance) == {name: dg.MetadataValue.md("# Title")}


def test_names_that_cannot_be_printed_are_left_out(instance: dg.DagsterInstance) -> None:
    assert shown({"new\nline.md": "x", os.fsdecode(b"\xff.md"): "x"}, instance) == {}


def test_the_name_of_a_picture_ends_no_markdown(instance: dg.DagsterInstance) -> None:
    found = shown({"a](x) `b` <i>.png": png()}, instance)

    [value] = found.values()
    assert value.value.startswith(r"![a\](x) \`b\` \<i\>.png](data:image/png;base64,")


def test_json_with_nan_and_infinity_is_strict_json(instance: dg.DagsterInstance) -> None:
    content = '{"a": NaN, "b": [Infinity, -Infinity, 1e999], "c": 0.5, "text": "<script>"}'

    value = shown({"m.json": content}, instance)["m.json"].value

    assert value == {
        "a": "NaN",
        "b": ["Infinity", "-Infinity", "Infinity"],
        "c": 0.5,
        "text": "<script>",
    }
    json.dumps(value, allow_nan=False)


@pytest.mark.parametrize("content", ["[]", "\ufeff{}"])
def test_json_may_be_empty_and_begin_with_a_mark(
    content: str, instance: dg.DagsterInstance
) -> None:
    value = shown({"m.json": content}, instance)["m.json"]

    assert value == dg.MetadataValue.json(json.loads(content.removeprefix("\ufeff")))


@pytest.mark.parametrize("content", ["3", '"text"', "null", "true"])
def test_json_that_is_one_value_is_text(content: str, instance: dg.DagsterInstance) -> None:
    assert shown({"m.json": content}, instance) == {"m.json": dg.MetadataValue.text(content)}


def test_a_table_has_typed_columns(instance: dg.DagsterInstance) -> None:
    columns, rows = table_of(
        'name,count,loss,id,large\n"a, |`b`",1,0.5,007,12345678901234567890\n<b>x</b>,,1e-3,2,1\n',
        instance,
    )

    assert columns == [
        ("name", "string"),
        ("count", "int"),
        ("loss", "float"),
        ("id", "string"),
        ("large", "string"),
    ]
    assert rows == [
        ["a, |`b`", 1, 0.5, "007", "12345678901234567890"],
        ["<b>x</b>", None, 0.001, "2", "1"],
    ]


@pytest.mark.parametrize(
    "cell", ["NaN", "Infinity", "1e999", "true", "null", '"""1"""', "[1]", "[" * 500, "9" * 5_000]
)
def test_a_column_with_what_is_not_a_number_is_text(
    cell: str, instance: dg.DagsterInstance
) -> None:
    shown_as = cell.replace('"""', '"') if len(cell) <= MAX_CELL else cell[:MAX_CELL] + "…"

    assert table_of(f"x,y\n1,1\n{cell},2\n", instance) == (
        [("x", "string"), ("y", "int")],
        [["1", 1], [shown_as, 2]],
    )


def test_a_ragged_table_is_filled_up_and_its_titles_differ(instance: dg.DagsterInstance) -> None:
    columns, rows = table_of("a,a,,a 2\n1\n\n1,2,3,4,5\n", instance)

    assert [name for name, _ in columns] == ["a", "a 2", "column 3", "a 2 4", "column 5"]
    assert rows == [[1, None, None, None, None], [1, 2, 3, 4, 5]]


def test_a_table_without_rows_shows_its_columns(instance: dg.DagsterInstance) -> None:
    assert table_of("a,b\n", instance) == ([("a", "string"), ("b", "string")], [])


def test_of_a_large_table_the_top_left_is_shown_and_the_schema_says_so(
    instance: dg.DagsterInstance,
) -> None:
    head = ",".join(f"c{n}" for n in range(30))
    lines = [",".join(str(row) for _ in range(30)) for row in range(100)]

    table = shown({"t.csv": "\n".join([head, *lines])}, instance)["t.csv"].value

    assert [column.name for column in table.schema.columns] == [f"c{n}" for n in range(20)]
    assert [record.data["c0"] for record in table.records] == list(range(MAX_ROWS))
    assert table.schema.constraints.other == [
        "the first 20 of 100 rows",
        "the first 20 of 30 columns",
    ]


def test_a_long_cell_is_cut(instance: dg.DagsterInstance) -> None:
    long = "x" * 10_000

    columns, rows = table_of(f"{long},b\n{long},1\n", instance)

    cut = "x" * MAX_CELL + "…"
    assert columns == [(cut, "string"), ("b", "int")]
    assert rows == [[cut, 1]]


def test_text_of_the_result_named_like_a_preview_hides_none(instance: dg.DagsterInstance) -> None:
    def build(output_path: str) -> Any:
        Path(output_path, "a.md").write_text("# Title")
        return {f"{PREVIEW_PREFIX}a.md": 3}

    assert previews(build, instance) == {"a.md": dg.MetadataValue.md("# Title")}
