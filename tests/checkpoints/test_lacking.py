"""An architecture that is not opened is refused with what it would need."""

import json

import pytest
from transformers import AutoConfig

from tinytf.checkpoints.huggingface.load import FAMILIES, read_directory
from tinytf.errors import CheckpointError

LACKING = {
    "mamba": "layers that are not attention",
    "jamba": "layers that are not attention",
    "qwen3_next": "layers that are not attention",
    "convbert": "convolutions between its tokens",
    "rwkv": "no softmax attention",
    "t5": "an encoder and a decoder",
    "bart": "an encoder and a decoder",
    "whisper": "an encoder and a decoder",
    "mllama": "parts for images or sound",
    "longformer": "sparse attention",
    "big_bird": "sparse attention",
    "deepseek_v32": "sparse attention",
    "xlnet": "attention of two streams",
    "gemma3n_text": "embeddings of its own for each layer",
    "deberta": "disentangled attention",
    "layoutlm": "positions of a page or a table",
}


@pytest.mark.parametrize(("kind", "lacks"), LACKING.items(), ids=LACKING)
def test_it_says_what_the_architecture_needs(kind, lacks, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(AutoConfig.for_model(kind).to_dict(), default=str), "utf-8")
    said = f"the architecture '{kind}' is not one that tinytf opens: it has {lacks}"
    with pytest.raises(CheckpointError, match=said):
        read_directory(tmp_path)


def test_a_name_mistyped_is_answered_with_the_nearest(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llamma"}', "utf-8")
    with pytest.raises(CheckpointError, match="no table of its settings and tensors is written yet") as caught:
        read_directory(tmp_path)
    assert caught.value.hint == "did you mean llama?"


def test_none_of_them_is_opened():
    assert not FAMILIES.keys() & LACKING.keys()
