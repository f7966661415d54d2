"""A llama written once more in plain numpy, as somebody ports a model, and the mistakes that ports have.

It reads the files that transformers wrote, knows nothing of tinytf, and writes down what it computes under names of
its own. ``mistake`` is one of ``MISTAKES``, of which the first step that has other numbers is known.
"""

import json
import math
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

erf = np.vectorize(math.erf)

Array = np.ndarray
MISTAKES = {
    "rotary base": ("L0.q_rot", "a rotary base of 1,000 instead of 10,000"),
    "eps": ("L0.norm1", "eps 0.0009 instead of 3e-05"),
    "q and k permuted": ("L0.q", "the rows of each head in pairs"),
    "matrices swapped": ("L1.ffn.hidden", "the numbers of L1.ffn.gate"),
    "o_proj transposed": ("L0.attn", "the matrix is transposed"),
    "head order": ("L0.scores", "shared key heads go to query heads in turns"),
    "bias missing": ("L0.q", "the bias is left out"),
    "tanh gelu": ("L0.ffn.act", "the activation is GELU(tanh)"),
    "positions from one": ("L0.q_rot", "positions start at 1"),
    "mask by less": ("L0.masked", "the mask hides the token itself"),
}
"""The first step that has other numbers, and the cause."""


def llama(folder: Path, ids: list[int], mistake: str = "") -> dict[str, Array]:
    """Every number of a forward pass, by name; matrices of transformers are (out, in)."""
    config = json.loads((folder / "config.json").read_text())
    w = {name: one.astype(np.float64) for name, one in load_file(folder / "model.safetensors").items()}
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    width, eps = config["hidden_size"] // heads, config["rms_norm_eps"] * (30 if mistake == "eps" else 1)
    base = config["rope_parameters"]["rope_theta"] / (10 if mistake == "rotary base" else 1)
    count = len(ids)
    out: dict[str, Array] = {}

    def linear(x: Array, name: str, *, transposed: bool = False) -> Array:
        matrix, bias = w[f"{name}.weight"], w.get(f"{name}.bias", 0)
        if mistake == "bias missing" and "q_proj" in name:
            bias = 0
        return x @ (matrix if transposed else matrix.T) + bias

    def norm(x: Array, name: str) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"]

    def rotate(x: Array) -> Array:
        """Turn the halves of each head (H, T, D) by the position."""
        places = np.arange(count) + (mistake == "positions from one")
        angles = places[:, None] * base ** (-np.arange(0, width, 2) / width)
        a, b = x[..., : width // 2], x[..., width // 2 :]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    def split(x: Array, number: int) -> Array:
        return x.reshape(count, number, width).swapaxes(0, 1)

    def permuted(x: Array) -> Array:
        """The order of rows of Meta's files and of GGUF: pairs instead of halves."""
        return x.reshape(*x.shape[:-1], 2, width // 2).swapaxes(-1, -2).reshape(x.shape)

    def back(x: Array) -> Array:
        return x.reshape(*x.shape[:-1], width // 2, 2).swapaxes(-1, -2).reshape(x.shape)

    def gelu(x: Array) -> Array:
        if mistake == "tanh gelu":
            return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return x / 2 * (1 + erf(x / np.sqrt(2)))

    x = w["model.embed_tokens.weight"][ids]
    out["embed.out"] = x
    for layer in range(config["num_hidden_layers"]):
        at, here = f"model.layers.{layer}", f"L{layer}."
        n = out[here + "norm1"] = norm(x, f"{at}.input_layernorm")
        q = split(linear(n, f"{at}.self_attn.q_proj"), heads)
        k = split(linear(n, f"{at}.self_attn.k_proj"), shared)
        v = split(linear(n, f"{at}.self_attn.v_proj"), shared)
        if mistake in ("q and k permuted", "no mistake but other rows"):
            q, k = permuted(q), permuted(k)
        out |= {here + "q": q, here + "k": k, here + "v": v}
        if mistake == "no mistake but other rows":
            q, k = (permuted(rotate(back(one))) for one in (q, k))
        else:
            q, k = rotate(q), rotate(k)
        out |= {here + "q_rot": q, here + "k_rot": k}
        repeat = np.tile if mistake == "head order" else lambda x, by: x.repeat(by[0], axis=0)
        k, v = (repeat(one, (heads // shared, 1, 1)) for one in (k, v))
        scores = out[here + "scores"] = q @ k.swapaxes(-1, -2)
        scores = out[here + "scaled"] = scores / np.sqrt(width)
        query, key = np.indices((count, count))
        seen = key < query if mistake == "mask by less" else key <= query
        scores = out[here + "masked"] = np.where(seen, scores, -1e30 if mistake == "mask by less" else -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        weights = out[here + "weights"] = e / e.sum(-1, keepdims=True)
        mixed = out[here + "head_out"] = weights @ v
        joined = out[here + "concat"] = mixed.swapaxes(0, 1).reshape(count, -1)
        attended = linear(joined, f"{at}.self_attn.o_proj", transposed=mistake == "o_proj transposed")
        out[here + "attn"] = attended
        x = out[here + "mid"] = x + attended
        n = out[here + "norm2"] = norm(x, f"{at}.post_attention_layernorm")
        gate, up = "gate_proj", "up_proj"
        if mistake == "matrices swapped" and layer == 1:
            gate, up = up, gate
        hidden = out[here + "ffn.hidden"] = linear(n, f"{at}.mlp.{up}")
        gated = out[here + "ffn.gate"] = linear(n, f"{at}.mlp.{gate}")
        act = out[here + "ffn.act"] = gelu(gated) * hidden
        fed = out[here + "ffn"] = linear(act, f"{at}.mlp.down_proj")
        x = out[here + "out"] = x + fed
    x = out["final.norm"] = norm(x, "model.norm")
    out["logits"] = x @ w["lm_head.weight"].T
    return out
