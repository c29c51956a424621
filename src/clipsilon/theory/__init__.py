"""The papers' theorems as functions.

| module | paper |
|---|---|
| `performative` | 1 and its poster: clipped SGD and DiceSGD while records react |
| `dice` | 3: error feedback |
| `local`, `local_rounds` | 4: SGD with one budget per user, and with rounds of many users |
| `glm`, `stationary`, `instances`, `curl` | 5: generalised linear models, non-convex ones, hard instances, softmax |
| `limits` | none: what privacy costs any rule, and any unbiased one |
| `forecast` | none: a forecast for small steps, whose gap `clipsilon.tune` minimises |
| `reactions` | none: how people react, estimated from logs (`clipsilon.responses.estimate`) |

Nothing here reads a trace: a bound is never fitted to a run.
"""

from clipsilon.theory import curl, dice, forecast, glm, instances, limits, local, local_rounds, performative, stationary
from clipsilon.theory.limits import unbiased_limit

__all__ = [
    "curl",
    "dice",
    "forecast",
    "glm",
    "instances",
    "limits",
    "local",
    "local_rounds",
    "performative",
    "stationary",
    "unbiased_limit",
]
