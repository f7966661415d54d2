"""The gallery has every command, or the reason why not, and draws a line in every width and theme."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tinytf_cli.main import EVERY

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "samples" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_command_is_drawn_or_has_a_reason_why_not(gallery: ModuleType) -> None:
    drawn = {gallery.name_of(line) for line in gallery.LINES}
    assert drawn | set(gallery.NOT_DRAWN) == set(EVERY)
    assert not drawn & set(gallery.NOT_DRAWN)


def test_a_line_is_drawn_in_every_width_and_theme(gallery: ModuleType, tmp_path: Path) -> None:
    gallery.draw(tmp_path, ["trace --curve"])
    pictures = sorted(tmp_path.glob("*.svg"))
    assert len(pictures) == 6
    assert len({picture.read_bytes() for picture in pictures}) == 6
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "<h2><code>tinytf trace --curve &quot;The cat sat on&quot;</code></h2>" in page
    assert all(f'src="{picture.name}"' in page for picture in pictures)
    assert "<script" not in page
