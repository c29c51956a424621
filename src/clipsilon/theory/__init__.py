"""The papers' theorems as functions.

| module | paper |
|---|---|
| `performative` | 1 and its poster: clipped SGD and DiceSGD while records react |
| `dice` | 3: error feedback |
| `local` | 4: SGD with a budget for each user |
| `glm`, `stationary`, `instances`, `curl` | 5: generalised linear models, non-convex ones, hard instances, softmax |
| `course` | none: a forecast for small steps, which `clipsilon.tune` minimises |

Nothing here reads a trace: a bound is never fitted to a run.
"""

from clipsilon.theory import course, curl, dice, glm, instances, local, performative, stationary

__all__ = ["course", "curl", "dice", "glm", "instances", "local", "performative", "stationary"]
