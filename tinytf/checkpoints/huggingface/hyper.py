"""The keys and tensors of hyper-connections, as DeepSeek-V4, Hunyuan 4 and GLM-5.3 store them."""

from typing import Any

from tinytf.checkpoints.table import Draft, Group, Key, Stored, Tensors
from tinytf.fields import Fields


def _read_streams(fields: Fields, draft: Draft, tensors: Tensors) -> dict[str, Any]:
    return {"hyper": True, "extra_streams": fields.whole("hc_mult", 4, least=2) - 1}


STREAMS = (
    Group(_read_streams, lambda config: {"hc_mult": config.extra_streams + 1}),
    Key("hc_eps", "hyper_eps", 1e-6),
)
"""The number of streams, and the ε of their weights."""


def _weights(ours: str, theirs: str, **called: str) -> dict[str, Stored]:
    """The matrices, biases and scales of weights with these axes, each kind joined into one tensor."""
    stored, axes = {}, tuple(called.values())
    for part, name in enumerate(called):
        where: dict[str, Any] = {"part": part, "bare": True}
        stored[f"{ours}.{name}_scores"] = Stored(f"{theirs}fn", bias=f"{theirs}base", parts=axes, **where)
        stored[f"{ours}.{name}_scaled"] = Stored(f"{theirs}scale", parts=("switch",) * len(axes), **where)
    return stored


def connections(attention: str, feed_forward: str, last: str = "", *, mixed: bool = True) -> dict[str, Stored]:
    """The weights that read, write and, where they are ``mixed``, mix the streams, whose names begin so.

    ``last`` are those after the last layer; it is empty where the streams are averaged.
    """
    axes = {"read": "stream", "written": "stream", **({"mixed": "stream·stream"} if mixed else {})}
    return {
        **_weights("blocks.{n}.hyper1", attention, **axes),
        **_weights("blocks.{n}.hyper2", feed_forward, **axes),
        **(_weights("final_norm", last, read="stream") if last else {}),
        "final_norm.norm": Stored("norm"),
    }
