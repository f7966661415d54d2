"""A folder of a model that takes images or sound too: its text part gives the logits of the whole model on a text."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import reference
import torch
import transformers
import whole_models
from architectures import enliven, furthest
from safetensors.torch import load_file, save_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from whole_models import build, outcome, registered

from tinytf.checkpoints.huggingface.load import FAMILIES, checkpoint_of, read_directory
from tinytf.checkpoints.huggingface.whole_model import PUBLISHED, SCALED_HEADS, TOWERS
from tinytf.checkpoints.load import Checkpoint
from tinytf.errors import CheckpointError

REGISTERED = dict(registered())
LEAST_RIGHT = 57
"""How many of the registered types open, of those that can be made tiny without further packages."""


@pytest.mark.share(24)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", REGISTERED)
def test_a_whole_model_is_right_or_refused_by_name(kind: str, tied: bool) -> None:
    result = outcome(kind, REGISTERED[kind], tie_word_embeddings=tied)
    assert result.word in ("right", "refused", "not built"), result
    assert result.word != "refused" or "is not one that tinytf opens" in result.why, result


@pytest.mark.exhaustive
def test_most_whole_models_open() -> None:
    assert sum(outcome(kind, name).word == "right" for kind, name in REGISTERED.items()) >= LEAST_RIGHT


@pytest.mark.share(6)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("inner", ["granite", "gemma2", "cohere", "cohere2", "phi", "gemma3_text", "qwen2", "llama"])
@pytest.mark.parametrize("kind", ["llava", "idefics3", "voxtral"])
def test_the_head_is_that_of_the_outer_class_around_any_text_model(kind: str, inner: str, tied: bool) -> None:
    assert outcome(kind, REGISTERED[kind], inner=inner, tie_word_embeddings=tied).word == "right"


def test_the_heads_that_apply_the_scale_of_their_text_part_are_those_whose_code_reads_it() -> None:
    reads = re.compile(r"logits_scaling|logit_scale|final_logit_softcapping|logits_mup_width_multiplier")
    found = {kind for kind, name in REGISTERED.items() if reads.search(whole_models.head_of(name))}
    assert {kind for kind in found if _has_a_table(kind)} == SCALED_HEADS


def _has_a_table(kind: str) -> bool:
    text = getattr(CONFIG_MAPPING[kind](), "text_config", None)
    return getattr(text, "model_type", "") in FAMILIES


@torch.no_grad()
def test_the_vector_of_a_whole_embeddinggemma_2_is_the_mean_of_its_projected_tokens(tmp_path) -> None:
    text = reference.FAMILIES["embeddinggemma 2"]().config.to_dict()
    theirs = transformers.EmbeddingGemma2Model(
        transformers.EmbeddingGemma2Config(text_config=text, vision_config=None, audio_config=None)
    ).eval()
    enliven(theirs, 7)
    theirs.save_pretrained(tmp_path)
    ours = read_directory(tmp_path).load().transformer
    ids = torch.tensor([[3, 14, 15, 9, 2, 6]])
    expected = theirs(input_ids=ids).last_hidden_state.mean(1)
    assert furthest(ours.pooling(ours.hidden(ids)), expected) < 1e-5


@torch.no_grad()
def test_a_whole_model_without_a_head_has_none(tmp_path) -> None:
    model = build("llava", "LlavaForConditionalGeneration").model
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text("utf-8"))["architectures"] == ["LlavaModel"]
    ours = read_directory(tmp_path).load().transformer
    ids = torch.tensor([[3, 14, 15, 9, 2, 6]])
    assert ours.head is None
    assert furthest(ours(ids), model(input_ids=ids).last_hidden_state) < 1e-5


@pytest.mark.share(12)
@pytest.mark.parametrize("kind", [kind for kind in REGISTERED if kind in TOWERS])
def test_a_whole_model_with_a_head_of_its_own_has_none_where_the_files_have_none(kind: str, tmp_path: Path) -> None:
    opened = in_memory(kind, tmp_path, {"tie_word_embeddings": False}, without="lm_head.")
    assert opened.config.head.kind == "none"
    assert opened.table.head_of_class(REGISTERED[kind]) == "lm"  # by which a note says so
    opened.plan()
    tied = in_memory(kind, tmp_path, {"tie_word_embeddings": True}, without="lm_head.").config.tied_head
    assert tied == (kind not in PUBLISHED)


def test_a_whole_model_that_lacks_its_head_says_so(tmp_path) -> None:
    build("llava", REGISTERED["llava"], tie_word_embeddings=False).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: tensor for name, tensor in tensors.items() if "lm_head" not in name}, tmp_path / "model.safetensors"
    )
    opened = read_directory(tmp_path)
    assert opened.config.head.kind == "none"
    assert any(note.startswith("opened without its head: config.json says 'Llava") for note in opened.notes)


def test_a_prompt_that_a_processor_would_let_see_later_tokens_is_said(tmp_path) -> None:
    build("paligemma", REGISTERED["paligemma"]).model.save_pretrained(tmp_path)
    assert any(note.startswith("a prompt is read causally") for note in read_directory(tmp_path).notes)


def in_memory(
    kind: str,
    folder: Path,
    keys: Mapping[str, Any] = MappingProxyType({}),
    *,
    without: str = "(",
    **more: tuple[int, ...],
) -> Checkpoint:
    """What is opened of a whole model's names and shapes, with other ``keys`` outside and in its text part.

    Names that hold ``without`` are left out, and some ``more`` are added.
    """
    try:
        with torch.device("meta"):
            model = getattr(transformers, REGISTERED[kind])(whole_models.tiny(kind))
    except Exception as error:
        pytest.skip(f"not built: {error}")
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items() if without not in name}
    data = json.loads(model.config.to_json_string()) | keys
    data["text_config"] = data.get("text_config", {}) | keys
    stored = lambda name: torch.zeros(shapes[name])  # noqa: E731
    return checkpoint_of(data, lambda: SimpleNamespace(shapes=shapes | more, stored=stored), folder, folder)  # type: ignore[arg-type,return-value]


@pytest.mark.share(12)
@pytest.mark.parametrize("kind", [kind for kind in REGISTERED if kind in TOWERS])
def test_of_other_parts_only_the_modules_of_the_outer_class_are_skipped(kind: str, tmp_path: Path) -> None:
    opened = in_memory(kind, tmp_path)
    opened.plan()
    first = opened.table.prefix + "layers.0."
    for name in ("surprise.weight", "model.surprise.weight", f"{first}self_attn.surprise.weight"):
        with pytest.raises(CheckpointError, match=f"holds '{name}', which .* has no place for"):
            in_memory(kind, tmp_path, **{name: (3,)}).plan()


def test_every_whole_model_with_a_table_names_its_other_parts() -> None:
    assert {kind for kind in REGISTERED if _has_a_table(kind)} <= TOWERS.keys()
