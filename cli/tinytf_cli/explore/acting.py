"""What the keys do to the explorer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from tinytf.errors import TinytfError
from tinytf.look.heads import MEASURES
from tinytf.outputs import write_output, writing
from tinytf_cli.explore.app import Explorer
from tinytf_cli.explore.place import Place, matrix
from tinytf_cli.views.blocks import Column, Line, Span, Table

Act: TypeAlias = Callable[[Explorer], None]


# Moving


def _moving(move: Callable[[Place, Explorer], Place]) -> Act:
    return lambda app: app.go(move(app.look.place, app))


def step(by: int) -> Act:
    return _moving(lambda place, app: place.stepped(app.trace, by))


def edge(by: int) -> Act:
    return _moving(lambda place, app: place.stepped(app.trace, by * len(app.trace.steps.rows)))


def layer(by: int) -> Act:
    return _moving(lambda place, app: place.in_layer(app.trace, by))


def part(by: int) -> Act:
    return _moving(lambda place, app: place.in_part(app.trace, by))


def cell(down: int, right: int) -> Act:
    return _moving(lambda place, app: place.moved(app.trace, down, right))


def wait(what: str) -> Act:
    """Wait for the letter of a mark."""
    return lambda app: app.wait(what)


# How it is looked at


def numbers(app: Explorer) -> None:
    app.show(replace(app.look, small=not app.look.small))


def against(app: Explorer) -> None:
    if app.look.scene.before is None:
        app.say("there is no run before this one: edit the text, or go without a head")
    else:
        app.show(replace(app.look, against=not app.look.against))


def sort(app: Explorer) -> None:
    known = list(MEASURES)
    app.show(replace(app.look, by=known[(known.index(app.look.by) + 1) % len(known)]))


# Panes


def panel(name: str) -> Act:
    """Open a pane, or close it where it is the active one."""
    return lambda app: app.close(name) if app.active == name else app.open(name)


def back(app: Explorer) -> None:
    if app.active == "main" and not app.zoomed:
        app.close(*app.opened)
    else:
        app.activate("main", zoomed=False)


def turn(app: Explorer) -> None:
    names = [name for name in app.order if name in app.in_sight or app.zoomed or app.single]
    at = names.index(app.active) if app.active in names else -1
    app.activate(names[(at + 1) % len(names)], zoomed=app.zoomed)


def zoom(app: Explorer) -> None:
    app.activate(app.active, zoomed=not app.zoomed)


def page(app: Explorer) -> None:
    app.panes[app.active].scroll_page()
    app.draw_status()


def arithmetic(app: Explorer) -> None:
    """The arithmetic of the chosen cell; where that is shown, of the cell that its largest term comes from."""
    if app.active != "arithmetic" or not app.trail:
        app.trail = [app.look.place]
        app.open("arithmetic")
    elif not (lead := app.panels["arithmetic"].leads_to):
        app.say("this is where it begins" if app.panels["arithmetic"].answered else "…")
    else:
        app.trail.append(app.look.place.to(app.trace, app.trace.address(lead)))
        app.panels["arithmetic"].noted = False
        app.follow(app.trail[-1])


def before(app: Explorer) -> None:
    if len(app.trail) > 1:
        app.trail.pop()
        app.follow(app.trail[-1])
    else:
        back(app)


def keys(app: Explorer) -> None:
    columns = [
        Column("", [Span(one.shown, "strong") for one in app.keys]),
        Column("", [one.words for one in app.keys], shrink=8),
    ]
    app.show_blocks("keys", [Table(columns, header=False), Line("")])


# Lines of the session


def without(app: Explorer) -> None:
    """The model without the head or feed-forward of the present step, or whole again; against the run before."""
    gone = app.session.state.spec.without
    at, layer = app.look.place.at(app.trace)
    app.look = replace(app.look, against=gone is None)
    if gone is not None:
        app.run_line("without none")
    elif at.is_split and layer is not None:
        heads = app.look.place.address(app.trace).heads
        assert heads is not None
        app.run_line(f"without L{layer}{at.letter}{heads[0]}")
    elif at.role == "ffn" and layer is not None:
        app.run_line(f"without L{layer}.ffn")
    else:
        app.look = replace(app.look, against=False)
        app.say("this step is of no head: go to one, such as L0H0.weights")


def checkpoint(by: int) -> Act:
    """The checkpoint so many further; the last or first one from there on."""

    def act(app: Explorer) -> None:
        names = [str(one) for one in app.checkpoints]
        present = app.session.state.spec.name
        if not names:
            app.say("this is no training run with checkpoints: tinytf explore RUN")
            return
        at = names.index(present) if present in names else len(names) - 1
        wanted = names[max(0, min(len(names) - 1, at + by))]
        if wanted != present:
            app.run_line(f"model --quiet '{wanted}'")

    return act


def edit(app: Explorer) -> None:
    app.edit_text()


def ask(sign: str) -> Act:
    return lambda app: app.ask(sign)


# Leaving the screen with something


def copy_address(app: Explorer) -> None:
    words = str(app.look.place.cell_address(app.trace))
    app.copy_to_clipboard(words)
    app.say(f"copied {words}", "good")


def copy_table(app: Explorer) -> None:
    found = matrix(app.trace, app.look.place)
    if found is None:
        app.say("this step has no numbers")
        return
    app.copy_to_clipboard("\n".join("\t".join(f"{value:.9g}" for value in row) for row in found.float().tolist()))
    app.say(f"copied {found.shape[0]} rows of {found.shape[1]} numbers", "good")


def picture(app: Explorer) -> None:
    path = next(p for n in range(1, 10**6) if not (p := Path(f"tinytf-explore-{n}.svg")).exists())
    try:
        with writing(path):
            write_output(path, app.export_screenshot(title="tinytf explore").encode("utf-8"))
    except TinytfError as error:
        app.say(error.message)
    else:
        app.say(f"wrote {path}", "good")


def leave(app: Explorer) -> None:
    app.exit(0)
