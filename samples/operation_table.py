"""Print the table of operations of worked examples, from the code itself: python samples/operation_table.py"""

from tinytf.verify.operations import CONSTANTS, OPERATIONS


def markdown() -> str:
    """The table, one row an operation, in the order of the code."""
    lines = ["| operation | what it gives |", "|---|---|"]
    for operation in OPERATIONS.values():
        gives = operation.gives.replace("|", "\\|")
        lines.append(f"| `{operation.usage}` | {gives} |")
    lines += [f"| `{name}` | a constant, {value:.6g} |" for name, value in CONSTANTS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
