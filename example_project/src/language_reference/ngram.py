"""N-gram language models with interpolated Kneser-Ney smoothing.

An n-gram is kept as one integer, its token ids being the digits in base `vocabulary_size`. So the
context of a gram is `gram // size`, its last k tokens are `gram % size**k`, and a table of grams
is a sorted array for binary search.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from language_reference.storage import join, read_array, read_json, write_array, write_json

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def train_ngram(output_path: str, *, tokens: str, order: int) -> dict[str, float]:
    """Counts the n-grams of the training tokens and fits an interpolated Kneser-Ney model."""
    description = read_json(join(tokens, "tokens.json"))
    model = NgramModel.train(
        read_array(join(tokens, "tokens.npy")),
        order=order,
        vocabulary_size=description["vocabulary"],
        boundary=description["end_of_text"],
    )
    model.save(output_path)
    longest = model.tables[-1]
    return {
        "order": order,
        "tokens": description["tokens"],
        "distinct_ngrams": len(longest.grams),
        "distinct_contexts": len(longest.contexts),
        "discount": round(longest.discount, 4),
    }


class GramTable:
    """The n-grams of one length, with their counts, and numbers of their contexts for smoothing."""

    def __init__(self, grams: Integers, counts: Integers, vocabulary_size: int) -> None:
        self.grams = grams
        self.counts = counts
        self.vocabulary_size = vocabulary_size
        # The grams are sorted, so those that share a context are adjacent.
        self.contexts, first = np.unique(grams // vocabulary_size, return_index=True)
        self.totals = np.add.reduceat(counts, first)
        self.continuations = np.diff(first, append=len(grams))
        # Ney's estimate n1 / (n1 + 2 n2) from the numbers of grams seen once and twice. The added
        # constants keep it strictly between 0 and 1 on any input, however small.
        once, twice = int(np.sum(counts == 1)), int(np.sum(counts == 2))
        self.discount = (once + 1) / (once + 2 * twice + 2)

    def interpolate(self, grams: Integers, shorter: Floats) -> Floats:
        """P(last token | context) of each gram, `shorter` being the same with a shorter context.

        Each seen gram gives up `discount` of its count. The sum for a context is distributed over
        the whole vocabulary in proportion to `shorter`. An unseen context has `shorter` itself.
        """
        row, seen = _find(self.contexts, grams // self.vocabulary_size)
        collected = self.discount * self.continuations[row] * shorter
        kept = np.maximum(self.count(grams) - self.discount, 0.0)
        return np.where(seen, (kept + collected) / self.totals[row], shorter)

    def count(self, grams: Integers) -> Integers:
        """The count of each gram, 0 where the table has none."""
        row, seen = _find(self.grams, grams)
        return np.where(seen, self.counts[row], 0)


@dataclass(frozen=True)
class NgramModel:
    """P(token | the `order` - 1 tokens before it), with one table of grams per length from 1 on."""

    vocabulary_size: int
    boundary: int
    tables: Sequence[GramTable]

    @property
    def order(self) -> int:
        return len(self.tables)

    @classmethod
    def train(
        cls, tokens: npt.NDArray[np.integer], *, order: int, vocabulary_size: int, boundary: int
    ) -> Self:
        """Fits a model on token ids; `boundary` is the id that closes a document."""
        if len(tokens) == 0:
            raise ValueError("There are no tokens to train a model on.")
        grams, counts = np.unique(
            _grams(tokens, order, vocabulary_size, boundary), return_counts=True
        )
        tables = [GramTable(grams, counts, vocabulary_size)]
        for length in range(order - 1, 0, -1):
            # Kneser and Ney: the count of a shorter gram is the number of different tokens before
            # it, instead of the number of its occurrences.
            grams, counts = np.unique(grams % vocabulary_size**length, return_counts=True)
            tables.insert(0, GramTable(grams, counts, vocabulary_size))
        return cls(vocabulary_size, boundary, tables)

    def grams(self, tokens: npt.NDArray[np.integer]) -> Integers:
        """The gram that ends at each token, as the integer that the tables know it by."""
        return _grams(tokens, self.order, self.vocabulary_size, self.boundary)

    def probabilities(self, grams: Integers) -> Floats:
        """P(last token | context) of each gram."""
        result = np.full(len(grams), 1 / self.vocabulary_size)
        for length, table in enumerate(self.tables, start=1):
            result = table.interpolate(grams % self.vocabulary_size**length, result)
        return result

    def distribution(self, context: Sequence[int]) -> Floats:
        """P(token | context) for every token of the vocabulary."""
        every = np.arange(self.vocabulary_size)
        longest = np.array([*context, 0])
        return self.probabilities(self.grams(longest)[-1] + every)

    def save(self, folder: str) -> None:
        """Writes the model to a folder: a description, and one array of grams and counts each."""
        description = {
            "order": self.order,
            "vocabulary": self.vocabulary_size,
            "boundary": self.boundary,
            "discounts": [round(table.discount, 6) for table in self.tables],
        }
        write_json(join(folder, "model.json"), description)
        for length, table in enumerate(self.tables, start=1):
            array = np.stack([table.grams, table.counts])
            write_array(join(folder, f"grams-{length}.npy"), array)

    @classmethod
    def load(cls, folder: str) -> Self:
        """The model that `save` left in a folder."""
        description = read_json(join(folder, "model.json"))
        size = description["vocabulary"]
        arrays = [
            read_array(join(folder, f"grams-{length}.npy"))
            for length in range(1, description["order"] + 1)
        ]
        tables = [GramTable(grams, counts, size) for grams, counts in arrays]
        return cls(size, description["boundary"], tables)


def _grams(
    tokens: npt.NDArray[np.integer], order: int, vocabulary_size: int, boundary: int
) -> Integers:
    """The gram that ends at each token; before the first token stand boundaries."""
    if order < 1 or vocabulary_size**order > np.iinfo(np.int64).max:
        raise ValueError(f"{order}-grams of {vocabulary_size} tokens do not fit 64-bit integers.")
    padded = np.concatenate([np.full(order - 1, boundary), tokens]).astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, order)
    result: Integers = windows @ vocabulary_size ** np.arange(order - 1, -1, -1)
    return result


def _find(table: Integers, wanted: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """For each wanted value a row of the sorted table, and whether the value is really there."""
    row = np.minimum(np.searchsorted(table, wanted), len(table) - 1)
    return row, table[row] == wanted
