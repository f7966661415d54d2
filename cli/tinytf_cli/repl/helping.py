"""The pages of ``help``."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from tinytf.errors import UsageError
from tinytf.glossary import EXAMPLE, glossary, meanings_of
from tinytf.nearest import did_you_mean
from tinytf.parts.row import TEXT_AXES
from tinytf_cli.main import COMMANDS
from tinytf_cli.repl.line import complete_name
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.verbs import NOTES, OUTPUT_OPTIONS, TOPICS, Verb
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.draw import blocks_of
from tinytf_cli.views.names import pairs_of
from tinytf_cli.words import ALL_WORDS, config_of, doing

if TYPE_CHECKING:
    from tinytf.config import ModelConfig
    from tinytf.trace.address import Address

_COMMANDS = "commands"
_AXES = {
    "query": "the token that looks",
    "key": "the token that is looked at",
    "source": "the token of the source that is looked at",
    "token": "a token of the text",
    "vocab": "a token of the vocabulary",
    "d_model": "one number of the vector that runs through all layers",
    "d_head": "one number of the vector of a head",
    "d_ff": "one neuron of the feed-forward",
    "expert": "one expert of the feed-forward",
}
"""What one place along an axis is."""
_IN_LAYER = re.compile(r"L[0-9*-]")


@dataclass(frozen=True)
class Page:
    """A page about no verb or command: names with descriptions, a note, and examples."""

    about: str = ""
    pairs: tuple[tuple[str, str], ...] = ()
    note: str = ""
    examples: tuple[str, ...] = ()


PAGES = {
    "conditions": Page(
        "of break and watch",
        pairs=(
            ("max(L0.ffn)", "a measure of another step; max(mid) is of a step of this layer"),
            ("L1H2.weights[4,cat]", "a cell; break L*.weights[1:] leaves out row 0, [-1] takes only the last"),
            ("last(max)", "in the run before"),
        ),
        note="Compare with < <= > >= == !=, calculate with + - * / abs(), and join with and, or, not and parentheses; "
        "nan alone means nan > 0. Named heads, such as L1H*, are measured one by one; a stop says where it held.",
        examples=("break L*.weights[1:] if max > 0.99", "break L*.out if rank(mat) == 1", "watch nan or norm > 1000"),
    ),
    "addresses": Page(
        pairs=(
            ("L3", "a layer"),
            ("L3H5", "a head; heat L3H5 draws its weights"),
            ("L3H5.weights", "a step of a head"),
            ("L3.ffn", "a step of a layer"),
            ("logits", "a step outside the layers"),
            ("L3H5.weights[sat,cat]", "a cell, by tokens or by positions"),
            ("L0-2H*.weights", "several: all heads of layers 0 to 2"),
        ),
    ),
    "lines": Page(
        TOPICS["lines"],
        (
            ("a blank line", "repeats the last movement"),
            ("| COMMAND", "pipes the last output into a shell command, or that of a line: heat L0H0 | head -3"),
            ("> FILE", "writes the last output, or that of a line, in the format of the extension"),
            ("! PYTHON", "evaluates an expression or runs a statement; trace, model, torch and np are defined"),
            ("!!", "shows the traceback of the last error"),
            ("# …", "is ignored"),
        ),
        'Words are split as in a shell; put a text with a | or a > between "…". A sentence alone is run.',
    ),
    "keys": Page(),
    "scripts": Page(
        "the same session without a terminal",
        (
            ("tinytf repl -c LINE -c LINE", "runs these lines"),
            ("tinytf repl -f FILE", "runs the lines of a file, such as one that save wrote"),
            ("… | tinytf repl", "runs the lines of a pipe"),
            ("--echo", "shows each line before its output"),
            ("--startup", "runs the lines of the start-up file first, as at a terminal"),
            ("--on-error stop|continue", "what to do after a line fails; the exit status is 1 either way"),
        ),
    ),
}


def help_blocks(session: Session, topic: str) -> Iterator[Block]:
    """The overview, or the page of a topic. Raises UsageError for an unknown topic."""
    if not topic:
        return _overview(session)
    if topic.startswith("step ") and (address := _step_address(session, topic.removeprefix("step "))):
        return _step_page(session, address)  # for a step with the name of a verb
    if topic in PAGES:
        return _named_page(session, topic)
    if topic in TOPICS or topic == _COMMANDS:
        return _topic_page(session, topic)
    if name := session.lexicon.names.get(topic):
        return _name_page(session, name)
    name, _, group = topic.partition(" ")
    if group and name in COMMANDS and (command := session.lexicon.command(name)):
        return _command_page(command.about(group))
    if address := _step_address(session, topic):
        return _step_page(session, address)
    if topic == ALL_WORDS:
        return blocks_of(glossary(_config(session)), session.terminal())
    known = [*dict.fromkeys((*PAGES, *TOPICS, _COMMANDS, ALL_WORDS, *session.lexicon.names.values()))]
    with suppress(UsageError):
        text = EXAMPLE if session.run is None else ""
        return blocks_of(meanings_of(topic, (), _config(session), text), session.terminal())
    if page := session.lexicon.meaning(topic) or complete_name(topic, known):
        return help_blocks(session, page)
    if found := doing(topic):
        return blocks_of(found, session.terminal())
    known += [word.name for word in glossary().words]
    raise UsageError(f"there is no help on {topic!r}", did_you_mean(topic, known, otherwise="help lists what there is"))


def _config(session: Session) -> "ModelConfig | None":
    """The configuration of the session's model, which stays closed."""
    table = session.known_table
    return config_of(session.state.spec.name) if table is None else table.config


def _overview(session: Session) -> Iterator[Block]:
    verbs = session.lexicon.verbs.values()
    names = {topic: [verb.name for verb in verbs if verb.topic == topic] for topic in TOPICS}
    names["lines"] = [sign.rstrip(" …") for sign, _ in PAGES["lines"].pairs]
    names[_COMMANDS] = [name for name in COMMANDS if name != "repl"]
    yield Line("a sentence, or run TEXT, records a text; step, next and goto L1H2.weights move through it")
    yield Line("print, heat and top show numbers; break stops where something happens")
    yield Line("")
    yield from pairs_of([(topic, ", ".join(listed)) for topic, listed in names.items()])
    yield Line("")
    yield Line("help TOPIC, such as help moving, lists its verbs; help VERB explains one;", indent=2)
    yield Line("help L0.weights, or another step, says what it is for; help words, what the words mean;", indent=2)
    yield Line(f"see also {', '.join(f'help {page}' for page in PAGES if page not in names)}", indent=2)


def _named_page(session: Session, name: str) -> Iterator[Block]:
    page = PAGES[name]
    pairs: Sequence[tuple[str, str]] = session.keys if name == "keys" else page.pairs
    if name == "conditions":
        from tinytf.trace.measures import MEASURES, OUTCOMES

        pairs = (
            [(measure, about) for measure, (_, about) in MEASURES.items()] + list(OUTCOMES.items()) + list(page.pairs)
        )
    yield Heading(name, page.about)
    yield from pairs_of(pairs)
    if page.note:
        yield Line("", indent=2)
        yield Line(page.note, indent=2)
    if page.examples:
        yield _examples(*page.examples)


def _topic_page(session: Session, topic: str) -> Iterator[Block]:
    if topic in PAGES:
        yield from _named_page(session, topic)
        return
    if topic == _COMMANDS:
        yield Heading(topic, "of the command line, on the present model and text")
        commands = ((name, session.lexicon.command(name)) for name in COMMANDS if name != "repl")
        yield from pairs_of(
            [(name, command.get_short_help_str(70)) for name, command in commands if command is not None]
        )
        return
    yield Heading(topic, TOPICS[topic])
    yield from pairs_of([(verb.name, verb.summary) for verb in session.lexicon.verbs.values() if verb.topic == topic])


def _name_page(session: Session, name: str) -> Iterator[Block]:
    """The page of a verb, of a command, or of both if they share a name."""
    verb, command = session.lexicon.verbs.get(name), session.lexicon.command(name)
    if verb is not None:
        yield from _verb_page(verb)
    if command is not None:
        if verb is not None:
            yield Heading(f"tinytf {name}", "the command of the same name, for arguments that the verb does not take")
        yield from _command_page(command)
        if name in NOTES:
            yield Line("")
            yield Line(NOTES[name])


def _command_page(command: click.Command) -> Iterator[Block]:
    context = click.Context(command, info_name=command.name, max_content_width=100)
    for line in command.get_help(context).splitlines():
        yield Line(line, single=True)


def _step_address(session: Session, topic: str) -> "Address | None":
    """The step that a topic names, with a layer or without; None where it names none."""
    from tinytf.trace.address import Address, parse_address

    table = session.table if _IN_LAYER.match(topic) else session.known_table  # a model is not opened for a wrong word
    if table is None:
        return None
    if step := table.by_name.get(topic):
        return Address(step)
    try:
        address = parse_address(topic, table)
    except UsageError:
        return None
    return None if address.step is None else address


def _step_page(session: Session, address: "Address") -> Iterator[Block]:
    """What a step is: its formula, and from the lesson about it what it is for and its PyTorch line, on the text."""
    from tinytf.learn.about import lesson_of
    from tinytf.learn.course import lesson
    from tinytf.learn.live import Live

    step = address.step
    assert step is not None
    yield Heading(str(address), step.title, step.role)
    pairs = [("formula", step.formula), *([("shape", f"({', '.join(step.axes)})")] if step.axes else [])]
    if session.run is None:
        yield from pairs_of(pairs)
        yield Line("run a text, and help says what the step is for, on its numbers", indent=2)
        yield _examples("run The cat sat")
        return
    number = None
    with suppress(UsageError):  # the lessons do not fit every model
        live = Live(session.model, trace=session.trace)
        number = lesson_of(live, step.name)
    if number is not None:
        told = lesson(number, live)
        pairs.append(("PyTorch", told.pytorch))
        yield Line(" ".join(told.why.split()), indent=2, hanging=0)
        yield Line("")
    yield from pairs_of([*pairs, *_cell_pairs(session, address), *_head_pairs(session, address)])
    yield Line("")
    shown = [f"{'explain' if address.cell else 'print'} {address}"] if step.is_tensor else []
    yield _examples(*shown, *([f"learn {number}"] if number else []))


def _cell_pairs(session: Session, address: "Address") -> Iterator[tuple[str, str]]:
    """The number at a cell, and what its row and column are."""
    if not address.cell or address.step is None:
        return
    trace, axes = session.trace, address.step.axes[-2:]
    for word, axis, side in zip(address.cell, axes, ("row", "column")[-len(axes) :], strict=False):
        of_text = axis in TEXT_AXES
        index = trace.index(word, axis, trace.lengths[axis]) if of_text else int(word)
        shown = trace.tokens_on(axis)[index].shown if of_text else session.model.shown(index) if axis == "vocab" else ""
        yield side, f"{axis} {index} {shown}".rstrip() + f": {_AXES.get(axis, axis)}"
    yield "number", f"{float(trace[address]):.7g}"


def _head_pairs(session: Session, address: "Address") -> Iterator[tuple[str, str]]:
    """What one head does on the text: where its weight is, and what it adds to the prediction."""
    from tinytf.look.heads.kinds import LABELS
    from tinytf.look.heads.measures import MEASURES, measures_of
    from tinytf.look.overview import overview
    from tinytf.look.prediction import prediction_at, predictions
    from tinytf.sentences import percent

    trace, heads, layers = session.trace, address.heads or (), address.layers or ()
    if len(heads) != 1 or len(layers) != 1 or address.letter != "H":
        return
    (layer,), (head,) = layers, heads
    if layer in trace.steps.attention_layers:
        measured = measures_of(trace, list(MEASURES), [layer])
        for label in LABELS:
            if label.score in measured and (weight := float(measured[label.score][0, head])) >= label.least:
                whole = "the entropy of equal weights" if label.score == "entropy_share" else "its weight"
                yield "head", f"{label.meaning} ({percent(weight)} of {whole} in this text)"
    predicted, after = predictions(trace, session.model, 1), ""
    if address.cell and predicted and predicted[0].what == "next":  # a decoder predicts after every token
        assert address.step is not None
        position = trace.index(address.cell[0], address.step.axes[-2], len(trace.tokens))
        predicted = (prediction_at(trace, session.model, position, 1),)
        after = f" after {position} {predicted[0].shown}"
    seen = overview(trace, predicted, session.model.shown)
    if seen.predicted is not None and seen.layers[layer].direct is not None:
        places = [(of_layer, of_head) for of_layer, of_head, _ in seen.ranked]
        place = places.index((layer, head))
        rank = f"rank {place + 1}" if place else "the most"
        yield (
            "adds",
            f"{seen.ranked[place][2]:+.2f} to the logit of {seen.predicted}{after}, {rank} of {len(places)} heads",
        )


def _verb_page(verb: Verb) -> Iterator[Block]:
    short_forms = f"also {', '.join(verb.aliases)}" if verb.aliases else ""
    yield Heading(f"{verb.name} {verb.usage}".rstrip(), short_forms)
    for paragraph in (verb.command.help or "").split("\n\n"):
        yield Line(" ".join(paragraph.split()), indent=2)
    options = [option for option in verb.command.params if isinstance(option, click.Option)]
    own_options = [_option(option) for option in options if option not in OUTPUT_OPTIONS]
    if own_options:
        yield Line("")
        yield from pairs_of(own_options)
    if not verb.raw:
        yield Line("")
        yield Line(Span("--json, --format, -o FILE, --color, --width, --ascii, --plain as everywhere", "dim"), indent=2)
    yield _examples(*verb.examples)


def _option(option: click.Option) -> tuple[str, str]:
    """An option with its metavar, and its help."""
    name = ", ".join(option.opts)
    if isinstance(option.type, click.Choice):
        values = ", ".join(map(str, option.type.choices))
        about = (option.help or "").rstrip(".")
        return name, f"{about}: {values}." if about else f"One of {values}."
    return (name if option.is_flag else f"{name} {option.metavar or 'N'}"), option.help or ""


def _examples(*examples: str) -> Table:
    return Table([Column("", [Span("such as" if not index else "", "dim") for index in range(len(examples))]),
                  Column("", [Span(example, "strong") for example in examples])], header=False)  # fmt: skip
