"""Command lines that open what they name, one or more of every command; ``test_every_output`` makes these files."""

from collections.abc import Mapping

TEXT = "The cat sat"
SAE = ("--at", "L0.out", "--features", "8", "--k", "2", "--tokens", "32", "--batch", "16")
TRANSCODERS = ("--into", "L*.ffn", "--features", "8", "--k", "2", "--tokens", "32", "--batch", "16")
OPEN = ("--model", "m", "--device", "cpu")
GIVEN: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "trace --curve": (("trace", "--curve", TEXT, *OPEN),),
    "ablate": (("ablate", TEXT, *OPEN, "--at", "L0H0", "--how", "mean", "--reference", "book.txt"),),
    "attention": (("attention", TEXT, *OPEN),),
    "attribute": (("attribute", TEXT, *OPEN, "--adapter", "adapter"), ("attribute", TEXT, "--at", "L1H0.scores[1,0]")),
    "blame": (("blame", "--texts", "lines.txt", *OPEN, "--versus", "decoder"),),
    "info --card": (
        ("info", "--card", "m", "--versus", "decoder", "--texts", "book.txt", "--device", "cpu", "--top", "0"),
    ),
    "certify": (("certify", "m", "--texts", "lines.txt", "--device", "cpu"),),
    "check": (("check", "student.py:Student", "--like", "gpt2-tiny", "--names", "names.toml"),),
    "circuit": (("circuit", "--pairs", "pairs.jsonl", *OPEN),),
    "trace --code": (("trace", "--code", TEXT, *OPEN),),
    "config": (("config",),),
    "diff": (
        ("diff", TEXT, *OPEN, "--versus", "dump.safetensors", "--names", "names.toml"),
        ("diff", TEXT, "-m", "decoder", "--versus", "m", "--device", "cpu"),
    ),
    "config --doctor": (
        (
            "config",
            "--doctor",
        ),
    ),
    "experts": (("experts", TEXT, *OPEN, "--corpus", "corpus"),),
    "diff --logprobs": (("diff", "--logprobs", "logged.jsonl", "logged.jsonl"),),
    "diff --sampling": (("diff", "--sampling", "transformers", "vllm", TEXT, *OPEN, "--max-tokens", "2"),),
    "explain": (("explain", "L0H0.scores[1,0]", TEXT, *OPEN),),
    "export": (("export", "m", "exported", "--to", "huggingface"),),
    "features": (("features", TEXT, *OPEN, "--sae", "sae"),),
    "generate": (
        ("generate", TEXT, *OPEN, "--max-tokens", "2"),
        ("generate", TEXT, *OPEN, "--max-tokens", "2", "--add", "joy.safetensors*2"),
    ),
    "grad": (("grad", TEXT, *OPEN),),
    "heads": (("heads", "corpus", *OPEN),),
    "info": (("info", "m"),),
    "learn": (("learn", "2", "--text", TEXT, *OPEN),),
    "lens": (
        ("lens", TEXT, *OPEN),
        ("lens", "--pairs", "pairs.jsonl", *OPEN),
        ("lens", "--train", "book.txt", "--steps", "1", *OPEN),
    ),
    "models": (("models",),),
    "neighbours": (("neighbours", "cat", *OPEN),),
    "neurons": (("neurons", TEXT, *OPEN),),
    "pairs": (("pairs", "agreement", "-n", "2", "-m", "tiny", "--device", "cpu"), ("pairs",)),
    "patch": (("patch", TEXT, "The dog sat", *OPEN, "--at", "L0H0"),),
    "probe": (("probe", "--labels", "labels.jsonl", *OPEN),),
    "runs --film": (("runs", "--film", "run"),),
    "attention --rollout": (("attention", "--rollout", TEXT, *OPEN),),
    "record": (("record", "book.txt", "corpus", *OPEN, "--at", "L0.out", "--out", "recorded"),),
    "diff --recorder": (
        ("diff", "--recorder", "torch"),
        (
            "diff",
            "--recorder",
        ),
    ),
    "state": (("state", TEXT, "--model", "preset:mamba-tiny", "--device", "cpu"),),
    "runs": (("runs", "run"),),
    "same": (("same", TEXT, *OPEN),),
    "score": (("score", "--chat", "messages.json", *OPEN),),
    "neighbours --texts": (("neighbours", "--texts", TEXT, *OPEN, "--pooling", "mean", "--file", "book.txt"),),
    "steer": (
        ("steer", "pairs.jsonl", *OPEN, "--at", "L1.out"),
        ("steer", "joy.safetensors", TEXT, *OPEN, "--curve=-1:1:1", "--reference", "book.txt"),
    ),
    "sweep": (("sweep", "recipe.toml", "book.txt=2", "corpus", "--out", "sweeps", "--lr", "1e-3,2e-3"),),
    "tokens": (("tokens", TEXT, "-m", "m"),),
    "trace": (("trace", TEXT, *OPEN, "--adapter", "adapter"), ("trace", TEXT, "-m", "cached", "--device", "cpu")),
    "train": (
        ("train", "book.txt=3", "corpus", "--recipe", "recipe.toml", "--out", "new"),
        ("train", "book.txt=3", "corpus", "--recipe", "recipe.toml", "--out", "new", "--dry-run"),
        ("train", "--out", "run", "--resume"),
        ("train", "book.txt", "--recipe", "recipe.toml", "--out", "new", "--from", "m"),
    ),
    "train-sae": (("train-sae", "book.txt", "corpus", *OPEN, *SAE, "--out", "new"),),
    "verify": (("verify", "worked.toml"),),
    "runs --follow": (("runs", "--follow", "run"),),
    "weights": (("weights", *OPEN), ("weights", "L0H0", *OPEN), ("weights", "--compose", "L0H0", *OPEN)),
}
"""By the name of the command."""
