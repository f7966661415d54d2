"""Ports whose positions, masks, heads or layers are wrong, in families that no other table has."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from broken.bench import Broken, Patch, Port
from broken.models import SMALL
from broken.patches import replaced, scores, seen, setting, steps
from broken.third_patches import new_head, rope

_ROTARY = {name: SMALL[name][1].get("rope_parameters", {}) for name in ("yarn", "llama3", "ministral3")}


def _slopes(change: Callable[[Tensor], Tensor]) -> Broken:
    """The bias of ALiBi of MPT, (1, H, 1, K), through a function of it."""

    def make(plain: Any) -> Any:
        return lambda *given, **named: change(plain(*given, **named))

    return replaced("build_mpt_alibi_tensor", make)


def _of_keys(sees: Callable[[Tensor, Tensor], Tensor]) -> Broken:
    """A mask by hand, of queries and keys."""

    def hidden(mask: Tensor) -> Tensor:
        query, key = torch.arange(mask.shape[-2])[:, None], torch.arange(mask.shape[-1])
        return torch.zeros(mask.shape[-2:]).masked_fill(~sees(query, key), -torch.inf)

    return scores(mask=hidden)


def _layer_twice(model: Any, patch: Patch) -> None:
    """The third layer runs a second time on what it gave."""
    layers = model.model.layers
    model.model.layers = nn.ModuleList([*layers[:3], layers[2]])
    model.config.use_cache = False


def _layers_dropped(model: Any, patch: Patch) -> None:
    model.model.layers = model.model.layers[:-2]
    model.config.num_hidden_layers -= 2


def _heads_of_values(plain: Any) -> Any:
    """Values that go to query heads in turns, while keys go to neighbours."""
    home: list[int] = []

    def repeat(states: Tensor, times: int) -> Tensor:
        home.append(0)
        return states.repeat(1, times, 1, 1) if len(home) % 2 == 0 else plain(states, times)

    return repeat


def _head_scaled(head: int, by: float) -> Broken:
    def share(found: Tensor, module: Any) -> Tensor:
        times = torch.ones(found.shape[1])
        times[head] = by
        return (found * times[:, None, None]).softmax(-1)

    return scores(share=share)


_SERIES = 2.0 ** (-8 * torch.arange(1, 7) / 6)[:, None, None]
_YARN16, _THIRD, _WHOLE = {**_ROTARY["ministral3"], "factor": 16.0}, rope(900.0, 1 / 3), rope(900.0)
_LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
_SLOPED = f"{steps(0, 'biased')} {seen(0)}"

ROWS: tuple[tuple[str, str, Broken, str, str], ...] = (
    # a family, what is wrong, the change, the first wrong step, words of which the cause has one
    ("ministral3", "YaRN of a factor of 16", setting("ministral3", rope_parameters=_YARN16), seen(0), "scaled by 16"),
    ("yarn", "linear, by 3", setting("yarn", rope_parameters=_LINEAR), seen(0), r"(?i)linear.* 3\b|\b3 .*linear"),
    ("llama", "Llama 3's scaling",
     setting("llama", rope_parameters={**_ROTARY["llama3"], "rope_theta": 500.0}), seen(0), "(?i)llama ?3|stretch"),
    ("glm4", "a third turned", setting("glm4", rope_parameters=_THIRD), seen(0), "rotation of 4|4 dim"),
    ("glm4", "whole heads turned", setting("glm4", rope_parameters=_WHOLE), seen(0), "rotation of 12|d_head dim"),
    ("starcoder2", "base 12,000", setting("starcoder2", rope_parameters=rope(12_000.0)), seen(0), "12,?000"),
    ("ministral3", "queries not scaled by position",
     replaced("get_llama_4_attn_scale", lambda plain: lambda *given: torch.ones_like(plain(*given))), seen(0),
     "(?i)quer.*scale|scale.*position|growth .*late queries left out"),
    ("mpt", "slopes of one series", _slopes(lambda bias: bias / bias[..., :1].abs() * bias.shape[-1] * _SERIES),
     _SLOPED, "(?i)slopes.* 0.403"),
    ("mpt", "slopes that rise", _slopes(lambda bias: -bias), _SLOPED, "(?i)other sign"),
    ("mpt", "slopes half as steep", _slopes(lambda bias: bias / 2), _SLOPED, r"(?i)slope.*0\.5"),
    ("mpt", "slopes of the heads the other way round", _slopes(lambda bias: bias.flip(0)), _SLOPED,
     "(?i)slope.*(order|head)"),
    ("starcoder2", "even keys alone", _of_keys(lambda q, k: (k <= q) & ((q - k) % 2 == 0)), seen(0),
     "token 1 does not see token 0"),
    ("olmo3", "the window looks ahead", _of_keys(lambda q, k: (q - k).abs() < 6), seen(0),
     "(?i)window|sees|the causal mask left out"),
    ("smollm3", "tokens do not see themselves", _of_keys(lambda q, k: (k < q) | ((q == 0) & (k == 0))), seen(0),
     "(?i)itself"),
    ("exaone4", "chunks of 7 tokens", _of_keys(lambda q, k: (k <= q) & (q // 7 == k // 7)), seen(0), "chunks of 7"),
    ("cohere2", "the full layer first", setting("cohere2", layer_types=["full_attention"] + ["sliding_attention"] * 3),
     seen(0), "(positions|RoPE).* window"),
    ("ministral", "groups exchanged", replaced("repeat_kv", lambda plain: lambda x, n: plain(x.flip(1), n)), seen(0),
     "(?i)heads?|order"),
    ("starcoder2", "values in turns", replaced("repeat_kv", _heads_of_values), seen(0), "(?i)value heads.* turns"),
    ("starcoder2", "layer 2 twice", _layer_twice, "L2.norm1", "(?i)twice"),
    ("olmo3", "two layers dropped", _layers_dropped, "final.norm", "(?i)layers 2 and 3 left out"),
    ("starcoder2", "a head of its own", new_head, "logits", "(?i)another matrix"),
    ("glm4", "scores of head 2 doubled", _head_scaled(2, 2.0), seen(0), "(?i)head 2"),
    ("ministral", "scores times 1.44", scores(scale=1.44), seen(0), r"1\.44"),
    ("exaone4", "keys one token late", scores(keys=lambda k: k.roll(1, 2)), seen(0), "(?i)keys.* before"),
)  # fmt: skip
BROKEN = {f"{name}: {words}": Port(name, broken, first, cause) for name, words, broken, first, cause in ROWS}
