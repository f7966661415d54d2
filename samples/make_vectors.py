"""Make the steering vector and the autoencoder that the docs open: ``python samples/make_vectors.py --work FOLDER``.

The autoencoder is trained on the stories of ``make_models.py``, which are written to FOLDER, in a minute on one core.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

SAMPLES = Path(__file__).parent
VECTOR, AUTOENCODER = SAMPLES / "moods.safetensors", SAMPLES / "sae"


def commands(stories: Path, vector: Path, autoencoder: Path) -> list[list[str]]:
    """The command lines that make both."""
    words = ["--at", "L2.out", "--features", "256", "--k", "8"]
    return [
        ["steer", str(SAMPLES / "moods.jsonl"), "--at", "L1.out", "-o", str(vector)],
        ["train-sae", str(stories), *words, "--out", str(autoencoder)],
    ]


if __name__ == "__main__":
    from make_models import write_corpus

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="where the stories are")
    stories = parser.parse_args().work / "stories.txt"
    write_corpus(stories)
    shutil.rmtree(AUTOENCODER, ignore_errors=True)
    for words in commands(stories, VECTOR, AUTOENCODER):  # on one thread, so that bits do not depend on the cores
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", "tinytf", *words], check=True, env=environment)
