"""One palette for every picture, and which series gets which colour."""

from __future__ import annotations

from clipsilon.report.charts import Chart

# Colours that colour-blind readers can tell apart (after Okabe and Ito): on white paper, and on a dark screen.
PALETTE = {
    "#0072b2": "#56aaf0",  # blue
    "#d55e00": "#ff8b45",  # vermilion
    "#009e73": "#35c79b",  # green
    "#c2669a": "#ea9dc8",  # pink
    "#b58900": "#e5bd48",  # ochre
    "#2b8cc4": "#9adbff",  # sky
    "#7f7f7f": "#a9afb7",  # grey
    "#5b4bb7": "#a99cf5",  # violet
}

# Rules look the same in every picture.
COLOURS = {"SGD": "#7f7f7f", "PCSGD": "#d55e00", "DPSGD": "#c2669a", "DiceSGD": "#0072b2"}


def colours(chart: Chart) -> list[str]:
    """The colour of each series: its own, its rule's, or the next one of the palette that is still free."""
    own = [series.colour or COLOURS.get(series.name) for series in chart.series]
    free = [colour for colour in PALETTE if colour not in own] or list(PALETTE)
    unnamed = [k for k, colour in enumerate(own) if colour is None]
    given = {k: free[place % len(free)] for place, k in enumerate(unnamed)}
    return [colour or given[k] for k, colour in enumerate(own)]
