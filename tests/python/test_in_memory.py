"""A model of transformers in memory, as a notebook has it: merged, halved, tied, with its fast tokenizer; no copies."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import tinytf
from tinytf.errors import UsageError
from tinytf.sources import ASSETS

TEXT = "The cat sat on the mat."


@pytest.fixture(scope="module")
def fast() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_file=str(Path(ASSETS) / "tiny" / "tokenizer.json"))


def gpt2() -> PreTrainedModel:
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=2048, n_positions=64)).eval()


def llama(**settings: Any) -> PreTrainedModel:
    torch.manual_seed(2)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}
    return LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=48, vocab_size=2048, **settings)).eval()


KINDS = {"gpt2, tied": gpt2, "llama": llama, "llama, tied": lambda: llama(tie_word_embeddings=True)}


def storages(module: torch.nn.Module) -> set[int]:
    return {one.untyped_storage().data_ptr() for one in module.parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_shared_and_give_the_same_logits(kind: str, dtype: torch.dtype, fast: Any) -> None:
    theirs = KINDS[kind]().to(dtype)
    model = tinytf.load(theirs, fast)
    assert storages(model.transformer) == storages(theirs)
    assert {one.dtype for one in model.transformer.parameters()} == {dtype}
    assert model.config.tied_head == theirs.config.tie_word_embeddings
    trace = model.trace(TEXT)
    assert trace.encoding.ids == fast(TEXT)["input_ids"]
    with torch.no_grad():
        expected = theirs(trace["ids"][None]).logits[0]
    allowed = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(trace["logits"], expected, rtol=allowed, atol=allowed)


def test_a_merged_lora_adapter_is_opened_and_one_that_is_not_says_how(fast: Any) -> None:
    base = llama()
    plain = tinytf.load(base, fast).trace(TEXT)["logits"].clone()
    torch.manual_seed(3)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    with pytest.raises(UsageError, match="adapters that are not merged") as found:
        tinytf.load(adapted.base_model.model, fast)
    assert "merge_and_unload" in found.value.hint
    merged = adapted.merge_and_unload().eval()
    model = tinytf.load(merged, fast)
    assert storages(model.transformer) == storages(merged)
    trace = model.trace(TEXT)
    with torch.no_grad():
        expected = merged(trace["ids"][None]).logits[0]
    torch.testing.assert_close(trace["logits"], expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(expected, plain, atol=1e-3)


def test_what_changes_in_theirs_is_seen_in_ours(fast: Any) -> None:
    theirs = llama()
    model = tinytf.load(theirs, fast)
    with torch.no_grad():
        theirs.model.layers[1].self_attn.o_proj.weight.zero_()
    assert not model.trace(TEXT)["L1.attn"].any()


def test_such_a_model_is_edited_and_batched_as_any_other(fast: Any) -> None:
    theirs = llama()
    model = tinytf.load(theirs, fast)
    with model.edited({"L1.attn": 0.0}):
        edited = model.trace(TEXT)["logits"]
    with torch.no_grad():
        theirs.model.layers[1].self_attn.o_proj.weight.zero_()
        expected = theirs(model.trace(TEXT)["ids"][None]).logits[0]
    torch.testing.assert_close(edited, expected, rtol=1e-5, atol=1e-5)
    together = model.traces([TEXT, "The dog"])
    torch.testing.assert_close(together[0]["logits"], expected, rtol=1e-5, atol=1e-5)
