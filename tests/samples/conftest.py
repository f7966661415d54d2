"""Puts the story generator, a folder of plain scripts, where the tests can import it."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STORIES = ROOT / "samples" / "stories"
sys.path.insert(0, str(STORIES))


@pytest.fixture(scope="session")
def some_stories() -> list[str]:
    """The first megabyte of seed 1."""
    from generate import stories

    told: list[str] = []
    size = 0
    for story in stories(1):
        told.append(story)
        size += len(story)
        if size > 1_000_000:
            return told
    raise AssertionError("the stories came to an end")


@pytest.fixture(scope="session")
def text(some_stories: list[str]) -> str:
    return "\n\n".join(some_stories)
