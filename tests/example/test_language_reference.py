"""The example project: its functions, the mathematics of its models, and whole builds."""

import json
import os
import runpy
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import pytest

from language_reference import steps as steps_module
from language_reference.corpus import (
    is_held_out,
    keep_distinct_passages,
    split_corpus,
    topics_digest,
    write_corpus,
)
from language_reference.ngram import NgramModel
from language_reference.report import describe_change, draw_chart
from language_reference.steps import build_steps
from language_reference.storage import (
    join,
    list_files,
    read_array,
    read_bytes,
    read_json,
    read_jsonl,
    read_text,
    write_jsonl,
)
from language_reference.tokenizing import END_OF_TEXT, load_tokenizer, train_tokenizer

Build = tuple[dict[str, str], dict[str, Any]]
PROJECT = Path(__file__).resolve().parents[2] / "example_project"
MODELS = ["ngram-2", "ngram-3", "ngram-4"]


def passages(text: str) -> set[str]:
    return {" ".join(passage.split()) for passage in text.split("\n\n")}


# --- storage ---------------------------------------------------------------------------------


def test_jsonl_survives_unusual_separators(tmp_path: Path) -> None:
    records = [{"text": "a\u2028b\x85c\nd\r\n"}, {"text": "“é”"}]
    path = join(str(tmp_path), "records.jsonl")
    write_jsonl(path, records)
    assert read_jsonl(path) == records


@pytest.mark.parametrize("on_disk", [True, False])
def test_files_are_listed_by_name(tmp_path: Path, memory: str, on_disk: bool) -> None:
    folder = str(tmp_path) if on_disk else memory
    for name in ("b.jsonl", "a.jsonl", "c.json"):
        write_jsonl(join(folder, name), [])
    assert list_files(folder, ".jsonl") == [join(folder, "a.jsonl"), join(folder, "b.jsonl")]


# --- corpus and split ------------------------------------------------------------------------


def test_passage_stays_in_shortest_text_only() -> None:
    shared = "This sentence is long enough to count as a passage."
    texts = {
        "chapter": f"Intro to the chapter, quite long as well, and its own.\n\n{shared}\n\nNote:",
        "section": f"{shared}\n\nNote:",
        "alias": f"{shared}\n\nNote: ",
    }
    assert keep_distinct_passages(texts, minimum_passage=20) == {
        "section": f"{shared}\n\nNote:",
        "chapter": "Intro to the chapter, quite long as well, and its own.\n\nNote:",
    }


def test_rewrapped_passage_is_the_same_passage() -> None:
    texts = {
        "short": "one two three four five",
        "longer one": "  one two\n  three four five\n\nsix seven",
    }
    assert keep_distinct_passages(texts, minimum_passage=8)["longer one"] == "six seven"


def test_corpus_is_refused_for_other_topics(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="topics"):
        write_corpus(str(tmp_path), topics_sha256="0" * 64, shards=2, minimum_passage=40)


def test_digest_follows_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    before = topics_digest()
    monkeypatch.setattr("language_reference.corpus.topics", {"if": "another text"})
    assert topics_digest() != before


def test_corpus_has_one_document_per_topic(built: Build) -> None:
    paths, returned = built
    shards = list_files(paths["corpus"], ".jsonl")
    documents = [document for shard in shards for document in read_jsonl(shard)]
    names = [document["topic"] for document in documents]
    assert len(shards) == steps_module.CORPUS["shards"]
    assert len(set(names)) == len(names) == returned["corpus"]["documents"]
    assert set(names) <= set(topics)
    assert len(names) > 0.9 * len(topics)
    assert sum(len(document["text"]) for document in documents) == returned["corpus"]["characters"]


def test_split_is_disjoint_and_complete(built: Build) -> None:
    paths, returned = built
    parts = {p: read_jsonl(join(paths["split"], f"{p}.jsonl")) for p in ("train", "val")}
    train, val = ({d["topic"] for d in parts[p]} for p in ("train", "val"))
    assert train
    assert val
    assert not train & val
    assert len(train) + len(val) == returned["corpus"]["documents"]
    assert 0.05 < returned["split"]["val_text_share"] < 0.4


def test_no_passage_is_on_both_sides(built: Build) -> None:
    paths, _ = built
    train, val = (
        set().union(*(passages(d["text"]) for d in read_jsonl(join(paths["split"], f"{p}.jsonl"))))
        for p in ("train", "val")
    )
    minimum = steps_module.CORPUS["minimum_passage"]
    assert [passage for passage in train & val if len(passage) >= minimum] == []


def test_side_of_a_topic_depends_on_name_and_seed_alone() -> None:
    names = [f"topic-{i}" for i in range(2000)]
    first = [is_held_out(name, seed=1, share=0.2) for name in names]
    assert first == [is_held_out(name, seed=1, share=0.2) for name in names]
    assert first != [is_held_out(name, seed=2, share=0.2) for name in names]
    assert 0.15 < sum(first) / len(first) < 0.25
    # A greater share only adds to the documents that are held out.
    assert all(
        is_held_out(n, seed=1, share=0.3) for n, held in zip(names, first, strict=True) if held
    )


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_split_refuses_an_empty_side(tmp_path: Path, share: float) -> None:
    write_jsonl(join(str(tmp_path), "documents.jsonl"), [{"topic": "if", "text": "text"}])
    with pytest.raises(ValueError, match="No document"):
        split_corpus(str(tmp_path), corpus=str(tmp_path), seed=0, validation_share=share)


# --- tokenizer -------------------------------------------------------------------------------


def test_tokenizer_restores_any_text(built: Build) -> None:
    tokenizer = load_tokenizer(built[0]["tokenizer"])
    for text in ("def f(x):\n    return x ** 2\n", "naïve “quotes” 漢字 🐍 \x00\t"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_tokenizer_has_the_asked_size(built: Build, tmp_path: Path) -> None:
    paths, returned = built
    assert returned["tokenizer"]["vocabulary"] == steps_module.TOKENIZER["vocabulary_size"]
    result = train_tokenizer(str(tmp_path), split=paths["split"], vocabulary_size=512)
    assert result["vocabulary"] == 512


@pytest.mark.parametrize("part", ["train", "val"])
def test_tokens_are_the_documents(built: Build, part: str) -> None:
    paths, returned = built
    folder, result = paths[f"tokenized/{part}"], returned[f"tokenized/{part}"]
    tokens = read_array(join(folder, "tokens.npy"))
    tokenizer = load_tokenizer(paths["tokenizer"])
    end = tokenizer.token_to_id(END_OF_TEXT)
    texts = [d["text"] for d in read_jsonl(join(paths["split"], f"{part}.jsonl"))]
    assert tokens.dtype == np.uint16
    assert len(tokens) == result["tokens"]
    assert np.count_nonzero(tokens == end) == len(texts) == result["documents"]
    decoded = tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
    assert decoded == "".join(text + END_OF_TEXT for text in texts)
    assert result["bytes_per_token"] > 2


# --- n-gram models ---------------------------------------------------------------------------


def reference_probability(
    tokens: list[int], order: int, size: int, boundary: int, context: tuple[int, ...], token: int
) -> float:
    """Interpolated Kneser-Ney by its textbook definition, with dictionaries of tuples."""
    padded = [boundary] * (order - 1) + tokens
    windows = [tuple(padded[i : i + order]) for i in range(len(tokens))]
    probability = 1 / size
    for length in range(1, order + 1):
        counts: Counter[tuple[int, ...]] = Counter()
        if length == order:
            counts.update(windows)
        else:
            left: dict[tuple[int, ...], set[int]] = defaultdict(set)
            for window in windows:
                left[window[order - length :]].add(window[order - length - 1])
            counts.update({gram: len(tokens_before) for gram, tokens_before in left.items()})
        once = sum(count == 1 for count in counts.values())
        twice = sum(count == 2 for count in counts.values())
        discount = (once + 1) / (once + 2 * twice + 2)
        history = context[len(context) - length + 1 :]
        followers = {gram: count for gram, count in counts.items() if gram[:-1] == history}
        if followers:
            kept = max(counts[(*history, token)] - discount, 0.0)
            weight = discount * len(followers)
            probability = (kept + weight * probability) / sum(followers.values())
    return probability


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_model_agrees_with_the_textbook(order: int) -> None:
    random = np.random.default_rng(order)
    size, boundary = 7, 6
    tokens = np.minimum(random.geometric(0.35, size=120) - 1, boundary)
    model = NgramModel.train(tokens, order=order, vocabulary_size=size, boundary=boundary)
    for _ in range(20):
        context = tuple(random.integers(0, size, size=order - 1).tolist())
        expected = [
            reference_probability(tokens.tolist(), order, size, boundary, context, token)
            for token in range(size)
        ]
        assert model.distribution(context) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_probabilities_sum_to_one(built: Build, name: str) -> None:
    paths, _ = built
    model = NgramModel.load(paths[f"models/{name}"])
    train, val = (read_array(join(paths[f"tokenized/{p}"], "tokens.npy")) for p in ("train", "val"))
    width = model.order - 1
    contexts = [
        [],  # the start of the text
        [model.boundary] * width,
        train[1000 : 1000 + width].tolist(),  # seen
        val[500 : 500 + width].tolist(),  # perhaps seen
        [5, 3, 1][:width],  # hardly seen, or never
        [model.vocabulary_size - 1] * width,
    ]
    for context in contexts:
        distribution = model.distribution(context)
        assert len(distribution) == model.vocabulary_size
        assert distribution.min() > 0
        assert distribution.sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("tokens", [[0], [0, 0], [0, 1, 2], [2, 2, 2, 2, 2, 2, 1, 1]])
def test_smallest_trainings_are_proper_models(tokens: list[int]) -> None:
    model = NgramModel.train(np.array(tokens), order=3, vocabulary_size=4, boundary=3)
    for context in ([], [0, 0], [2, 2], [3, 1]):
        distribution = model.distribution(context)
        assert distribution.min() > 0
        assert distribution.sum() == pytest.approx(1)


def test_scores_of_a_text_are_those_of_its_contexts() -> None:
    tokens = np.array([0, 1, 2, 0, 1, 3, 0, 1, 2], dtype=np.uint16)
    model = NgramModel.train(tokens, order=3, vocabulary_size=4, boundary=3)
    one_by_one = [model.distribution(tokens[:i].tolist())[token] for i, token in enumerate(tokens)]
    assert model.probabilities(model.grams(tokens)) == pytest.approx(one_by_one)


def test_loaded_model_is_the_saved_one(tmp_path: Path) -> None:
    tokens = np.array([0, 1, 2, 0, 1, 3, 0, 1, 2])
    model = NgramModel.train(tokens, order=3, vocabulary_size=4, boundary=3)
    model.save(str(tmp_path))
    loaded = NgramModel.load(str(tmp_path))
    assert (loaded.order, loaded.boundary, loaded.vocabulary_size) == (3, 3, 4)
    for context in ([0, 1], [3, 3], [2, 2]):
        assert loaded.distribution(context).tolist() == model.distribution(context).tolist()


def test_model_refuses_what_it_cannot_count() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        NgramModel.train(np.array([], dtype=np.uint16), order=2, vocabulary_size=4, boundary=3)
    for order in (0, 6):
        with pytest.raises(ValueError, match="64-bit"):
            NgramModel.train(np.array([1]), order=order, vocabulary_size=2048, boundary=3)


# --- evaluation and report -------------------------------------------------------------------


def test_perplexities_are_plausible(built: Build) -> None:
    metrics = read_json(join(built[0]["evaluate"], "metrics.json"))
    results = [metrics["models"][name] for name in MODELS]
    for result in results:
        # Far better than chance, worse than on known text, and no better than text compresses.
        assert 10 < result["val_perplexity"] < metrics["vocabulary"] / 10
        assert 1 < result["train_perplexity"] < result["val_perplexity"] / 1.5
        assert 0.8 < result["val_bits_per_byte"] < 3
    for measure in ("val_perplexity", "train_perplexity", "val_known_ngrams"):
        values = [result[measure] for result in results]
        assert values == sorted(values, reverse=True)


def test_perplexity_is_that_of_the_model(built: Build) -> None:
    paths, returned = built
    model = NgramModel.load(paths["models/ngram-3"])
    tokens = read_array(join(paths["tokenized/val"], "tokens.npy"))
    score = float(np.exp(-np.log(model.probabilities(model.grams(tokens))).mean()))
    assert returned["evaluate"]["val_perplexity/ngram-3"] == pytest.approx(score, abs=1e-3)


def test_report_states_what_was_measured(built: Build) -> None:
    paths, returned = built
    results = read_json(join(paths["evaluate"], "metrics.json"))["models"]
    report = read_text(join(paths["report"], "report.md"))
    for name in MODELS:
        assert f"| {name} | {results[name]['val_perplexity']:.1f} |" in report
    assert "From 2-grams to 3-grams, perplexity falls by" in report
    assert "](perplexity.png)" in report
    best = returned["report"]["best_model"]
    assert returned["report"]["best_val_perplexity"] == min(
        result["val_perplexity"] for result in results.values()
    )
    assert f"**{best}**" in report
    assert read_bytes(join(paths["report"], "perplexity.png")).startswith(b"\x89PNG\r\n")


@pytest.mark.parametrize(
    ("after", "words"),
    [(60.0, "falls by 40%"), (99.0, "stays about the same"), (125.0, "rises by 25%")],
)
def test_change_is_put_in_words(after: float, words: str) -> None:
    shorter = {"order": 3, "val_perplexity": 100.0, "val_known_ngrams": 0.5}
    longer = {"order": 4, "val_perplexity": after, "val_known_ngrams": 0.25}
    sentence = describe_change(shorter, longer)
    assert sentence.startswith("From 3-grams to 4-grams, perplexity")
    assert words in sentence
    assert "25% of the held-out 4-grams" in sentence


def test_chart_of_equal_numbers_is_equal() -> None:
    results = [
        {"order": n, "val_perplexity": 90.0 / n, "train_perplexity": 30.0 / n} for n in (2, 3)
    ]
    assert draw_chart(results) == draw_chart(results)


# --- the graph -------------------------------------------------------------------------------


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MARIN_PREFIX", str(tmp_path))
    return str(tmp_path)


def test_graph_is_complete_and_in_order(prefix: str) -> None:
    steps = build_steps()
    names = [step.name for step in steps]
    assert names == [
        "corpus",
        "split",
        "tokenizer",
        "tokenized/train",
        "tokenized/val",
        *(f"models/{name}" for name in MODELS),
        "evaluate",
        "report",
    ]
    for position, step in enumerate(steps):
        assert all(dep.name in names[:position] for dep in step.deps)
    assert [step.name for step in steps if step.resources is not None] == ["models/ngram-4"]


def test_steps_read_their_dependencies_and_nothing_else(prefix: str) -> None:
    for step in build_steps():
        assert isinstance(step.fn, partial)
        arguments = json.dumps(step.fn.keywords)
        deps = {dep.output_path for dep in step.deps}
        assert all(json.dumps(path) in arguments for path in deps), step.name
        assert arguments.count(prefix) == len(deps), step.name


def test_attributes_are_the_arguments_and_hold_no_path(prefix: str) -> None:
    for step in build_steps():
        assert isinstance(step.fn, partial)
        attributes = dict(step.hash_attrs)
        assert prefix not in json.dumps(attributes)
        if step.name == "corpus":
            assert attributes.pop("python") == f"{sys.version_info[0]}.{sys.version_info[1]}"
        settings = {k: v for k, v in step.fn.keywords.items() if prefix not in json.dumps(v)}
        assert settings == attributes, step.name


def test_every_step_is_described(prefix: str) -> None:
    for step in build_steps():
        assert isinstance(step.fn, partial)
        description = (step.fn.func.__doc__ or "").strip()
        assert description.endswith("."), step.name


def test_a_changed_attribute_moves_what_depends_on_it(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {step.name: step.output_path for step in build_steps()}
    monkeypatch.setitem(steps_module.TOKENIZER, "vocabulary_size", 1024)
    after = {step.name: step.output_path for step in build_steps()}
    unchanged = {name for name in before if before[name] == after[name]}
    assert unchanged == {"corpus", "split"}


# --- whole builds ----------------------------------------------------------------------------


def contents(paths: dict[str, str]) -> dict[str, bytes]:
    return {
        f"{name}/{file.rsplit('/', 1)[-1]}": read_bytes(file)
        for name, folder in paths.items()
        for file in list_files(folder, "")
    }


def test_every_step_returns_numbers(built: Build) -> None:
    for name, result in built[1].items():
        assert json.loads(json.dumps(result)) == result, name
        assert any(isinstance(value, int | float) for value in result.values()), name


def test_another_process_builds_the_same_bytes(built: Build, tmp_path: Path) -> None:
    program = "import sys, json, conftest; print(json.dumps(conftest.build_all(sys.argv[1])))"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]),
        "PYTHONHASHSEED": "12345",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "outputs")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    paths, returned = json.loads(done.stdout.splitlines()[-1])
    assert returned == built[1]
    first, second = contents(built[0]), contents(paths)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_build_in_memory_is_the_same(
    built: Build, memory: str, build_project: Callable[[str], Build]
) -> None:
    paths, returned = build_project(memory)
    assert all(path.startswith("memory://") for path in paths.values())
    assert returned == built[1]
    assert contents(paths) == contents(built[0])


def test_dagster_can_load_the_project(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dagster = pytest.importorskip("dagster")
    monkeypatch.setattr(sys, "path", list(sys.path))
    defs = runpy.run_path(str(PROJECT / "definitions.py"))["defs"]
    assert isinstance(defs, dagster.Definitions)
    for asset in defs.assets:
        assert isinstance(asset, dagster.AssetsDefinition)
        assert asset.node_def.retry_policy.max_retries == 2
