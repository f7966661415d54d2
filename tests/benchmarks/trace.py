"""Recording a trace beside a plain forward pass and beside TransformerLens, at the size of GPT-2 small.

Weights are random (nothing is downloaded), the same in both libraries, and the logits are compared first. The peer
is run_with_cache of whichever TransformerLens is installed: its TransformerBridge around transformers' GPT-2 (4.x), or
HookedTransformer (before). Without TransformerLens only the plain forward pass is compared.

    python tests/benchmarks/trace.py --repeat 7
"""

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import version
from importlib.util import find_spec
from types import FunctionType, ModuleType
from typing import Any

import torch
from _timing import Row, in_turns, options, ratio, show, show_machine, spread
from torch import Tensor, nn

from tinytf.config import ModelConfig
from tinytf.model import Transformer
from tinytf.presets import preset
from tinytf.text.tokenizer import Encoding, Token
from tinytf.trace.record import record

TIME_GOALS = {8: 0.5, 512: 0.6, 1024: 0.45}
MEMORY_GOALS = {512: 1 / 3, 1024: 1 / 5}
MIB = 2**20


def random_model(config: ModelConfig) -> Transformer:
    """Random weights with biases and gains that are not 0 and 1, so that none can be copied wrongly unseen."""
    model = Transformer.initialised(config, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model.requires_grad_(False)


def encoding_of(ids: list[int]) -> Encoding:
    return Encoding("", tuple(Token(number, str(number), 0, 0, b"", False) for number in ids), "")


def bridged(ours: Transformer) -> nn.Module:
    """TransformerLens 4: its bridge around transformers' GPT-2, as TransformerBridge.boot_transformers builds it."""
    from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

    model = in_transformers(ours)
    return build_bridge_from_module(model, "GPT2LMHeadModel", hf_config=model.config)


def in_transformers(ours: Transformer) -> Any:
    """transformers' GPT-2 with the weights of ours."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = ours.config
    theirs = GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.context,
        n_embd=config.d_model,
        n_layer=config.n_layers,
        n_head=config.n_heads,
        n_inner=config.d_ff,
        architectures=["GPT2LMHeadModel"],
    )
    model = GPT2LMHeadModel(theirs).eval().requires_grad_(False)
    weights = {"wte.weight": ours.embed.tokens.weight, "wpe.weight": ours.embed.positions.weight}
    for layer, block in enumerate(ours.blocks):
        attention, at = block.attention, f"h.{layer}."
        qkv = (attention.q, attention.k, attention.v)
        # transformers' Conv1D keeps its matrix as (in, out).
        weights[at + "attn.c_attn.weight"] = torch.cat([part.weight for part in qkv]).T
        weights[at + "attn.c_attn.bias"] = torch.cat([part.bias for part in qkv])
        for name, part in (("attn.c_proj", attention.o), ("mlp.c_fc", block.ffn.up), ("mlp.c_proj", block.ffn.down)):
            weights[f"{at}{name}.weight"], weights[f"{at}{name}.bias"] = part.weight.T, part.bias
        for name, norm in (("ln_1", block.norm1), ("ln_2", block.norm2)):
            weights[f"{at}{name}.weight"], weights[f"{at}{name}.bias"] = norm.weight, norm.bias
    weights |= {"ln_f.weight": ours.final_norm.weight, "ln_f.bias": ours.final_norm.bias}
    model.transformer.load_state_dict(weights)
    return model


def hooked(ours: Transformer) -> nn.Module:
    """TransformerLens before 4: a HookedTransformer."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    config = ours.config
    model = HookedTransformer(
        HookedTransformerConfig(
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            d_model=config.d_model,
            d_head=config.d_head,
            d_mlp=config.d_ff,
            n_ctx=config.context,
            d_vocab=config.vocab_size,
            act_fn="gelu_new",
            normalization_type="LN",
            device="cpu",
        )
    )
    model = model.eval().requires_grad_(False)
    weights = {"embed.W_E": ours.embed.tokens.weight, "pos_embed.W_pos": ours.embed.positions.weight}
    for layer, block in enumerate(ours.blocks):
        attention, at = block.attention, f"blocks.{layer}."
        for name in ("q", "k", "v"):
            part = getattr(attention, name)
            # (H·D, C) -> (H, C, D)
            weights[f"{at}attn.W_{name.upper()}"] = part.weight.unflatten(0, (config.n_heads, -1)).transpose(1, 2)
            weights[f"{at}attn.b_{name.upper()}"] = part.bias.unflatten(0, (config.n_heads, -1))
        weights[at + "attn.W_O"] = attention.o.weight.T.unflatten(0, (config.n_heads, -1))  # (H, D, C)
        weights[at + "attn.b_O"] = attention.o.bias
        weights |= {at + "mlp.W_in": block.ffn.up.weight.T, at + "mlp.b_in": block.ffn.up.bias}
        weights |= {at + "mlp.W_out": block.ffn.down.weight.T, at + "mlp.b_out": block.ffn.down.bias}
        for name, norm in (("ln1", block.norm1), ("ln2", block.norm2)):
            weights |= {f"{at}{name}.w": norm.weight, f"{at}{name}.b": norm.bias}
    weights |= {"ln_final.w": ours.final_norm.weight, "ln_final.b": ours.final_norm.bias}
    weights |= {"unembed.W_U": ours.embed.tokens.weight.T, "unembed.b_U": torch.zeros(config.vocab_size)}
    own = {name: tensor for name, tensor in model.state_dict().items() if name.endswith((".mask", ".IGNORE"))}
    model.load_state_dict(weights | own)
    return model


def peer_of(ours: Transformer) -> tuple[str, nn.Module] | None:
    """The installed TransformerLens with our weights, and what to call it."""
    if find_spec("transformer_lens") is None:
        return None
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    release = version("transformer-lens")
    build: Callable[[Transformer], nn.Module] = bridged if int(release.split(".")[0]) >= 4 else hooked
    return f"TransformerLens {release} {build.__name__}", build(ours)


def storages(root: object) -> dict[int, int]:
    """Address and bytes of every distinct tensor storage that the garbage collector can reach from ``root``."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    queue: list[object] = [root]
    while queue:
        one = queue.pop()
        if id(one) in seen or isinstance(one, (type, ModuleType)):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, FunctionType):
            queue += [cell.cell_contents for cell in one.__closure__ or ()]  # and not its whole module
        else:
            queue += gc.get_referents(one)
    return found


def held(result: object, model: nn.Module) -> int:
    """Bytes that ``result`` keeps, without the model's weights, which are there anyway.

    Only parameters and buffers count as the model's: a bridge also remembers its last attention weights, and
    those are activations.
    """
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    return sum(nbytes for address, nbytes in storages(result).items() if address not in own)


def tensor_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the numbers themselves, a shared storage counted as often as it is named."""
    return sum(tensor.nbytes for tensor in tensors if isinstance(tensor, Tensor))


def measure_time(ours: Transformer, theirs: tuple[str, nn.Module] | None, length: int, repeat: int) -> list[Row]:
    ids = torch.randint(ours.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(length))
    encoding = encoding_of(ids[0].tolist())
    runs: dict[str, Callable[[], object]] = {
        "recording": lambda: record(ours, encoding),
        "forward, last logits": lambda: ours.unembed(ours.hidden(ids)[:, -1]),
        "forward, all logits": lambda: ours(ids),
    }
    if theirs is not None:
        peer = theirs[1]
        apart = float((peer(ids) - ours(ids)).abs().max())
        print(f"{length} tokens: logits of the two libraries differ by at most {apart:.1e}")
        if apart > 1e-3:
            raise SystemExit("the two models differ, so there is nothing to compare")
        runs["run_with_cache"] = lambda: peer.run_with_cache(ids)
    seconds = in_turns(runs, repeat)
    rows = [
        Row(
            f"recording / {name}", ratio(seconds, "recording", name), goal=goal, note=spread(seconds, "recording", name)
        )
        for name, goal in (("forward, last logits", 1.10), ("forward, all logits", None))
    ]
    if theirs is not None:
        note = spread(seconds, "run_with_cache")
        share = ratio(seconds, "recording", "run_with_cache")
        rows.append(Row("recording / run_with_cache", share, goal=TIME_GOALS.get(length), note=note))
        share = ratio(seconds, "forward, all logits", "run_with_cache")
        rows.append(Row("forward, all logits / run_with_cache", share, note="how much of it is another forward"))
    return rows


def measure_memory(ours: Transformer, theirs: tuple[str, nn.Module] | None, length: int) -> list[Row]:
    ids = torch.randint(ours.config.vocab_size, (1, length), generator=torch.Generator().manual_seed(length))
    trace = record(ours, encoding_of(ids[0].tolist()))
    mine = held(trace, ours)
    numbers = tensor_bytes(trace.recording.tensors.values())
    note = f"Trace.recorded_bytes says {trace.recorded_bytes / MIB:,.2f}; unshared {numbers / MIB:,.2f}"
    rows = [Row("the trace holds", mine / MIB, "MiB", note=note)]
    if theirs is None:
        return rows
    peer = theirs[1]
    logits, cache = peer.run_with_cache(ids)
    yours = held(cache.cache_dict, peer)
    in_cache = logits.untyped_storage().data_ptr() in storages(cache.cache_dict)
    without = yours - (logits.nbytes if in_cache else 0)
    note = f"{len(cache)} names, unshared {tensor_bytes(cache.values()) / MIB:,.2f}"
    rows.append(Row("the ActivationCache holds", yours / MIB, "MiB", note=note))
    rows.append(Row("trace / cache", mine / yours, goal=MEMORY_GOALS.get(length)))
    rows.append(Row("trace / cache without its logits", mine / without, note=f"cache {without / MIB:,.2f} MiB"))
    return rows


@torch.no_grad()
def main() -> int:
    parser = options(__doc__, repeat=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8, 512, 1024], help="lengths (default 8 512 1024)")
    parser.add_argument("--layers", type=int, default=12, help="layers (default 12); fewer for a quick look")
    chosen = parser.parse_args()
    ours = random_model(preset("gpt2").but(n_layers=chosen.layers))
    theirs = peer_of(ours)
    show_machine("torch", *(["transformer-lens"] if theirs else []))
    print(
        f"GPT-2 small, {chosen.layers} layers, float32, random weights; {theirs[0] if theirs else 'no TransformerLens'}"
    )
    missed = 0
    for length in chosen.tokens:
        missed += show(f"Time, {length} tokens", measure_time(ours, theirs, length, chosen.repeat))
        missed += show(f"Memory, {length} tokens", measure_memory(ours, theirs, length))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
