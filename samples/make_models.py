"""Make the built-in models: write their text, train the recipes, measure, and put the results into the package.

python samples/make_models.py --work FOLDER            everything
python samples/make_models.py --work FOLDER --measure  only measure and install runs that are there
"""

import argparse
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

SAMPLES = Path(__file__).parent
sys.path[:0] = [str(SAMPLES / "stories"), str(SAMPLES)]

import dates  # noqa: E402
from ngram import fit  # noqa: E402

from tinytf.files import read_json, to_json  # noqa: E402
from tinytf.loading import load  # noqa: E402
from tinytf.look.heads.census import census  # noqa: E402
from tinytf.sources import ASSETS  # noqa: E402
from tinytf.text.corpus import find_files  # noqa: E402
from tinytf.training.data.examples import IGNORED  # noqa: E402
from tinytf.training.data.masked import MaskedTokens  # noqa: E402
from tinytf.training.data.tokens import tokenise  # noqa: E402
from tinytf.training.data.translation import Translations  # noqa: E402
from tinytf.training.recipe import Recipe  # noqa: E402
from tinytf.training.tuning.losses import exact_share, measured_loss  # noqa: E402

CORPUS = {"seed": 1, "megabytes": 4}
SHIPPED, SHIPPED_PAIRS = 45, 300  # stories and pairs of the held-out part that go with a model
HEAD_PAIRS = 200  # pairs whose maps are averaged
COMMON_LIMITS = (
    "It knows only the generated stories it was trained on: about 1,500 words of simple English. It knows no facts, "
    "holds no conversation, and other words fall into small pieces that mean little to it."
)


DATES_SEED = 1
DATES_LIMITS = (
    "It knows dates from 1900 to 2099 in the English forms of samples/dates.py; a year of two digits means one from "
    "1970 to 2069. It makes some date of any other text."
)
ROWS = {"year": range(4), "month": (5, 6), "day": (8, 9)}
"""The rows of a map that write the digits of each part of a date in ISO 8601."""


def write_corpus(path: Path) -> None:
    """The stories, or the dates beside their tokenizer, if they are not there yet."""
    if path.exists():
        return
    if path.suffix == ".tsv":
        dates.write(path, DATES_SEED)
        tokenizer = dates.make_tokenizer([text for pair in dates.pairs(DATES_SEED) for text in pair])
        path.with_suffix("").mkdir(exist_ok=True)
        tokenizer.save(str(path.with_suffix("") / "tokenizer.json"))
    else:
        options = [part for name, value in CORPUS.items() for part in (f"--{name}", str(value))]
        subprocess.run([sys.executable, SAMPLES / "stories" / "generate.py", *options, "--out", path], check=True)


def train(corpus: Path, name: str, run: Path) -> None:
    """Train one recipe on one thread, so that its bits do not depend on the cores; notes the minutes it took."""
    shutil.rmtree(run, ignore_errors=True)
    started = time.monotonic()
    command = [sys.executable, "-m", "tinytf_cli", "train", str(corpus), "--out", str(run)]
    command += ["--tokenizer", str(corpus.with_suffix(""))] if corpus.suffix == ".tsv" else []
    recipe = str(SAMPLES / "recipes" / f"{name}.toml")
    subprocess.run([*command, "--recipe", recipe], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    (run / "minutes.json").write_text(json.dumps({"minutes": round((time.monotonic() - started) / 60, 1)}))


@torch.no_grad()
def stream_loss(model: torch.nn.Module, ids: np.ndarray, context: int) -> float:
    """Total loss in nats of a token stream, each token seeing at least half a context (but for the first)."""
    half, total = context // 2, 0.0
    stream = torch.from_numpy(ids)
    for start in range(0, len(stream) - 1, half):
        first = max(0, start - half)
        window = stream[first : start + half + 1]
        new = len(window) - 1 - (start - first)
        logits = model(window[None, :-1])[0, -new:]
        total += float(F.cross_entropy(logits, window[-new:], reduction="sum"))
    return total


def best_head(scores: torch.Tensor) -> dict[str, Any]:
    """The head with the highest of the scores (layers, heads)."""
    layer, head = divmod(int(scores.argmax()), scores.shape[1])
    return {"head": f"L{layer}H{head}", "score": round(float(scores.max()), 3)}


def measure_decoder(corpus: Path, run: Path, recipe: Recipe) -> dict[str, Any]:
    """Held-out figures of the decoder, beside a 5-gram model of the same tokens."""
    opened = load(str(run))
    model, tokenizer = opened.transformer, opened.tokenizer
    texts = find_files([corpus])
    tokens = tokenise(texts, tokenizer, run / "tokens", held_out=recipe.held_out)
    ids = tokens.held_out.astype(np.int64)
    words = sum(len(document.split()) for document in texts.split(recipe.held_out)[1])
    loss = stream_loss(model, ids, recipe.block)
    ngram = fit(tokens.train.tolist(), tokenizer.vocab_size, order=5)
    ngram_loss = -float(np.sum(ngram.log_probabilities(ids.tolist())[1:]))
    repeats = census(model, length=50, count=32, seed=0)
    best = {
        name: {
            "head": f"L{int(s.argmax()) // s.shape[1]}H{int(s.argmax()) % s.shape[1]}",
            "score": round(float(s.max()), 3),
        }
        for name, s in (("previous_token", repeats.score("previous")), ("induction", repeats.score("induction")))
    }
    return {
        "held_out_loss": round(loss / (len(ids) - 1), 4),
        "held_out_perplexity_per_word": round(math.exp(loss / words), 3),
        "five_gram_perplexity_per_word": round(math.exp(ngram_loss / words), 3),
        "held_out_words": words,
        "random_repeats": {
            "first_half_loss": round(repeats.first_loss or math.nan, 3),
            "second_half_loss": round(repeats.second_loss or math.nan, 3),
            **best,
        },
    }


@torch.no_grad()
def measure_encoder(corpus: Path, run: Path, recipe: Recipe) -> dict[str, Any]:
    """Held-out loss and accuracy of the encoder on its masked tokens."""
    opened = load(str(run))
    model, tokenizer = opened.transformer, opened.tokenizer
    tokens = tokenise(find_files([corpus]), tokenizer, run / "tokens", held_out=recipe.held_out, sentences=True)
    examples = MaskedTokens(tokens.train, tokens.held_out, recipe, tokenizer)
    total, right, count = 0.0, 0, 0
    for batch in examples.held_out():
        asked = batch.targets != IGNORED
        logits = model.unembed(model.hidden(batch.ids, padding_mask=batch.padding_mask)[asked])
        targets = batch.targets[asked]
        total += float(F.cross_entropy(logits, targets, reduction="sum"))
        right += int((logits.argmax(-1) == targets).sum())
        count += len(targets)
    return {
        "held_out_loss": round(total / count, 4),
        "held_out_perplexity_per_masked_token": round(math.exp(total / count), 3),
        "held_out_accuracy": round(right / count, 4),
        "held_out_masked_tokens": count,
    }


def measure_translator(corpus: Path, run: Path, recipe: Recipe) -> dict[str, Any]:
    """Held-out loss, the share of exact translations, and the heads that look most at each part of a date."""
    model = load(str(run))
    texts = find_files([corpus], recipe.reading)
    tokens = tokenise(texts, model.tokenizer, run / "tokens", held_out=recipe.held_out)
    examples = Translations(tokens.train, tokens.held_out, recipe, model.config.start_id)
    loss = measured_loss(model.transformer, examples.held_out())
    assert loss is not None
    held_out = [json.loads(pair) for pair in texts.split(recipe.held_out)[1]][:HEAD_PAIRS]
    scores = {part: torch.zeros(model.config.n_layers, model.config.n_heads) for part in ROWS}
    for words, iso in held_out:
        trace = model.reading(words).trace(iso)
        for part, (start, end) in dates.spans(words).items():
            columns = [n for n, token in enumerate(trace.source.tokens) if token.start < end and token.end > start]
            for layer in range(model.config.n_layers):
                weights = trace[f"L{layer}.cross.weights"][:, list(ROWS[part])][:, :, columns]
                scores[part][layer] += weights.sum(-1).mean(-1) / len(held_out)
    return {
        "held_out_loss": round(loss, 6),
        "held_out_perplexity_per_token": round(math.exp(loss), 6),
        "held_out_pairs": len(examples.held_out_set),
        "held_out_exact": round(exact_share(model.transformer, examples.held_out()) or 0.0, 4),
        "recomputed_by": "python tests/parity/translator.py: transformers writes each pair with the exported model",
        "looks_at": {part: best_head(heads) for part, heads in scores.items()},
    }


MODELS = {
    "tiny": (
        "stories.txt",
        measure_decoder,
        "predicts the next token of simple English stories; a decoder of the same parts as Qwen2",
    ),
    "tiny-encoder": (
        "stories.txt",
        measure_encoder,
        "fills [MASK] in simple English sentences; post-norm encoder as in BERT",
    ),
    "tiny-translator": (
        "dates.tsv",
        measure_translator,
        "writes English dates in ISO 8601; an encoder and a decoder as in Vaswani et al. 2017, norms first",
    ),
}


def data_of(corpus: Path, recipe: Recipe) -> str:
    """What the text of a model is, for its card."""
    if corpus.suffix == ".tsv":
        what = f"samples/dates.py --seed {DATES_SEED}: {dates.PAIRS:,} pairs, every date once"
    else:
        what = (
            f"samples/stories/generate.py --seed {CORPUS['seed']} --megabytes {CORPUS['megabytes']}: "
            f"{corpus.stat().st_size:,} bytes made by a grammar of ours"
        )
    return f"{what}; the last {100 * recipe.held_out:.0f} % held out"


def shipped(corpus: Path, recipe: Recipe) -> str:
    """The first held-out stories, or pairs: text of the model's own kind that it was not trained on."""
    _, held_out = find_files([corpus], recipe.reading).split(recipe.held_out)
    if corpus.suffix == ".tsv":
        pairs = itertools.islice(map(json.loads, held_out), SHIPPED_PAIRS)
        return "".join(f"{source}\t{target}\n" for source, target in (("source", "target"), *pairs))
    return "\n\n".join(itertools.islice(held_out, SHIPPED)) + "\n"


def install(corpus: Path, name: str, run: Path) -> None:
    """Measure a run, write its card, and copy it into the package."""
    _, measure, what = MODELS[name]
    recipe = Recipe.from_dict(read_json(run / "recipe.json"), name)
    minutes = run / "minutes.json"
    card = {
        "name": name,
        "what": what,
        "data": data_of(corpus, recipe),
        "recipe": f"samples/recipes/{name}.toml",
        "seed": recipe.seed,
        "training": f"{recipe.steps:,} steps of {recipe.batch} × up to {recipe.block} tokens",
        **({"training_minutes_on_one_core": read_json(minutes)["minutes"]} if minutes.exists() else {}),
        **measure(corpus, run, recipe),
        "limits": COMMON_LIMITS if corpus.suffix == ".txt" else DATES_LIMITS,
    }
    target = ASSETS / name
    target.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copyfile(run / file, target / file)
    (target / "card.json").write_bytes(to_json(card))
    (target / f"held_out{corpus.suffix}").write_text(shipped(corpus, recipe), "utf-8")
    print(json.dumps(card, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the corpus and the runs")
    parser.add_argument("--measure", action="store_true", help="do not train, use the runs that are there")
    parser.add_argument("--only", choices=MODELS, help="one of the models")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    corpora = {name: options.work / MODELS[name][0] for name in ([options.only] if options.only else MODELS)}
    for corpus in set(corpora.values()):
        write_corpus(corpus)
    if not options.measure:
        with ThreadPoolExecutor() as side_by_side:
            list(side_by_side.map(lambda name: train(corpora[name], name, options.work / name), corpora))
    for name, corpus in corpora.items():
        install(corpus, name, options.work / name)


if __name__ == "__main__":
    main()
