"""Every command on models of two stacks: it answers, or refuses in one line that says why."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from architectures import config_of
from driving import Tinytf, is_a_clean_error, lively

from tinytf.checkpoints.run import save_run
from tinytf.text.tokenizer import Tokenizer
from tinytf_cli.command import GROUPS

SOURCE, OTHER, TARGET = "The cat sat", "The dog sat", "the big red dog"
M, FACING = ("-m", "MODEL"), ("-m", "MODEL", "--target-text", TARGET)
APART = ("--answer", "1", "--versus", "2")
FEW = ("--random", "--count", "2")
SAE = ("--at", "L0.out", "--features", "8", "--k", "2", "--tokens", "32", "--batch", "16")

ANSWERED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "ablate": (("ablate", SOURCE, *FACING, "--at", "enc.L0H0"), ("ablate", SOURCE, *FACING, "--sweep", "heads")),
    "attention": (("attention", SOURCE, *FACING), ("attention", SOURCE, *FACING, "--cross")),
    "attention --rollout": (("attention", "--rollout", SOURCE, *FACING),),
    "attribute": (("attribute", SOURCE, *FACING),),
    "diff": (
        ("diff", SOURCE, OTHER, *FACING),
        ("diff", SOURCE, *FACING, "--versus", "MODEL"),
        ("diff", SOURCE, *FACING, "--versus-dtype", "bfloat16"),
        ("diff", SOURCE, *FACING, "--set", "L0H0.cross.scores[1,0]=0"),
    ),
    "explain": (("explain", "L0H0.cross.weights[1,0]", SOURCE, *FACING, "--depth", "9"), ("explain", SOURCE, *FACING)),
    "export": (("export", "MODEL", "exported"), ("trace", SOURCE, "-m", "exported", "--target-text", TARGET)),
    "generate": (
        ("generate", SOURCE, *FACING, "--max-tokens", "3"),
        ("generate", SOURCE, *M, "--beams", "2", "--max-tokens", "3"),
        ("generate", SOURCE, *M, "--n", "2", "--max-tokens", "3"),
    ),
    "grad": (("grad", SOURCE, *FACING), ("grad", SOURCE, *FACING, "--at", "source")),
    "heads": (("heads", *M, *FEW), ("heads", *M, *FEW, "--stack", "encoder")),
    "info": (("info", "MODEL"), ("info", "MODEL", "--batch", "2")),
    "learn": (("learn", "cross-attention", "--text", SOURCE, *FACING),),
    "lens": (("lens", SOURCE, *FACING),),
    "neighbours": (("neighbours", "3", *M), ("neighbours", SOURCE, *FACING, "--at", "L0.out")),
    "neurons": (("neurons", SOURCE, *FACING),),
    "patch": (
        ("patch", SOURCE, OTHER, *FACING, *APART),
        ("patch", SOURCE, OTHER, *FACING, *APART, "--at", "enc.L0.out"),
    ),
    "probe": (("probe", "--labels", "labels.csv", *M, "--stack", "encoder"),),
    "record": (("record", "lines.txt", "--out", "recorded", *M, "--at", "L*.out", "--stack", "encoder"),),
    "same": (("same", SOURCE, *FACING), ("same", SOURCE, OTHER, *FACING)),
    "score": (("score", SOURCE, *FACING),),
    "tokens": (("tokens", SOURCE, *M),),
    "trace": (("trace", SOURCE, *FACING), ("trace", SOURCE, *FACING, "--at", "L0.cross.weights")),
    "trace --code": (("trace", "--code", SOURCE, *FACING),),
    "trace --curve": (("trace", "--curve", SOURCE, *FACING),),
    "train-sae": (
        ("train-sae", "lines.txt", *SAE, *M, "--stack", "encoder", "--out", "sae"),
        ("features", SOURCE, *M, "--stack", "encoder", "--sae", "sae"),
    ),
    "weights": (("weights", *M), ("weights", "L0H0", *M), ("weights", "--compose", "L0H0", *M)),
}  # fmt: skip
"""Command lines that answer, by the name of the command."""

REFUSED: Mapping[str, tuple[tuple[str, ...], str]] = {
    "blame": (("blame", SOURCE, *M, "--versus", "MODEL"), "a tensor of the encoder changes the source of every layer"),
    "circuit": (("circuit", "--pairs", "pairs.jsonl", *M), "its pairs are of prompts that one stack continues"),
    "diff --logprobs": (("diff", "--logprobs", "logged.jsonl", "logged.jsonl", *M), "has a prompt and no source"),
    "diff --sampling": (("diff", "--sampling", "transformers", "vllm", SOURCE, *M), "on a prompt that is continued"),
    "experts": (("experts", SOURCE, *FACING), "has no experts"),
    "info --card": (("info", "--card", "MODEL", "--texts", "lines.txt"), "a text has no target"),
    "lens --pairs": (("lens", "--pairs", "pairs.jsonl", *M), "a pair of prompts has no target"),
    "lens --train": (("lens", "--train", "lines.txt", *M), "--train takes a tinytf record of pairs"),
    "neighbours --texts": (("neighbours", "--texts", SOURCE, OTHER, *M), "the vector of a whole text is its encoder's"),
    "pairs": (("pairs", "agreement", "-n", "2", *M), "its prompts are continued where they stand"),
    "probe": (("probe", "--labels", "labels.csv", *M), "each label is of one text"),
    "record": (("record", "lines.txt", "--out", "new", *M, "--at", "L0.out"), "holds no pairs"),
    "same --module": (("same", SOURCE, *M, "--module", "student.py:Decoder"), "a module of yours is run on one text"),
    "state": (("state", SOURCE, *FACING), "no layer of this model has a state"),
    "steer": (("steer", "pairs.jsonl", *M, "--at", "L0.out"), "its pairs are of texts that one stack reads"),
    "train-sae": (("train-sae", "lines.txt", *SAE, *M, "--out", "new"), "holds no pairs"),
    "verify": (("verify", "paper:ioi", *M), "its claims are of one stack"),
}
"""Command lines that are refused, and what the one line says."""

ELSEWHERE = {
    "certify": "tests/certification", "check": "tests/cli/test_check_of_two_stacks.py", "explore": "tests/explore",
    "mcp": "tests/cli/test_mcp.py", "repl": "tests/repl", "train": "tests/training/test_translation.py",
    "sweep": "trains", "runs": "reads runs", "models": "opens none", "config": "opens none",
    "features": "with train-sae, which makes what it reads",
}  # fmt: skip

MODELS = ("tiny-translator", "t5, two stacks", "bart, two stacks")
LACKING = {
    ("learn", "t5, two stacks"): "one lesson is about scaling, which this model lacks",
    ("export", "bart, two stacks"): "this architecture is none of the",  # its encoder is narrower than its decoder
}
"""What one of the models has no part for."""
_PAIR = '{"clean": "The dogs", "corrupt": "The dog", "answer": "dog", "versus": "cat"}\n'
_LOGGED = '{"prompt_token_ids": [1], "token_ids": [2], "logprobs": [-1.0]}\n'


@pytest.fixture
def model(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bpe: Tokenizer) -> str:
    """A model of two stacks, and in the working directory the files that are asked about."""
    monkeypatch.chdir(tmp_path)
    files = {
        "lines.txt": "The cat sat on the mat.\nThe dog saw the cat.\n" * 8, "pairs.jsonl": _PAIR * 2,
        "labels.csv": "text,label\n" + "".join(f"The {pet} sat {n},{pet}\n" for n in "1234" for pet in ("cat", "dog")),
        "logged.jsonl": _LOGGED,
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_text(content, "utf-8")
    kind: str = request.param
    if "," not in kind:
        return kind
    config, sizes = config_of(kind), {"vocab_size": bpe.vocab_size, "context": 64}
    assert config.encoder is not None
    save_run(tmp_path / "m", lively(config.but(**sizes, encoder=config.encoder.but(**sizes).to_dict())), bpe)
    return "m"


def of(line: tuple[str, ...], model: str) -> list[str]:
    return [model if word == "MODEL" else word for word in line]


def test_every_command_answers_or_is_refused_or_is_tried_elsewhere() -> None:
    commands = {name for group in GROUPS.values() for name in group}
    assert commands == {name.partition(" ")[0] for name in (*ANSWERED, *REFUSED, *ELSEWHERE)}


@pytest.mark.share(4)
@pytest.mark.parametrize("model", MODELS, indirect=True)
@pytest.mark.parametrize("command", ANSWERED)
def test_a_command_answers(tinytf: Tinytf, command: str, model: str, request: pytest.FixtureRequest) -> None:
    lacking = LACKING.get((command, request.node.callspec.params["model"]))
    for line in ANSWERED[command]:
        ran = tinytf(*of(line, model))
        if lacking is not None:
            assert is_a_clean_error(ran)
            assert lacking in ran.err
            return
        assert ran.status == 0, (line, ran.err)
        assert ran.out


@pytest.mark.share(4)
@pytest.mark.parametrize("model", MODELS[:2], indirect=True)
@pytest.mark.parametrize("command", REFUSED)
def test_a_command_says_in_one_line_why_it_has_no_meaning(tinytf: Tinytf, command: str, model: str) -> None:
    line, why = REFUSED[command]
    ran = tinytf(*of(line, model))
    assert is_a_clean_error(ran)
    assert why in ran.err.splitlines()[0]
