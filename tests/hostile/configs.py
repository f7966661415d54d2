"""config.json of models of ours and of transformers: odd types, absurd sizes, missing and doubled keys."""

import json
from collections.abc import Iterator
from random import Random

from hostile.bases import gpt2, llama, ours, within
from hostile.case import Case
from hostile.mutations import as_json, mutated

_COMMANDS = (("info", "model"), ("info", "model"), ("tokens", "a", "-m", "model"), ("trace", "a", "-m", "model"),
             ("models", "."), ("attention", "a cat", "-m", "model"))  # fmt: skip
_MORE = {
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 16},
    "layer_types": ["full_attention"], "sliding_window": 8, "quantization_config": {"quant_method": "x"},
    "torch_dtype": "float32", "head_dim": 4, "eos_token_id": 1, "auto_map": {"AutoModel": "evil.Model"},
    "tie_word_embeddings": True, "partial_rotary_factor": 0.5,
}  # fmt: skip


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"configs {seed}")
    for _ in range(count):
        files = rng.choice((ours, llama, llama, gpt2))()
        config = json.loads(files["config.json"])
        if "architectures" in config:
            keys = rng.sample(sorted(_MORE), rng.randrange(3))
            config |= {key: _MORE[key] for key in keys}
        about, config = mutated(rng, config)
        made = {**files, "config.json": as_json(rng, config)}
        if rng.randrange(8) == 0:
            about, made = f"generation config: {about}", {**files, "generation_config.json": made["config.json"]}
        yield Case(about, rng.choice(_COMMANDS), within("model", made))
