"""Search for the settings of the frontier, and store them for `clipsilon reproduce ours-frontier`.

    python tools/tune_frontier.py [PROBLEM …]     quadratic, credit, imbalanced, skewed; by default all of them

The search begins with the settings that are stored, if there are any; it takes some ten minutes per problem.
"""

from __future__ import annotations

import json
import sys

from clipsilon.reproduce.ours import frontier_problems
from clipsilon.reproduce.ours.frontier import EPSILONS, MOST_EPOCHS, SETTINGS, stored_settings
from clipsilon.reproduce.ours.frontier_findings import ONE_PASS, SEVERAL
from clipsilon.reproduce.ours.frontier_search import search

PROBLEMS = ("quadratic", "credit", "imbalanced", "skewed")
PLANS = [
    *((rule, "one pass", 1, EPSILONS) for rule in ONE_PASS),
    (ONE_PASS[0], "no noise", 1, (float("inf"),)),
    *((rule, "any epochs", MOST_EPOCHS, EPSILONS) for rule in SEVERAL),
]


def main(names: list[str]) -> None:
    """Search on each problem, and write what was found after every rule."""
    for name in names:
        case = getattr(frontier_problems, f"{name}_case")()
        for rule, passes, most, epsilons in PLANS:
            known = [
                setting
                for kind in dict.fromkeys((passes, "one pass"))
                for setting in stored_settings(name, kind).get(rule, {}).values()
            ]
            best = search(case, rule, epsilons, most, known)
            settings = {f"{epsilon:g}": list(setting) for epsilon, setting in zip(epsilons, best, strict=True)}
            found = json.loads(SETTINGS.read_text(encoding="utf-8"))
            found.setdefault(name, {}).setdefault(passes, {})[rule] = settings
            SETTINGS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            print(name, passes, rule, settings, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(PROBLEMS))
