"""What may stand in a folder after a fault: what stood before, or what the undisturbed act puts there, whole."""

from dataclasses import dataclass, field
from pathlib import Path

from failing_disk import Operation

LOGS = (".jsonl", ".ndjson", "/history")
"""Files that grow by a line at a time; of their last line there may be a part."""
_BY_THE_CLOCK = "speed.jsonl"


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its name there."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_temporary(name: str) -> bool:
    """Whether a file has the name of one that is being written or removed; or of a lock."""
    return any(part.startswith(".") for part in name.split("/")) or name.endswith(".lock")


def lasting(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files that have their final names, but how fast a run went."""
    return {name: data for name, data in files.items() if not is_temporary(name) and not name.endswith(_BY_THE_CLOCK)}


@dataclass
class Undisturbed:
    """What ``before`` stood in a folder, every version of a file that an undisturbed act put in place, and the end.

    Where it ``removes`` what stood before, that may be gone already.
    """

    folder: Path
    before: dict[str, bytes]
    removes: bool = False
    versions: dict[str, list[bytes]] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    after: dict[str, bytes] = field(default_factory=dict)

    def saw(self, operation: Operation) -> None:
        """Keep what an operation put in place, and what it removed."""
        name = operation.path.relative_to(self.folder).as_posix()
        if operation.what == "unlink":
            self.removed.add(name)
        if operation.what not in ("rename", "link") and not (operation.what == "write" and f"/{name}".endswith(LOGS)):
            return
        for path in [operation.path, *operation.path.rglob("*")]:
            if path.is_file():
                placed = path.relative_to(self.folder).as_posix()
                self.versions.setdefault(placed, []).append(path.read_bytes())
        if operation.what == "rename" and operation.source is not None:
            source = operation.source.relative_to(self.folder).as_posix()
            self.removed |= {name for name in [*self.before, *self.versions] if f"{name}/".startswith(f"{source}/")}

    def faults_in(self, left: dict[str, bytes]) -> list[str]:
        """What may not be so in what is left after a fault."""
        found = []
        for name, data in lasting(left).items():
            known = [self.before.get(name), *self.versions.get(name, ()), self.after.get(name)]
            whole = [version for version in known if version is not None]
            if data in whole:
                continue
            if f"/{name}".endswith(LOGS) and any(version.startswith(data) for version in whole):
                continue
            found.append(f"{name} is neither what stood before nor whole: {len(data)} bytes, {[*map(len, whole)]}")
        gone = (
            lasting(self.before).keys() - left.keys() - (self.removed if self.removes else self.removed - {*self.after})
        )
        return [*found, *(f"{name} is gone" for name in sorted(gone))]
