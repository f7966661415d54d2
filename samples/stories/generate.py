"""Writes short stories, as many as wanted, the same for the same seed.

python samples/stories/generate.py --seed 1 --megabytes 4 --out stories.txt
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from itertools import count
from random import Random

from agreement import background
from games import tell_game
from plots import PLOTS
from teller import Teller
from world import World, invent_name

GAME_SHARE = 0.12
INVENTED_SHARE = 0.30  # the rest of the third comes from the plots that name a creature or a town
PRESENT_SHARE = 0.3
FEWEST_MENTIONS = 4  # of an invented name
LONGEST_STORY = 14

REMINDERS = (
    "{A:name} {be@A} {?feeling}.",
    "Everyone {like@it} {A:name}.",
    "{A:name} {?act@A} {?manner}.",
    "Who {be@it} {A:adjective}? {A:name} {be@A} {A:adjective}.",
    "The {?animal+s} {know@many} {A:name}.",
)
TOWN_REMINDERS = (
    "{T:full} {be@T} a {?scenery} place.",
    "The {?animal+s} {T:there} {be@many} {?feeling}.",
    "Everyone {T:there} {?act@it}.",
    "The {?place+s} {T:there} {be@many} {?colour}.",
)


def stories(seed: int, game_share: float = GAME_SHARE) -> Iterator[str]:
    """Yields stories without end, each one line of text; `game_share` of them are memory games."""
    rng = Random(seed)
    while True:
        yield story(rng, game_share)


def story(rng: Random, game_share: float) -> str:
    """Tells one story: a memory game, or one of the plots."""
    invented = invent_name(rng) if rng.random() < INVENTED_SHARE else ""
    teller = Teller(rng, World(rng, invented), "present" if rng.random() < PRESENT_SHARE else "past")
    if rng.random() < game_share:
        tell_game(teller, lambda: background(rng, teller.tense))
    else:
        tell_plot(teller, rng.choice(PLOTS))
    return teller.text()


def tell_plot(teller: Teller, plot: tuple[tuple[str, ...], ...]) -> None:
    rng = teller.rng
    creature = invent_name(rng)
    for step in plot:
        template = rng.choice(step).replace("{invented}", creature)
        if template == "{background}":
            template = background(rng, teller.tense)
        teller.say(template)
        if len(teller.sentences) >= LONGEST_STORY:
            break
    remind(teller)


def remind(teller: Teller) -> None:
    """Mentions an invented name until copying it pays."""
    for key, reminders in (("A", REMINDERS), ("T", TOWN_REMINDERS)):
        name = teller.cast[key].name if key in teller.cast else ""
        if not name or (key == "A" and name != teller.world.invented_name):
            continue
        for reminder in teller.rng.sample(reminders, len(reminders)):
            if teller.text().count(name) >= FEWEST_MENTIONS or len(teller.sentences) >= LONGEST_STORY:
                break
            teller.say(reminder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write short stories to train a tiny transformer on.")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same bytes [1]")
    parser.add_argument("--megabytes", type=float, default=4.0, help="how much text, in millions of bytes [4]")
    parser.add_argument("--out", default="-", help="the file to write, - for standard output [-]")
    options = parser.parse_args()
    if options.out == "-":
        write(options.seed, options.megabytes, sys.stdout.buffer.write)
    else:
        with open(options.out, "wb") as file:
            write(options.seed, options.megabytes, file.write)


def write(seed: int, megabytes: float, write_bytes: Callable[[bytes], object]) -> None:
    """Writes whole stories until there are at least so many bytes."""
    written = 0
    for text, number in zip(stories(seed), count()):
        if written >= megabytes * 1e6:
            return
        data = (("\n" if number else "") + text + "\n").encode()
        write_bytes(data)
        written += len(data)


if __name__ == "__main__":
    main()
