"""The graph: what is built from what, and with which attributes.

The dictionaries below are both the arguments of a step's function and the attributes that enter
its hash, so the two cannot drift apart. Change a value, and that step and all that depends on it
get new output paths; everything else stays as it is.
"""

import sys
from functools import partial
from typing import Any

from language_reference.corpus import TRAIN, VALIDATION, split_corpus, topics_digest, write_corpus
from language_reference.evaluation import evaluate
from language_reference.ngram import train_ngram
from language_reference.report import write_report
from language_reference.tokenizing import tokenize_split, train_tokenizer
from marin_dagster import ResourceConfig, StepSpec

CORPUS: dict[str, Any] = {
    "topics_sha256": topics_digest(),
    "shards": 8,
    "minimum_passage": 40,
}
# Topics differ much in length: with this seed a fifth of them is about 15 % of the text.
SPLIT: dict[str, Any] = {"seed": 6, "validation_share": 0.2}
TOKENIZER: dict[str, Any] = {"vocabulary_size": 2048}
ORDERS = (2, 3, 4)


def build_steps() -> list[StepSpec]:
    """Every step of the project, each after the steps that it reads."""
    corpus = StepSpec(
        name="corpus",
        hash_attrs={"python": f"{sys.version_info.major}.{sys.version_info.minor}", **CORPUS},
        fn=partial(write_corpus, **CORPUS),
    )
    split = StepSpec(
        name="split",
        deps=[corpus],
        hash_attrs=SPLIT,
        fn=partial(split_corpus, corpus=corpus.output_path, **SPLIT),
    )
    tokenizer = StepSpec(
        name="tokenizer",
        deps=[split],
        hash_attrs=TOKENIZER,
        fn=partial(train_tokenizer, split=split.output_path, **TOKENIZER),
    )
    tokenized = {
        part: StepSpec(
            name=f"tokenized/{part}",
            deps=[split, tokenizer],
            hash_attrs={"part": part},
            fn=partial(
                tokenize_split,
                split=split.output_path,
                tokenizer=tokenizer.output_path,
                part=part,
            ),
        )
        for part in (TRAIN, VALIDATION)
    }
    models = [
        StepSpec(
            name=f"models/ngram-{order}",
            deps=[tokenized[TRAIN]],
            hash_attrs={"order": order},
            fn=partial(train_ngram, tokens=tokenized[TRAIN].output_path, order=order),
            # Only the largest model asks for more than the default.
            resources=ResourceConfig.with_cpu(cpu=2, ram="2g") if order == max(ORDERS) else None,
        )
        for order in ORDERS
    ]
    evaluation = StepSpec(
        name="evaluate",
        deps=[*models, *tokenized.values()],
        fn=partial(
            evaluate,
            models={model.name.removeprefix("models/"): model.output_path for model in models},
            train=tokenized[TRAIN].output_path,
            validation=tokenized[VALIDATION].output_path,
        ),
    )
    report = StepSpec(
        name="report",
        deps=[evaluation],
        fn=partial(write_report, evaluation=evaluation.output_path),
    )
    return [corpus, split, tokenizer, *tokenized.values(), *models, evaluation, report]
