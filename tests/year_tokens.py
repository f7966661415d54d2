"""A tokenizer in which two digits of a year are one token, as in GPT-2; the built-in models have a token a digit."""

from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers


def two_digits(path: Path) -> Tokenizer:
    """Write such a tokenizer, byte-level BPE, to a tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Split(Regex(r"\d{2}"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, levels])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([f"{number:02}" for number in range(100)] * 2, trainer)
    tokenizer.save(str(path))
    return tokenizer
