"""Files of students: right ones, broken ones as edits of them, and the references that they are checked against."""

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from transformers import GPT2LMHeadModel, GPTNeoXForCausalLM, LlamaForCausalLM  # noqa: F401 - not in every child

from tinytf.check.checked import Checked, check
from tinytf.check.reference import reference
from tinytf.loading import Model

FILES = Path(__file__).parent / "files"
SAMPLE = Path(__file__).parents[2] / "samples" / "my_gpt.py"
RIGHTED = {
    "math.sqrt(C)": "math.sqrt(k.size(-1))",
    "F.gelu(self.c_fc(x))": 'F.gelu(self.c_fc(x), approximate="tanh")',
    "import math\n": "import math\nif __name__ == '__main__':\n    raise SystemExit('it trains')\n",
}
"""The mistakes of the sample, which without them is the right file ``gpt.py``, and what it must not run."""
MISTAKES = tomllib.loads((Path(__file__).parent / "mistakes.toml").read_text("utf-8"))
SMALL = {"n_layers": 2, "d_model": 48, "n_heads": 4, "vocab_size": 2048, "context": 32}
LECTURE = {"activation": "relu", "qkv_bias": False, "tied_head": False, "head_bias": True}
BERT = {"head": "mlm", "head_bias": True, "pooler": False}
RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt.py:GPT": ("gpt2-tiny", {}),
    "by_hand.py:GPTModel": ("gpt2", {}),
    "lecture.py:BigramLanguageModel": ("gpt2", LECTURE),
    "from_torch.py:build": ("gpt2", {"activation": "gelu", "tied_head": False}),
    "llama.py:Llama": ("llama-tiny", {"n_kv_heads": 2}),
    "fused_llama.py:Llama": ("llama-tiny", {"n_kv_heads": 2}),
    "complex_llama.py:Transformer": ("llama-tiny", {"n_kv_heads": 4}),
    "einsum_gpt.py:Net": ("gpt2", {}),
    "functional_gpt.py:GPT": ("gpt2", {}),
    "multihead.py:GPT": ("gpt2", {}),
    "tiles.py:GPT": ("gpt2", {}),
    "query_by_query.py:Decoder": ("gpt2", {}),
    "bert.py:Bert": ("bert-base", BERT),
    "from_transformers.py:gpt2": ("gpt2-tiny", {}),
    "from_transformers.py:llama": ("llama-tiny", {"n_kv_heads": 2}),
    "from_transformers.py:neox": ("gpt2-tiny", {"positions": "rotary", "activation": "gelu", "tied_head": False}),
}
"""Each right file, with the preset that it is like and what of it is different."""


@lru_cache
def _reference(name: str, changes: tuple[tuple[str, Any], ...]) -> Model:
    return reference(name, dict(changes))


def like(target: str) -> Model:
    """The small reference of a right file."""
    name, changes = RIGHT[target]
    return _reference(name, tuple((SMALL | changes).items()))


def edited(target: str, folder: Path, *edits: tuple[str, str]) -> str:
    """A right file with some of its text replaced, in a folder."""
    name, _, made = target.partition(":")
    text = (SAMPLE if name == "gpt.py" else FILES / name).read_text("utf-8")
    for right, wrong in (*(RIGHTED.items() if name == "gpt.py" else ()), *edits):
        assert right in text
        text = text.replace(right, wrong)
    (folder / name).write_text(text, "utf-8")
    return f"{folder / name}:{made}"


def checked(target: str, folder: Path, *edits: tuple[str, str], **options: Any) -> Checked:
    """What a check says of a right file with some edits."""
    return check(like(target), edited(target, folder, *edits), **options)
