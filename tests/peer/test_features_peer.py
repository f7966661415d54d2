"""Sparse coders that SAELens and EleutherAI's sparsify wrote give here what they give there, and ours opens in SAELens.

SAELens 6 needs TransformerLens below 4, so that these run in another environment than the tests beside them.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tinytf.features.layouts import open_sae

WIDTH, FEATURES = 64, 200
ARCHITECTURES = [
    "standard", "gated", "jumprelu", "topk", "transcoder", "skip_transcoder", "jumprelu_transcoder",
    "jumprelu_skip_transcoder",
]  # fmt: skip
NORMALISATIONS = ["none", "layer_norm", "constant_norm_rescale", "expected_average_only_in"]
CASES = [
    (architecture, normalisation, subtracts)
    for architecture in ARCHITECTURES
    for normalisation in NORMALISATIONS
    for subtracts in (True, False)
    if "transcoder" not in architecture or not (subtracts or normalisation == "constant_norm_rescale")
]
"""SAELens has no transcoder that subtracts a bias, and one with a constant norm cannot come back from it."""


def with_random_weights(module: Any) -> Any:
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw))
            if name == "threshold":
                parameter.abs_()
    return module


def inputs() -> torch.Tensor:
    return 3 * torch.randn(5, 7, WIDTH, generator=torch.Generator().manual_seed(1)) + 0.5


def sae_lens() -> Any:
    if "sae_lens" not in sys.modules:
        pytest.importorskip("sae_lens", exc_type=ImportError)
    return sys.modules["sae_lens"]


@pytest.mark.parametrize(("architecture", "normalisation", "subtracts"), CASES)
def test_what_sae_lens_writes_is_read_as_it_reads_it(
    tmp_path: Path, architecture: str, normalisation: str, subtracts: bool
) -> None:
    sae_lens()
    from sae_lens.registry import get_sae_class

    transcoder = "transcoder" in architecture
    more: dict[str, Any] = {"d_out": WIDTH} if transcoder else {}
    if architecture == "topk":
        more = {"k": 9, "rescale_acts_by_decoder_norm": subtracts}
    make, settings = get_sae_class(architecture)
    theirs = with_random_weights(
        make(settings(WIDTH, FEATURES, apply_b_dec_to_input=subtracts, normalize_activations=normalisation, **more))
    )
    theirs.save_model(tmp_path)
    ours, x = open_sae(tmp_path), inputs()
    with torch.no_grad():
        activations, output = theirs.encode(x), theirs(x)
    torch.testing.assert_close(ours.encode(x), activations, atol=2e-5, rtol=0)
    assert torch.equal(ours.encode(x) > 0, activations > 0)
    torch.testing.assert_close(ours.reconstruct(x), output, atol=2e-5, rtol=0)


def test_sae_lens_reads_what_is_trained_here_as_it_is_read_here(tmp_path: Path) -> None:
    sae_lens()
    from sae_lens.saes.sae import SAE

    import tinytf
    from tinytf.text.corpus import find_files

    model = tinytf.load("tiny")
    report = model.train_sae(find_files([model.corpus]), "L1.concat", features=40, k=5, tokens=2000, batch=100)
    report.coder.save(tmp_path / "sae", {"model_name": "tiny"})
    theirs, x = SAE.load_from_disk(tmp_path / "sae"), model.trace("The cat sat on the mat.")["L1.head_out"]
    heads = x.transpose(0, 1)  # (T, H, D), as hook_z has them
    with torch.no_grad():
        activations, output = theirs.encode(heads), theirs(heads)
    side_by_side = heads.flatten(1)
    torch.testing.assert_close(report.coder.encode(side_by_side), activations, atol=1e-5, rtol=0)
    torch.testing.assert_close(report.coder.reconstruct(side_by_side), output.flatten(1), atol=1e-5, rtol=0)
    assert (theirs.cfg.metadata.hook_name, theirs.cfg.k) == ("blocks.1.attn.hook_z", 5)


@pytest.mark.parametrize(("transcode", "skip"), [(False, False), (True, False), (True, True)])
def test_what_sparsify_writes_is_read_as_it_reads_it(tmp_path: Path, transcode: bool, skip: bool) -> None:
    pytest.importorskip("sparsify", exc_type=ImportError)
    from sparsify.config import SparseCoderConfig
    from sparsify.sparse_coder import SparseCoder

    settings = SparseCoderConfig(num_latents=FEATURES, k=9, transcode=transcode, skip_connection=skip)
    theirs = with_random_weights(SparseCoder(WIDTH, settings))
    theirs.save_to_disk(tmp_path / "layers.1.mlp")
    ours, x = open_sae(tmp_path / "layers.1.mlp"), inputs().flatten(0, 1)
    with torch.no_grad():
        top, output = theirs.encode(x), theirs(x).sae_out
    activations = torch.zeros(len(x), FEATURES).scatter_(-1, top.top_indices, top.top_acts)
    torch.testing.assert_close(ours.encode(x), activations, atol=2e-5, rtol=0)
    torch.testing.assert_close(ours.reconstruct(x), output, atol=2e-5, rtol=0)
