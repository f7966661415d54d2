"""An architecture that is not opened is refused with what it would need."""

import json

import pytest
from transformers import AutoConfig

from tinytf.checkpoints.huggingface.load import FAMILIES, read_directory
from tinytf.errors import CheckpointError

LACKING = {
    "mobilebert": "layers with a narrower stream of their own",
    "convbert": "convolutions between its tokens",
    "rwkv": "no softmax attention",
    "bigbird_pegasus": "an encoder and a decoder",
    "prophetnet": "a decoder that predicts several tokens ahead, each in a stream of its own beside that of the text",
    "mllama": "parts for images or sound",
    "longformer": "sparse attention",
    "big_bird": "sparse attention",
    "layoutlm": "positions on a page or in a table",
}


@pytest.mark.parametrize(("kind", "lacks"), LACKING.items(), ids=LACKING)
def test_it_says_what_the_architecture_needs(kind, lacks, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(AutoConfig.for_model(kind).to_dict(), default=str), "utf-8")
    said = f"the architecture '{kind}' is not one that tinytf opens: it has {lacks}"
    with pytest.raises(CheckpointError, match=said):
        read_directory(tmp_path)


def test_a_name_in_a_file_is_not_taken_for_a_slip(tmp_path):
    """Nobody typed it: the hint is what is known, and not the name that is spelled most alike."""
    for kind in ("llamma", "mambo", "nemotron-next"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}), "utf-8")
        with pytest.raises(CheckpointError, match="there is no table of its settings and tensors yet") as caught:
            read_directory(tmp_path)
        known = "such as gpt2, llama, qwen3 and bert; docs/families.md lists them all"
        assert caught.value.hint == f"{len(FAMILIES)} are known, {known}"
    assert {"gpt2", "llama", "qwen3", "bert"} <= FAMILIES.keys()


def test_none_of_them_is_opened():
    assert not FAMILIES.keys() & LACKING.keys()
