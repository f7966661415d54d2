"""The actions of the keys on the explorer."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from platformdirs import user_pictures_dir

from tinytf.cause.interventions import number_at
from tinytf.errors import AddressError, TinytfError
from tinytf.look.heads.measures import MEASURES
from tinytf.outputs import make_folder, require_place, write_output, writing
from tinytf.trace.address import in_stack
from tinytf_cli.explore import touring
from tinytf_cli.explore.app import Explorer
from tinytf_cli.explore.cursor import Cursor, matrix
from tinytf_cli.picture import screenshot
from tinytf_cli.views.blocks import Line

Action: TypeAlias = Callable[[Explorer], None]


# Moving


def _moving(move: Callable[[Cursor, Explorer], Cursor]) -> Action:
    return lambda app: app.go(move(app.look.cursor, app))


def step(by: int) -> Action:
    return _moving(lambda cursor, app: cursor.by_steps(app.trace, by))


def edge(by: int) -> Action:
    return _moving(lambda cursor, app: cursor.by_steps(app.trace, by * len(app.trace.steps.rows)))


def layer(by: int) -> Action:
    return _moving(lambda cursor, app: cursor.by_layers(app.trace, by))


def part(by: int) -> Action:
    return _moving(lambda cursor, app: cursor.by_parts(app.trace, by))


def cell(down: int, right: int) -> Action:
    return _moving(lambda cursor, app: cursor.by_cells(app.trace, down, right))


def wait(purpose: str) -> Action:
    """Wait for the letter of a mark."""
    return lambda app: app.wait(purpose)


# The way of looking


def numbers(app: Explorer) -> None:
    app.show(replace(app.look, small=not app.look.small))


def compare(app: Explorer) -> None:
    if app.look.scene.previous is None:
        app.say("there is no run before this one: edit the text (t), or ablate a head (w)")
    else:
        app.show(replace(app.look, comparing=not app.look.comparing))


def sort(app: Explorer) -> None:
    measures = list(MEASURES)
    app.show(replace(app.look, measure=measures[(measures.index(app.look.measure) + 1) % len(measures)]))


# Panes


def panel(name: str) -> Action:
    """Open a pane, or close it if it is active."""
    return lambda app: app.close(name) if app.active == name else app.open(name)


def back(app: Explorer) -> None:
    if app.active == "main" and not app.zoomed:
        app.close(*app.opened)
    else:
        app.activate("main", zoomed=False)


def next_pane(app: Explorer) -> None:
    names = [name for name in app.order if name in app.visible_panes or app.zoomed or app.single]
    index = names.index(app.active) if app.active in names else -1
    app.activate(names[(index + 1) % len(names)], zoomed=app.zoomed)


def zoom(app: Explorer) -> None:
    app.activate(app.active, zoomed=not app.zoomed)


def page(app: Explorer) -> None:
    app.panes[app.active].scroll_page()
    app.draw_status()


def arithmetic(app: Explorer) -> None:
    """Show the arithmetic of the chosen cell; if shown already, of the cell that its largest term comes from."""
    if app.active != "arithmetic":
        app.open("arithmetic")
    elif not (source := app.panels["arithmetic"].leads_to):
        app.say("this number has no earlier source" if app.panels["arithmetic"].answered else "…")
    elif in_stack(source, app.trace.stacks)[0]:
        app.say(f"it comes from {source}, in the encoder: type :explain {source}")
    else:
        app.panels["arithmetic"].noted = False
        app.go(app.look.cursor.to(app.trace, app.trace.address(source)))


def retrace(app: Explorer) -> None:
    if app.places:
        app.go_back()
    else:
        app.say("this is where you began")


def what(app: Explorer) -> None:
    """Say what the chosen number, its step and its head are; then list the keys."""
    if app.active == "what":
        keys(app)
    else:
        app.open("what")


def keys(app: Explorer) -> None:
    app.show_blocks("keys", [app.keys_table(), Line("")])


# Lines of the session


def without(app: Explorer) -> None:
    """Ablate the head or feed-forward of the present step; or restore the model."""
    step, layer = app.look.cursor.at(app.trace)
    if app.session.state.spec.without is not None:
        app.run_line("without none")
    elif step.is_split and layer is not None:
        heads = app.look.cursor.address(app.trace).heads
        assert heads is not None
        app.run_line(f"without L{layer}{step.letter}{heads[0]}")
    elif step.role == "ffn" and layer is not None:
        app.run_line(f"without L{layer}.ffn")
    else:
        app.say("this step belongs to no head: go to one that does, such as L0H0.weights")


def set_number(app: Explorer) -> None:
    """Open the line that sets the chosen cell, or the parameter that was found and is shown."""
    shown = app.panels["output"].parameter if app.active == "output" else ""
    address = shown or str(app.look.cursor.cell_address(app.trace))
    try:
        number_at(address, app.trace.steps)
    except AddressError as error:
        app.say(error.message)
    else:
        app.ask(":", f"set {address} = ")


def undo(app: Explorer) -> None:
    """Take back the last change of the text, the model or the ablation."""
    app.look = replace(app.look, comparing=False)
    app.run_line("undo")


def redo(app: Explorer) -> None:
    app.run_line("redo")


def onward(by: int) -> Action:
    """Move by a number of stops of the tour, or of checkpoints, no further than the first or last."""

    def act(app: Explorer) -> None:
        if app.guide is not None:
            touring.go(app, app.guide, by)
            return
        names = [str(path) for path in app.checkpoints]
        present = app.session.state.spec.name
        if not names:
            app.say("there are no checkpoints: open a training run with tinytf explore RUN")
            return
        index = names.index(present) if present in names else len(names) - 1
        target = names[max(0, min(len(names) - 1, index + by))]
        if target != present:
            app.run_line(f"model --quiet '{target}'")

    return act


def edit(app: Explorer) -> None:
    app.edit_text()


def edit_source(app: Explorer) -> None:
    app.edit_text(source=True)


def ask(sign: str) -> Action:
    return lambda app: app.ask(sign)


# Copying, saving and leaving


def copy_address(app: Explorer) -> None:
    words = str(app.look.cursor.cell_address(app.trace))
    app.copy_to_clipboard(words)
    app.say(f"copied {words}", "good")


def copy_table(app: Explorer) -> None:
    numbers = matrix(app.trace, app.look.cursor)
    if numbers is None:
        app.say("this step has no numbers")
        return
    app.copy_to_clipboard("\n".join("\t".join(f"{value:.9g}" for value in row) for row in numbers.float().tolist()))
    app.say(f"copied {numbers.shape[0]} rows of {numbers.shape[1]} numbers", "good")


def screen_of(app: Explorer) -> str:
    """The screen as an SVG, which says where the cursor is."""
    where = f"{app.look.cursor.cell_address(app.trace)} of {app.trace.encoding.text}"
    return screenshot(app.export_screenshot(title="tinytf explore"), where)


def picture(app: Explorer) -> None:
    """Save the screen in the user's folder of pictures."""
    folder = Path(user_pictures_dir()) / "tinytf"
    path = next(p for n in range(1, 10**6) if not (p := folder / f"explore-{n}.svg").exists())
    try:
        with writing(path):
            require_place(path)
            make_folder(folder)
            write_output(path, screen_of(app).encode("utf-8"))
    except TinytfError as error:
        app.say(error.message)
    else:
        app.say(f"wrote {path}", "good")


def leave(app: Explorer) -> None:
    app.exit(0)
