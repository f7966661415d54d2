"""The lessons by number, name and title; without torch, so that a list of them costs nothing."""

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean

TITLES: dict[str, str] = {
    "tokens": "a text becomes pieces with numbers",
    "embeddings": "each piece becomes a vector",
    "positions": "where a token stands",
    "qkv": "what a token asks, offers and passes on",
    "scores": "how well a query fits each key",
    "scaling": "keeping the scores small",
    "mask": "who may look at whom",
    "softmax": "scores become shares",
    "values": "the shares mix what the tokens pass on",
    "heads": "several attentions side by side",
    "concat": "the heads are put together again",
    "residual": "what is found is added",
    "norm": "every token on the same scale",
    "feed-forward": "each token thinks for itself",
    "stack": "the same block again and again",
    "logits": "a number for every token there is",
    "sampling": "one token is chosen",
    "cache": "what is known is not computed again",
    "loss": "how wrong a prediction was",
    "backward": "which way each number should move",
    "optimiser": "the weights take a step",
}
"""In the order of the pipeline; a lesson's number is its place here, from 1."""

NAMES = tuple(TITLES)
_ALSO = {"q/k/v": "qkv", "ffn": "feed-forward", "optimizer": "optimiser", "attention": "scores", "adam": "optimiser"}


def find(word: str) -> int:
    """The number of a lesson by its number or name; UsageError with the nearest for what is neither."""
    text = word.strip().casefold()
    text = _ALSO.get(text, text)
    if text in TITLES:
        return NAMES.index(text) + 1
    if text.lstrip("-").isdecimal():
        if len(text) <= 3 and 1 <= int(text) <= len(NAMES):
            return int(text)
        end = 1 if text.startswith("-") or not text.strip("0") else len(NAMES)
        said = f"there is no lesson {text[:12]}: there are {len(NAMES)}, 1 to {len(NAMES)}"
        raise UsageError(said, f"the nearest is {end}, {NAMES[end - 1]}")
    raise UsageError(f"there is no lesson {word!r}", did_you_mean(text, NAMES) or "tinytf learn --list names them all")
