"""Words that several families share."""

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
"""Activations by their names in transformers."""


def activation_word(ours: str, gelu_tanh: str = "gelu_pytorch_tanh") -> str:
    """The name in transformers of an activation of ours."""
    return {"gelu_tanh": gelu_tanh}.get(ours, ours)
