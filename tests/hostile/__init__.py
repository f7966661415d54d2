"""What comes from outside, in every wrong way that a generator can think of; and the promise that is held."""

CLASSES = ("texts", "options", "configs", "weights", "examples", "strange", "gguf_headers", "pickles", "recipes", "dumps", "runs", "sessions",
           "environments")  # fmt: skip
