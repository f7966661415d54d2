"""Sound ports: few bits, fused orders, other layouts and gauges, packed, padded, cached; none is to be accused."""

from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor, nn

from broken.bench import Broken, Patch, Port
from broken.patches import blocks, by_head, rounded

_AS_IT_IS: Broken = lambda model, patch: None  # noqa: E731
_IDS = "input_ids"


def _sdpa(model: Any, patch: Patch) -> None:
    model.set_attn_implementation("sdpa")


def _only(*parts: str) -> Any:
    return lambda port: {name: one for name, one in port.items() if name == _IDS or any(part in name for part in parts)}


def _every(count: int) -> Any:
    return lambda port: {name: one for at, (name, one) in enumerate(port.items()) if name == _IDS or at % count == 0}


def _rows_by_head(heads: int, *ends: str) -> Any:
    """(1, T, H·D) as (H, T, D)."""
    return lambda port: {
        name: one.reshape(one.shape[1], heads, -1).swapaxes(0, 1) if name.endswith(ends) else one
        for name, one in port.items()
    }


def _folded_gains(model: Any, patch: Patch) -> None:
    """Gains of norms multiplied into what reads them, as TransformerLens does."""
    for layer in model.model.layers:
        for norm, readers in (
            (layer.input_layernorm, (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj)),
            (layer.post_attention_layernorm, (layer.mlp.gate_proj, layer.mlp.up_proj)),
        ):
            for reader in readers:
                reader.weight.data = reader.weight.data * norm.weight.data
            norm.weight.data = torch.ones_like(norm.weight.data)


def _centred_stream(model: Any, patch: Patch) -> None:
    """Everything that writes to the stream without its mean, which every LayerNorm subtracts anyway."""
    untied = nn.Parameter(model.lm_head.weight.data.clone())
    for name in ("wte", "wpe"):
        table = getattr(model.transformer, name)
        table.weight = nn.Parameter(table.weight.data - table.weight.data.mean(-1, keepdim=True))
    model.lm_head.weight = untied
    for block in model.transformer.h:
        for writer in (block.attn.c_proj, block.mlp.c_proj):
            writer.weight.data = writer.weight.data - writer.weight.data.mean(-1, keepdim=True)
            writer.bias.data = writer.bias.data - writer.bias.data.mean()


def _value_bias_folded(model: Any, patch: Patch) -> None:
    """Shares sum to 1, so a bias of values is a bias of what attention gives."""
    for block in model.transformer.h:
        bias = block.attn.c_attn.bias.data.view(3, -1)
        block.attn.c_proj.bias.data = block.attn.c_proj.bias.data + bias[2] @ block.attn.c_proj.weight.data
        bias[2] = 0


def _heads_in_another_order(model: Any, patch: Patch) -> None:
    for layer in model.model.layers:
        attention = layer.self_attn
        for reader, heads in ((attention.q_proj, 4), (attention.k_proj, 2), (attention.v_proj, 2)):
            turned = by_head(heads, lambda w, half=heads // 2: w.roll(half, 0))
            reader.weight.data = turned(reader.weight.data)
        attention.o_proj.weight.data = by_head(4, lambda w: w.roll(2, 0))(attention.o_proj.weight.data.T.contiguous()).T


def _values_rescaled(model: Any, patch: Patch) -> None:
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.data *= 4.0
        layer.self_attn.o_proj.weight.data /= 4.0


def _packed(model: Any, patch: Patch) -> dict[str, Any]:
    """Two documents in a row, each with its own positions, and blind to the other."""

    def mask(count: int) -> Tensor:
        document = torch.arange(count) >= 9
        seen = (document[:, None] == document) & torch.ones(count, count).tril().bool()
        return torch.zeros(1, 1, count, count).masked_fill(~seen, torch.finfo(torch.float32).min)

    return {
        "attention_mask": mask,
        "position_ids": lambda count: torch.tensor([[*range(9), *range(count - 9)]]),
    }


def _padded(count: int, filler: int = 0) -> Broken:
    """Padding on the left, hidden by the mask, with positions of the text's own."""
    return lambda model, patch: {
        "left_padding": (count, filler),
        "attention_mask": lambda total: torch.tensor([[0] * count + [1] * total]),
        "position_ids": lambda total: torch.tensor([[0] * count + [*range(total)]]),
    }


def _shifted_logits(port: dict[str, Any]) -> dict[str, Any]:
    """Logits up to a number for each token, which no probability sees."""
    return {**port, "logits": port["logits"] - port["logits"].mean(-1, keepdims=True)}


def _in(dtype: torch.dtype, floor: str, name: str, broken: Broken = _AS_IT_IS) -> Port:
    return Port(name, broken, "", dtype=dtype, floor=floor)


SOUND: dict[str, Port] = {
    **{f"{name}: bfloat16": _in(torch.bfloat16, "bf16", name)
       for name in ("gpt2", "llama", "gemma2", "granite", "olmo2", "neox", "bert")},
    **{f"{name}: float16": _in(torch.float16, "fp16", name) for name in ("gpt2", "llama", "qwen3", "phi")},
    **{f"{name}: float64": Port(name, lambda model, patch: model.double(), "",
                                dumped=lambda port: {name: one.astype("f8") if name != _IDS else one for name,
                                one in port.items()})
       for name in ("gpt2", "bert", "olmo2", "yarn")},
    **{f"{name}: fused": Port(name, _sdpa, "") for name in ("llama", "gpt2", "neox", "qwen3", "bert", "longrope")},
    **{f"{name}: cached": Port(name, _AS_IT_IS, "", generated=True)
       for name in ("llama", "gpt2", "qwen3", "granite", "neox", "lfm2", "gemma2", "deepseek3")},
    **{f"{name}: as it is": Port(name, _AS_IT_IS, "") for name in ("gptoss", "deepseek2", "bloom", "mixtral", "llama3",
        "mamba2")},
    **{f"{name}: packed": Port(name, _packed, "", beside=("position_ids", "attention_mask")) for name in ("llama",
        "qwen3", "granite")},
    **{f"{name}: padded on the left": Port(name, _padded(3), "", beside=("attention_mask", "position_ids"))
       for name in ("llama", "qwen3", "olmo2")},
    **{f"{name}: three rows": Port(name, _AS_IT_IS, "", rows=3) for name in ("llama", "gpt2", "qwen3")},
    **{f"{name}: logits alone": Port(name, _AS_IT_IS, "", dumped=_only("logits")) for name in ("granite", "gemma2")},
    "llama: every third": Port("llama", _AS_IT_IS, "", dumped=_every(3)),
    "qwen3: mlp alone": Port("qwen3", _AS_IT_IS, "", dumped=_only("mlp")),
    "llama: queries by head": Port("llama", _AS_IT_IS, "", dumped=_rows_by_head(4, "q_proj")),
    "phi: values by head": Port("phi", _AS_IT_IS, "", dumped=_rows_by_head(2, "v_proj")),
    "granite: no batch axis": Port("granite", _AS_IT_IS, "", dumped=lambda port: {name: one[0] for name,
        one in port.items()}),
    "gemma: untied": Port("gemma", lambda model, patch: setattr(
        model.lm_head, "weight", nn.Parameter(model.lm_head.weight.data.clone())), ""),
    "llama: gains folded": Port("llama", _folded_gains, ""),
    "gpt2: the stream centred": Port("gpt2", _centred_stream, ""),
    "gpt2: value biases folded": Port("gpt2", _value_bias_folded, ""),
    "llama: heads in another order": Port("llama", _heads_in_another_order, ""),
    "llama: values rescaled": Port("llama", _values_rescaled, ""),
    "gpt2: logits centred": Port("gpt2", _AS_IT_IS, "", dumped=lambda port: _only("logits")(_shifted_logits(port))),
    "granite: log-probabilities for logits": Port("granite", _AS_IT_IS, "", dumped=lambda port: _only("logits")(
        {**port, "logits": port["logits"] - np.log(np.exp(port["logits"]).sum(-1, keepdims=True))})),
    "gpt2: stream and logits centred": Port("gpt2", _centred_stream, "", dumped=_shifted_logits),
    "smollm2: Q8_0": Port("smollm2", rounded(blocks(gguf.GGMLQuantizationType.Q8_0)), "", floor="q8_0"),
    "smollm2: gains folded": Port("smollm2", _folded_gains, ""),
    **{f"{name}: two models, the gains folded": Port(name, _folded_gains, "", versus=True) for name in ("llama",
        "granite")},
}  # fmt: skip
