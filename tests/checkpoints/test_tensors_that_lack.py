"""A tensor that the architecture and the configuration promise, and the files lack, is refused or said."""

import re
from pathlib import Path

import pytest
import transformers
from covering import sample
from reference import _LLAMA, FAMILIES, saved
from safetensors.torch import load_file, save_file

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import CheckpointError


def says_so(folder: Path, usual: tuple[str, ...]) -> bool:
    """Whether a folder is refused, or opened with a note that is not among the ``usual``."""
    try:
        opened = read_directory(folder)
        return {*opened.notes, *opened.plan().notes} > {*usual}
    except CheckpointError:
        return True


@sample("family", FAMILIES, every=20)
def test_every_tensor_of_every_family_is_missed(family, tmp_path):
    (tmp_path / "config.json").symlink_to(saved(family) / "config.json")
    opened, tensors = read_directory(saved(family)), load_file(saved(family) / "model.safetensors")
    plan, silent = opened.plan(), []
    one_of_each = {re.sub(r"\d+", "0", name): name for name in plan.targets}.values()
    biases = {original for original in opened.table.copies.values() if original.endswith("bias")}  # always tied
    biases |= {"final_logits_bias"}  # zeros, which many files leave out
    for name in (name for name in one_of_each if opened.table.plain(name) not in biases):
        save_file({n: t for n, t in tensors.items() if n != name}, tmp_path / "model.safetensors")
        silent += [name] * (not says_so(tmp_path, (*opened.notes, *plan.notes)))
    assert not silent


_BERT = {
    "vocab_size": 60, "hidden_size": 24, "embedding_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 32, "max_position_embeddings": 16,
}  # fmt: skip
_HEADS = ("lm_head.", "cls.", "predictions.", "sop_classifier.", "discriminator_predictions.")


@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [
        ("Llama", "LlamaForCausalLM", _LLAMA),
        *((kind, f"{kind}{head}", _BERT) for kind in ("Bert", "Albert") for head in ("ForPreTraining", "ForMaskedLM")),
        ("Electra", "ElectraForPreTraining", _BERT),
    ],
)
def test_the_head_that_is_lacking_is_named(kind, name, settings, tmp_path):
    model = getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**settings))
    state = {at: tensor for at, tensor in model.state_dict().items() if not at.startswith(_HEADS)}
    model.save_pretrained(tmp_path, state_dict=state)
    opened = read_directory(tmp_path)
    assert opened.config.head.kind == "none"
    said = f"opened without its head: config.json says '{name}', and the files have no weights for one"
    assert opened.notes == (said,)
