"""Folders of models of two stacks beyond those that translate: classifiers, and decoders without their encoder."""

from typing import Any

import pytest
import torch
import transformers
from architectures import SIZES, asked, enliven
from reference import BART, BERT, GPT2, T5
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, processors
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

import tinytf
from tinytf.checkpoints.huggingface.export import export
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.config import ModelConfig
from tinytf.errors import UsageError
from tinytf.generate import beam
from tinytf.model.transformer import Transformer
from tinytf.sources import ASSETS
from tinytf.text.chat import TextPair
from tinytf.text.tokenizer import Tokenizer

CLASSIFIERS = {
    "bart": ("Bart", BART, 2),
    "mvp": ("Mvp", BART, 2),
    "t5": ("T5", T5, 1),
    "mt5, gated": ("MT5", {**T5, "feed_forward_proj": "gated-gelu"}, 1),
    "umt5": ("UMT5", T5, 1),
}


@pytest.mark.parametrize(("family", "sizes", "end"), CLASSIFIERS.values(), ids=CLASSIFIERS)
@torch.no_grad()
def test_a_classifier_reads_its_text_in_both_stacks(family, sizes, end, tmp_path):
    """The decoder reads it shifted, and the classes stand where it has read all but the last token."""
    config = getattr(transformers, f"{family}Config")(**{**sizes, "num_labels": 3, "eos_token_id": end})
    theirs = getattr(transformers, f"{family}ForSequenceClassification")(config).eval()
    enliven(theirs, 3)
    ids = [4, 9, 16, 25, end]
    expected = theirs(torch.tensor([ids]))
    theirs.save_pretrained(tmp_path / "theirs")
    model = asked(read_directory(tmp_path / "theirs").load().transformer)
    text = " ".join(map(str, ids))
    trace = model.reading(text).trace(text)
    assert trace.encoding.ids == [config.decoder_start_token_id, *ids[:-1]]
    torch.testing.assert_close(trace["logits"][-1], expected.logits[0], rtol=1e-5, atol=1e-5)
    assert trace.predictions[0].top[0].shown == model.config.labels[int(expected.logits.argmax())]
    export(model.transformer, Tokenizer.load(ASSETS / "tiny" / "tokenizer.json"), tmp_path / "ours")
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] | report["unexpected_keys"]
    again.config.eos_token_id, again.config.pad_token_id = end, config.pad_token_id  # of another tokenizer
    torch.testing.assert_close(again.eval()(torch.tensor([ids])).logits, expected.logits, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_pair_of_texts_is_classified_as_transformers_does(tmp_path):
    """As bart-large-mnli judges a premise and a hypothesis."""
    words = ["<s>", "<pad>", "</s>", "<unk>", "a", "cat", "sat", "here"]
    library = Library(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    ends = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=library, **ends)
    theirs = transformers.BartForSequenceClassification(transformers.BartConfig(**BART, num_labels=3)).eval()
    enliven(theirs, 3)
    for part in (theirs, tokenizer):
        part.save_pretrained(tmp_path)
    pair = TextPair("a cat sat", "a cat sat here")
    ids = torch.tensor([tokenizer(pair.first, pair.second)["input_ids"]])
    trace = tinytf.load(tmp_path).reading(pair).trace(pair)
    torch.testing.assert_close(trace["logits"][-1], theirs(ids).logits[0], rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_head_for_tokens_on_the_encoder_of_a_t5_is_theirs(tmp_path):
    theirs = transformers.T5ForTokenClassification(transformers.T5Config(**T5, num_labels=3)).eval()
    enliven(theirs, 3)
    theirs.save_pretrained(tmp_path / "theirs")
    model = asked(read_directory(tmp_path / "theirs").load().transformer)
    ids = torch.tensor([[4, 9, 16, 25, 1]])
    torch.testing.assert_close(model.transformer(ids), theirs(ids).logits, rtol=1e-5, atol=1e-5)
    export(model.transformer, Tokenizer.load(ASSETS / "tiny" / "tokenizer.json"), tmp_path / "ours")
    again = transformers.T5ForTokenClassification.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(again(ids).logits, theirs(ids).logits, rtol=1e-5, atol=1e-5)


EVEN = {**BART, "encoder_layers": 3}
"""Theirs makes a cache of a decoder for as many layers as the encoder has."""


def whisper() -> nn.Module:
    sizes = {"max_target_positions": 32, "max_source_positions": 6, "num_mel_bins": 8, "vocab_size": 41}
    ends = {"decoder_start_token_id": 2, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    return transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**{**EVEN, **sizes, **ends}))


def read_by(decoder: Any, *, wider: int = 0) -> nn.Module:
    """A decoder under an encoder of images, whose states may be wider."""
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "image_size": 4, "patch_size": 2}
    encoder = transformers.ViTConfig(hidden_size=24 + wider, **sizes)
    kind = transformers.VisionEncoderDecoderConfig
    config = kind.from_encoder_decoder_configs(encoder, decoder, decoder_start_token_id=2, pad_token_id=1)
    return transformers.VisionEncoderDecoderModel(config)


DECODERS = {
    "whisper": (whisper, 24),
    "trocr": (lambda: read_by(transformers.TrOCRConfig(**BART, cross_attention_hidden_size=30), wider=6), 30),
    "trocr, sinusoidal and not normed first": (
        lambda: read_by(
            transformers.TrOCRConfig(**BART, use_learned_position_embeddings=False, layernorm_embedding=False)
        ),
        24,
    ),
    "donut": (lambda: read_by(transformers.MBartConfig(**EVEN)), 24),
    "bart": (lambda: read_by(transformers.BartConfig(**EVEN)), 24),
    "gpt-2, states projected": (lambda: read_by(transformers.GPT2Config(**GPT2), wider=6), 30),
    "bert": (lambda: read_by(transformers.BertConfig(**BERT)), 24),
}


@pytest.mark.share(4)
@pytest.mark.parametrize(("make", "width"), DECODERS.values(), ids=DECODERS)
@torch.no_grad()
def test_a_decoder_that_is_given_states_is_that_of_transformers(make, width, tmp_path):
    theirs = make().eval()
    theirs.size = 1.2
    enliven(theirs, 3)
    theirs.save_pretrained(tmp_path)
    checkpoint = read_directory(tmp_path)
    model = asked(checkpoint.load().transformer)
    states, ids = torch.randn(5, width, generator=torch.Generator().manual_seed(4)), [2, 9, 16, 25, 3]
    bound = model.reading(states)
    trace = bound.trace(ids=ids)
    decoder = theirs.get_decoder()
    theirs.set_attn_implementation("eager")
    project = getattr(theirs, "enc_to_dec_proj", nn.Identity())
    given = {"encoder_hidden_states": project(states[None]), "output_hidden_states": True, "output_attentions": True}
    expected = decoder(input_ids=torch.tensor([ids]), **given)
    for layer, states_before in enumerate(expected.hidden_states[:-1]):
        torch.testing.assert_close(trace[f"L{layer}.in"], states_before[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(trace[f"L{layer}.weights"], expected.attentions[layer][0], rtol=1e-5, atol=1e-5)
        of_source = expected.cross_attentions[layer][0]
        torch.testing.assert_close(trace[f"L{layer}.cross.weights"], of_source, rtol=1e-5, atol=1e-5)
    last = expected.get("last_hidden_state", expected.hidden_states[-1])  # Whisper's states are not normed
    torch.testing.assert_close(trace.last_hidden, last[0], rtol=1e-5, atol=1e-5)
    assert [token.shown for token in trace.tokens_on("source")] == list("01234")
    given = {"encoder_outputs": BaseModelOutput(states[None]), "decoder_input_ids": torch.tensor([ids])}
    torch.testing.assert_close(trace["logits"], theirs(**given).logits[0], rtol=1e-5, atol=1e-5)
    settings = {"num_beams": 4, "max_new_tokens": 5, "eos_token_id": None, "forced_eos_token_id": None}
    written = transformers.GenerationMixin.generate(theirs, **given, **settings)
    steps = list(beam.search(bound.transformer, ids, beams=4, max_tokens=5, ends=()))
    assert [*ids, *steps[-1].finished[0].ids] == written[0].tolist()
    with pytest.raises(UsageError, match=f"tokens × {width}"):
        model.reading(states[:, 1:])


def test_states_are_asked_for_where_the_encoder_is_not_opened():
    model = asked(Transformer.initialised(ModelConfig.of(**SIZES, d_source=6), 0))
    with pytest.raises(UsageError, match="not opened") as caught:
        model.reading("3 4")
    assert "--source" in caught.value.hint
    with pytest.raises(UsageError, match="and has none"):
        model.trace("3 4")
    with pytest.raises(UsageError, match="one stack"):
        asked(Transformer.initialised(ModelConfig.of(**SIZES), 0)).reading(torch.zeros(2, 6))
