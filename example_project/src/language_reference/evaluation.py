"""How well the models predict text, seen and unseen."""

from collections.abc import Mapping

import numpy as np

from language_reference.ngram import NgramModel
from language_reference.storage import join, read_array, read_json, write_json


def evaluate(
    output_path: str, *, models: Mapping[str, str], train: str, validation: str
) -> dict[str, float]:
    """Measures every model's perplexity on the held-out text, and on the text it was trained on.

    Also measures bits per byte which, unlike perplexity, compare between vocabularies.
    """
    tokens = {"train": read_array(join(train, "tokens.npy"))}
    tokens["val"] = read_array(join(validation, "tokens.npy"))
    described = read_json(join(validation, "tokens.json"))
    results: dict[str, dict[str, float]] = {}
    for name, folder in models.items():
        model = NgramModel.load(folder)
        grams = {part: model.grams(ids) for part, ids in tokens.items()}
        nats = {part: -np.log(model.probabilities(grams[part])) for part in grams}
        known = model.tables[-1].count(grams["val"]) > 0
        results[name] = {
            "order": model.order,
            "train_perplexity": round(float(np.exp(nats["train"].mean())), 4),
            "val_perplexity": round(float(np.exp(nats["val"].mean())), 4),
            "val_bits_per_byte": round(
                float(nats["val"].sum() / np.log(2) / described["bytes"]), 4
            ),
            "val_known_ngrams": round(float(known.mean()), 4),
        }
    metrics = {
        "vocabulary": described["vocabulary"],
        "train_tokens": len(tokens["train"]),
        "val_tokens": len(tokens["val"]),
        "val_documents": described["documents"],
        "models": results,
    }
    write_json(join(output_path, "metrics.json"), metrics)
    return {
        f"{measure}/{name}": result[measure]
        for name, result in results.items()
        for measure in ("val_perplexity", "train_perplexity", "val_bits_per_byte")
    }
