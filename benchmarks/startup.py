"""How long until Python has headway, and until `headway --help` has answered?"""

from __future__ import annotations

import re
from functools import partial

from _common import Figure, Goal, at_rest, interleaved, options, process, python, show

GOAL = Goal("value", "at most", 0.3)
PROGRAMS = {
    "import headway": ["-c", "import headway"],
    "headway --help": ["-m", "headway", "--help"],
}
BARE = ["-c", "pass"]


def imported(program: list[str]) -> set[str]:
    """Every package that a program imports, by the interpreter's own account."""
    account = python("-X", "importtime", *program).stderr
    return {name.split(".")[0] for name in re.findall(r"^import time:.*\| +(\S+)$", account, re.MULTILINE)}


def main() -> None:
    chosen = options(__doc__, rounds=15)
    others = at_rest()
    runs = {"bare": BARE, **PROGRAMS}
    samples = interleaved({name: partial(process, *program) for name, program in runs.items()}, chosen.rounds)
    figures = [
        Figure(
            what=name,
            unit="s",
            ours=samples[name],
            beside=samples["bare"],
            yardstick="bare interpreter",
            goal=GOAL,
            remark="imports torch" if "torch" in imported(program) else "no torch",
        )
        for name, program in PROGRAMS.items()
    ]
    show(__doc__, figures, chosen, others)


if __name__ == "__main__":
    main()
