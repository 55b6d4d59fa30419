"""From text to token ids, with a byte-pair encoding learnt from the training documents."""

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from language_reference.corpus import TRAIN
from language_reference.storage import (
    join,
    read_jsonl,
    read_text,
    write_array,
    write_json,
    write_text,
)

END_OF_TEXT = "<|endoftext|>"


def train_tokenizer(output_path: str, *, split: str, vocabulary_size: int) -> dict[str, float]:
    """Learns a byte-level BPE vocabulary from the training documents alone."""
    texts = [document["text"] for document in read_jsonl(join(split, f"{TRAIN}.jsonl"))]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        # All 256 bytes, so that no text whatever is out of vocabulary.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    write_text(join(output_path, "tokenizer.json"), tokenizer.to_str(pretty=True))
    return {"vocabulary": tokenizer.get_vocab_size(), "training_documents": len(texts)}


def tokenize_split(output_path: str, *, split: str, tokenizer: str, part: str) -> dict[str, float]:
    """Encodes one side of the split as one array of token ids, with a mark after each document.

    `tokens.json` has the numbers that a model needs to read the array.
    """
    encoder = load_tokenizer(tokenizer)
    end = encoder.token_to_id(END_OF_TEXT)
    texts = [document["text"] for document in read_jsonl(join(split, f"{part}.jsonl"))]
    ids = [token for text in texts for token in [*encoder.encode(text).ids, end]]
    size = encoder.get_vocab_size()
    write_array(join(output_path, "tokens.npy"), np.array(ids, dtype=np.min_scalar_type(size - 1)))
    text_bytes = sum(len(text.encode("utf-8")) for text in texts)
    description = {
        "documents": len(texts),
        "tokens": len(ids),
        "bytes": text_bytes,
        "vocabulary": size,
        "end_of_text": end,
    }
    write_json(join(output_path, "tokens.json"), description)
    return {
        "documents": len(texts),
        "tokens": len(ids),
        "bytes": text_bytes,
        "bytes_per_token": round(text_bytes / len(ids), 4),
    }


def load_tokenizer(folder: str) -> Tokenizer:
    """The tokenizer that `train_tokenizer` left in a folder."""
    return Tokenizer.from_str(read_text(join(folder, "tokenizer.json")))
