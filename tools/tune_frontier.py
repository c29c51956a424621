"""Search for the settings of the frontier, and store them for `clipsilon reproduce ours-frontier`.

    python tools/tune_frontier.py [PROBLEM …] [--rules RULE …] [--passes PASSES …] [--trials N]

By default all problems (quadratic, credit, imbalanced, skewed), all rules, and "one pass", "no noise" and "any epochs",
with 60 settings tried per ε. The search begins with the settings that are stored, if there are any; it takes some ten
minutes per problem.
"""

from __future__ import annotations

import argparse
import json

from clipsilon.reproduce.ours import frontier_problems
from clipsilon.reproduce.ours.frontier import EPSILONS, MOST_EPOCHS, SETTINGS, stored_settings
from clipsilon.reproduce.ours.frontier_findings import ONE_PASS, SEVERAL
from clipsilon.reproduce.ours.frontier_search import TRIALS, Setting, search

PROBLEMS = ("quadratic", "credit", "imbalanced", "skewed")
PLANS = [
    *((rule, "one pass", 1, EPSILONS) for rule in ONE_PASS),
    (ONE_PASS[0], "no noise", 1, (float("inf"),)),
    *((rule, "any epochs", MOST_EPOCHS, EPSILONS) for rule in SEVERAL),
]


# Where to begin with any number of epochs: also where the rule ends in one pass, and where PCSGD ends, with so many
# times its threshold, and with this restraint of the noise.
RELATED = {"AdaptiveDPSGD": (1.0, None), "TrackedSGD": (0.1, None), "CorrelatedSGD": (1.0, 0.1)}


def main(problems: list[str], rules: list[str], passes: list[str], trials: int) -> None:
    """Search on each problem, and write what was found after every rule."""
    for problem in problems:
        case = getattr(frontier_problems, f"{problem}_case")()
        chosen = [plan for plan in PLANS if plan[0] in rules and plan[1] in passes]
        for rule, kind, most, epsilons in sorted(chosen, key=lambda plan: rules.index(plan[0])):
            best = search(case, rule, epsilons, most, _known(problem, rule, kind), trials)
            _store(problem, kind, rule, dict(zip(epsilons, best, strict=True)))


def _known(problem: str, rule: str, kind: str) -> list[Setting]:
    """Return the settings from which to begin."""
    kinds = dict.fromkeys((kind, "one pass"))
    known = [setting for other in kinds for setting in stored_settings(problem, other).get(rule, {}).values()]
    if rule in RELATED and kind == "any epochs":
        share, restraint = RELATED[rule]
        plain = stored_settings(problem, kind).get("PCSGD", {}).values()
        known += [setting._replace(clip=share * setting.clip, restraint=restraint) for setting in plain]
    return list(dict.fromkeys(known))


def _store(problem: str, kind: str, rule: str, best: dict[float, Setting]) -> None:
    """Write what was found to the file of settings."""
    settings = {f"{epsilon:g}": list(setting) for epsilon, setting in best.items()}
    found = json.loads(SETTINGS.read_text(encoding="utf-8"))
    found.setdefault(problem, {}).setdefault(kind, {})[rule] = settings
    SETTINGS.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(problem, kind, rule, settings, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", nargs="*", default=list(PROBLEMS), metavar="PROBLEM")
    parser.add_argument("--rules", nargs="+", default=list(dict.fromkeys(rule for rule, *_ in PLANS)))
    parser.add_argument("--passes", nargs="+", default=list(dict.fromkeys(kind for _, kind, *_ in PLANS)))
    parser.add_argument("--trials", type=int, default=TRIALS)
    arguments = parser.parse_args()
    main(arguments.problems, arguments.rules, arguments.passes, arguments.trials)
