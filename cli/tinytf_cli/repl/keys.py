"""What ``help keys`` lists. A front end that binds keys puts its own here."""

KEYS: list[tuple[str, str]] = [
    ("Enter", "run the line; an empty one repeats the last movement"),
    ("Ctrl-C", "give up the line, or stop the command that is running"),
    ("Ctrl-D", "leave"),
]
