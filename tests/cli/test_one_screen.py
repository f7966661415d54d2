"""Every answer comes first and fits one screen, however deep the model and however long the text."""

import json
import math
import re
from pathlib import Path

import pytest
import torch
from covering import sample
from driving import SENTENCE, Tinytf, lively

from tinytf.checkpoints.run import save_run
from tinytf.config import ModelConfig
from tinytf.loading import Model, load
from tinytf.text.tokenizer import Tokenizer

SCREEN, COLUMNS = 45, "100"
TEXT = "The cat sat on the mat. The dog saw the cat, and the cat ran away. " * 9
OTHER = TEXT.replace("dog", "cat", 1)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory, bpe: Tokenizer) -> Path:
    """The folder of a decoder of 30 layers that takes 256 tokens."""
    config = ModelConfig.of(vocab_size=bpe.vocab_size, d_model=8, n_layers=30, n_heads=2, d_ff=8, context=256)
    folder = tmp_path_factory.mktemp("models") / "deep"
    save_run(folder, lively(config), bpe)
    return folder


# A command, and what it answers within its first ten lines.
ASKED: dict[str, tuple[tuple[str, ...], str]] = {
    "grad": (("grad", TEXT), "loss "),
    "attribute": (("attribute", TEXT), "logit of "),
    "score": (("score", TEXT), "perplexity "),
    "lens": (("lens", TEXT), "embed.out"),
    "rollout": (("attention", "--rollout", TEXT), "most from "),
    "neurons": (("neurons", TEXT), "0 The"),
    "explain": (("explain", "L29H1.weights[150,3]", TEXT), "L29H1.weights"),
    "ablate": (("ablate", "--sweep", "layers", "The cat sat"), "change of ln p"),
    "patch": (
        ("patch", "--sweep", "heads", "The cat sat", "The dog sat", "--answer", "cat", "--versus", "dog"),
        "clean ",
    ),
    "diff": (("diff", TEXT, OTHER), "first difference"),
    "heads": (("heads", "--random", "--count", "1", "--length", "8"), "random tokens"),
}


@sample("name", ASKED, every=2)
def test_the_answer_of_30_layers_comes_first_and_fits_a_screen(tinytf: Tinytf, deep: Path, name: str) -> None:
    arguments, answer = ASKED[name]
    ran = tinytf(*arguments, "-m", deep, "--width", COLUMNS)
    assert ran.status == 0, ran.err
    assert len(ran.lines) <= SCREEN
    assert any(answer in line for line in ran.lines[:10])


@pytest.mark.share(4)
@pytest.mark.parametrize("name", ["attribute", "score", "lens", "rollout", "heads"])
def test_what_is_folded_is_said_and_all_shows_it(tinytf: Tinytf, deep: Path, name: str) -> None:
    arguments, _ = ASKED[name]
    folded = tinytf(*arguments, "-m", deep, "--width", COLUMNS)
    whole = tinytf(*arguments, "-m", deep, "--width", COLUMNS, "--all")
    assert re.search(r"--(all|rows 0) shows", folded.out)
    assert len(whole.lines) > len(folded.lines)
    assert not re.search(r"folded:|--all shows", whole.out.replace("--by maps a score, --all shows every head", ""))


def test_a_folded_table_has_its_ends_and_names_what_is_missing(tinytf: Tinytf, deep: Path) -> None:
    out = tinytf("grad", TEXT, "-m", deep).out
    flow = out[out.index("flow   ") : out.index("checked")]
    layers = list(dict.fromkeys(re.findall(r"\b(L\d+)\.in\b", flow)))
    assert (layers[0], layers[-1], len(layers)) == ("L29", "L0", 3)
    assert re.search(r"folded: 27 of 30 layers, L\d+ to L\d+; --all shows them", flow)


# The verdict of a backward pass.


def test_the_verdict_of_a_backward_pass_is_that_of_autograd(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    out = tinytf("grad", SENTENCE, "-m", decoder).out
    ids = torch.tensor([token.id for token in opened.encode(SENTENCE).tokens])
    model = opened.transformer
    with torch.no_grad():
        logits = model(ids[None])[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], ids[1:])
    assert f"loss {float(loss):.4f} nats" in out
    shares = torch.softmax(logits[:-1].double(), -1)[range(len(ids) - 1), ids[1:]]
    worst = int(shares.argmin())
    assert f"worst: {opened.tokenizer.shown(int(ids[worst + 1]))} after" in out
    assert f", p {float(shares[worst]):.3g}" in out
    held: list[torch.Tensor] = []  # gradient × input of each token, by a hook of torch's own at the embedding

    def hold(_module: object, _inputs: object, x: torch.Tensor) -> None:
        held.append(x)
        x.retain_grad()

    hook = model.embed.tokens.register_forward_hook(hold)
    torch.nn.functional.cross_entropy(model(ids[None])[0, :-1], ids[1:]).backward()
    hook.remove()
    assert held[0].grad is not None
    added = -(held[0].grad * held[0]).sum(-1)[0].detach()
    place = int(added.abs().argmax())
    assert (
        f"depends most on token {place} {opened.encode(SENTENCE).tokens[place].shown} ({float(added[place]):+.4f}"
        in out
    )


def test_the_lines_to_type_next_are_answered(tinytf: Tinytf) -> None:
    ran = tinytf("grad", "The cat sat")
    typed = re.findall(r"tinytf grad 'The cat sat' (.+?)   ", "\n".join(ran.lines[-3:]))
    assert len(typed) == 3
    for options in typed:
        assert tinytf("grad", "The cat sat", *options.split()).status == 0


def test_a_block_is_shown_in_full_by_its_address(tinytf: Tinytf, decoder: Path) -> None:
    ran = tinytf("grad", SENTENCE, "-m", decoder, "--block", "L1H1")
    assert "∂loss/∂L1H1.weights" in ran.out
    assert "∂loss/∂L0" not in ran.out
    assert "is a step" in tinytf("grad", SENTENCE, "-m", decoder, "--block", "L1H1.weights").err


def test_every_column_of_the_pipeline_has_one_notation(tinytf: Tinytf, decoder: Path) -> None:
    out = tinytf("grad", SENTENCE, "-m", decoder, "--pipeline").out
    rows = [line for line in out[out.index("backward ") :].splitlines() if re.match(r" +\d+  ∂", line)]
    assert len(rows) > 20
    forms = [["e" in word for word in re.findall(r"  +(-?\d\S*)", line.rpartition(" × ")[2])[:3]] for line in rows]
    for notations in zip(*forms, strict=True):  # the norm, over the step's norm, the mean
        assert len(set(notations)) == 1


# Scores.


def test_a_score_is_in_bits_of_the_probability(tinytf: Tinytf, decoder: Path, opened: Model) -> None:
    lines = tinytf("score", SENTENCE, "-m", decoder).lines
    ids = torch.tensor([token.id for token in opened.encode(SENTENCE).tokens])
    with torch.no_grad():
        shares = torch.softmax(opened.transformer(ids[None])[0, :-1].double(), -1)[range(len(ids) - 1), ids[1:]]
    bits = [-math.log2(share) for share in shares.tolist()]
    mean = sum(bits) / len(bits)
    (answer,) = (line for line in lines if line.startswith("perplexity "))
    assert float(answer.split()[1].rstrip(":")) == pytest.approx(2**mean, rel=1e-4)
    assert f" {mean:.3f} bits per token" in answer
    start = next(i for i, line in enumerate(lines) if " bits " in line and " rank " in line)
    for line, share, surprise in zip(lines[start + 1 :], shares.tolist(), bits, strict=True):
        words = line.split()
        assert float(words[2]) == pytest.approx(share, rel=0.2, abs=1e-4)
        assert f"{surprise:.2f}" in words
    assert "nats" not in "\n".join(lines)


def test_a_model_card_is_told_in_words(tinytf: Tinytf) -> None:
    out = tinytf("info", "tiny").out
    assert not re.search(r"[{}\[\]']", out[out.index("model card") :])
    assert "previous token (head L0H1, score " in " ".join(out.split())


# Digits.


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (("lens", SENTENCE), r"·\w+ +[01]\.\d{6}\b"),
        (("attribute", SENTENCE), r"logit of .* is -?\d+\.\d{6}:"),
        (("score", SENTENCE), r"perplexity \d+\.\d{6}:"),
        (("grad", SENTENCE), r"loss \d+\.\d{6} nats"),
        (("ablate", SENTENCE, "--sweep", "layers"), r"ln p\(.*\) = -\d+\.\d{6}"),
        (("explain", "L0H0.weights[2,1]", SENTENCE), r"= 0\.\d{6}\b"),
        (("attention", "--rollout", SENTENCE), r"most from .*, 0\.\d{6};"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_the_digits_asked_for_reach_grids_and_sentences(
    tinytf: Tinytf, decoder: Path, arguments: tuple[str, ...], pattern: str
) -> None:
    ran = tinytf(*arguments, "-m", decoder, "--precision", "6")
    assert ran.status == 0, ran.err
    assert re.search(pattern, ran.out)


def test_what_is_shown_is_what_the_data_say(tinytf: Tinytf, decoder: Path) -> None:
    data = json.loads(tinytf("grad", SENTENCE, "-m", decoder, "--json").out)
    strongest = max(
        ((layer, head) for layer in range(2) for head in range(2)),
        key=lambda at: data["saliency"]["attention_times_gradient"]["absolute"][at[0]][at[1]],
    )
    assert "on head L{}H{} (".format(*strongest) in tinytf("grad", SENTENCE, "-m", decoder).out
    assert load(str(decoder)).config.n_layers == 2
