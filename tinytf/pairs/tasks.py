"""Tasks whose pairs are made here, for any tokenizer: each draws candidate rows, and what does not fit is left out."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tinytf.errors import UsageError
from tinytf.files import parse_toml
from tinytf.nearest import did_you_mean
from tinytf.pairs.pair import Misfits, PairSet, find_answer, plain_ids
from tinytf.pairs.scored import score_pairs
from tinytf.report import About, Data, Progress, Report, ignore_progress
from tinytf.sentences import first_of
from tinytf.tables import ColumnStyle
from tinytf.text.tokenizer import Tokenizer
from tinytf.text_model import TextModel

PAIRS = 200
_FRUITLESS = 2000  # draws in a row without a new pair, after which there are no more
_REPEATED = 12  # random tokens that an induction text repeats
_VOCABULARY = 4000  # tokens of the vocabulary that induction texts are drawn from
_FEWEST_WORDS = 50  # of the vocabulary, so that induction texts are made of words alone
_DESCRIBING = 7  # words that describe the arguments of a function
_YEARS = range(2, 99)
_ASSET = Path(__file__).parents[1] / "assets" / "pairs.toml"
Row = dict[str, str]


@dataclass(frozen=True)
class Task(Data):
    """A task: what its pairs ask, the paper that it is from, and ``rows``, which yields candidates without end.

    With ``reverses`` the corrupt text makes ``versus`` the right answer. ``decoders_only``: the answer is no whole word
    that could stand for a [MASK].
    """

    LESS: ClassVar = ("rows",)
    COLUMNS: ClassVar = {
        "name": ColumnStyle("task", role="strong"),
        "asks": ColumnStyle("what its pairs ask"),
        "source": ColumnStyle("after", role="dim", drop=1),
    }

    name: str
    asks: str
    source: str
    rows: "Callable[[Words, random.Random], Iterator[Row]]"
    reverses: bool = True
    decoders_only: bool = False


@dataclass(frozen=True)
class TaskList(Report):
    """The tasks whose pairs ``Model.pairs`` makes."""

    KIND = "tasks"
    ROWS = "tasks"
    EVENTS: ClassVar = {"tasks": "task"}

    tasks: tuple[Task, ...]

    def fields(self) -> dict[str, Any]:
        return self.members("tasks")


class Words:
    """The words of a task, those that are one token of a model; ``split`` are the others."""

    def __init__(self, model: TextModel, task: str) -> None:
        self.model, self.task = model, task
        self.data: dict[str, Any] = parse_toml(_ASSET.read_text("utf-8")).get(task, {})
        self.split: list[str] = []

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def fitting(
        self, words: Sequence[Any], answers: Callable[[Any], Sequence[str]] = lambda word: (word,), least: int = 2
    ) -> list[Any]:
        """The ``words`` all of whose ``answers`` are one token; raises UsageError for fewer than ``least``."""
        chosen = []
        for word in words:
            split = [answer for answer in answers(word) if not self._is_one_token(answer)]
            self.split += split
            if not split:
                chosen.append(word)
        if len(chosen) < least:
            raise _unfit(self.task, self.model, f"its tokenizer splits {first_of(self.split, 3)} into several tokens")
        return chosen

    def _is_one_token(self, word: str) -> bool:
        try:
            self.model.find_outcome(word)
        except UsageError:
            return False
        return True


def _unfit(task: str, model: TextModel, why: str) -> UsageError:
    return UsageError(f"the pairs of {task} cannot be made for {model.name}: {why}", "tinytf pairs lists other tasks")


def _fits(model: TextModel, text: str, answer: str) -> bool:
    """Whether ``answer`` is one token in its place in ``text``, and the tokens of the text stay as they are."""
    if answer.startswith("#"):
        return True
    try:
        token = find_answer(model, text, answer)
    except UsageError:
        return False
    if not model.config.causal:
        ids = [token if id_ == model.tokenizer.mask_id else id_ for id_ in model.encode(text).ids]
        return model.encode(text.replace(_mask(model), answer)).ids == ids
    space = "" if text[-1:].isdigit() and answer[:1].isdigit() else " "
    return plain_ids(model, f"{text}{space}{answer}") == [*plain_ids(model, text), token]


def _ioi(words: Words, draw: random.Random) -> Iterator[Row]:
    names = words.fitting(words["names"])
    while True:
        indirect, subject = draw.sample(names, 2)
        order = draw.choice(("ABBA", "BABA"))
        first, second = (indirect, subject) if order == "ABBA" else (subject, indirect)
        number = draw.randrange(len(words["templates"]))
        place, thing = draw.choice(words["places"]), draw.choice(words["objects"])
        clean, corrupt = (
            words["templates"][number].format(first=first, second=second, place=place, object=thing, giver=giver)
            for giver in (subject, indirect)
        )
        yield _row(clean, corrupt, indirect, subject, template=str(number + 1), order=order)


def _greater_than(words: Words, draw: random.Random) -> Iterator[Row]:
    """Years whose last two digits are one token; with a token a digit, the tens of the year."""
    in_pairs = _fits(words.model, "to the year 17", "45")
    while True:
        noun, century = draw.choice(words["nouns"]), str(draw.choice(words["centuries"]))
        start = draw.choice(_YEARS)
        clean, corrupt = (
            words["template"].format(noun=noun, century=century, start=f"{year:02}") for year in (start, 1)
        )
        decade, least = (start, _YEARS[0]) if in_pairs else (start // 10, 0)
        later, earlier = range(decade + 1, 100 if in_pairs else 10), range(least, decade)
        if later and earlier:
            digits = (f"{draw.choice(side):0{2 if in_pairs else 1}}" for side in (later, earlier))
            yield _row(clean, corrupt, *digits, century=century, start=f"{start:02}")


def _agreement(words: Words, draw: random.Random) -> Iterator[Row]:
    verbs = words.fitting(words["verbs"], lambda forms: forms)
    while True:
        number = draw.randrange(2)
        subject, verb = draw.choice(words["subjects"]), draw.choice(verbs)
        attractor = draw.choice(("none", "same", "other"))
        after = ""
        if attractor != "none":
            noun = draw.choice([forms for forms in words["attractors"] if forms != subject])
            after = f" {draw.choice(words['prepositions'])} the {noun[number if attractor == 'same' else 1 - number]}"
        clean, corrupt = (f"The {subject[form]}{after}" for form in (number, 1 - number))
        labels = {"number": ("singular", "plural")[number], "attractor": attractor}
        yield _row(clean, corrupt, verb[number], verb[1 - number], **labels)


def _capitals(words: Words, draw: random.Random) -> Iterator[Row]:
    capitals = words.fitting(words["capitals"], lambda names: names[1:])
    while True:
        (country, capital), (other, other_capital) = draw.sample(capitals, 2)
        number = draw.randrange(len(words["templates"]))
        clean, corrupt = (words["templates"][number].format(country=name) for name in (country, other))
        yield _row(clean, corrupt, capital, other_capital, template=str(number + 1), country=country)


def _gender(words: Words, draw: random.Random) -> Iterator[Row]:
    pronouns = words.fitting(["he", "she"])
    while True:
        persons, gender = draw.choice(words["persons"]), draw.randrange(2)
        number = draw.randrange(len(words["templates"]))
        clean, corrupt = (words["templates"][number].format(person=persons[form]) for form in (gender, 1 - gender))
        labels = {"template": str(number + 1), "gender": ("male", "female")[gender]}
        kind = "noun" if persons[0].startswith("The ") else "name"
        yield _row(clean, corrupt, pronouns[gender], pronouns[1 - gender], **labels, kind=kind)


def _induction(words: Words, draw: random.Random) -> Iterator[Row]:
    """Random tokens, and some of them again; the clean and the corrupt text end with different ones."""
    tokenizer, special = words.model.tokenizer, words.model.tokenizer.special_ids
    count = min(words.model.config.vocab_size, tokenizer.vocab_size)
    ordinary = [number for number in range(count) if number not in special]
    ordinary = draw.sample(ordinary, min(len(ordinary), _VOCABULARY))
    whole = [number for number in ordinary if _is_word(tokenizer, number)]
    vocabulary = whole if len(whole) >= _FEWEST_WORDS else ordinary
    if len(vocabulary) < _REPEATED:
        raise UsageError(f"induction takes {_REPEATED} different tokens, and {words.model.name} has {len(vocabulary)}")
    while True:
        ids = draw.sample(vocabulary, _REPEATED)
        end, other = draw.sample(range(2, _REPEATED - 1), 2)
        copies = [[*ids, *ids[:end], ids[last]] for last in (end, other)]
        texts = [tokenizer.decode(copy) for copy in copies]
        if all(plain_ids(words.model, text) == copy for text, copy in zip(texts, copies, strict=True)):
            answers = (_spelled(words.model, ids[last + 1]) for last in (end, other))
            yield _row(*texts, *answers, repeated=str(end + 1))
        else:
            yield {}


def _is_word(tokenizer: Tokenizer, token_id: int) -> bool:
    """Whether a token is a word, which stays whole among other words."""
    text = tokenizer.decode([token_id, token_id])
    first, *others = text.split() or [""]
    return others == [first] and first.isalpha() and first.isascii()


def _spelled(model: TextModel, token_id: int) -> str:
    """A token as an answer: a word where that finds it, else its number."""
    word = model.tokenizer.decode([token_id]).strip()
    try:
        return word if word and model.find_outcome(word) == token_id else f"#{token_id}"
    except UsageError:
        return f"#{token_id}"


def _docstring(words: Words, draw: random.Random) -> Iterator[Row]:
    nouns = words.fitting(words["words"], least=_DESCRIBING)
    while True:
        function = draw.choice(words["functions"])
        *arguments, third, fourth = draw.sample(nouns, 4)
        describing = draw.sample(nouns, _DESCRIBING)
        clean, corrupt = (
            words["template"].strip("\n").format(None, *arguments, *last, *describing, function=function)
            for last in ((third, fourth), (fourth, third))
        )
        yield _row(clean, corrupt, third, fourth, function=function)


def _row(clean: str, corrupt: str, answer: str, versus: str, **labels: str) -> Row:
    return {"clean": clean, "corrupt": corrupt, "answer": answer, "versus": versus, **labels}


TASKS = {
    task.name: task
    for task in (
        Task("ioi", "who receives, of two people: the one who does not give", "Wang et al. 2023", _ioi),
        Task(
            "greater-than", "the end of a span of years: later than its start", "Hanna et al. 2023", _greater_than,
            reverses=False, decoders_only=True,
        ),
        Task("agreement", "the verb: as singular or plural as its subject", "Linzen et al. 2016", _agreement),
        Task("capitals", "the capital of a country", "Meng et al. 2022", _capitals),
        Task("gender", "the pronoun: he or she", "Vig et al. 2020", _gender),
        Task("induction", "the token that followed last time, in random tokens", "Olsson et al. 2022", _induction),
        Task(
            "docstring", "the next argument, in a Python function's comment", "Heimersheim & Janiak 2023", _docstring,
            decoders_only=True,
        ),
    )
}  # fmt: skip


def tasks() -> TaskList:
    """The tasks that pairs can be made of."""
    return TaskList(tuple(TASKS.values()))


def pairs(
    model: TextModel,
    task: str,
    n: int = PAIRS,
    *,
    seed: int = 0,
    score: bool = False,
    progress: Progress = ignore_progress,
) -> PairSet:
    """Make ``n`` different pairs of a task that fit the model's tokenizer; with ``score``, run the model on them.

    Both texts of a pair have as many tokens, and each answer is one token after its text. Words that are several tokens
    are left out, and fewer pairs are made where no more are found; ``left_out`` counts both.

    An interrupt keeps the pairs scored until then. Raises UsageError for an unknown task, and for one that cannot be
    made for this model.
    """
    chosen = TASKS.get(task)
    if chosen is None:
        raise UsageError(f"there is no task {task!r}", did_you_mean(task, TASKS))
    if n < 1:
        raise UsageError(f"{n} pairs are none", "ask for 1 or more")
    model.transformer.require_vocabulary("it answers no pairs")
    if chosen.decoders_only and not model.config.causal:
        raise UsageError(f"the pairs of {task} are for decoders, and {model.name} is an encoder", "try agreement")
    words, misfits = Words(model, task), Counter[str]()
    candidates = chosen.rows(words, random.Random(seed))
    rows, seen, fruitless = list[Row](), set[tuple[str, ...]](), 0
    while len(rows) < n and fruitless < _FRUITLESS:
        row = next(candidates)
        if row and not model.config.causal:
            row |= {text: f"{row[text]} {_mask(model)}." for text in ("clean", "corrupt")}
        key = tuple(row.values())
        fruitless += 1
        if row and key in seen:
            continue
        seen.add(key)
        if reason := _misfit(model, row):
            misfits[reason] += 1
        else:
            rows.append(row)
            fruitless = 0
    if not rows:
        raise _unfit(task, model, misfits.most_common(1)[0][0])
    left_out = [Misfits(count, "pair", f"where {reason}") for reason, count in misfits.most_common()]
    if split := tuple(dict.fromkeys(words.split)):
        left_out.insert(0, Misfits(len(split), "word", "of several tokens", split))
    result = PairSet.of(rows, task)
    result = replace(result, seed=seed, asked=n, left_out=tuple(left_out), reverses=chosen.reverses, about=About(model))
    if not score:
        return result
    scores = score_pairs(model, result.encoded(model), progress, partly=True)
    count = len(scores.clean)
    return replace(result, pairs=result.pairs[:count], scores=scores, stopped=count < len(result.pairs))


def _mask(model: TextModel) -> str:
    mask = model.tokenizer.mask_id
    if mask is None:
        raise UsageError(f"{model.name} is an encoder without a [MASK], so it answers no question")
    return model.tokenizer.shown(mask)


def _misfit(model: TextModel, row: Row) -> str:
    """Why a row is no pair for the model; empty if it is one."""
    if not row:
        return "the tokens are cut differently when they are read again"
    clean, corrupt = (model.encode(row[text]).ids for text in ("clean", "corrupt"))
    if len(clean) != len(corrupt):
        return "the texts have different numbers of tokens"
    if clean == corrupt:
        return "the texts have the same tokens"
    if not all(_fits(model, row["clean"], row[answer]) for answer in ("answer", "versus")):
        return "an answer is not one token there"
    return ""
