"""What people type for a command, an option or a question, and the line of tinytf that answers it."""

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from shlex import quote

_ADDRESS = r"L[0-9][\w.*-]*(?:\[[^\]]*\])?"
_WORD = r"['\"]?(?P<word>[^\s?'\"]+)['\"]?"

QUESTIONS: Mapping[str, str] = {
    rf"why (?:is it |does it say |)(?P<cell>{_ADDRESS}\S*\])": "explain {cell}",
    rf"(?:how is|where does|how does) (?P<cell>{_ADDRESS}\S*\])(?: computed| come from| come about)?": "explain {cell}",
    rf"why (?:is it |does it say )?{_WORD},? (?:and )?(?:not|rather than|instead of) ['\"]?(?P<other>[^\s?'\"]+)['\"]?":
        "attribute --token {word} --versus {other}",
    r"why(?: this| that| so)?": "attribute",
    rf"why (?:is it |does it say |not )?{_WORD}": "attribute --token {word}",
    rf"(?:when|where|at which layer) (?:did|does) it (?:know|decide|learn|find)"
    rf"(?: (?:that )?(?:it is |on |about )?{_WORD})?":
        "lens --track {word}",
    r"what does (?P<head>L[0-9]+H[0-9]+) do": "attention --head {head}",
    r"what(?:'s|s| is| does) (?P<step>L[0-9]+(?:H[0-9]+)?\.[\w.]+)(?: do)?": "help {step}",
    r"where does (?P<head>L[0-9]+H[0-9]+) look(?: at)?": "attention --head {head}",
    r"(?:where|what) does it (?:look|attend)(?: at| to)?": "attention",
    r"what (?:if|happens|happens if)(?: it runs)? ?(?:without )?(?P<part>L[0-9]+(?:H[0-9]+|\.\w+)?)":
        "ablate --at {part}",
    r"(?:which|what) (?:heads?|parts?|layers?) "
    r"(?:matters?|counts?|decides?|is (?:most )?important|are (?:most )?important)(?: most)?":
        "attribute",
    r"(?:which|what) heads? (?:are there|copy|copies|look back|are induction(?: heads)?|is an induction head)": "heads",
    r"(?:what|which) (?:comes|is|will be|will come|word is) next|what's next|what does it predict": "lens",
    r"how (?:sure|certain|surprised) is it|what is (?:its loss|loss of it)|how (?:good|bad) is it": "score",
    rf"how (?:likely|probable|sure) is {_WORD}": "lens --track {word}",
    r"how many (?:parameters|layers|heads|weights)(?: are there| does it have| has it| are in it)?": "info",
    r"(?:what|which) model (?:is (?:this|it|that)|do i have)": "info",
}  # fmt: skip
"""Questions, as regular expressions, and the line that answers each; a word that is not asked for falls away."""
_LOOSE: Mapping[str, str] = {
    r"\bthe model\b": "it",
    r"\b(?:the|a|an) (?=\S)": "",
    r"\bheads? (?=L[0-9])": "",
}
"""What a question may say besides, as regular expressions, and what it says then."""
_WITHOUT_WORDS = {form: line for form, line in QUESTIONS.items() if "(?P<word>" not in form}
_FORM_WORDS = frozenset(
    re.findall("[a-z]{4,}", " ".join(re.sub(r"\(\?P<\w+>|\\[A-Za-z]", "", form) for form in _WITHOUT_WORDS))
)
_CORRECTED = 5
"""Letters of the shortest word that is corrected: a shorter one is too often another word."""
_NO_TEXT = ("help", "info", "heads")
"""Commands of these lines that read no text."""

COMMANDS_MEANT: Mapping[str, str] = {
    "score TEXT": "loss nll cross-entropy perplexity ppl evaluate eval",
    "grad TEXT": "backward backprop backpropagation gradient gradients saliency",
    "same TEXT": "cache kv-cache batch padding",
    "attribute TEXT": "reason cause",
    "generate TEXT": "predict continue complete sample chat decode",
    "trace TEXT": "run forward inspect show print view",
    "explore TEXT": "visualize visualise viz ui gui tui open browse",
    "repl": "debug interactive shell session start",
    "tokens TEXT": "tokenize tokenise tokenizer encode",
    "neighbours WORD": "embed embedding embeddings nearest similarity",
    "train CORPUS --from MODEL": "finetune fine-tune fit",
    "learn": "tutorial course lesson lessons teach",
    "diff": "compare",
    "runs": "logs log status progress monitor history curves dashboard",
    "runs --follow": "follow tail attach",
    "train --resume": "resume unpause",
    "models": "list ls",
    "export MODEL DIRECTORY --to huggingface": "convert save",
    "ablate TEXT --sweep heads": "knockout zero remove without",
    "config": "setup install settings options",
}
"""Commands, each with the words that people type for it."""

OPTIONS_MEANT: Mapping[str, str] = {
    "--lr": "--learning-rate --learning_rate --rate --eta",
    "--steps": "--epochs --epoch --num-epochs --iterations --iters --max-steps --num-steps",
    "--batch": "--batch-size --bs",
    "--block": "--context --context-length --seq-len --sequence-length --block-size --max-length",
    "--max-tokens": "--tokens --length --max-new-tokens --max-length --num-tokens --new-tokens -n",
    "--n": "--samples --num-samples --num-return-sequences",
    "--temperature": "--temp -t",
    "--beams": "--num-beams --beam-size",
    "--from": "--pretrained --base --init --checkpoint",
    "--device": "--gpu --cuda --cpu",
    "--dtype": "--fp16 --bf16 --half --precision-type --torch-dtype",
    "--out": "--output-dir --output_dir --save-dir --dir --run-dir",
    "--output": "--outfile --out --save --file",
    "--list": "--status --progress --ls",
    "--follow": "--watch --tail --live -f",
    "--resume": "--continue --restart",
    "--seed": "--random-seed --manual-seed",
    "--lora": "--lora-rank --rank",
    "--held-out": "--test-split --validation --val --holdout",
    "--model": "--checkpoint --pretrained --model-name --weights",
    "--weight-decay": "--wd --decay",
}
"""Options, each with the names of other programs for it; a name means the first that a command has."""

HOW = (
    r"(?:how (?:do|can|could|would|should|might|must) (?:i|we|you|one)|how (?:do|can) you|how to|how is|how are"
    r"|(?:can|could|may) (?:i|we|you|it)|is it possible to|is there(?: an?)?(?: way (?:to|of))?"
    r"|are there(?: any)?|where (?:is|are|do i (?:find|see)|can i (?:find|see))"
    r"|(?:which|what) command (?:shows?|does|is for)|i want to|help me(?: to)?)\s+(?P<what>.+)"
)
"""A question for the way to do something, as a regular expression."""

WAYS_MEANT: Mapping[str, tuple[str, str]] = {
    "trace TEXT -o FILE": (
        "Any answer goes to a file by its ending: .svg .png .pdf .html .tex .csv .md .json .safetensors.",
        "picture pictures image figure svg png pdf html browser page latex tex csv table save write print export",
    ),
    "trace TEXT --json": (
        "Any answer as data for programs; docs/json.md says what it holds.",
        "json ndjson script api",
    ),
    "trace TEXT --model FILE": (
        "Any question about another model: a .gguf file, a folder of Hugging Face, a run of train, hub:ORG/NAME.",
        "load open import gguf safetensors hugging face huggingface hub llama gpt2 download offline internet",
    ),
    "trace TEXT --device cuda": (
        "Any question on a GPU; auto takes one if there is one.",
        "gpu cuda mps cpu device fast",
    ),
    "explain TEXT --homework": (
        "A worked example with blanks for your students; verify NAME --homework has more.",
        "worksheet homework exercise handout sheet students quiz",
    ),
    "tokens - < FILE": ("Most questions read their text from a pipe, with - as TEXT.", "file stdin pipe document"),
    'python -c \'import tinytf; print(tinytf.load("tiny").trace("The cat sat"))\'': (
        "The same questions in Python and in a notebook; docs/python.md says more.",
        "python notebook jupyter colab script code library import",
    ),
}
"""Lines that do what no summary says: what each does, and the words that people type for it."""

NAMES_MEANT: Mapping[str, str] = {
    "set": "change edit modify weight parameter number",
    "quit": "leave end close",
    "sweep": "learning rates good learning rate",
    "undo": "back",
    "learn": "start begin beginner beginning",
    "run": "own sentence words type",
    "lens": "know knows predict predicts prediction next word",
    "without": "turn off remove disable",
    "ablate": "turn off remove disable layer",
    "heat": "see head map",
    "runs": "loss plot curve overfit overfits",
    "train": "resume",
    "verify": "worked example paper recompute",
    "score": "perplexity file surprise",
    "attention": "look looks pattern compute",
    "diff": "two models difference",
    "neighbours --texts": "sentences",
    "record": "save store cache activations dataset",
    "export": "hugging face",
    "neighbours": "similar words alike",
    "trace": "inside layer",
    "check": "student students code module homework implementation",
    "--resume": "continue run training",
    "runs --follow": "watch progress live",
    "--shard": "several gpus",
}
"""Commands and verbs with further words of questions for them."""


def answering(question: str, known: Iterable[str] = ()) -> str:
    """The line that answers a question; empty where no form fits. ``what is WORD?`` is one for a ``known`` word.

    It is read as typed, then without articles, and at last with words that are one letter wrong corrected.
    """
    bare = " ".join(question.split()).rstrip("?!. ")
    marked = question.strip().endswith("?")
    if not marked and not re.match(r"(?i)(?:why|when|where|what|whats|what's|how|which)\b", bare):
        return ""
    known = {name.casefold() for name in known}
    loose = bare
    for what, plain in _LOOSE.items():
        loose = re.sub(what, plain, loose, flags=re.IGNORECASE)
    corrected = " ".join(_corrected(word, _FORM_WORDS) for word in loose.split())
    readings = [(bare, QUESTIONS), (loose, QUESTIONS), (corrected, _WITHOUT_WORDS)]
    return next(filter(None, (_line(*reading) for reading in readings)), "") or _defining(bare, known)


def _line(question: str, forms: Mapping[str, str]) -> str:
    for form, line in forms.items():
        if found := re.fullmatch(form, question, re.IGNORECASE):
            groups = {name: quote(value) for name, value in found.groupdict().items() if value}
            kept = [part for part in re.split(r" (?=--)", line) if "{" not in part or _fits(part, groups)]
            return " ".join(kept).format_map(groups)
    return ""


def _defining(question: str, known: Collection[str]) -> str:
    """``help WORD`` for a question such as ``what are logits``, if the word is known, in singular, or nearly."""
    from tinytf.glossary import asked

    word = asked(question)
    if word == question:
        return ""
    named = word.casefold()
    nearly = _corrected(named, known)
    found = next((form for form in (named, named.removesuffix("s"), nearly) if form in known), "")
    return found and f"help {word if found == named else found}"


def is_how(question: str) -> str:
    """What a question such as ``how do I ablate a head?`` asks how to do; empty for any other line."""
    found = re.fullmatch(HOW, " ".join(question.split()).rstrip("?!. "), re.IGNORECASE)
    return found["what"] if found else ""


def _corrected(word: str, known: Collection[str]) -> str:
    """The one known word that a word is one letter away from, or two swapped ones; the word itself if short."""
    if word.casefold() in known or len(word) < _CORRECTED:
        return word
    near = [name for name in known if name[:1] == word[:1].casefold() and _is_one_letter_off(word.casefold(), name)]
    return near[0] if len(near) == 1 else word


def _is_one_letter_off(word: str, other: str) -> bool:
    for _ in range(2):  # without what they begin with, then, read backwards, without what they end with
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(word, other, strict=False)))
        word, other = word[same:][::-1], other[same:][::-1]
    return max(len(word), len(other)) == 1 or (len(word) == 2 and word == other[::-1])


def _fits(part: str, groups: Mapping[str, str]) -> bool:
    return all(name in groups for name in re.findall(r"{(\w+)}", part))


def with_text(line: str) -> str:
    """A line of a session as the shell takes it, with TEXT after the command where it reads one."""
    name, _, rest = line.partition(" ")
    text = "" if name in _NO_TEXT else " TEXT"
    return f"tinytf {name} {rest}{text}" if name == "explain" else f"tinytf {name}{text} {rest}".strip()


def command_meant(word: str) -> str:
    """The command that does what a word means; empty if the table has no such word."""
    return next((meant for meant, words in COMMANDS_MEANT.items() if word.casefold().rstrip("?") in words.split()), "")


def option_meant(name: str, options: Iterable[str]) -> str:
    """The option of a command that a name of other programs means; empty if it has none such."""
    having = {*options}
    return next((meant for meant, names in OPTIONS_MEANT.items() if meant in having and name in names.split()), "")
