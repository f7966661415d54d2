"""Going from stop to stop of a tour."""

from dataclasses import replace

from tinytf.errors import TinytfError
from tinytf_cli.explore.app import Explorer
from tinytf_cli.explore.guide import Guide
from tinytf_cli.repl.line import shell_quoted


def go(app: Explorer, guide: Guide, by: int) -> None:
    """Go to another stop: back to the tour's own run, without panes, then there."""
    number = guide.number + by
    if not 0 <= number < len(guide.tour.stops):
        app.say("this is the last stop" if by > 0 else "this is the first stop")
        return
    guide.number, guide.trace = number, None
    app.look = replace(app.look, comparing=False)
    app.opened.clear()
    app.activate("main", zoomed=False)
    spec = app.session.state.spec
    if spec.name != guide.model:
        app.run_line(f"model --quiet {shell_quoted(guide.model)}")
    elif spec.without is not None:
        app.run_line("without none")
    if app.trace.encoding.text != guide.tour.text:
        app.run_line(f"run --quiet -- {shell_quoted(guide.tour.text)}")
    app.after_lines(lambda: _arrive(app, guide, number))


def _arrive(app: Explorer, guide: Guide, number: int) -> None:
    """Go to the address of a stop and press its keys, unless the user is on the way to another."""
    if number != guide.number:
        return
    try:
        app.go(app.look.cursor.to(app.trace, app.trace.address(guide.stop.address)))
    except TinytfError as error:
        app.say(error.message)
        return
    for key in guide.stop.keys:
        app.press_shown(key)
    app.after_lines(lambda: _settle(app, guide, number))


def _settle(app: Explorer, guide: Guide, number: int) -> None:
    if number == guide.number:
        guide.trace = app.trace
        app.draw()
