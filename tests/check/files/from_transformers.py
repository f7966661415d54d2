"""Models of transformers, made by functions: whatever their names and layouts are, they are right."""

from transformers import GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM

IDS = {"bos_token_id": 0, "eos_token_id": 0}


def gpt2(vocab_size, n_embd, n_layer, n_head, n_positions):
    sizes = {"vocab_size": vocab_size, "n_embd": n_embd, "n_layer": n_layer, "n_head": n_head}
    return GPT2LMHeadModel(GPT2Config(**sizes, n_positions=n_positions, attn_implementation="eager", **IDS))


def llama(
    vocab_size,
    hidden_size,
    num_hidden_layers,
    num_attention_heads,
    num_key_value_heads,
    intermediate_size,
    rms_norm_eps,
):
    sizes = {key: value for key, value in locals().items() if isinstance(value, int | float)}
    return LlamaForCausalLM(LlamaConfig(**sizes, **IDS))


def neox(vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size):
    sizes = {key: value for key, value in locals().items() if isinstance(value, int)}
    config = GPTNeoXConfig(**sizes, rotary_pct=1.0, hidden_act="gelu", use_parallel_residual=False, **IDS)
    return GPTNeoXForCausalLM(config)
