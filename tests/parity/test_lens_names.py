"""A name of TransformerLens of a model whose files turn neighbours by RoPE: as transformers computes it."""

import numpy as np
import pytest
import torch
from architectures import enliven
from reference import FAMILIES

import tinytf
from tinytf.errors import AddressError

IDS = [7, 3, 12, 40, 5, 5, 9]


def rotated(x: np.ndarray, width: int) -> np.ndarray:
    """(T, H, D) with the pairs (0, 1), (2, 3) … of the first ``width`` turned by RoPE."""
    angles = np.arange(len(x))[:, None] * 10_000.0 ** (-np.arange(0, width, 2) / width)  # (T, width / 2)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    even, odd = x[..., 0:width:2], x[..., 1:width:2]
    turned = np.stack([even * cos - odd * sin, odd * cos + even * sin], axis=-1).reshape(*x.shape[:-1], width)
    return np.concatenate([turned, x[..., width:]], axis=-1)


@torch.no_grad()
def test_queries_and_keys_lie_as_in_the_files_of_the_model() -> None:
    theirs = FAMILIES["gpt-j"]().eval()
    enliven(theirs, 7)
    model = tinytf.load(theirs)
    seen: dict[str, np.ndarray] = {}
    attention, config = theirs.transformer.h[1].attn, model.config
    for name in ("q", "k", "v"):
        keep = lambda module, args, out, name=name: seen.update({name: out[0].double().numpy()})  # noqa: E731
        getattr(attention, f"{name}_proj").register_forward_hook(keep)
    theirs(torch.tensor([IDS]))
    trace = model.trace(ids=IDS)
    for name, values in seen.items():
        heads = values.reshape(len(IDS), config.n_heads, config.d_head)
        np.testing.assert_allclose(trace[f"blocks.1.attn.hook_{name}"], heads, atol=1e-5)
        if name != "v":
            ours = trace[f"blocks.1.attn.hook_rot_{name}"]
            np.testing.assert_allclose(ours, rotated(heads, theirs.config.rotary_dim), atol=1e-5)
    with pytest.raises(AddressError, match="different numbers or axes there"):
        trace["blocks.1.attn.hook_attn_scores"]
