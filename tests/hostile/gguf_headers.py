"""GGUF files: counts, lengths, types, strings, offsets; and metadata of other types and sizes."""

import json
import struct
from collections.abc import Iterator, Mapping
from functools import cache
from random import Random
from typing import Any

from hostile.bases import tensors, tokenizer
from hostile.case import Case
from hostile.mutations import bytes_of
from hostile.strings import word

_COMMANDS = (("info", "x.gguf"), ("info", "x.gguf"), ("trace", "a", "-m", "x.gguf"), ("tokens", "a cat", "-m",
             "x.gguf"),
             ("models", "."))  # fmt: skip
_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_HUGE = (0, 1, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)
_VALUES = (0, 1, -1, 3, 2**31, 2**40, 0.0, -1.5, float("nan"), float("inf"), 1e38, True, "", "x", "llama",
           "qwen2", [], [0],
           ["a"] * 3, [-1] * 300, [1.5] * 300, [True])  # fmt: skip

Header = tuple[dict[str, Any], dict[str, tuple[tuple[int, ...], int, bytes]]]
"""Metadata; and of each tensor its sizes with the innermost first, its type, and its data."""


@cache
def _keys() -> Mapping[str, Any]:
    learned = json.loads(tokenizer().to_json())["model"]
    tokens = sorted(learned["vocab"], key=learned["vocab"].get)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in learned["merges"]]
    sizes = {"context_length": 32, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8,
             "attention.head_count": 2, "attention.head_count_kv": 2, "vocab_size": len(tokens)}  # fmt: skip
    return {
        "general.architecture": "llama", "general.name": "small", **{f"llama.{key}": n for key, n in sizes.items()},
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 10_000.0,
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, *[1] * (len(tokens) - 1)], "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0,
    }  # fmt: skip


def _sound() -> Header:
    stored = {}
    for name, tensor in tensors().items():
        module, _, kind = name.rpartition(".")
        *layers, inside = module.split(".", 3) if ".layers." in module else [module]
        named = _NAMES.get(inside, inside)
        stored[f"blk.0.{named}.{kind}" if layers else f"{named}.{kind}"] = (
            tuple(tensor.shape[::-1]), 0, tensor.numpy().tobytes(),
        )  # fmt: skip
    return dict(_keys()), stored


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> tuple[int, bytes]:
    """The number of a value's type, and its bytes."""
    match value:
        case bool():
            return 7, struct.pack("<?", value)
        case int():
            return (4, struct.pack("<I", value)) if 0 <= value < 2**32 else (11, struct.pack("<q", value))
        case float():
            return 6, struct.pack("<f", value)
        case str():
            return 8, _string(value)
    kinds = [_value(one) for one in value] or [(4, b"")]
    return 9, struct.pack("<IQ", kinds[0][0], len(value)) + b"".join(data for _, data in kinds)


def _written(rng: Random, header: Header, hostile: bool) -> bytes:
    """The file; a ``hostile`` one has a count, a length or an offset that is not so."""
    keys, stored = header
    odd = rng.randrange(12) if hostile else -1
    counts = [rng.choice(_HUGE) if odd == n else true for n, true in enumerate((len(stored), len(keys)))]
    made = (b"GGUF" if odd != 2 else rng.randbytes(4)) + struct.pack("<I", rng.choice(_HUGE[:7]) if odd == 3 else 3)
    made += struct.pack("<QQ", *counts)
    chosen = rng.choice(list(keys))
    for key, value in keys.items():
        kind, data = _value(value)
        if odd == 4 and key == chosen:
            kind = rng.choice((*range(14), 2**32 - 1))
        if odd == 5 and key == chosen and kind in (8, 9):
            at = 0 if kind == 8 else 4
            data = data[:at] + struct.pack("<Q", rng.choice(_HUGE)) + data[at + 8 :]
        made += _string(key) + struct.pack("<I", kind) + data
        if odd == 6 and key == chosen:
            made += _string(key) + struct.pack("<I", kind) + data
    offset, chosen = 0, rng.choice(list(stored))
    for name, (sizes, kind, data) in stored.items():
        strange = name == chosen
        if odd == 7 and strange:
            sizes = rng.choice(((), (0,), (1,) * 5, (2**33, 2**33), (2**63, 2), (3,), sizes[::-1], (*sizes, 1)))
        kind = rng.choice((*range(45), 2**31)) if odd == 8 and strange else kind
        place = rng.choice(_HUGE) if odd == 9 and strange else offset
        count = rng.choice(_HUGE[:7]) if odd == 10 and strange else len(sizes)
        made += _string(name) + struct.pack(f"<I{len(sizes)}QIQ", count, *sizes, kind, place)
        offset += len(data) + -len(data) % 32
    made += b"\0" * (-len(made) % 32)
    return made + b"".join(data + b"\0" * (-len(data) % 32) for _, _, data in stored.values())


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"gguf {seed}")
    for _ in range(count):
        header = _sound()
        about, hostile = _changed(rng, header), bool(rng.randrange(3))
        data = _written(rng, header, hostile)
        if not rng.randrange(4):
            about, data = bytes_of(rng, data, len(data) - 8_000)
        yield Case(about, rng.choice(_COMMANDS), {"x.gguf": data})


def _changed(rng: Random, header: Header) -> str:
    """Change one entry or one tensor, or none; and say which."""
    keys, stored = header
    key, name = rng.choice(list(keys)), rng.choice(list(stored))
    match rng.randrange(7):
        case 0:
            del keys[key]
            return f"without {key}"
        case 1 | 2:
            keys[key] = rng.choice((*_VALUES, word(rng), [word(rng)] * 3))
            return f"{key} = {keys[key]!a:.60}"
        case 3 if isinstance(keys[key], list):
            entries = list(keys[key])
            entries[rng.randrange(len(entries))] = (
                rng.choice(entries)
                if rng.randrange(2)
                else type(entries[0])(word(rng)[:1] or 0)
                if isinstance(entries[0], str)
                else -7
            )
            keys[key] = entries
            return f"one of {key}"
        case 4:
            stored[word(rng)] = stored.pop(name)
            return f"renamed {name}"
        case 5:
            del stored[name]
            return f"without {name}"
        case 6:
            keys["tokenizer.chat_template"] = rng.choice(
                ("{{ 1/0 }}", "{% for i in range(10**9) %}{% endfor %}", word(rng))
            )
            keys[f"llama.{word(rng)}"] = rng.choice(_VALUES)
            return "more keys"
    return "as it is"
