"""What comes from outside, in every wrong way that a generator can think of; and the promise that is held."""

CLASSES = (
    "texts", "options", "configs", "weights", "gguf_headers", "pickles", "recipes", "examples", "dumps", "runs",
    "sessions", "strange", "environments",
)  # fmt: skip
