"""The colours of all charts, each with its counterpart for dark screens."""

from __future__ import annotations

from clipsilon.report.charts import Chart

# Colours that colour-blind readers can distinguish (after Okabe and Ito): on white, and on a dark screen.
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

# Shades for ordered series, from the faintest to the strongest: the strongest is dark on white and bright on black.
BLUES = ("#9ecae1", "#6baed6", "#4292c6", "#2171b5")
ORANGES = ("#fdbe85", "#fd8d3c", "#f16913", "#d94801")
GREYS = ("#969696", "#636363")
SHADES = {
    **dict(zip(BLUES, ("#3f86bd", "#5aa3dc", "#85c1f0", "#b9ddff"), strict=True)),
    **dict(zip(ORANGES, ("#bf6a30", "#e8853f", "#ff9f5c", "#ffc9a0"), strict=True)),
    **dict(zip(GREYS, ("#8b939c", "#c4cad1"), strict=True)),
}

# A rule has the same colour in every chart.
COLOURS = {"SGD": "#7f7f7f", "PCSGD": "#d55e00", "DPSGD": "#c2669a", "DiceSGD": "#0072b2"}


def colours(chart: Chart) -> list[str]:
    """Return the colour of each series: its own, the colour of its rule, or the next free colour of the palette."""
    own = [series.colour or COLOURS.get(series.name) for series in chart.series]
    free = [colour for colour in PALETTE if colour not in own] or list(PALETTE)
    unnamed = [k for k, colour in enumerate(own) if colour is None]
    given = {k: free[place % len(free)] for place, k in enumerate(unnamed)}
    return [colour or given[k] for k, colour in enumerate(own)]
