"""Sparse coders of each layout, written here as their programs do, against their formulas in float64 numpy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tinytf.errors import CheckpointError
from tinytf.features.coder import SparseCoder
from tinytf.features.layouts import open_sae
from tinytf.features.place import place_at
from tinytf.loading import load
from tinytf.steps.table import table_of

C, F, TOKENS = 24, 70, 9
Arrays = dict[str, np.ndarray[Any, Any]]


def tensors_of(architecture: str, seed: int = 0) -> dict[str, Tensor]:
    """Random weights under SAELens' names."""
    draw = torch.Generator().manual_seed(seed)
    shapes = {"W_enc": (C, F), "b_enc": (F,), "W_dec": (F, C), "b_dec": (C,)}
    if architecture == "gated":
        shapes = {**shapes, "b_gate": (F,), "r_mag": (F,), "b_mag": (F,)}
        del shapes["b_enc"]
    tensors = {name: 0.3 * torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    return {**tensors, "threshold": torch.rand(F, generator=draw)} if architecture == "jumprelu" else tensors


def inputs() -> Tensor:
    return 2 * torch.randn(TOKENS, C, generator=torch.Generator().manual_seed(7)) + 0.5


def write(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "sae_weights.safetensors")
    said = {"d_in": C, "d_sae": F, "metadata": {"sae_lens_version": "6.0.0", "hook_name": "blocks.1.hook_resid_post"}}
    (folder / "cfg.json").write_text(json.dumps({**said, **config}))
    return folder


def in_float64(tensors: dict[str, Tensor]) -> Arrays:
    return {name: tensor.double().numpy() for name, tensor in tensors.items()}


def relu(x: Any) -> Any:
    return np.maximum(x, 0.0)


def top(pre: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    least = np.sort(pre, axis=-1)[:, -k][:, None]
    return relu(np.where(pre >= least, pre, 0.0))


def gated(x: Any, w: Arrays) -> Any:
    gate = x @ w["W_enc"] + w["b_gate"] > 0
    return gate * relu(x @ (w["W_enc"] * np.exp(w["r_mag"])) + w["b_mag"])


def jump(x: Any, w: Arrays) -> Any:
    pre = x @ w["W_enc"] + w["b_enc"]
    return np.where(pre > w["threshold"], relu(pre), 0.0)


FORMULAS: dict[str, Callable[[Any, Arrays], Any]] = {
    "standard": lambda x, w: relu(x @ w["W_enc"] + w["b_enc"]),
    "topk": lambda x, w: top(x @ w["W_enc"] + w["b_enc"], 6),
    "gated": gated,
    "jumprelu": jump,
}


def agrees(coder: SparseCoder, activations: Any, output: Any) -> None:
    """Whether the coder gives these activations and this output, within rounding."""
    ours = coder.encode(inputs())
    np.testing.assert_allclose(ours.numpy(), activations, atol=2e-5)
    np.testing.assert_allclose(coder.decode(ours, inputs()).numpy(), output, atol=2e-5)


@pytest.mark.parametrize("normalisation", ["none", "layer_norm", "constant_norm_rescale"])
@pytest.mark.parametrize("architecture", FORMULAS)
def test_sae_lens_layout_is_its_formula(tmp_path: Path, architecture: str, normalisation: str) -> None:
    tensors = tensors_of(architecture)
    w, x = in_float64(tensors), inputs().double().numpy()
    subtracts = normalisation != "layer_norm"
    folder = write(
        tmp_path / "sae", tensors, architecture=architecture, k=6, normalize_activations=normalisation,
        apply_b_dec_to_input=subtracts,
    )  # fmt: skip
    shift, scale = np.zeros((TOKENS, 1)), np.ones((TOKENS, 1))
    if normalisation == "layer_norm":
        shift, scale = x.mean(-1, keepdims=True), x.std(-1, ddof=1, keepdims=True)
    elif normalisation == "constant_norm_rescale":
        scale = np.linalg.norm(x, axis=-1, keepdims=True) / np.sqrt(C)
    inside = (x - shift) / (scale + (1e-5 if normalisation == "layer_norm" else 0))
    activations = FORMULAS[architecture](inside - subtracts * w["b_dec"], w)
    agrees(open_sae(folder), activations, (activations @ w["W_dec"] + w["b_dec"]) * scale + shift)


def test_gemma_scope_is_jumprelu_without_an_input_bias(tmp_path: Path) -> None:
    w = in_float64(tensors_of("jumprelu"))
    folder = tmp_path / "gemma-scope-2b-pt-mlp" / "layer_1" / "width_16k" / "average_l0_9"
    folder.mkdir(parents=True)
    np.savez(folder / "params.npz", **{name: array.astype(np.float32) for name, array in w.items()})
    activations = jump(inputs().double().numpy(), w)
    coder = open_sae(folder)
    agrees(coder, activations, activations @ w["W_dec"] + w["b_dec"])
    assert coder.reads == coder.writes == "blocks.1.hook_mlp_out"
    assert open_sae(folder / "params.npz").reads == coder.reads


def test_gemma_scope_2_transcoder_adds_its_affine_part(tmp_path: Path) -> None:
    w = in_float64(tensors_of("jumprelu"))
    skip = np.random.default_rng(0).normal(size=(C, C))
    theirs = {**{name.replace("W_", "w_"): array for name, array in w.items()}, "affine_skip_connection": skip}
    save_file({name: torch.tensor(array).float() for name, array in theirs.items()}, tmp_path / "params.safetensors")
    point = "model.layers.1.{}_feedforward_layernorm.output"
    config = {"architecture": "jump_relu", "hf_hook_point_in": point.format("pre"),
              "hf_hook_point_out": point.format("post")}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    x = inputs().double().numpy()
    activations, coder = jump(x, w), open_sae(tmp_path)
    agrees(coder, activations, activations @ w["W_dec"] + w["b_dec"] + x @ skip)
    assert (coder.reads, coder.writes, coder.is_transcoder) == ("L1.norm2", "L1.ffn_norm", True)


@pytest.mark.parametrize("transcode", [False, True])
def test_sparsify_subtracts_its_bias_unless_it_transcodes(tmp_path: Path, transcode: bool) -> None:
    tensors = tensors_of("topk")
    w, folder = in_float64(tensors), tmp_path / "layers.1.mlp"
    folder.mkdir()
    theirs = {"encoder.weight": tensors["W_enc"].T.contiguous(), "encoder.bias": tensors["b_enc"],
              "W_dec": tensors["W_dec"], "b_dec": tensors["b_dec"]}  # fmt: skip
    save_file(theirs, folder / "sae.safetensors")
    (folder / "cfg.json").write_text(json.dumps({"d_in": C, "k": 6, "activation": "topk", "transcode": transcode}))
    x, coder = inputs().double().numpy(), open_sae(folder)
    activations = FORMULAS["topk"](x - (not transcode) * w["b_dec"], w)
    agrees(coder, activations, activations @ w["W_dec"] + w["b_dec"])
    assert (coder.reads, coder.writes) == ("L1.norm2" if transcode else "L1.ffn", "L1.ffn")


def test_decoder_norms_and_fine_tuned_scales_are_folded_in(tmp_path: Path) -> None:
    tensors = tensors_of("topk")
    w, x = in_float64(tensors), inputs().double().numpy()
    norm = np.linalg.norm(w["W_dec"], axis=-1)
    activations = top(((x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]) * norm, 6)
    coder = open_sae(write(tmp_path / "a", tensors, architecture="topk", k=6, rescale_acts_by_decoder_norm=True))
    agrees(coder, activations, activations / norm @ w["W_dec"] + w["b_dec"])
    scale = torch.rand(F) + 0.5
    tuned = open_sae(write(tmp_path / "b", {**tensors, "scaling_factor": scale}, architecture="topk", k=6))
    activations = FORMULAS["topk"](x - w["b_dec"], w)
    agrees(tuned, activations, activations * scale.double().numpy() @ w["W_dec"] + w["b_dec"])
    assert tuned.notes == ("scaled by its fine-tuning",)


def test_configurations_before_sae_lens_6_open(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    write(folder, tensors_of("topk"))
    old = {"d_in": C, "d_sae": F, "hook_point": "blocks.1.attn.hook_z", "activation_fn_str": "topk",
           "activation_fn_kwargs": {"k": 6}, "normalize_activations": True}  # fmt: skip
    (folder / "cfg.json").write_text(json.dumps(old))
    coder = open_sae(folder)
    assert (coder.architecture, coder.k, coder.reads) == ("topk", 6, "blocks.1.attn.hook_z")
    assert "scaled to a mean norm" in coder.notes[0]


def _poisoned(tensors: dict[str, Tensor]) -> None:
    tensors["W_dec"][3, 4] = float("nan")


@pytest.mark.parametrize(
    ("change", "config", "words"),
    [
        (_poisoned, {}, "1 of the 1,680 numbers of W_dec are not finite"),
        (lambda t: t.pop("b_dec"), {}, "b_dec missing"),
        (lambda t: t.update(b_enc=torch.ones(3)), {}, "b_enc is 3, and 70 would fit"),
        (lambda t: t.update(more=torch.ones(3)), {}, "more is nothing that topk"),
        (lambda t: None, {"architecture": "temporal"}, "architecture 'temporal' is not known"),
        (lambda t: None, {"normalize_activations": "covariance_whitening"}, "'covariance_whitening' is not known"),
        (lambda t: None, {"activation_fn": "tanh-relu"}, "activation 'tanh-relu' is not known"),
        (lambda t: None, {"k": 0}, "k is 0"),
        (lambda t: None, {"k": 0, "activation_fn_kwargs": [1]}, "k is 0"),
        (lambda t: None, {"k": True}, "k is True"),
        (lambda t: None, {"metadata": {"hook_head_index": 2}}, "reads head 2 alone"),
    ],
)
def test_what_is_not_sound_is_refused_by_name(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], Any], config: dict[str, Any], words: str
) -> None:
    tensors = tensors_of("topk")
    change(tensors)
    folder = write(tmp_path / "sae", tensors, **{"architecture": "topk", "k": 6, **config})
    with pytest.raises(CheckpointError, match=words) as caught:
        open_sae(folder)
    assert caught.value.hint


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    torch.save({"W_enc": torch.ones(2, 2)}, tmp_path / "ae.pt")
    np.savez(tmp_path / "params.npz", W_enc=np.array([object()], dtype=object))
    for path, words in ((tmp_path / "ae.pt", "is a pickle"), (tmp_path / "params.npz", "holds pickled objects")):
        with pytest.raises(CheckpointError, match=words):
            open_sae(path)
    (tmp_path / "params.npz").unlink()
    with pytest.raises(CheckpointError, match="is a pickle"):
        open_sae(tmp_path)


def test_a_saved_coder_opens_as_it_was(tmp_path: Path) -> None:
    first = open_sae(write(tmp_path / "a", tensors_of("topk"), architecture="topk", k=6))
    first.save(tmp_path / "b", {"model_name": "tiny"})
    again = open_sae(tmp_path / "b")
    assert load_file(tmp_path / "b" / "sae_weights.safetensors").keys() == {"W_enc", "b_enc", "W_dec", "b_dec"}
    assert torch.equal(first.reconstruct(inputs()), again.reconstruct(inputs()))
    assert (again.reads, again.k, again.trained_on) == (first.reads, 6, "tiny")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("blocks.2.hook_resid_post", "L2.out"),
        ("blocks.2.hook_resid_pre", "L2.in"),
        ("blocks.2.hook_mlp_out", "L2.ffn"),
        ("blocks.2.attn.hook_z", "L2.concat"),
        ("blocks.2.hook_mlp_in", "L2.mid"),
        ("blocks.2.mlp.hook_in", "L2.norm2"),
        ("blocks.2.ln2.hook_normalized", "blocks.2.ln2.hook_normalized"),
        ("L2.attn", "L2.attn"),
    ],
)
def test_names_of_steps_lead_to_ours(name: str, step: str) -> None:
    model = load("tiny")
    place, trace = place_at(name, table_of(model.config)), model.trace("The cat sat")
    assert str(place) == step
    assert place.value(trace).shape == (3, 128)
    torch.testing.assert_close(place.of_source(trace[place.source(model.config)], model.config), place.value(trace))
