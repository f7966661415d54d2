"""Small models of every kind, with a vocabulary of the texts."""

from architectures import config_of, lively

from tinytf.loading import Model
from tinytf.text.train import train_bpe, train_wordpiece

TEXT, OTHER = "The cat sat on the mat", "A dog ran away from the big red cat"
CORPUS = [f"{TEXT}. {OTHER}. " * 4]


def small(kind: str) -> Model:
    config = config_of(kind)
    tokenizer = train_bpe(CORPUS, 290) if config.causal else train_wordpiece(CORPUS, 110)
    return Model(
        kind, lively(config_of(kind, vocab_size=tokenizer.vocab_size, context=64)), tokenizer, "random weights"
    )
