"""Folders of models of two stacks beyond those that translate: classifiers, and decoders without their encoder."""

import pytest
import torch
import transformers
from architectures import asked, enliven
from reference import BART, T5
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers, processors

import tinytf
from tinytf.checkpoints.huggingface.export import export
from tinytf.checkpoints.huggingface.load import read_directory
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
