"""The stories: the same for everyone, in good English, and holding what the heads should learn."""

import re
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from in_memory import paragraphs, split_held_out

from tinytf.sources import ASSETS

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = ROOT / "samples" / "stories" / "generate.py"

# Written here by hand, not taken from the lexicon.
ONE = ["cat", "dog", "mouse", "goose", "wolf", "boy", "girl", "child", "woman", "fisherman", "key", "leaf", "boat"]
MANY = ["cats", "dogs", "mice", "geese", "wolves", "boys", "girls", "children", "women", "fishermen", "keys", "leaves"]
PAST_OF = {"find": "found", "hop": "hopped", "carry": "carried", "smile": "smiled", "wash": "washed", "stop": "stopped"}
ING_OF = {"run": "running", "dance": "dancing", "sleep": "sleeping", "swim": "swimming", "visit": "visiting"}
PLURAL_OF = {
    "fox": "foxes",
    "pony": "ponies",
    "monkey": "monkeys",
    "mouse": "mice",
    "sheep": "sheep",
    "tomato": "tomatoes",
}


def run_generator(*options: str) -> bytes:
    return subprocess.run([sys.executable, str(GENERATOR), *options], check=True, capture_output=True).stdout


@pytest.fixture(scope="session")
def prose() -> str:
    """Stories without memory games, which are no English."""
    from generate import stories

    return "\n".join(islice(stories(1, game_share=0.0), 2500))


def test_the_same_seed_gives_the_same_bytes_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    run_generator("--seed", "5", "--megabytes", "0.05", "--out", str(path))
    assert path.read_bytes() == run_generator("--seed", "5", "--megabytes", "0.05")


@pytest.mark.slow
def test_the_stories_that_go_with_the_models_are_the_first_that_were_held_out() -> None:
    written = run_generator("--seed", "1", "--megabytes", "4").decode()
    _, held_out = split_held_out(paragraphs(written), 0.05)
    for name in ("tiny", "tiny-encoder"):
        shipped = paragraphs((ASSETS / name / "held_out.txt").read_text("utf-8").rstrip("\n"))
        assert shipped == held_out[: len(shipped)]
        assert len(shipped) == 45


def test_another_seed_gives_other_stories() -> None:
    from generate import stories

    assert list(islice(stories(1), 5)) != list(islice(stories(2), 5))


def test_the_command_writes_the_stories_with_a_blank_line_between() -> None:
    from generate import stories

    written = run_generator("--seed", "3", "--megabytes", "0.02").decode()
    told = written.removesuffix("\n").split("\n\n")
    assert told == list(islice(stories(3), len(told)))
    assert "\r" not in written
    assert len(written.encode()) >= 20_000


def test_a_story_is_one_line_of_sentences(some_stories: list[str]) -> None:
    for story in some_stories:
        assert "\n" not in story
        assert "{" not in story
        assert story == story.strip()
        assert re.search(r'[.!?]"?$', story)


def test_stories_have_about_four_to_fourteen_sentences(prose: str) -> None:
    lengths = [len(re.findall(r'[.!?]"?(?= |$)', story)) for story in prose.split("\n")]
    assert sum(4 <= length <= 14 for length in lengths) > 0.95 * len(lengths)
    assert max(lengths) < 20


def test_a_stands_before_consonants_and_an_before_vowels(text: str) -> None:
    wrong = re.findall(r"\ba (?:[aeio]\w+|u(?!seful)\w+|honest)\b|\ban (?!honest)[^aeiouAEIOU\s]\w*", text)
    assert wrong == []


def test_sentences_begin_with_a_capital(prose: str) -> None:
    assert re.findall(r'(?<=[.] )[a-z]\w*|^[a-z]\w*|, "[a-z]\w*', prose, flags=re.MULTILINE) == []


@pytest.mark.parametrize(("nouns", "verb"), [(ONE, "are|were|have"), (MANY, "is|was|has|likes|sleeps")])
def test_verbs_agree_with_the_noun_just_before_them(prose: str, nouns: list[str], verb: str) -> None:
    simple_subject = rf"(?:^|[.!?] )The (?:{'|'.join(nouns)}) (?:{verb})\b[^.]*\."
    assert re.findall(simple_subject, prose, flags=re.MULTILINE) == []


@pytest.mark.parametrize(
    ("nouns", "right", "wrong"),
    [(ONE, "is|was|has|sleeps", "are|were|have"), (MANY, "are|were|have|sleep", "is|was|has")],
)
def test_verbs_agree_over_a_distance(prose: str, nouns: list[str], right: str, wrong: str) -> None:
    between = r"(?:in|near|beside|by|under|behind|with|to|of) (?:the|a|an) (?:\w+ )?\w+"
    subject = rf"(?:^|[.!?] )The (?:{'|'.join(nouns)}) {between} "
    assert len(re.findall(rf"{subject}(?:{right})\b", prose, flags=re.MULTILINE)) > 20
    assert re.findall(rf"{subject}(?:{wrong})\b", prose, flags=re.MULTILINE) == []


def test_relative_clauses_agree_twice(prose: str) -> None:
    found = re.findall(r"The (\w+) who (\w+) the \w+ (is|are) ", prose)
    assert len(found) > 20
    for noun, likes, verb in found:
        one = noun in {"pupil", "princess", "witch", "prince"} or not noun.endswith(("s", "men", "children"))
        assert (verb == "is") == one, noun
        assert likes.endswith("s") == one or likes in ("miss", "misses"), (noun, likes)


@pytest.mark.parametrize(
    "sentence",
    [
        "The cat sat on the mat.",
        "The cat sleeps",
        "The cat sleeps on the mat.",
        "That blue aeroplane is very",
        "The bank of the river was green",
        "This is an example input.",
        "This is an example of a",
    ],
)
def test_the_study_sentences_occur(text: str, sentence: str) -> None:
    assert text.count(sentence) >= 2


def test_both_banks_occur(text: str) -> None:
    assert "the bank of the river" in text.lower()
    assert re.search(r"The bank kept all the money|worked at the bank", text)


def test_sat_is_followed_by_on_and_a_determiner(prose: str) -> None:
    after = Counter(re.findall(r"\bsat (\w+ \w+)", prose))
    on = sum(count for words, count in after.items() if words.startswith("on "))
    determined = sum(count for words, count in after.items() if words in ("on the", "on a", "on an"))
    assert on >= 0.85 * sum(after.values())
    assert determined >= 0.95 * on


def test_the_cat_sits_on_the_mat_more_than_on_anything_else(prose: str) -> None:
    seats = Counter(re.findall(r"The cat sat on the (\w+)", prose))
    assert seats.most_common(1)[0][0] == "mat"
    assert seats["mat"] < 0.8 * sum(seats.values())


def test_sequences_are_repeated_word_for_word(some_stories: list[str]) -> None:
    sequences = [(story, re.search(r"It (?:goes|went) like this: (.*?)\.(?: |$)", story)) for story in some_stories]
    games = [(story, sequence[1]) for story, sequence in sequences if sequence]
    assert len(games) > 20
    assert [story for story, sequence in games if story.count(sequence) not in (2, 3)] == []


def test_about_an_eighth_of_the_stories_repeat_a_random_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    import generate

    played: list[object] = []
    monkeypatch.setattr(generate, "tell_game", lambda teller, background: played.append(teller))
    list(islice(generate.stories(2), 2000))
    assert 0.10 < len(played) / 2000 < 0.14


def test_about_a_third_of_the_stories_repeat_an_invented_name(some_stories: list[str]) -> None:
    names = [Counter(re.findall(r"\b[A-Z][a-z]{3,}\b", story)) for story in some_stories]
    stories_with = Counter(name for counts in names for name in counts)
    repeating = sum(any(count >= 4 and stories_with[name] < 4 for name, count in counts.items()) for counts in names)
    assert 0.28 < repeating / len(some_stories) < 0.42


def test_a_thing_keeps_its_colour(prose: str) -> None:
    """In a story of a loss, the thing is only ever of the one description that it came with."""
    checked = 0
    for story in prose.split("\n"):
        lost = re.search(r"(?:lost|loses) (?:a|an) (\w+) (\w+)\.", story)
        if lost:
            adjective, noun = lost.groups()
            checked += 1
            assert set(re.findall(rf"\bthe (\w+) {noun}\b", story)) <= {adjective}, story
    assert checked > 20


def test_words_are_inflected_as_a_dictionary_has_them() -> None:
    from lexicon import NOUNS, VERBS

    plurals = {noun.singular: noun.plural for nouns in NOUNS.values() for noun in nouns}
    assert {noun: plurals[noun] for noun in PLURAL_OF} == PLURAL_OF
    assert {base: VERBS[base].past for base in PAST_OF} == PAST_OF
    assert {base: VERBS[base].ing for base in ING_OF if base in VERBS} == {
        b: i for b, i in ING_OF.items() if b in VERBS
    }


def test_the_lexicon_is_large_enough_and_small_enough() -> None:
    from lexicon import ADJECTIVES, ADVERBS, BOYS, GIRLS, NOUNS, OTHER_ADVERBS, VERBS, every_word

    assert len({noun.singular for nouns in NOUNS.values() for noun in nouns}) >= 130
    assert len(VERBS) >= 100
    assert len({word for words in ADJECTIVES.values() for word in words}) >= 100
    assert len({word for words in ADVERBS.values() for word in words} | set(OTHER_ADVERBS.split())) >= 40
    assert len(set(GIRLS) | set(BOYS)) == len(GIRLS) + len(BOYS) >= 140
    assert len(every_word()) < 1500


def test_a_template_that_cannot_be_read_is_refused_by_name() -> None:
    from random import Random

    from teller import Teller
    from world import World

    with pytest.raises(ValueError, match=r"cannot read the slot \{no such slot\}"):
        Teller(Random(1), World(Random(1))).say("A story with {no such slot}.")
