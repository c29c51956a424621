"""Search for the settings of the frontier, and store them for `clipsilon reproduce ours-frontier`.

    python tools/tune_frontier.py [PROBLEM …]     quadratic, credit, imbalanced, skewed; by default all of them

Takes about ten minutes per problem. The settings of other problems stay as they are.
"""

from __future__ import annotations

import json
import sys

from clipsilon.reproduce.ours import frontier_problems
from clipsilon.reproduce.ours.frontier import EPSILONS, MOST_EPOCHS, ONE_PASS, SETTINGS, SEVERAL
from clipsilon.reproduce.ours.frontier_search import search

PROBLEMS = ("quadratic", "credit", "imbalanced", "skewed")


def main(names: list[str]) -> None:
    """Search on each problem, and write what was found after every rule."""
    found = json.loads(SETTINGS.read_text(encoding="utf-8")) if SETTINGS.exists() else {}
    for name in names:
        case = getattr(frontier_problems, f"{name}_case")()
        plans = [(rule, "one pass", 1, EPSILONS) for rule in ONE_PASS]
        plans += [(rule, "several epochs", MOST_EPOCHS, EPSILONS) for rule in SEVERAL]
        plans.append((ONE_PASS[0], "no noise", 1, (float("inf"),)))
        for rule, passes, most, epsilons in plans:
            best = search(case, rule, epsilons, most)
            settings = {f"{epsilon:g}": list(setting) for epsilon, setting in zip(epsilons, best, strict=True)}
            found.setdefault(name, {}).setdefault(passes, {})[rule] = settings
            print(name, passes, rule, settings, flush=True)
            SETTINGS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:] or list(PROBLEMS))
