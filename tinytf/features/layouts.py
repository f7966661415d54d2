"""Open sparse autoencoders and transcoders that other programs wrote. Nothing is unpickled.

Each layout is a file of weights, found by its name, and a function that makes a ``SparseCoder`` of it:

- SAELens: ``cfg.json`` and ``sae_weights.safetensors``, as ``SAE.save_model`` writes them, before version 6 too;
- sparsify of EleutherAI: ``cfg.json`` and ``sae.safetensors``;
- Gemma Scope: ``params.npz``; Gemma Scope 2: ``config.json`` and ``params.safetensors``;
- circuit-tracer: ``layer_N.safetensors`` of a set of transcoders, with its ``config.yaml``.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tinytf.compare.dumps.read import open_dump
from tinytf.errors import CheckpointError, DumpError
from tinytf.features.coder import ACTIVATIONS, CONFIG, WEIGHTS, SparseCoder
from tinytf.files import read_bytes, read_json
from tinytf.kept import GEMMA_SCOPE, GEMMA_SCOPE_2, SPARSIFY, TRANSCODERS
from tinytf.nearest import did_you_mean, near_path
from tinytf.text.printable import printable

PICKLES = (".pt", ".pth", ".bin", ".pkl", ".ckpt")
NORMALISATIONS = ("none", "expected_average_only_in", "constant_norm_rescale", "layer_norm")
_SHAPES = {
    "W_enc": "CF", "b_enc": "F", "b_gate": "F", "r_mag": "F", "b_mag": "F", "threshold": "F", "W_dec": "FO",
    "b_dec": "O", "W_skip": "OC", "scaling_factor": "F",
}  # fmt: skip
"""The tensors of SAELens by their axes, to which the other layouts are brought."""
_NEEDED = {
    "standard": ("b_enc",), "gated": ("b_gate", "r_mag", "b_mag"), "jumprelu": ("b_enc", "threshold"),
    "topk": ("b_enc",), "batchtopk": ("b_enc", "threshold"),
}  # fmt: skip
_MODULE = re.compile(r"(?:.*\.)?(?:layers|h|blocks)[._](\d+)(?:\.(mlp|self_attn|attn|attention))?")
_AGAIN = "download it again, or write it again"
_OTHER = "it may be of another program, or of a later version"
_UNSAID = "the file does not name its step; --at names it"


def open_sae(path: str | Path) -> SparseCoder:
    """Open the sparse autoencoder or transcoder in a folder, or in its file of weights, by ``LAYOUTS``.

    Raises CheckpointError for a file that is missing or damaged, for a pickle, an architecture or normalisation that is
    not known, a missing or surplus tensor, a wrong shape, and numbers that are not finite.
    """
    path = Path(path)
    if path.suffix.lower() in PICKLES:
        raise _pickle(path)
    if not path.is_dir():
        if not path.exists():
            hint = near_path(path) or f"an SAE is a folder with one of {', '.join(LAYOUTS)}"
            raise CheckpointError(f"there is no {path}", hint)
        read = LAYOUTS.get(path.name) or (_gemma_scope if path.suffix == ".npz" else None)
        read = _circuit_tracer if LAYER_FILE.fullmatch(path.name) else read
        require_no_crosscoder(path)
        if read is None:
            raise CheckpointError(
                f"{path.name} is not the weights of an SAE", f"name a folder, or {', '.join(LAYOUTS)}"
            )
        return read(path)
    present = [name for name in LAYOUTS if (path / name).is_file()]
    if present:
        return LAYOUTS[present[0]](path / present[0])
    if pickles := sorted(file for file in path.iterdir() if file.suffix.lower() in PICKLES):
        raise _pickle(pickles[0])
    inside = sorted({file.parent.relative_to(path).as_posix() for name in LAYOUTS for file in path.glob(f"*/{name}")})
    hint = f"name one of its folders: {', '.join(inside[:6])}" if inside else f"it has one of {', '.join(LAYOUTS)}"
    raise CheckpointError(f"{path} holds no SAE" + (" itself" if inside else ""), hint)


def crosscoder_metadata(path: Path) -> dict[str, Any] | None:
    """What a file says of its crosscoder; None for another file. Raises CheckpointError for one that is damaged."""
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        metadata = dict(open_dump(path).metadata)
    except DumpError as error:
        raise CheckpointError(error.message, _AGAIN) from None
    return metadata if metadata.get("kind") == "train_crosscoder" else None


def require_no_crosscoder(path: Path) -> None:
    """Raise CheckpointError for a crosscoder, whose activations take two models."""
    if crosscoder_metadata(path) is not None:
        raise CheckpointError(
            f"{path} is a crosscoder of two models", f"tinytf features TEXT --sae {path} --versus MODEL reads it"
        )


def _pickle(path: Path) -> CheckpointError:
    hint = "write its tensors with safetensors.torch.save_file, in a layout of SAELens"
    return CheckpointError(f"{path.name} is a pickle, which can run code when it is opened", hint)


def _sae_lens(path: Path) -> SparseCoder:
    config = _config(path.parent / CONFIG)
    metadata = config.get("metadata")
    said: dict[str, Any] = {**config, **(metadata if isinstance(metadata, dict) else {})}
    architecture = str(config.get("architecture") or "standard")
    activation = str(said.get("activation_fn_str") or said.get("activation_fn") or "relu")  # before SAELens 6
    arguments = said.get("activation_fn_kwargs")
    k = config.get("k") or (arguments.get("k", 0) if isinstance(arguments, dict) else 0)
    if activation == "topk":
        architecture = architecture.replace("standard", "topk")
    elif activation not in ("relu", architecture):
        raise CheckpointError(f"{path.parent}: the activation {activation!r} is not known", "known: relu, topk")
    transcoder, architecture = "transcoder" in architecture, _of_transcoder(architecture)
    if said.get("hook_head_index") is not None:
        raise CheckpointError(f"{path.parent} reads head {said['hook_head_index']} alone", "SAEs of whole steps open")
    normalisation = said.get("normalize_activations") or "none"  # a flag before SAELens 3
    normalisation = "expected_average_only_in" if normalisation is True else normalisation
    if normalisation not in NORMALISATIONS:
        hint = did_you_mean(str(normalisation), NORMALISATIONS)
        raise CheckpointError(f"{path.parent}: normalize_activations {normalisation!r} is not known", hint)
    notes = []
    if normalisation == "expected_average_only_in":
        notes.append("trained on activations scaled to a mean norm of √C; its file has no scale, so none is applied")
        normalisation = "none"
    tensors = tensors_in(path)
    if "topk_threshold" in tensors:  # of a checkpoint in training
        tensors["threshold"] = tensors.pop("topk_threshold").expand(tensors["b_enc"].shape).clone()
    coder = made(
        path.parent, "SAELens", architecture, tensors, k, transcoder, said.get("apply_b_dec_to_input", True), notes
    )
    if said.get("rescale_acts_by_decoder_norm"):
        norm = coder.decoder.norm(dim=-1)
        coder = replace(
            coder, encoder=coder.encoder * norm, bias=coder.bias * norm, decoder=coder.decoder / norm[:, None]
        )
    reads = str(said.get("hook_name") or said.get("hook_point") or "")
    writes, name = str(said.get("hook_name_out") or reads), safe(str(said.get("model_name") or ""))
    return replace(coder, normalisation=normalisation, reads=reads, writes=writes, trained_on=name)


def _of_transcoder(architecture: str) -> str:
    """The activation in the name of a transcoder's architecture: ``jumprelu`` of ``jumprelu_skip_transcoder``."""
    bare = re.sub(r"_?(skip_)?transcoder$", "", architecture)
    bare = bare.removeprefix("matryoshka_") if bare == "matryoshka_batchtopk" else bare
    return bare or "standard"


def _sparsify(path: Path) -> SparseCoder:
    """Its folder is named after the module that it was trained on, such as ``layers.9.mlp``."""
    config = _config(path.parent / CONFIG)
    if config.get("activation", "topk") != "topk" or config.get("signed"):
        kind = "signed top-k" if config.get("signed") else config["activation"]
        raise CheckpointError(f"{path.parent}: the activation {kind!r} of sparsify is not known", "known: topk")
    tensors = tensors_in(path)
    if "encoder.weight" in tensors:
        tensors["W_enc"] = tensors.pop("encoder.weight").T.contiguous()
    if "encoder.bias" in tensors:
        tensors["b_enc"] = tensors.pop("encoder.bias")
    transcoder = bool(config.get("transcode"))
    coder = made(path.parent, "sparsify", "topk", tensors, config.get("k", 0), transcoder, not transcoder, [])
    match = _MODULE.fullmatch(path.parent.name)
    if match is None:
        return replace(coder, notes=(*coder.notes, _UNSAID))
    part = {None: ("in", "out"), "mlp": ("norm2", "ffn")}.get(match[2], ("norm1", "attn"))
    reads, writes = (f"L{match[1]}.{step}" for step in part)
    return replace(coder, reads=reads if transcoder else writes, writes=writes)


def _gemma_scope(path: Path) -> SparseCoder:
    """Its path says what it was trained on, as in ``gemma-scope-2b-pt-res/layer_9/width_16k/…``."""
    where = path.absolute().as_posix()
    transcoder = "transcoder" in where
    tensors = {name.replace("w_", "W_"): tensor for name, tensor in tensors_in(path).items()}
    coder = made(path.parent, "Gemma Scope", "jumprelu", tensors, 0, transcoder, False, [])
    kinds = {"-res": "hook_resid_post", "-mlp": "hook_mlp_out", "-att": "attn.hook_z"}
    hook = next((hook for part, hook in kinds.items() if re.search(rf"{part}\b", where)), "")
    layer = re.search(r"layer_(\d+)", where)
    if layer is None or not (hook or transcoder):
        return replace(coder, notes=(*coder.notes, _UNSAID))
    block = f"blocks.{layer[1]}"
    if transcoder:
        return replace(coder, reads=f"{block}.ln2.hook_normalized", writes=f"{block}.hook_mlp_out")
    return replace(coder, reads=f"{block}.{hook}", writes=f"{block}.{hook}")


def _gemma_scope_2(path: Path) -> SparseCoder:
    config = _config(path.parent / "config.json")
    if config.get("architecture") != "jump_relu":
        raise CheckpointError(
            f"{path.parent}: architecture {config.get('architecture')!r} is not known", "jump_relu is"
        )
    tensors = {name.replace("w_", "W_"): tensor for name, tensor in tensors_in(path).items()}
    if "affine_skip_connection" in tensors:
        tensors["W_skip"] = tensors.pop("affine_skip_connection").T.contiguous()
    steps = [_module_step(str(config.get(f"hf_hook_point_{end}") or "")) for end in ("in", "out")]
    transcoder = bool(steps[1])
    coder = made(path.parent, "Gemma Scope 2", "jumprelu", tensors, 0, transcoder, False, [] if steps[0] else [_UNSAID])
    name = safe(str(config.get("model_name") or ""))
    return replace(coder, reads=steps[0], writes=steps[1] or steps[0], trained_on=name)


def _module_step(name: str) -> str:
    """The step at a module of transformers' Gemma 3, such as ``model.layers.9.output``; empty for another name."""
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
    steps = {"output": "out", "self_attn.o_proj.input": "concat", "post_feedforward_layernorm.output": "ffn_norm",
             "pre_feedforward_layernorm.output": "norm2"}  # fmt: skip
    return f"L{match[1]}.{steps[match[2]]}" if match and match[2] in steps else ""


LAYER_FILE = re.compile(r"layer_(\d+)\.safetensors")
"""The weights of one layer of circuit-tracer's sets."""


def _circuit_tracer(path: Path) -> SparseCoder:
    match = LAYER_FILE.fullmatch(path.name)
    assert match is not None
    config = set_config(path.parent)
    tensors = tensors_in(path)
    tensors = {name.removeprefix("activation_function."): tensor for name, tensor in tensors.items()}
    if "W_enc" in tensors:
        tensors["W_enc"] = tensors["W_enc"].T.contiguous()
    coder = made(path.parent, "circuit-tracer", set_activation(config, tensors), tensors, _k(config), True, False, [])
    reads, writes = set_steps(config, int(match[1]))
    name = f"{safe(path.parent.name)} layer {match[1]}"
    return replace(coder, name=name, reads=reads, writes=writes, trained_on=safe(config.get("model_name", "")))


def _k(config: Mapping[str, str]) -> Any:
    k = config.get("k", "0")
    return int(k) if k.isdecimal() else k


def set_activation(config: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """The architecture of a layer of circuit-tracer: as its configuration says, else by whether it has a threshold."""
    if "threshold" in tensors:
        return "jumprelu"
    return {"topk": "topk"}.get(config.get("activation", ""), "standard")


def set_config(folder: Path) -> dict[str, str]:
    """The words of the ``config.yaml`` of circuit-tracer's transcoders: lines of a key and a word, no lists.

    Raises CheckpointError without the file, or where it does not name the steps.
    """
    path = folder / TRANSCODERS
    if not path.is_file():
        raise CheckpointError(f"there is no {TRANSCODERS} beside the weights in {folder}", "it says what they are")
    lines = re.findall(r"^(\w+):[ \t]*(.+?)[ \t]*$", read_bytes(path, 2**20).decode("utf-8", "replace"), re.MULTILINE)
    config = {key: word.strip("\"'") for key, word in lines}
    if missing := [key for key in ("model_kind", *_HOOKS) if key not in config]:
        raise CheckpointError(f"{path} does not say {', '.join(missing)}", _OTHER)
    return config


_HOOKS = ("feature_input_hook", "feature_output_hook")
_MODULES = {"mlp.hook_in": "norm2", "mlp.hook_out": "ffn"}
"""The input and the output of a feed-forward by the names of its module, which circuit-tracer's files have."""


def hook_name(step: str) -> str:
    """The name of a step in such a configuration: that of the module, or TransformerLens' without its layer."""
    bare = re.sub(r"^(blocks\.|L)\d+\.", "", step)
    return next((hook for hook, name in _MODULES.items() if name == bare), bare)


def set_steps(config: Mapping[str, str], layer: int) -> tuple[str, str]:
    """The steps that a layer of a set reads and writes: addresses, or names of TransformerLens."""
    hooks = (config[name] for name in _HOOKS)
    reads, writes = (f"L{layer}.{_MODULES[hook]}" if hook in _MODULES else f"blocks.{layer}.{hook}" for hook in hooks)
    return reads, writes


LAYOUTS: Mapping[str, Callable[[Path], SparseCoder]] = {
    WEIGHTS: _sae_lens, SPARSIFY: _sparsify, GEMMA_SCOPE: _gemma_scope, GEMMA_SCOPE_2: _gemma_scope_2,
}  # fmt: skip
"""The layouts by the name of their file of weights."""


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"there is no {path.name} beside the weights in {path.parent}", "it says what they are")
    return read_json(path)


def tensors_in(path: Path) -> dict[str, Tensor]:
    """The tensors of a file in float32. Raises CheckpointError for one that is damaged, or has NaN or infinity."""
    try:
        dump = open_dump(path)
        tensors = {name: dump.read(name).float() for name in dump.shapes}
    except DumpError as error:
        raise CheckpointError(error.message, _AGAIN) from None
    for name, tensor in tensors.items():
        if count := int((~tensor.isfinite()).sum()):
            of = f"{tensor.numel():,} numbers of {safe(name)}"
            raise CheckpointError(f"{path}: {count:,} of the {of} are not finite", _AGAIN)
    return tensors


def made(
    folder: Path, layout: str, architecture: str, tensors: Mapping[str, Tensor], k: Any, transcoder: bool,
    subtracts_bias: bool, notes: Sequence[str],
) -> SparseCoder:  # fmt: skip
    """A coder of tensors under SAELens' names. Raises CheckpointError, naming what does not fit."""
    if architecture not in ACTIVATIONS:
        hint = did_you_mean(architecture, ACTIVATIONS)
        raise CheckpointError(f"{folder}: the architecture {architecture!r} is not known", hint)
    needed = ("W_enc", "W_dec", "b_dec", *_NEEDED[architecture])
    if missing := [name for name in needed if name not in tensors]:
        raise CheckpointError(f"{folder}: {', '.join(missing)} missing, which {architecture} of {layout} has", _OTHER)
    surplus = sorted({*tensors} - {*needed, "W_skip", "scaling_factor"})
    if surplus:
        raise CheckpointError(
            f"{folder}: {safe(', '.join(surplus))} is nothing that {architecture} of {layout} has", _OTHER
        )
    if architecture == "topk" and not (type(k) is int and k > 0):
        raise CheckpointError(
            f"{folder}: k is {k!r}, and top-k needs how many features are active", "cfg.json says it, as k"
        )
    sizes: dict[str, int] = {}
    for name in sorted(tensors, key=lambda name: -tensors[name].dim()):
        shape, axes = tuple(tensors[name].shape), _SHAPES[name]
        if len(shape) != len(axes) or any(sizes.setdefault(axis, size) != size for axis, size in zip(axes, shape)):  # noqa: B905
            fit = " × ".join(str(sizes.get(axis, axis)) for axis in axes)
            raise CheckpointError(f"{folder}: {name} is {' × '.join(map(str, shape))}, and {fit} would fit", _OTHER)
    if subtracts_bias and not transcoder and sizes["C"] != sizes["O"]:
        raise CheckpointError(f"{folder} reads {sizes['C']} numbers and writes {sizes['O']}", "it is no autoencoder")
    decoder, scale = tensors["W_dec"], tensors.get("scaling_factor")
    return SparseCoder(
        safe(folder.name),
        layout,
        architecture,
        tensors["W_enc"],
        tensors["b_gate" if architecture == "gated" else "b_enc"],
        decoder if scale is None else decoder * scale[:, None],
        tensors["b_dec"],
        k=k if architecture == "topk" else 0,
        threshold=tensors.get("threshold"),
        magnitude_scale=tensors.get("r_mag"),
        magnitude_bias=tensors.get("b_mag"),
        skip=tensors.get("W_skip"),
        subtracts_bias=bool(subtracts_bias) and not transcoder,
        is_transcoder=transcoder,
        notes=(*notes, *([] if scale is None or bool((scale == 1).all()) else ["scaled by its fine-tuning"])),
    )


def safe(name: str) -> str:
    return printable(name, spaces=False)
