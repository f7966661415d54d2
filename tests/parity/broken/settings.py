"""Ports with one setting of the configuration left out, off by one, at its default, or taken from a cousin."""

from broken.bench import Port
from broken.models import SMALL
from broken.patches import seen, setting, steps

_MLP = steps(0, "ffn.act", "ffn.hidden", "ffn")
_ROUTED = steps(0, "ffn.chosen", "ffn.weights", "ffn")
_CHOSEN = steps(1, "ffn.chosen", "ffn.weights", "ffn.mixed", "ffn")
_NORM = "L0.norm1"


def _rope(name: str, **changed: object) -> dict[str, object]:
    return {"rope_parameters": {**SMALL[name][1]["rope_parameters"], **changed}}


_PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}
_LINEAR = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}
_LLAMA3_OFF = {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}}
_SHORT = {"long_factor": SMALL["longrope"][1]["rope_parameters"]["short_factor"]}

ROWS: tuple[tuple[str, str, dict[str, object], str, str], ...] = (
    # a family, what is wrong, the settings, the first wrong step, words of which the cause has one
    ("llama", "base 12,345.6", {"rope_parameters": {"rope_type": "default", "rope_theta": 12345.6}}, seen(0),
     r"12,?34[56]"),
    ("llama", "base 10,100", {"rope_parameters": {"rope_type": "default", "rope_theta": 10100.0}}, seen(0), r"10,?100"),
    ("llama", "eps", {"rms_norm_eps": 1e-2}, _NORM, r"eps.* 0\.01"),
    ("llama", "gelu", {"hidden_act": "gelu"}, _MLP, "(?i)gelu"),
    ("llama", "relu", {"hidden_act": "relu"}, _MLP, "(?i)relu"),
    ("llama3", "scaling left out", _LLAMA3_OFF, seen(0), "(?i)llama ?3|stretch|scal|not slowed"),
    ("llama3", "factor of another model", _rope("llama3", factor=32.0), seen(0), "(factor.* |by )32"),
    ("llama3", "low and high exchanged", _rope("llama3", low_freq_factor=2.0), seen(0), "(?i)low|llama ?3"),
    ("llama3", "trained on 8,192", _rope("llama3", original_max_position_embeddings=64), seen(0), "64|trained|origin"),
    ("yarn", "left out", _PLAIN, seen(0), "(?i)yarn|stretch"),
    ("yarn", "linear instead", _LINEAR, seen(0), "(?i)yarn|linear|divided by 4"),
    ("yarn", "attention factor left out", _rope("yarn", attention_factor=1.0), seen(0), r"1\.1386|attention factor|ln"),
    ("yarn", "factor twice too large", _rope("yarn", factor=8.0), seen(0), "factor"),
    ("yarn", "the ramp from another frequency", _rope("yarn", beta_slow=0.2), seen(0), "(?i)beta|yarn|ramp|fast"),
    ("yarn", "trained on 32", _rope("yarn", original_max_position_embeddings=32), seen(0), "32|trained|origin"),
    ("longrope", "short factors for a long text", _rope("longrope", **_SHORT), seen(0), "(?i)short"),
    ("longrope", "attention factor left out", _rope("longrope", attention_factor=1.0), seen(0),
     "attention factor|√|1.22"),
    ("gemma2", "scores not capped", {"attn_logit_softcapping": None}, seen(0), "(?i)cap"),
    ("gemma2", "scores capped at Gemma's 50", {"attn_logit_softcapping": 50.0}, seen(0), "(?i)cap"),
    ("gemma2", "logits not capped", {"final_logit_softcapping": None}, "logits head.capped", "(?i)cap"),
    ("gemma2", "logits capped at 30", {"final_logit_softcapping": 30.0}, "logits head.capped", "(?i)cap"),
    ("gemma2", "divided by √d_head", {"query_pre_attn_scalar": 10}, seen(0), "√d_head|√10|3.16|divide"),
    ("gemma2", "no window", {"sliding_window": 4096}, seen(0), "window"),
    ("gemma2", "window one wider", {"sliding_window": 7}, seen(0), "window.* 7"),
    ("gemma2", "windows in the other layers", {"layer_types": ["full_attention", "sliding_attention"] * 2}, seen(0),
     "window"),
    ("neox", "turned whole", {"rope_parameters": {"rope_type": "default", "rope_theta": 900.0,
                                                  "partial_rotary_factor": 1.0}}, seen(0),
                                                  "(?i)turn|rotat|partial|share"),
    ("neox", "a quarter turned", {"rope_parameters": {"rope_type": "default", "rope_theta": 900.0,
                                                      "partial_rotary_factor": 0.25}}, seen(0),
     "(?i)turn|rotat|partial|share"),
    ("neox", "one after the other", {"use_parallel_residual": False}, steps(0, "norm2"),
     "(?i)parallel|attention.*added|after the|one after|side by side"),
    ("neox", "gelu by tanh", {"hidden_act": "gelu_new"}, _MLP, "(?i)gelu"),
    ("neox", "eps of Llama", {"layer_norm_eps": 1e-2}, _NORM, r"eps.* 0\.01"),
    ("granite", "no embedding multiplier", {"embedding_multiplier": 1.0},
     "embed.tokens embed.scaled embed.out L0.norm1 L0.norm2",
     r"\b3\b|3\.0"),
    ("granite", "multiplied by √d_model", {"embedding_multiplier": 48**0.5},
     "embed.tokens embed.scaled embed.out L0.norm1 L0.norm2",
     "√d_model|√48|6.9"),
    ("granite", "no residual multiplier", {"residual_multiplier": 1.0}, steps(0, "norm2"),
     "(?i)multipl|factor|times|0\\.4"),
    ("granite", "residual by 0.707", {"residual_multiplier": 0.5**0.5}, steps(0, "norm2"), r"0\.707|√2|1/√2"),
    ("granite", "logits not divided", {"logits_scaling": 1.0}, "logits", r"2\.5|divid|times 1 instead"),
    ("granite", "logits multiplied", {"logits_scaling": 0.4}, "logits", r"multipl|6\.25|0\.4|inver|times"),
    ("granite", "divided by √d_head", {"attention_multiplier": 12**-0.5}, seen(0), "√d_head|√12|divid"),
    ("gptoss", "no window", {"layer_types": ["full_attention"] * 4}, seen(0), "window"),
    ("gptoss", "window one narrower", {"sliding_window": 5}, seen(0), "window.* 5"),
    ("gptoss", "YaRN left out", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, seen(0),
     "(?i)yarn|stretch"),
    ("gptoss", "alpha 1", {"swiglu_alpha": 1.0}, _ROUTED, "(?i)alpha|α|sigmoid|silu|1.702|swiglu"),
    ("gptoss", "not limited", {"swiglu_limit": 1e9}, _ROUTED, "(?i)limit|clamp|clip"),
    ("gptoss", "two experts", {"num_experts_per_tok": 2}, _ROUTED, "2 experts"),
    ("deepseek3", "no groups", {"n_group": 1, "topk_group": 1}, _CHOSEN, "group"),
    ("deepseek3", "one group", {"topk_group": 1, "num_experts_per_tok": 2}, _CHOSEN, "group|2 experts"),
    ("deepseek3", "three groups", {"topk_group": 3}, _CHOSEN, "group"),
    ("deepseek3", "weights not renormed", {"norm_topk_prob": False}, _CHOSEN, "(?i)renorm|sum"),
    ("deepseek3", "routed factor left out", {"routed_scaling_factor": 1.0}, _CHOSEN, r"1\.5|factor|scal|0\.66"),
    ("deepseek3", "halves turned", {"rope_interleave": False}, seen(0), "(?i)pairs|halves|neighbour|interleav"),
    ("deepseek3", "mscale left out", _rope("deepseek3", mscale_all_dim=0.0), seen(0),
     r"(?i)mscale|attention factor|1\.1386|1\.296|√d_head instead"),
    ("deepseek2", "no groups", {"topk_method": "greedy"}, _CHOSEN, "group"),
    ("deepseek2", "routed factor left out", {"routed_scaling_factor": 1.0}, _CHOSEN, r"1\.5|factor|scal|0\.66"),
    ("qwen2", "a window in layers without one", {"max_window_layers": 0}, seen(0), "window"),
    ("qwen2", "no window at all", {"use_sliding_window": False, "sliding_window": None}, seen(2), "window"),
    ("qwen2", "one layer early", {"max_window_layers": 1}, seen(1), "window"),
    ("qwen3", "base of Qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, seen(0), "1,000,000"),
    ("mixtral", "three experts", {"num_experts_per_tok": 3}, _ROUTED, "3 experts"),
    ("mixtral", "one expert", {"num_experts_per_tok": 1}, _ROUTED, "1 expert"),
    ("phi", "turned whole", {"rope_parameters": {"rope_type": "default", "rope_theta": 900.0,
                                                 "partial_rotary_factor": 1.0}}, seen(0),
                                                 "(?i)turn|rotat|partial|share"),
    ("phi", "exact gelu", {"hidden_act": "gelu"}, _MLP, "(?i)gelu"),
    ("gpt2", "scores not divided", {"scale_attn_weights": False}, seen(0), "not divided"),
    ("gpt2", "divided by the layer too", {"scale_attn_by_inverse_layer_idx": True}, seen(1),
     r"divid|layer|\b0\.5 |half as large"),
    ("gpt2", "eps of Llama", {"layer_norm_epsilon": 1e-2}, _NORM, r"eps.* 0\.01"),
    ("bert", "gelu by tanh", {"hidden_act": "gelu_new"}, _MLP, "(?i)gelu"),
    ("bert", "eps of GPT-2", {"layer_norm_eps": 1e-2}, "embed.norm embed.out", r"eps.* 0\.01"),
    ("mamba2", "steps limited", {"time_step_limit": (0.0, 0.5)}, steps(0, "dt", "head_out", "read", "head_norm"),
     "(?i)limit|clamp|clip|at most"),
    ("mamba2", "eps", {"layer_norm_epsilon": 1e-2}, _NORM, r"eps.* 0\.01"),
    ("lfm2", "eps", {"norm_eps": 1e-2}, _NORM, r"eps.* 0\.01"),
    ("olmo2", "eps", {"rms_norm_eps": 1e-2}, steps(0, "q_norm"), r"eps.* 0\.01"),
)  # fmt: skip
BROKEN = {
    f"{name}: {words}": Port(name, setting(name, **changed), first, cause)
    for name, words, changed, first, cause in ROWS
}
