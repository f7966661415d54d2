"""Draw the pictures of the README anew: ``python samples/make_pictures.py``."""

from pathlib import Path

from tinytf_cli.main import run

HERE = Path(__file__).parent / "pictures"
BALL, HAT = "The cat lost the ball. The cat lost the", "The cat lost the hat. The cat lost the"
BLOCK = [word for step in ("q", "scores", "scaled", "masked", "weights") for word in ("--at", f"L0H1.{step}")]
PICTURES: dict[str, list[str]] = {
    "trace": ["trace", "The cat sat on the mat", *BLOCK],
    "attention": ["attention", "The cat sat on the mat.", "--by", "previous"],
    "induction": [
        "trace", "The cat lost the red ball. The cat lost the red ball.", "--at", "L1H2.weights", "--width", "110"
    ],
    "grad": [
        "grad", "The dog lost the ball. The dog lost the", "--target", "ball", "--at", "L1H2.weights", "--derive",
        "L1H2.masked[9]",
    ],
    "lens": ["lens", BALL, "--track", "ball"],
    "patch": ["patch", BALL, HAT, "--sweep", "residual", "--width", "90"],
}  # fmt: skip

for name, words in PICTURES.items():
    width = [] if "--width" in words else ["--width", "100"]
    status = run([*words, *width, "--theme", "dark", "-o", str(HERE / f"{name}.svg")])
    if status:
        raise SystemExit(f"{name}: status {status}")
