"""Chat templates are Jinja programs by strangers: run as transformers runs them, in a sandbox and within a budget.

Source: ``render_jinja_template`` of transformers 5.23 for the environment, and for what a template may call.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from types import FrameType
from typing import Any

import jinja2
import psutil
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tinytf.errors import CheckpointError, UsageError
from tinytf.files import MEBI, SMALL

SECONDS, CHARACTERS, GROWTH = 5.0, 8 * MEBI, 512 * MEBI
"""What a template may take: seconds of one processor, characters it writes, bytes of memory."""
_LOOK_EVERY = 0.01


class _Generation(Extension):
    """``{% generation %}`` marks what the model wrote, for training; what is inside is written as it stands."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_inside"), [], [], body).set_lineno(line)

    def _inside(self, caller: Callable[[], str]) -> str:
        return caller()


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, which refuses what fills the memory in a single operation."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        counts = [one for one in (left, right) if isinstance(one, int)]
        sizes = [len(one) for one in (left, right) if isinstance(one, str | list | tuple)]
        if (sizes and counts and sizes[0] * counts[0] > CHARACTERS) or (
            operator == "**" and max(counts, default=0) > 999
        ):
            raise _too_much("makes more than fits")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, called: Any, /, *values: Any, **named: Any) -> Any:
        wide = any(isinstance(one, int) and one > CHARACTERS for one in (*values, *named.values()))
        if wide and isinstance(getattr(called, "__self__", None), str):
            raise _too_much("makes more than fits")
        return super().call(context, called, *values, **named)


def _refuse(message: str) -> None:
    raise UsageError(f"the chat template refuses this conversation: {message}", "change the messages")


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=16)
def _compiled(source: str) -> jinja2.Template:
    if len(source) > SMALL:
        raise _too_much(f"has {len(source):,} characters")
    # Not optimised: what is constant would be worked out here, outside the budget.
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


def rendered(source: str, values: Mapping[str, Any]) -> str:
    """What a template writes of these values.

    Raises UsageError where the template itself refuses them, and CheckpointError where it is damaged or takes more
    than its budget.
    """
    try:
        template, parts, size = _compiled(source), [], 0
        with _budget():
            for part in template.generate(**values):
                parts.append(part)
                size += len(part)
                if size > CHARACTERS:
                    raise _too_much(f"writes more than {CHARACTERS:,} characters")
            return "".join(parts)
    except (UsageError, CheckpointError):
        raise
    except RecursionError:
        raise _too_much("calls itself without an end") from None
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template is damaged in line {error.lineno}: {error.message}") from None
    except Exception as error:  # whatever the Python raises that jinja makes of a template
        raise CheckpointError(
            f"the chat template fails: {error}", "see whether the messages have what it reads"
        ) from None


def _too_much(what: str) -> CheckpointError:
    return CheckpointError(
        f"the chat template {what}, and was stopped", "it comes with the model: is that to be trusted?"
    )


@contextmanager
def _budget() -> Iterator[None]:
    """Stop what runs inside when it has taken too long or too much memory: asked before every line of Python."""
    before, rss = sys.gettrace(), psutil.Process().memory_info().rss
    start = looked = time.thread_time()

    def ask(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal looked
        now = time.thread_time()
        if now - start > SECONDS:
            raise _too_much(f"runs for more than {SECONDS:g} seconds")
        if now - looked > _LOOK_EVERY:
            looked = now
            if psutil.Process().memory_info().rss - rss > GROWTH:
                raise _too_much(f"takes more than {GROWTH // MEBI:,} MiB of memory")
        return ask

    sys.settrace(ask)
    try:
        yield
    finally:
        sys.settrace(before)
