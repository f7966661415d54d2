"""The encoder of two stacks under the lens: read by the decoder's head, as plain transformers computes it."""

from typing import Any

import pytest
import torch
from architectures import KINDS, SOURCE, asked, config_of, lively
from reference import FAMILIES, TWO_STACKS, saved
from torch import Tensor, nn

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import UsageError
from tinytf.loading import Model, load
from tinytf.look.lens import Lens
from tinytf.text.ids import IdTokenizer

TEXT = " ".join(map(str, SOURCE))
REFUSED = {
    "t5gemma": "is 20 wide where the decoder's head reads 24",
    "marian, two vocabularies": "has another vocabulary than the decoder",
    "fsmt": "has another vocabulary than the decoder",
    "roberta to a wider gpt-2": "is ",
    "bert to a narrower bart": "is ",
}


def opened(family: str) -> Model:
    checkpoint = read_directory(saved(family))
    model = asked(checkpoint.load().transformer)
    sizes = model.config.vocab_size, model.config.encoder.vocab_size
    return Model("test", model.transformer, IdTokenizer(*sizes), "weights of a test")


def head(theirs: Any, x: Tensor) -> Tensor:
    """The logits of hidden states, as the forward pass of transformers computes them at its end."""
    if hasattr(theirs, "final_logits_bias"):
        return theirs.lm_head(x) + theirs.final_logits_bias
    if hasattr(theirs, "decoder") and hasattr(theirs.decoder, "cls"):
        return theirs.decoder.cls(x)
    if hasattr(theirs, "lm_head"):
        is_scaled = getattr(theirs.config, "scale_decoder_outputs", theirs.config.model_type == "umt5")
        return theirs.lm_head(x * theirs.config.d_model**-0.5 if is_scaled else x)
    return theirs.decoder.lm_head(x)


def of_transformers(theirs: Any) -> list[Tensor]:
    """The logits (T, V) of each state of the encoder's stream, the embedding first."""
    encoder = theirs.get_encoder()
    norm = next((getattr(encoder, name) for name in ("final_layer_norm", "layer_norm") if hasattr(encoder, name)), None)
    norm = nn.Identity() if norm is None else norm
    found = encoder(input_ids=torch.tensor([SOURCE]), output_hidden_states=True)
    states = [norm(state) for state in found.hidden_states[:-1]] + [found.last_hidden_state]
    return [head(theirs, state)[0] for state in states]


def whole(found: Lens) -> Tensor:
    """Every probability, (stages, positions, V)."""
    return torch.stack([stage.probabilities for stage in found.stages])


@pytest.mark.every
@pytest.mark.parametrize("family", TWO_STACKS)
@torch.no_grad()
def test_each_row_is_what_transformers_heads_make_of_that_state_of_the_encoder(family: str) -> None:
    model = opened(family)
    if family in REFUSED:
        with pytest.raises(UsageError, match=f"the encoder has no head, and {REFUSED[family]}"):
            model.encoder.lens(TEXT)
        return
    kind = FAMILIES[family]()
    theirs = type(kind).from_pretrained(saved(family)).eval()
    expected = torch.stack(of_transformers(theirs)).softmax(-1).double()
    found = model.encoder.lens(TEXT, track=range(model.config.vocab_size))
    assert found.holds
    assert found.borrowed
    assert found.positions == tuple(range(len(SOURCE)))
    torch.testing.assert_close(whole(found), expected, rtol=1e-4, atol=1e-5)


KINDS_OF_TWO = [kind for kind, settings in KINDS.items() if settings.get("encoder") or "encoder" in settings]


@pytest.mark.every
@pytest.mark.parametrize("kind", KINDS_OF_TWO)
@torch.no_grad()
def test_the_last_row_is_the_heads_product_with_what_the_decoder_reads(kind: str) -> None:
    model = asked(lively(config_of(kind)))
    if model.config.encoder.d_model != model.config.d_model:
        with pytest.raises(UsageError, match=f"is {model.config.encoder.d_model} wide where"):
            model.encoder.lens(TEXT)
        return
    found = model.encoder.lens(TEXT, track=range(model.config.vocab_size))
    logits = model.transformer.unembed(model.transformer.reads.states[0])
    assert torch.equal(found.stages[-1].probabilities, logits.softmax(-1, dtype=torch.float64))
    assert not found.stages[-1].divergence.any()
    tied = model.config.tied_head and model.config.shares_embeddings
    assert ("share one table" in found.through) == tied


def test_two_tokenizers_of_equal_size_are_two_vocabularies() -> None:
    kind = "two stacks that norm what they add, with a cap"
    transformer = lively(config_of(kind))
    count = transformer.config.vocab_size
    tokenizer = IdTokenizer(count)
    tokenizer._source = IdTokenizer(count)
    model = Model("test", transformer, tokenizer, "weights of a test")
    with pytest.raises(UsageError, match="has another vocabulary than the decoder"):
        model.encoder.lens(TEXT)
    with pytest.raises(UsageError, match="no language-model head"):
        asked(transformer.encoder).lens(TEXT)


def test_the_encoder_predicts_nothing_that_a_tuned_lens_could_predict() -> None:
    with pytest.raises(UsageError, match="an encoder predicts nothing"):
        load("tiny-translator").encoder.lens("the third of May", tuned="lens.safetensors")
