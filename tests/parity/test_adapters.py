"""LoRA adapters against PEFT: what is merged here gives the logits that PEFT computes beside the weights, unmerged."""

import json
import warnings
from pathlib import Path

import peft
import pytest
import torch
from architectures import enliven, furthest
from covering import sample
from reference import FAMILIES, saved
from safetensors.torch import load_file, save_file

import tinytf
from tinytf.checkpoints.huggingface.adapter import Adapter
from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.errors import CheckpointError, UsageError
from tinytf.model.transformer import Transformer

IDS = torch.tensor([[7, 3, 12, 40, 5, 5, 9]])
ATTENTION = ["q_proj", "v_proj"]


def adapted(family, folder, **settings):
    """PEFT's own model with a random adapter, which is written to ``folder``."""
    theirs = FAMILIES[family]()
    with torch.no_grad():
        enliven(theirs, 7)
    warnings.filterwarnings("ignore", category=UserWarning)
    model = peft.get_peft_model(theirs.eval(), peft.LoraConfig(**{"r": 3, "lora_alpha": 5, **settings}))
    generator = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in (one for one in model.parameters() if one.requires_grad):
            parameter += torch.randn(parameter.shape, generator=generator) * 0.3
    model.save_pretrained(folder)
    return model.eval()


def merged(family, folder) -> Transformer:
    """The model of a directory with the adapter in its weights."""
    checkpoint = read_directory(saved(family))
    return Adapter(folder).merge(checkpoint.load().transformer, checkpoint.table)


CASES = {
    "llama: queries and values": ("llama 3", {"target_modules": ATTENTION}),
    "every matrix, rank-stabilised": ("llama 3", {"target_modules": "all-linear", "use_rslora": True}),
    "ranks and alphas by pattern": (
        "llama 3",
        {
            "target_modules": [*ATTENTION, "down_proj"],
            "rank_pattern": {"v_proj": 2, r"^model\.layers\.1\.mlp\.down_proj": 4},
            "alpha_pattern": {r"layers\.\d+\.self_attn.q_proj": 9},
        },
    ),
    "some layers alone": ("llama 3", {"target_modules": ATTENTION, "layers_to_transform": [1]}),
    "a head of its own": ("llama 3", {"target_modules": ATTENTION, "modules_to_save": ["lm_head"]}),
    "gpt2: a joint matrix, (in, out)": ("gpt2", {"target_modules": ["c_attn", "c_proj"]}),
    "gpt2: biases of what it changes": ("gpt2", {"target_modules": ["c_attn"], "bias": "lora_only"}),
    "gpt2: all biases": ("gpt2", {"target_modules": ["c_fc"], "bias": "all"}),
    "gpt2: embeddings, whose tied head stays": ("gpt2", {"target_modules": ["wte", "c_attn"]}),
    "gpt2: a head, whose tied embeddings stay": (
        "gpt2",
        {"target_modules": ["c_attn"], "modules_to_save": ["lm_head"]},
    ),
    "albert: layers that share their weights": ("albert", {"target_modules": ["query", "ffn"]}),
    "gpt2: both, each its own": ("gpt2", {"target_modules": ["c_attn"], "modules_to_save": ["wte", "lm_head"]}),
    "gpt2: a tied head": ("gpt2", {"target_modules": ["lm_head", "c_attn"]}),
    "gpt2: a tied head and its embeddings": ("gpt2", {"target_modules": ["lm_head", "wte"]}),
    "gemma 3: a tied head": ("gemma 3", {"target_modules": ["lm_head"]}),
    "dora": ("llama 3", {"target_modules": "all-linear", "use_dora": True, "use_rslora": True}),
    "dora of a joint matrix and embeddings": ("gpt2", {"target_modules": ["c_attn", "wte"], "use_dora": True}),
    "dora of pairs side by side": ("gpt-j", {"target_modules": ["q_proj", "fc_in"], "use_dora": True}),
    "dora head by head": ("pythia", {"target_modules": ["query_key_value"], "use_dora": True}),
    "dora of a tied head": ("gemma 3", {"target_modules": ["lm_head", "q_proj"], "use_dora": True}),
    "tokens": ("llama 3", {"target_modules": ATTENTION, "trainable_token_indices": [3, 40]}),
    "tokens of both that are tied": ("gemma 3", {"target_modules": ATTENTION, "trainable_token_indices": [3, 40]}),
    "tokens of a tied head alone": (
        "gemma 3",
        {"target_modules": ATTENTION, "trainable_token_indices": {"lm_head": [3, 12]}},
    ),
    "tokens of each, apart": (
        "gemma 3",
        {"target_modules": ATTENTION, "trainable_token_indices": {"embed_tokens": [3, 40], "lm_head": [3, 12]}},
    ),
    "pythia: head by head": ("pythia", {"target_modules": ["query_key_value", "dense_h_to_4h"]}),
    "gpt-j: pairs side by side": ("gpt-j", {"target_modules": ["q_proj", "k_proj"]}),
    "phi 3: one matrix for three": ("phi 3 with a window", {"target_modules": ["qkv_proj", "gate_up_proj"]}),
    "gemma 3": ("gemma 3", {"target_modules": "all-linear", "modules_to_save": ["input_layernorm"]}),
    "bert": ("bert with a masked head", {"target_modules": ["query", "dense"]}),
    "nomicbert: in memory apart, in files joint": ("nomicbert", {"target_modules": ["q_proj", "v_proj", "up_proj"]}),
    "classes, and their head": ("llama with classes", {"target_modules": ATTENTION, "task_type": "SEQ_CLS"}),
    "deepseek": ("deepseek v3, latent", {"target_modules": ["q_b_proj", "kv_b_proj", "kv_a_proj_with_mqa"]}),
    "experts: what is around them": ("mixtral", {"target_modules": ["q_proj", "o_proj"]}),
}


@sample("case", CASES, every=2)
@torch.no_grad()
def test_merged_it_gives_what_peft_computes_unmerged(case, tmp_path):
    family, settings = CASES[case]
    theirs = adapted(family, tmp_path, **settings)
    expected = theirs(IDS).logits
    with theirs.disable_adapter():
        plain = theirs(IDS).logits
    in_memory = FAMILIES[family]()
    enliven(in_memory, 7)
    for model in (merged(family, tmp_path), tinytf.load(in_memory, adapter=tmp_path).transformer):
        found = model(IDS)
        assert furthest(found[:, -1] if expected.dim() == 2 else found, expected) < 2e-5
    assert furthest(plain, expected) > 1e-2


def test_weights_that_it_does_not_change_stay_those_of_the_model(tmp_path):
    theirs = FAMILIES["llama 3"]()
    before = theirs.model.layers[0].self_attn.q_proj.weight.clone()
    adapted("llama 3", tmp_path, target_modules=ATTENTION)
    ours = tinytf.load(theirs, adapter=tmp_path).transformer
    attention, inside = theirs.model.layers[0].self_attn, ours.blocks[0].attention
    assert inside.k.weight.data_ptr() == attention.k_proj.weight.data_ptr()
    assert inside.q.weight.data_ptr() != attention.q_proj.weight.data_ptr()
    assert torch.equal(attention.q_proj.weight, before)


@torch.no_grad()
def test_in_bfloat16_the_sum_is_rounded_once(tmp_path):
    adapted("llama 3", tmp_path, target_modules=["q_proj"])
    checkpoint = read_directory(saved("llama 3"))
    half = Adapter(tmp_path).merge(checkpoint.load(torch.bfloat16).transformer, checkpoint.table)
    base = checkpoint.load(torch.bfloat16).transformer.blocks[1].attention.q.weight.float()
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    a, b = (tensors[f"base_model.model.model.layers.1.self_attn.q_proj.lora_{part}.weight"].float() for part in "AB")
    assert torch.equal(half.blocks[1].attention.q.weight, (base + 5 / 3 * (b @ a)).bfloat16())


def test_the_model_says_which_adapter_it_has(tmp_path):
    adapted("llama 3", tmp_path / "polite", target_modules=ATTENTION)
    model = tinytf.load(FAMILIES["llama 3"](), adapter=tmp_path / "polite")
    assert model.name == "LlamaForCausalLM + polite"
    assert model.source == f"LlamaForCausalLM in memory, with the adapter {tmp_path / 'polite'}"


REFUSED = [
    ({"peft_type": "IA3"}, "peft_type 'IA3' is not implemented"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' is not implemented"),
    ({"target_parameters": ["experts.gate_up_proj"]}, "'target_parameters' is not implemented"),
    ({"layer_replication": [[0, 2]]}, "'layer_replication' is not implemented"),
    ({"ensure_weight_tying": True}, "'ensure_weight_tying' is not implemented"),
    ({"turbo": 3}, "'turbo' is not implemented"),
    ({"r": 4}, "the rank of 'model.layers.0.self_attn.q_proj' is 4, but its matrices have rank 3"),
    ({"r": "many"}, "r is 'many', and has to be a whole number"),
    ({"alpha_pattern": {"(a+)+$": 3}}, "alpha_pattern has the pattern '(a+)+$', which is too complex"),
    ({"alpha_pattern": {"(": 3}}, "alpha_pattern has '(', which is not a regular expression"),
    ({"alpha_pattern": {"q_proj": "3"}}, "alpha_pattern is '3', and has to be a whole number"),
    ({"alpha_pattern": [1]}, "alpha_pattern is an array of 1, and has to be an object"),
]


@pytest.mark.parametrize(("keys", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_not_implemented_is_refused_by_name(tmp_path, keys, message):
    adapted("llama 3", tmp_path, target_modules=ATTENTION)
    data = json.loads((tmp_path / "adapter_config.json").read_text("utf-8"))
    (tmp_path / "adapter_config.json").write_text(json.dumps(data | keys), "utf-8")
    with pytest.raises(CheckpointError) as caught:
        merged("llama 3", tmp_path)
    assert message in caught.value.message
    assert "adapter_config.json" in caught.value.message


def rewritten(folder: Path, how) -> None:
    save_file(how(load_file(folder / "adapter_model.safetensors")), folder / "adapter_model.safetensors")


def test_magnitudes_without_their_setting_or_their_pair_are_refused(tmp_path):
    adapted("llama 3", tmp_path, target_modules=ATTENTION, use_dora=True)
    whole = load_file(tmp_path / "adapter_model.safetensors")
    path, name = "model.layers.1.self_attn.q_proj", "base_model.model.model.layers.1.self_attn.q_proj"
    for wrong, message in (
        ({f"{name}.lora_magnitude_vector": torch.ones(3)}, rf"'{path}' has 3 magnitudes, but \d+ outputs"),
        ({f"{name}.other.lora_magnitude_vector": torch.ones(3)}, "lora_magnitude_vector of .*, but no lora_A"),
    ):
        save_file(whole | wrong, tmp_path / "adapter_model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            merged("llama 3", tmp_path)
    save_file({n: one for n, one in whole.items() if "magnitude" not in n}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="is missing, despite use_dora"):
        merged("llama 3", tmp_path)
    save_file(whole, tmp_path / "adapter_model.safetensors")
    settings = json.loads((tmp_path / "adapter_config.json").read_text("utf-8"))
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"use_dora": False}), "utf-8")
    with pytest.raises(CheckpointError, match="is without use_dora"):
        merged("llama 3", tmp_path)


@pytest.mark.parametrize(
    ("ids", "message"),
    [([3], "does not name the 2 tokens"), (None, "does not name"), ([3, 4000], "no token 4,000"), ([3, "7"], "name")],
)
def test_trained_tokens_that_are_not_named_or_not_there_are_refused(tmp_path, ids, message):
    adapted("llama 3", tmp_path, target_modules=ATTENTION, trainable_token_indices=[3, 7])
    settings = json.loads((tmp_path / "adapter_config.json").read_text("utf-8"))
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings | {"trainable_token_indices": ids}), "utf-8")
    with pytest.raises(CheckpointError, match=message):
        merged("llama 3", tmp_path)


def test_an_adapter_of_another_model_is_refused_with_both_shapes_and_its_own_word(tmp_path):
    adapted("llama 3", tmp_path, target_modules=ATTENTION)
    rewritten(
        tmp_path,
        lambda tensors: {name: torch.cat((one, one)) if "lora_B" in name else one for name, one in tensors.items()},
    )
    data = json.loads((tmp_path / "adapter_config.json").read_text("utf-8"))
    (tmp_path / "adapter_config.json").write_text(json.dumps(data | {"base_model_name_or_path": "org/big"}), "utf-8")
    with pytest.raises(
        CheckpointError, match=r"is for a tensor of shape \(\d+, \d+\), but the model's has shape"
    ) as caught:
        merged("llama 3", tmp_path)
    assert caught.value.hint == "it was trained on 'org/big'"
    adapted("gpt2", tmp_path / "gpt2", target_modules=["c_attn"])
    with pytest.raises(
        CheckpointError, match=r"changes 'transformer.h.0.attn.c_attn.weight', which a Llama model has no"
    ):
        merged("llama 3", tmp_path / "gpt2")


def test_a_damaged_adapter_is_told_by_file_and_tensor(tmp_path):
    adapted("llama 3", tmp_path, target_modules=ATTENTION)
    whole = load_file(tmp_path / "adapter_model.safetensors")
    rewritten(
        tmp_path,
        lambda tensors: {name: one for name, one in tensors.items() if "1.self_attn.q_proj.lora_A" not in name},
    )
    with pytest.raises(CheckpointError, match=r"only one of lora_A and lora_B of 'model.layers.1.self_attn.q_proj'"):
        merged("llama 3", tmp_path)
    save_file({**whole, "base_model.model.model.norm.lora_C": torch.ones(2)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=r"norm.lora_C' is not implemented"):
        merged("llama 3", tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="is damaged"):
        merged("llama 3", tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"there is no adapter_model.safetensors"):
        merged("llama 3", tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no adapter_config.json"):
        merged("llama 3", tmp_path / "nowhere")


def test_a_model_without_names_of_transformers_takes_no_adapter(tmp_path):
    adapted("llama 3", tmp_path, target_modules=ATTENTION)
    with pytest.raises(UsageError, match="tiny is not a model of transformers") as caught:
        tinytf.load("tiny", adapter=tmp_path)
    assert caught.value.hint == "convert it with tinytf export"
