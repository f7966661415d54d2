"""The keys of the explorer: what each does, once, for the bindings, the help and the documentation."""

from typing import NamedTuple


class Key(NamedTuple):
    """Keys in Textual's names, as they are shown, the action, and what it does."""

    keys: str
    shown: str
    action: str
    words: str


KEYS = (
    Key("up", "↑", "step(-1)", "the step before"),
    Key("down", "↓", "step(1)", "the next step"),
    Key("left", "←", "part(-1)", "the head before"),
    Key("right", "→", "part(1)", "the next head"),
    Key("pageup", "PgUp", "layer(-1)", "same step and head, a layer up"),
    Key("pagedown", "PgDn", "layer(1)", "same step and head, a layer down"),
    Key("h", "h", "cell(0,-1)", "the cell to the left"),
    Key("j", "j", "cell(1,0)", "the cell below"),
    Key("k", "k", "cell(-1,0)", "the cell above"),
    Key("l", "l", "cell(0,1)", "the cell to the right"),
    Key("home", "Home", "edge(-1)", "the first step"),
    Key("end", "End", "edge(1)", "the last step"),
    Key("enter", "Enter", "arithmetic", "the arithmetic of the cell; again: of its largest term"),
    Key("backspace", "Backspace", "before", "back to the cell before"),
    Key("escape", "Esc", "map", "back to the map"),
    Key("t", "t", "edit", "edit the text; the model follows"),
    Key("n", "n", "numbers", "numbers, or a map in small cells"),
    Key("w", "w", "without", "the model without this head, or whole again"),
    Key("g", "g", "line('grad')", "gradients at this step"),
    Key("L", "L", "line('lens')", "the logit lens"),
    Key("a", "a", "line('attribute')", "what each part adds to the logit"),
    Key("d", "d", "against", "every pane against the run before, or not"),
    Key("D", "D", "line('diff')", "where this run and the one before begin to differ"),
    Key("s", "s", "sort", "sort the heads by another measure"),
    Key("m", "m + letter", "mark", "mark this place"),
    Key("apostrophe", "' + letter", "jump", "go to a mark"),
    Key("slash", "/", "find", "find an address, a step, a token or a number"),
    Key("colon", ":", "command", "any line of the session"),
    Key("y", "y", "copy('address')", "copy the address"),
    Key("Y", "Y", "copy('table')", "copy the numbers, tab-separated"),
    Key("p", "p", "picture", "save the screen as SVG"),
    Key("less_than_sign", "<", "checkpoint(-1)", "the checkpoint before, of a training run"),
    Key("greater_than_sign", ">", "checkpoint(1)", "the next checkpoint"),
    Key("question_mark,f1", "?", "keys", "these keys"),
    Key("q", "q", "end", "leave"),
)
