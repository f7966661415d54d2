"""``tinytf diff`` with a folder of passes."""

from pathlib import Path

import numpy as np
from driving import Tinytf

from tinytf.loading import load


def test_the_command_takes_a_folder(tinytf: Tinytf, tmp_path: Path) -> None:
    trace, folder = load("tiny").trace("The cat sat"), tmp_path / "passes"
    folder.mkdir()
    for number, (start, end) in enumerate(((0, 2), (2, 3))):
        q, turned = (trace[name][:, start:end].numpy() for name in ("L0.q", "L0.q_rot"))
        ids = np.array(trace.encoding.ids[start:end])
        np.savez(folder / f"step{number}.npz", **{"input_ids": ids, "L0.q": q, "L0.q_rot": q if number else turned})
    ran = tinytf("diff", "--versus", str(folder), "--width", "200")
    assert ran.status == 0, ran.err
    assert "They differ from L0.q_rot of token 2, in pass 2 of 2, on: from token 2 on positions restart at 0" in ran.out
    assert "; it begins at 2 ·sat, in pass 2 of 2" in ran.out
