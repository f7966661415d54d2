"""Ports with one fault each, and sound ones: does ``diff`` name the first wrong step, and why it is wrong?

``python tests/parity/broken_ports.py [NAME …]`` prints a table and counts: first step right, a right cause, a wrong
one; with ``--floor``, what is called rounding and what a bug. Each port is a model of transformers (SmolLM2 and Gemma 3
270M, whose files TINYTF_REAL_WEIGHTS holds, a small Qwen3-MoE and a small Qwen3-Next with random weights) in which one
thing is changed, dumped by forward hooks under its module paths.
"""

import copy
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import gguf
import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers import cache_utils
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.llama import modeling_llama
from transformers.models.qwen3_moe import modeling_qwen3_moe
from transformers.models.qwen3_next import modeling_qwen3_next

sys.path += [str(Path(__file__).parents[1])]

from architectures import enliven
from sentences import sentences

import tinytf
from tinytf.checkpoints.gguf.header import read_header
from tinytf.compare.difference import Difference
from tinytf.compare.dumps.passes import open_any
from tinytf.compare.dumps.read import open_dump
from tinytf.loading import Model

_LATER = 5
"""The passes of a generation after that over the prompt."""
TEXT = "When the old bridge was closed, the ferry carried everybody across the river, and nobody was late."


@dataclass(frozen=True)
class Both:
    """A model of transformers and the same one opened by tinytf."""

    theirs: Any
    ours: Model
    ids: tuple[int, ...]


Patch = Callable[[Any, str, Any], None]
"""Sets an attribute of an object until the port has run."""


@dataclass(frozen=True)
class Port:
    """One fault: ``broken`` changes the model, ``first`` is the step that is wrong first, ``cause`` what is wrong.

    ``cause`` is a regular expression; empty where the numbers cannot tell, so that only a step is to be named.
    ``first`` may name several steps, where a dump of modules cannot tell them apart. A ``generated`` text is read in
    several passes with a cache; other arguments of the later ones are of the position of their token.
    """

    model: str
    broken: Callable[[Any, Patch], None]
    first: str
    cause: str = ""
    text: str = TEXT
    dumped: Callable[[dict[str, Any]], dict[str, Any]] = field(default=lambda found: found)
    generated: bool = False


def _real(pattern: str) -> Path:
    found = sorted(Path(os.environ.get("TINYTF_REAL_WEIGHTS", os.devnull)).rglob(pattern))
    if not found:
        raise SystemExit(f"TINYTF_REAL_WEIGHTS names no folder with {pattern}")
    return found[0]


def _weights(path: Path, arch: Any, empty: nn.Module, layers: int, turned: dict[str, int]) -> dict[str, Tensor]:
    """The weights of a GGUF file as transformers has them; ``turned`` matrices lie in pairs, with so many heads."""
    header, names, state = read_header(path), gguf.get_tensor_name_map(arch, layers), {}
    for name, parameter in empty.named_parameters():
        tensor = header.tensors[names.get_name(name, try_suffixes=(".weight",))]
        stored = np.fromfile(path, np.uint8, tensor.n_bytes, offset=tensor.start)
        numbers = torch.from_numpy(gguf.quants.dequantize(stored, tensor.kind)).view(parameter.shape)
        for part, heads in turned.items():
            if part in name:  # (H, D/2, 2, C) -> (H, 2, D/2, C)
                numbers = numbers.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        state[name] = numbers
    return state


def _smollm2() -> Both:
    path = _real("SmolLM2-135M-Instruct.Q4_1.gguf")
    said = {name.removeprefix("llama."): value for name, value in read_header(path).metadata.items()}
    config = transformers.LlamaConfig(
        vocab_size=said["vocab_size"],
        hidden_size=said["embedding_length"],
        intermediate_size=said["feed_forward_length"],
        num_hidden_layers=said["block_count"],
        num_attention_heads=said["attention.head_count"],
        num_key_value_heads=said["attention.head_count_kv"],
        max_position_embeddings=said["context_length"],
        rms_norm_eps=said["attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": said["rope.freq_base"]},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(config)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    state = _weights(path, gguf.MODEL_ARCH.LLAMA, empty, config.num_hidden_layers, heads)
    return _both(transformers.LlamaForCausalLM, config, state, path)


def _gemma3() -> Both:
    path = _real("gemma-3-270m.gguf")
    header = read_header(path)
    said = {name.removeprefix("gemma3."): value for name, value in header.metadata.items()}
    base = {"rope_type": "default", "rope_theta": said["rope.freq_base"]}
    config = transformers.Gemma3TextConfig(
        vocab_size=header.tensors["token_embd.weight"].shape[0],
        hidden_size=said["embedding_length"],
        intermediate_size=said["feed_forward_length"],
        num_hidden_layers=said["block_count"],
        num_attention_heads=said["attention.head_count"],
        num_key_value_heads=said["attention.head_count_kv"],
        head_dim=said["attention.key_length"],
        query_pre_attn_scalar=said["attention.key_length"],
        max_position_embeddings=said["context_length"],
        rms_norm_eps=said["attention.layer_norm_rms_epsilon"],
        sliding_window=said["attention.sliding_window"],
        rope_parameters={"full_attention": base, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}},
    )
    with torch.device("meta"):
        empty = transformers.Gemma3ForCausalLM(config)
    state = _weights(path, gguf.MODEL_ARCH.GEMMA3, empty, config.num_hidden_layers, {})
    state = {name: one - 1 if name.endswith("norm.weight") else one for name, one in state.items()}
    return _both(transformers.Gemma3ForCausalLM, config, state, path)


def _both(kind: Any, config: Any, state: dict[str, Tensor], path: Path) -> Both:
    theirs = kind.from_pretrained(
        None, config=config, state_dict=state, attn_implementation="eager", dtype=torch.float32
    ).eval()
    return Both(theirs, tinytf.load(str(path), device="cpu"), ())


_SMALL: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 56,
    "num_experts": 6,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 18,
    "max_position_embeddings": 64,
    "norm_topk_prob": True,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
    "tie_word_embeddings": False,
}


def _small(kind: str, **settings: Any) -> Both:
    torch.manual_seed(11)
    config = getattr(transformers, f"{kind}Config")(**_SMALL, **settings)
    theirs = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    enliven(theirs, 7)
    ids = torch.randint(3, 61, (17,), generator=torch.Generator().manual_seed(3)).tolist()
    return Both(theirs, tinytf.load(theirs), tuple(ids))


@cache
def both(name: str) -> Both:
    """A sound pair, opened once."""
    with torch.no_grad():
        return {
            "smollm2": _smollm2,
            "gemma3": _gemma3,
            "moe": lambda: _small("Qwen3Moe"),
            "hybrid": lambda: _small(
                "Qwen3Next",
                shared_expert_intermediate_size=14,
                layer_types=["linear_attention", "full_attention"] * 2,
                linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=6, linear_value_head_dim=8,
                linear_conv_kernel_dim=3, partial_rotary_factor=0.5,
            ),
        }[name]()  # fmt: skip


@torch.no_grad()
def dumped(model: nn.Module, ids: list[int], **given: Any) -> dict[str, Any]:
    """What every module returns for ``ids``, under its path."""
    found: dict[str, Any] = {}

    def hook(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, out: Any) -> None:
            out = out[0] if isinstance(out, tuple) else out
            if isinstance(out, Tensor):
                found[name] = out.float().numpy()

        return keep

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name]
    found["logits"] = model(torch.tensor([ids]), **given).logits.float().numpy()
    for handle in handles:
        handle.remove()
    return {**found, "input_ids": np.array([ids])}


@torch.no_grad()
def compared(port: Port, dtype: torch.dtype = torch.float32, **settings: Any) -> Difference:
    """Our comparison with what a port writes down, computed in a dtype."""
    pair = both(port.model)
    theirs = copy.deepcopy(pair.theirs)
    ids = list(pair.ids or pair.ours.encode(port.text).ids)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:

        def patch(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        arguments = port.broken(theirs, patch)
        given = {name: of(len(ids)) for name, of in arguments.items()} if isinstance(arguments, dict) else {}
        path = Path(folder) / "port.npz"
        theirs = theirs.to(dtype) if dtype != torch.float32 else theirs
        if port.generated:
            cache, prompt = transformers.DynamicCache(config=theirs.config), len(ids) - _LATER
            for number, (start, end) in enumerate([(0, prompt), *((at, at + 1) for at in range(prompt, len(ids)))]):
                given = {name: of(start) for name, of in arguments.items()} if arguments and number else {}
                found = dumped(theirs, ids[start:end], past_key_values=cache, use_cache=True, **given)
                np.savez(Path(folder) / f"step{number}.npz", **found)
            return pair.ours.diff(None, open_any(folder), **settings)
        np.savez(path, **port.dumped(dumped(theirs, ids, **given)))
        return pair.ours.diff(None, open_dump(path), **settings)


def _each(model: Any, kind: str) -> Iterator[Any]:
    return (module for module in model.modules() if type(module).__name__.endswith(kind))


def _layer(model: Any, number: int) -> Any:
    return model.model.layers[number]


def _moved(path: str, layer: int, other: int) -> Callable[[Any, Patch], None]:
    """The tensor of another layer."""

    def broken(model: Any, patch: Patch) -> None:
        weight = _layer(model, layer).get_submodule(path).weight
        weight.data = _layer(model, other).get_submodule(path).weight.data.clone()

    return broken


def _changed(path: str, layer: int | None, change: Callable[[Tensor], Tensor]) -> Callable[[Any, Patch], None]:
    """A weight, of one layer or of all, through a function."""

    def broken(model: Any, patch: Patch) -> None:
        for number, one in enumerate(model.model.layers):
            if layer in (None, number):
                weight = one.get_submodule(path).weight
                weight.data = change(weight.data)

    return broken


def exchanged(a: str, b: str, layer: int) -> Callable[[Any, Patch], None]:
    def broken(model: Any, patch: Patch) -> None:
        one, other = (_layer(model, layer).get_submodule(path) for path in (a, b))
        one.weight.data, other.weight.data = other.weight.data, one.weight.data

    return broken


def _rounded(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Patch], None]:
    """Every matrix of the blocks, rounded."""

    def broken(model: Any, patch: Patch) -> None:
        for module in model.model.layers.modules():
            if isinstance(module, nn.Linear):
                module.weight.data = change(module.weight.data)

    return broken


def _to(dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    return lambda weight: weight.to(dtype).float()


def _int8_by_row(weight: Tensor) -> Tensor:
    scale = weight.abs().amax(-1, keepdim=True) / 127
    return (weight / scale).round() * scale


def _blocks(kind: Any) -> Callable[[Tensor], Tensor]:
    return lambda weight: torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind))


def _modules(kind: str, **values: Any) -> Callable[[Any, Patch], None]:
    """Attributes of every module of a kind."""

    def broken(model: Any, patch: Patch) -> None:
        for module in _each(model, kind):
            for name, value in values.items():
                setattr(module, name, value(module) if callable(value) else value)

    return broken


def _in(home: Any, name: str, made: Callable[[Any], Any]) -> Callable[[Any, Patch], None]:
    """A function or class of transformers, in another form."""
    return lambda model, patch: patch(home, name, made(getattr(home, name)))


def _base(base: float, which: str = "inv_freq") -> Callable[[Any, Patch], None]:
    def broken(model: Any, patch: Patch) -> None:
        inverse = getattr(model.model.rotary_emb, which)
        inverse.copy_(base ** -(torch.arange(len(inverse)) / len(inverse)))

    return broken


def _given(**values: Callable[[int], Any]) -> Callable[[Any, Patch], Any]:
    """Other arguments of the forward pass, from the count of tokens."""
    return lambda model, patch: values


def _attention(before: Callable[..., tuple[Any, ...]] = lambda *given: given, scaling: float = 1.0) -> Any:
    """Attention with other queries, keys, values or mask, or another scaling."""

    def made(plain: Any) -> Any:
        def attention(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **more: Any) -> Any:
            q, k, v, mask = before(q, k, v, mask)
            more["scaling"] = more.get("scaling", module.scaling) * scaling
            return plain(module, q, k, v, mask, **more)

        return attention

    return made


def _returned(which: int) -> Callable[[Any, Patch], None]:
    """A cache that returns the last key (0) or value (1) of earlier passes in place of a new one."""
    plain = cache_utils.DynamicLayer.update

    def update(layer: Any, keys: Tensor, values: Tensor, *more: Any, **settings: Any) -> tuple[Tensor, ...]:
        both = [*plain(layer, keys, values, *more, **settings)]
        if keys.shape[-2] == 1:
            both[which] = torch.cat((both[which][..., :-1, :], both[which][..., -2:-1, :]), dim=-2)
        return tuple(both)

    return lambda model, patch: patch(cache_utils.DynamicLayer, "update", update)


def _tiled(plain: Any) -> Any:
    return lambda states, times: states.repeat(1, times, 1, 1)


def _rotate_pairs(plain: Any) -> Any:
    def turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any) -> tuple[Tensor, Tensor]:
        cos, sin = (wave[..., : wave.shape[-1] // 2].unsqueeze(1) for wave in (cos, sin))

        def one(x: Tensor) -> Tensor:
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)

        return one(q), one(k)

    return turned


def _skip(path: str, layer: int | None = None, result: Callable[[Any], Any] = lambda args: args[0]) -> Any:
    """A module whose output is replaced: by its input, or by ``result`` of its arguments."""

    def broken(model: Any, patch: Patch) -> None:
        for number, one in enumerate(model.model.layers):
            if layer in (None, number):
                module = one.get_submodule(path)
                plain = module.forward
                module.forward = lambda *args, plain=plain, **named: result((*args, *named.values(), plain))

    return broken


def _zero_attention(model: Any, patch: Patch) -> None:
    attention = _layer(model, 3).self_attn
    plain = attention.forward
    attention.forward = lambda *args, **named: (torch.zeros_like(plain(*args, **named)[0]), None)


def _norm_in(dtype: torch.dtype) -> Callable[[Any, Patch], None]:
    def broken(model: Any, patch: Patch) -> None:
        for module in _each(model, "LlamaRMSNorm"):

            def forward(x: Tensor, module: Any = module) -> Tensor:
                y = x.to(dtype)
                y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + module.variance_epsilon)
                return module.weight * y.float()

            module.forward = forward

    return broken


def _softmax_in(dtype: torch.dtype) -> Callable[[Any], Any]:
    """Weights computed in another precision."""

    def made(plain: Any) -> Any:
        def softmax(x: Tensor, *args: Any, **named: Any) -> Tensor:
            return torch.softmax(x.to(dtype), dim=-1).float()

        return softmax

    return made


def _experts_exchanged(model: Any, patch: Patch) -> None:
    experts = _layer(model, 1).mlp.experts
    for weight in (experts.gate_up_proj, experts.down_proj):
        weight.data = weight.data[[0, 2, 1, *range(3, len(weight))]]


def _delta(**changes: Callable[..., Any]) -> Callable[[Any], Any]:
    """The gated delta rule with some of its inputs changed."""

    def made(plain: Any) -> Any:
        def rule(query: Tensor, key: Tensor, value: Tensor, **named: Any) -> Any:
            given = {"query": query, "key": key, "value": value, **named}
            given |= {name: change(given[name]) if callable(change) else change for name, change in changes.items()}
            return plain(**given)

        return rule

    return made


def _gated_norm(plain: Any) -> Any:
    """The norm of what is read, after the gate instead of before it."""

    def forward(self: Any, x: Tensor, gate: Tensor) -> Tensor:
        x = x * nn.functional.silu(gate)
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)

    return forward


def shaken(model: Any) -> None:
    """Every matrix rounds a little otherwise, by less than what counts as a difference."""
    generator = torch.Generator().manual_seed(5)

    def shake(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        return out + 3e-5 * out.abs().amax(-1, keepdim=True) * (2 * torch.rand(out.shape, generator=generator) - 1)

    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(shake)


def _gate_rows(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Patch], None]:
    """The rows of q_proj that give the gate, in the layers with attention."""

    def broken(model: Any, patch: Patch) -> None:
        weight = _layer(model, 1).self_attn.q_proj.weight
        heads = weight.data.view(4, 2, -1, weight.shape[1])  # (H, q | gate, D, C)
        heads[:, 1] = change(heads[:, 1])

    return broken


def _sigmoid_router(router: Any) -> Callable[[Tensor], Any]:
    def forward(x: Tensor) -> Any:
        logits = nn.functional.linear(x.reshape(-1, x.shape[-1]), router.weight)
        values, indices = logits.sigmoid().topk(router.top_k, dim=-1)
        return logits, values / values.sum(-1, keepdim=True), indices

    return forward


def _parallel(layer: Any) -> Callable[..., Tensor]:
    """Attention and feed-forward side by side, each with its own norm."""

    def forward(hidden_states: Tensor, **given: Any) -> Tensor:
        attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **given)
        return hidden_states + attended + layer.mlp(layer.post_attention_layernorm(hidden_states))

    return forward


def _half_split(port: dict[str, Any]) -> dict[str, Any]:
    """Queries and keys by head, (H, T, D), as another program lays them out."""
    changed = {
        name: one.reshape(one.shape[1], -1, 64).swapaxes(0, 1) if name.endswith(("q_proj", "k_proj")) else one
        for name, one in port.items()
    }
    return {name: one.repeat(3, axis=0) if name.endswith("k_proj") else one for name, one in changed.items()}


def _unscaled(model: Any, patch: Patch) -> None:
    """Gemma's embeddings, scaled outside of the module that a dump has."""
    embed = model.model.embed_tokens
    scale = embed.embed_scale.clone()
    embed.embed_scale.fill_(1.0)
    first = model.model.layers[0]
    plain = first.forward
    for layer in model.model.layers[:1]:
        layer.forward = lambda x, *args, **named: plain(x * scale, *args, **named)


_IN = "L0.norm1"
_LLAMA, _GEMMA, _MOE, _NEXT = modeling_llama, modeling_gemma3, modeling_qwen3_moe, modeling_qwen3_next
_ATTENTION = "eager_attention_forward"
_FIRST_ATTENTION = "L0.q_rot L0.k_rot L0.scores L0.scaled L0.masked L0.weights L0.head_out L0.concat L0.attn"
_GLOBAL_ATTENTION = f"{_FIRST_ATTENTION} {_FIRST_ATTENTION.replace('L0', 'L5')}"  # Gemma's first without a window
_NEAR = lambda *names: " ".join(names)  # noqa: E731

BROKEN: dict[str, Port] = {
    # positions and rotation
    "rotary base": Port("smollm2", _base(10_000.0), _FIRST_ATTENTION, "rotary base of 10,000 instead of 100,000"),
    "pairs instead of halves": Port(
        "smollm2", _in(_LLAMA, "apply_rotary_pos_emb", _rotate_pairs), _FIRST_ATTENTION, "turns neighbours"
    ),
    "positions halved": Port(
        "smollm2", _given(position_ids=lambda count: torch.arange(count)[None] / 2), _FIRST_ATTENTION, "divided by 2"
    ),
    "positions restarted": Port(
        "smollm2",
        _given(position_ids=lambda count: torch.tensor([[*range(9), *range(count - 9)]])),
        _FIRST_ATTENTION,
        "restart.* at token 9",
    ),
    "left padding counted": Port(
        "smollm2",
        _given(position_ids=lambda count: torch.tensor([[0, *range(3, count + 2)]])),
        _FIRST_ATTENTION,
        "skip 2 .*at token 1",
    ),
    "turned backwards": Port(
        "smollm2", _in(_LLAMA, "rotate_half", lambda plain: lambda x: -plain(x)), _FIRST_ATTENTION, "other way"
    ),
    "rows of q and k in pairs": Port(
        "smollm2",
        lambda model, patch: [
            _changed(
                f"self_attn.{name}_proj", None, lambda w: w.view(-1, 2, 32, w.shape[1]).transpose(1, 2).reshape(w.shape)
            )(model, patch)
            for name in "qk"
        ],
        "L0.q",
        "rows of each head in pairs",
    ),
    "local base everywhere": Port(
        "gemma3",
        _base(10_000.0, "full_attention_inv_freq"),
        _FIRST_ATTENTION.replace("L0", "L5"),
        "base of 10,000 instead of 1,000,000",
    ),
    "global base everywhere": Port(
        "gemma3", _base(1e6, "sliding_attention_inv_freq"), _FIRST_ATTENTION, "base of 1,000,000 instead of 10,000"
    ),
    "no rotation": Port(
        "smollm2",
        _in(_LLAMA, "apply_rotary_pos_emb", lambda plain: lambda q, k, *waves: (q, k)),
        _FIRST_ATTENTION,
        "nothing is rotated",
    ),
    "sine and cosine exchanged": Port(
        "gemma3",
        _in(_GEMMA, "apply_rotary_pos_emb", lambda plain: lambda q, k, cos, sin, *more: plain(q, k, sin, cos, *more)),
        _FIRST_ATTENTION,
        "exchanged",
    ),
    # norms
    "eps": Port("smollm2", _modules("RMSNorm", variance_epsilon=1e-3), _IN, "eps 0.001 instead of 1e-05"),
    "gain with one added": Port(
        "smollm2", _changed("input_layernorm", None, lambda w: w + 1), _IN, "gain is 1 . weight"
    ),
    "gain without one": Port(
        "gemma3", _changed("input_layernorm", None, lambda w: w - 1), _IN, "without the 1|weight . 1|gain lacks"
    ),
    "gain of the next layer": Port("smollm2", _moved("input_layernorm", 7, 8), "L7.norm1", "gain of L8.norm1"),
    "q and k norms swapped": Port(
        "gemma3", exchanged("self_attn.q_norm", "self_attn.k_norm", 3), "L3.q_norm L3.k_norm", "gain of L3.(k|q)_norm"
    ),
    "LayerNorm": Port(
        "smollm2",
        _skip("input_layernorm", None, lambda g: (x := g[0]) * 0 + g[-1](x - x.mean(-1, keepdim=True))),
        _IN,
        "mean is subtracted",
    ),
    "norm left out": Port("gemma3", _skip("post_attention_layernorm"), "L0.attn_norm", "norm is left out"),
    "qk norm left out": Port("gemma3", _skip("self_attn.q_norm"), "L0.q_norm", "norm is left out"),
    "final norm left out": Port(
        "smollm2",
        lambda model, patch: setattr(model.model.norm, "forward", lambda x: x),
        "final.norm",
        "norm is left out",
    ),
    "norms exchanged": Port(
        "smollm2", exchanged("input_layernorm", "post_attention_layernorm", 4), "L4.norm1", "gain of L4.norm2"
    ),
    # weights
    "q of the next layer": Port("smollm2", _moved("self_attn.q_proj", 3, 4), "L3.q", "L4.q|W_Q of layer 4|L4.W_Q"),
    "up of the layer before": Port("gemma3", _moved("mlp.up_proj", 9, 8), "L9.ffn.hidden", "L8"),
    "gate and up swapped": Port(
        "smollm2",
        exchanged("mlp.gate_proj", "mlp.up_proj", 17),
        "L17.ffn.hidden L17.ffn.gate",
        "numbers of L17.ffn.gate",
    ),
    "k and v swapped": Port(
        "smollm2",
        exchanged("self_attn.k_proj", "self_attn.v_proj", 2),
        "L2.k L2.v",
        "numbers of L2.[vk]|order q, v, k",
    ),
    "o transposed": Port(
        "smollm2", _changed("self_attn.o_proj", 6, lambda w: w.T.contiguous()), "L6.attn", "transposed"
    ),
    "heads of v in another order": Port(
        "smollm2",
        _changed("self_attn.v_proj", 5, lambda w: w.roll(64, 0)),
        "L5.v",
        "heads in another order|order of the heads",
    ),
    "rows rolled": Port("smollm2", _changed("mlp.up_proj", 9, lambda w: w.roll(1, 0)), "L9.ffn.hidden", "rolled"),
    "head not tied": Port(
        "moe",
        lambda model, patch: setattr(model.lm_head, "weight", model.model.embed_tokens.weight),
        "head.logits logits",
        "embeddings",
    ),
    "embeddings not scaled": Port(
        "gemma3",
        lambda model, patch: model.model.embed_tokens.embed_scale.fill_(1.0),
        "embed.tokens embed.out",
        "no factor|not (scaled|multiplied)",
    ),
    "a bias too many": Port(
        "smollm2",
        lambda model, patch: setattr(_layer(model, 2).mlp.down_proj, "bias", nn.Parameter(torch.full((576,), 0.01))),
        "L2.ffn",
        "0.01 is added|constant",
    ),
    "one weight scaled": Port("smollm2", _changed("mlp.down_proj", 11, lambda w: w * 0.5), "L11.ffn", "0.5"),
    # precision
    "weights in bfloat16": Port("smollm2", _rounded(_to(torch.bfloat16)), "L0.q", "rounded to bfloat16"),
    "weights in float16": Port("gemma3", _rounded(_to(torch.float16)), "L0.q", "rounded to float16"),
    "weights in float8": Port("smollm2", _rounded(_to(torch.float8_e4m3fn)), "L0.q", "rounded to float8"),
    "weights in int8 by row": Port("smollm2", _rounded(_int8_by_row), "L0.q", "rounded to int8"),
    "weights in Q8_0": Port("smollm2", _rounded(_blocks(gguf.GGMLQuantizationType.Q8_0)), "L0.q", "Q8_0"),
    "weights in Q4_0": Port("gemma3", _rounded(_blocks(gguf.GGMLQuantizationType.Q4_0)), "L0.q", "Q4_0"),
    "norm in bfloat16": Port("smollm2", _norm_in(torch.bfloat16), _IN, "computed in bfloat16|rounded to bfloat16"),
    "norm in float16": Port("smollm2", _norm_in(torch.float16), _IN, "computed in float16|rounded to float16"),
    # attention
    "not divided": Port("smollm2", _in(_LLAMA, _ATTENTION, _attention(scaling=8.0)), _FIRST_ATTENTION, "not divided"),
    "divided by d_model": Port(
        "smollm2", _in(_LLAMA, _ATTENTION, _attention(scaling=8 / 24)), _FIRST_ATTENTION, "√d_model"
    ),
    "another divisor": Port(
        "gemma3", _in(_GEMMA, _ATTENTION, _attention(scaling=16 / 640**0.5)), _FIRST_ATTENTION, "√d_model"
    ),
    "no mask": Port(
        "smollm2",
        _in(_LLAMA, _ATTENTION, _attention(lambda q, k, v, mask: (q, k, v, None))),
        _FIRST_ATTENTION,
        "no mask",
    ),
    "the token itself hidden": Port(
        "smollm2",
        _in(
            _LLAMA,
            _ATTENTION,
            _attention(lambda q, k, v, mask: (q, k, v, torch.full(q.shape[-2:-1] * 2, -1e30).triu()[None, None])),
        ),
        _FIRST_ATTENTION,
        "hides the token itself",
    ),
    "nothing seen by the first token": Port(
        "smollm2",
        _in(
            _LLAMA,
            _ATTENTION,
            _attention(lambda q, k, v, mask: (q, k, v, torch.full(q.shape[-2:-1] * 2, -torch.inf).triu()[None, None])),
        ),
        _FIRST_ATTENTION,
        "sees nothing is NaN",
    ),
    "a token ahead seen": Port(
        "smollm2",
        _in(
            _LLAMA,
            _ATTENTION,
            _attention(lambda q, k, v, mask: (q, k, v, torch.full(q.shape[-2:-1] * 2, -1e30).triu(2)[None, None])),
        ),
        _FIRST_ATTENTION,
        "sees the next one",
    ),
    "key heads in turns": Port("smollm2", _in(_LLAMA, "repeat_kv", _tiled), _FIRST_ATTENTION, "in turns"),
    "a window one token narrower": Port(
        "gemma3",
        lambda model, patch: setattr(model.config, "sliding_window", 511),
        _FIRST_ATTENTION,
        "window of 511 tokens, not 512",
        text=TEXT * 28,
    ),
    "no window": Port(
        "gemma3",
        lambda model, patch: setattr(model.config, "sliding_window", 4096),
        _FIRST_ATTENTION,
        "a window of .* tokens left out",
        text=TEXT * 28,
    ),
    "attention of layer 3 not added": Port("smollm2", _zero_attention, "L3.attn L3.norm2", "attn not added|all 0"),
    # activations, logits
    "GELU": Port("smollm2", _modules("MLP", act_fn=lambda module: nn.GELU()), "L0.ffn.act L0.ffn", "GELU"),
    "exact GELU": Port("gemma3", _modules("MLP", act_fn=lambda module: nn.GELU()), "L0.ffn.act L0.ffn", "GELU"),
    # experts
    "experts exchanged": Port("moe", _experts_exchanged, "L1.expert.hidden L1.expert.out L1.ffn", "expert"),
    "one expert fewer": Port(
        "moe", _modules("TopKRouter", top_k=2), "L0.ffn.chosen L0.ffn.weights L0.ffn", "2 experts"
    ),
    "not renormed": Port(
        "moe",
        _modules("TopKRouter", norm_topk_prob=False),
        "L0.ffn.weights L0.ffn",
        "by the sum of the chosen left out",
    ),
    "router in bfloat16": Port(
        "moe", _changed("mlp.gate", None, _to(torch.bfloat16)), "L0.router L0.ffn.router", "rounded to bfloat16"
    ),
    "shared expert missing": Port(
        "hybrid",
        _skip("mlp.shared_expert", None, lambda g: g[-1](g[0]) * 0),
        "L0.ffn L0.shared.out",
        "shared.added not added|all 0",
    ),
    "shared expert not gated": Port(
        "hybrid", _skip("mlp.shared_expert_gate", None, lambda g: g[-1](g[0]) * 0 + 40), "L0.shared.score", ""
    ),
    # a hybrid
    "decay left out": Port(
        "hybrid",
        _in(_NEXT, "torch_chunk_gated_delta_rule", _delta(g=lambda g: g * 0)),
        "L0.head_out L0.read L0.decay L0.attn L0.head_norm L0.head_gated",
        "decay",
    ),
    "keys not of length 1": Port(
        "hybrid",
        _in(_NEXT, "torch_chunk_gated_delta_rule", _delta(use_qk_l2norm_in_kernel=False)),
        "L0.q_unit L0.k_unit L0.head_gated L0.attn",
        "length 1",
    ),
    "writing strength left out": Port(
        "hybrid",
        _in(_NEXT, "torch_chunk_gated_delta_rule", _delta(beta=lambda b: b * 0 + 1)),
        "L0.beta L0.written L0.head_gated L0.attn",
        "strength|β|beta",
    ),
    "gated before the norm": Port(
        "hybrid",
        lambda model, patch: [
            setattr(m, "forward", _gated_norm(None).__get__(m)) for m in _each(model, "RMSNormGated")
        ],
        "L0.head_norm L0.head_gated",
        "norm.*after|gate",
    ),
    "attention gate all 0": Port("hybrid", _gate_rows(lambda rows: rows * 0), "L1.gate", "all 0"),
    "taps in the other order": Port(
        "hybrid",
        lambda model, patch: setattr(
            (conv := _layer(model, 0).linear_attn.conv1d), "weight", nn.Parameter(conv.weight.flip(-1))
        ),
        "L0.q_conv L0.k_conv L0.v_conv L0.head_gated",
        "taps",
    ),
    # more
    "a sigmoid router": Port(
        "moe",
        lambda model, patch: [setattr(one, "forward", _sigmoid_router(one)) for one in _each(model, "TopKRouter")],
        "L0.ffn",
        "a sigmoid router",
    ),
    "the next token's embedding": Port(
        "smollm2",
        lambda model, patch: setattr(
            model.model.embed_tokens, "weight", nn.Parameter(model.model.embed_tokens.weight.roll(-1, 0))
        ),
        "embed.tokens",
        "embedding of the next id",
    ),
    "mlp reads the block's input": Port(
        "smollm2",
        lambda model, patch: setattr(_layer(model, 5), "forward", _parallel(_layer(model, 5))),
        "L5.norm2",
        "block's input",
    ),
    "a weight is NaN": Port(
        "smollm2",
        _changed("mlp.down_proj", 4, lambda w: w.index_fill(0, torch.tensor([3]), float("nan"))),
        "L4.ffn",
        "",
    ),
    **{
        f"generation, {words}, {name}": Port(name, broken, first, cause, generated=True)
        for name in ("smollm2", "gemma3")
        for words, broken, first, cause in (
            (
                "positions 1 too large",
                _given(position_ids=lambda at: torch.tensor([[at + 1]])),
                _FIRST_ATTENTION,
                "positions are 1 too large",
            ),
            (
                "positions stand still",
                _given(position_ids=lambda at: torch.tensor([[0]])),
                _FIRST_ATTENTION,
                "every position is 0",
            ),
            ("stale keys", _returned(0), _GLOBAL_ATTENTION, "the key of the token before"),
            ("stale values", _returned(1), _GLOBAL_ATTENTION, "the value of the token before"),
        )
    },
    "two faults": Port(
        "smollm2",
        lambda model, patch: [
            _moved("input_layernorm", 7, 8)(model, patch),
            exchanged("mlp.gate_proj", "mlp.up_proj", 17)(model, patch),
        ],
        "L7.norm1",
        "gain of L8.norm1",
    ),
}
SOUND: dict[str, Port] = {
    "as it is, SmolLM2": Port("smollm2", lambda model, patch: None, ""),
    "as it is, Gemma 3": Port("gemma3", lambda model, patch: None, ""),
    "as it is, experts": Port("moe", lambda model, patch: None, ""),
    "as it is, hybrid": Port("hybrid", lambda model, patch: None, ""),
    "positions from one": Port("smollm2", _given(position_ids=lambda count: torch.arange(1, count + 1)[None]), ""),
    "a generation, SmolLM2": Port("smollm2", lambda model, patch: None, "", generated=True),
    "a generation, Gemma 3": Port("gemma3", lambda model, patch: None, "", generated=True),
    "fused attention": Port("smollm2", lambda model, patch: model.set_attn_implementation("sdpa"), ""),
    "queries by head, keys repeated": Port("smollm2", lambda model, patch: None, "", dumped=_half_split),
    "no batch axis": Port(
        "gemma3", lambda model, patch: None, "", dumped=lambda port: {name: one[0] for name, one in port.items()}
    ),
    "float64": Port(
        "moe",
        lambda model, patch: model.double(),
        "",
        dumped=lambda port: {name: one.astype("f8") if name != "input_ids" else one for name, one in port.items()},
    ),
    "with a prefix": Port(
        "smollm2",
        lambda model, patch: None,
        "",
        dumped=lambda port: {f"module.{name}" if name != "input_ids" else name: one for name, one in port.items()},
    ),
    "logits of the last token": Port(
        "gemma3", lambda model, patch: None, "", dumped=lambda port: {**port, "logits": port["logits"][:, -1:]}
    ),
    "scaled outside": Port("gemma3", _unscaled, ""),
}


def verdict(port: Port, found: Difference) -> tuple[bool, str]:
    """Whether the first step is right, and whether its cause is right, wrong, or not named."""
    first = found.first is not None and found.first.name in port.first.split()
    if found.cause is None or not found.cause.found:
        return first, "none"
    return first, "right" if port.cause and re.search(port.cause, found.cause.in_words) else "wrong"


ROUNDED = re.compile("weights in|router in|norm in|exact GELU|NaN")
"""Ports that only round, and one whose activation differs by less than bfloat16 rounds."""


def judged(names: Sequence[str]) -> None:
    """Print, for ports in bfloat16, whether each is called rounding or a bug; then sentences in other programs.

    Names, or beginnings of names, choose ports; without them it is all ports and the sentences.
    """
    called = {"bug": 0, "rounding": 0}
    for name, port in BROKEN.items():
        if ROUNDED.search(name) or port.text != TEXT or not (not names or name.startswith(tuple(names))):
            continue
        floor = compared(port, torch.bfloat16, floor="bf16").floor
        called["bug" if floor.bug else "rounding"] += 1
        print(f"{name:32} {floor.in_words()}", flush=True)
    print(f"broken ports in bfloat16: {called}")
    if names:
        return
    alarms, count, most = 0, 0, 0.0
    for model in ("smollm2", "gemma3"):
        for text in sentences(10):
            for attention, dtype, word in (("eager", torch.bfloat16, "bf16"), ("sdpa", torch.bfloat16, "bf16"),
                                           ("eager", torch.float16, "fp16")):  # fmt: skip
                if model == "gemma3" and word == "fp16":
                    continue  # whose stream is too large for float16
                port = Port(model, lambda one, patch, by=attention: one.set_attn_implementation(by), "", text=text)
                floor = compared(port, dtype, floor=word).floor
                alarms, count = alarms + (floor.bug is not None), count + 1
                most = max(most, floor.worst.times)
    print(f"{count} sound runs: {alarms} called a bug; at most {most:.2g} × the model's own error")


def main() -> None:
    if sys.argv[1:2] == ["--floor"]:
        judged(sys.argv[2:])
        return
    chosen = {name: port for name, port in BROKEN.items() if not sys.argv[1:] or name in sys.argv[1:]}
    sound = {name: port for name, port in SOUND.items() if not sys.argv[1:] or name in sys.argv[1:]}
    counts = {"first": 0, "right": 0, "none": 0, "wrong": 0}
    for name, port in chosen.items():
        start = time.perf_counter()
        found = compared(port)
        first, cause = verdict(port, found)
        counts["first"] += first
        counts[cause] += 1
        told = " | ".join(f"{one.step}: {one.in_words} {one.explained}/{one.later}" for one in found.causes)
        at = found.first.name if found.first else "nothing"
        seconds = time.perf_counter() - start
        print(
            f"{name:32} {seconds:5.1f} s {'ok' if first else 'NO':3} {cause:6} {at:16} {told} {found.rescaled or ''}",
            flush=True,
        )
    alarms = 0
    for name, port in sound.items():
        found = compared(port)
        is_wrong = found.first is not None and not found.follows
        alarms += is_wrong
        worst = f"{found.worst.name} by {found.worst.relative:.1e}" if found.worst else ""
        print(f"{name:32} {'NO' if is_wrong else 'ok':3} sound  {found.first and found.first.name} {worst}", flush=True)
    print(f"{len(sound)} sound ports: a step is wrong in {alarms}")
    print(f"{len(chosen)} ports: first step right in {counts['first']}, cause right in {counts['right']}, "
          f"none in {counts['none']}, wrong in {counts['wrong']}")  # fmt: skip


if __name__ == "__main__":
    main()
