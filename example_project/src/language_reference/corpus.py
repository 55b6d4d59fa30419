"""From the topics of Python's `help()` to training and validation documents."""

import hashlib
import json
import re
from collections.abc import Mapping
from pydoc_data.topics import topics

from language_reference.storage import join, list_files, read_jsonl, write_jsonl

TRAIN, VALIDATION = "train", "val"


def topics_digest() -> str:
    """A digest of the source text: another Python has another text, and so another corpus."""
    return hashlib.sha256(json.dumps(topics, sort_keys=True).encode("utf-8")).hexdigest()


def write_corpus(
    output_path: str, *, topics_sha256: str, shards: int, minimum_passage: int
) -> dict[str, float]:
    """Writes Python's language reference as sharded JSONL, one document per topic.

    Long topics quote short ones in full; a passage stays only in the shortest topic with it.
    """
    # Another interpreter than this one may have loaded the graph.
    if topics_digest() != topics_sha256:
        raise ValueError(
            "This Python's topics differ from those that are in the step's hash. Run the step with "
            "the Python that loads the graph."
        )
    texts = keep_distinct_passages(topics, minimum_passage=minimum_passage)
    documents = [{"topic": topic, "text": texts[topic]} for topic in sorted(texts)]
    for shard in range(shards):
        name = f"documents-{shard:05d}-of-{shards:05d}.jsonl"
        write_jsonl(join(output_path, name), documents[shard::shards])
    characters = sum(map(len, texts.values()))
    return {
        "topics": len(topics),
        "documents": len(documents),
        "characters": characters,
        "duplicate_share": round(1 - characters / sum(map(len, topics.values())), 4),
    }


def split_corpus(
    output_path: str, *, corpus: str, seed: int, validation_share: float
) -> dict[str, float]:
    """Deals the documents into training and validation by a seeded hash of their topic's name.

    A topic keeps its side when others come or go.
    """
    documents = [record for path in list_files(corpus, ".jsonl") for record in read_jsonl(path)]
    parts: dict[str, list[dict[str, str]]] = {TRAIN: [], VALIDATION: []}
    for document in sorted(documents, key=lambda record: record["topic"]):
        held_out = is_held_out(document["topic"], seed=seed, share=validation_share)
        parts[VALIDATION if held_out else TRAIN].append(document)
    for part, members in parts.items():
        if not members:
            raise ValueError(f"No document falls into {part!r}: change the seed or the share.")
        write_jsonl(join(output_path, f"{part}.jsonl"), members)
    characters = {part: sum(len(d["text"]) for d in parts[part]) for part in parts}
    return {
        "train_documents": len(parts[TRAIN]),
        "val_documents": len(parts[VALIDATION]),
        "val_text_share": round(characters[VALIDATION] / sum(characters.values()), 4),
    }


def keep_distinct_passages(texts: Mapping[str, str], *, minimum_passage: int) -> dict[str, str]:
    """The texts without the passages that a shorter text already contains.

    Without this, the same passage could be in both parts of the split, and the models would score
    well by memory alone. Passages (lines between blank lines) shorter than `minimum_passage`
    characters may repeat: they are phrases such as "See also:". A text that has no longer passage
    left is a copy of others, and is dropped.
    """
    seen: set[str] = set()
    distinct: dict[str, str] = {}
    for name in sorted(texts, key=lambda name: (len(texts[name]), name)):
        kept: list[str] = []
        longest = 0
        for passage in re.split(r"\n\s*\n", texts[name]):
            words = " ".join(passage.split())  # the same passage may be wrapped differently
            if len(words) >= minimum_passage and words in seen:
                continue
            seen.add(words)
            kept.append(passage)
            longest = max(longest, len(words))
        if longest >= minimum_passage:
            distinct[name] = "\n\n".join(kept)
    return distinct


def is_held_out(topic: str, *, seed: int, share: float) -> bool:
    """Whether a topic belongs to the validation documents, of which there are about `share`."""
    # Python's own `hash` differs from process to process.
    digest = hashlib.sha256(f"{seed}:{topic}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64
