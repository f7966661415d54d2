"""Small models of transformers, of which tinytf has a table for some only."""

import json
import sys
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))  # for its models
ENDS = {"pad_token_id": 3, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, **ENDS}
HEADS = {**SIZES, "num_attention_heads": 2, "max_position_embeddings": 32}
MADE = {
    "falcon_mamba": lambda: transformers.FalconMambaForCausalLM(
        transformers.FalconMambaConfig(**SIZES, state_size=4)
    ),
    "t5": lambda: transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2,
                              decoder_start_token_id=3)),
    "xlnet": lambda: transformers.XLNetLMHeadModel(
        transformers.XLNetConfig(vocab_size=40, d_model=16, n_layer=2, n_head=2, d_inner=24)),
    "longformer": lambda: transformers.LongformerForMaskedLM(
        transformers.LongformerConfig(**HEADS, attention_window=4)),
    "reformer": lambda: transformers.ReformerModelWithLMHead(
        transformers.ReformerConfig(
            vocab_size=40, hidden_size=16, attn_layers=["local", "lsh"], num_attention_heads=2, attention_head_size=8,
            feed_forward_size=24, axial_pos_embds=False, max_position_embeddings=32, is_decoder=True, num_buckets=2,
            lsh_attn_chunk_length=4, local_attn_chunk_length=4)),
    "jamba": lambda: transformers.JambaForCausalLM(
        transformers.JambaConfig(**HEADS, num_key_value_heads=1, attn_layer_period=2, attn_layer_offset=1,
                                 expert_layer_period=2, expert_layer_offset=1, num_experts=4, mamba_d_state=4,
                                 mamba_dt_rank=4)),
    "convbert": lambda: transformers.ConvBertForSequenceClassification(
        transformers.ConvBertConfig(**HEADS, embedding_size=16)),
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=40, n_embd=16, n_layer=2, n_head=2, n_positions=32, **ENDS)),
    "trocr": lambda: transformers.TrOCRForCausalLM(
        transformers.TrOCRConfig(vocab_size=40, d_model=16, decoder_layers=2, decoder_attention_heads=2,
                                 decoder_ffn_dim=24, max_position_embeddings=32, **ENDS)),
    "hyperclovax": lambda: transformers.HyperCLOVAXForCausalLM(
        transformers.HyperCLOVAXConfig(**HEADS, num_key_value_heads=1, residual_multiplier=0.6, logits_scaling=0.5)),
    "iquestcoder": lambda: transformers.AutoModelForCausalLM.from_config(
        transformers.IQuestCoderConfig(**HEADS, num_key_value_heads=1)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**HEADS, num_key_value_heads=1)),
}  # fmt: skip


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    """A function that makes the directory of a kind of model once."""
    root = tmp_path_factory.mktemp("through")

    def directory(kind):
        path = root / kind
        if not path.exists():
            torch.manual_seed(1)
            model = MADE[kind]()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter) * 0.2)  # large enough for a mistake to show
            model.save_pretrained(path)
            words = ["<unk>", "<s>", "</s>", "<pad>", "[MASK]", *["the", "cat", "sat", "on", "a", "mat", "dog", "ran"]]
            library = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
            library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
            library.save(str(path / "tokenizer.json"))
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "[MASK]", "unk_token": "<unk>"}
            (path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
        return path

    return directory
