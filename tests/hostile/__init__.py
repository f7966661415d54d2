"""What comes from outside, in every wrong way that a generator can think of; and the promise that is held."""

CLASSES = (
    "texts", "options", "configs", "weights", "gguf_headers", "pickles", "recipes", "examples", "dumps", "runs",
    "sessions", "strange", "environments", "tokenizers", "token_ids", "numbers", "records", "caches",
)  # fmt: skip
SHARE = {"tokenizers": 5, "caches": 50}
"""Of some classes the gate makes one try in so many: each of theirs starts processes, or trains."""
