"""Make the vector, autoencoder and transcoders that the docs open: ``python samples/make_vectors.py --work FOLDER``.

Both are trained on the stories of ``make_models.py``, which are written to FOLDER, in a minute or two on one core.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

SAMPLES = Path(__file__).parent
VECTOR, AUTOENCODER, TRANSCODERS = SAMPLES / "moods.safetensors", SAMPLES / "sae", SAMPLES / "transcoders"


def commands(stories: Path, vector: Path, autoencoder: Path, transcoders: Path) -> list[list[str]]:
    """The command lines that make them."""
    words = ["--features", "256", "--k", "8"]
    return [
        ["steer", str(SAMPLES / "moods.jsonl"), "--at", "L1.out", "-o", str(vector)],
        ["train-sae", str(stories), "--at", "L2.out", *words, "--out", str(autoencoder)],
        ["train-sae", str(stories), "--into", "L*.ffn", *words, "--tokens", "300000", "--out", str(transcoders)],
    ]


if __name__ == "__main__":
    from make_models import write_corpus

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="where the stories are")
    stories = parser.parse_args().work / "stories.txt"
    write_corpus(stories)
    for folder in (AUTOENCODER, TRANSCODERS):
        shutil.rmtree(folder, ignore_errors=True)
    for words in commands(
        stories, VECTOR, AUTOENCODER, TRANSCODERS
    ):  # on one thread, so that bits do not depend on the cores
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", "tinytf", *words], check=True, env=environment)
