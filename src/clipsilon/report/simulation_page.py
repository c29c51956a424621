"""The page about a simulated crowd: its error against devices, rounds and budgets."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from clipsilon._core import checks
from clipsilon._core.storage import write_atomically
from clipsilon.local.simulation import Crowd, Simulation
from clipsilon.local.study import FACTORS, Study
from clipsilon.privacy.users import account_users
from clipsilon.report.charts import Cell, Chart, Series, Table, band
from clipsilon.report.embedding import embedded_figure, embedded_sheet
from clipsilon.report.ownership import check_page
from clipsilon.report.page import element, frame, wrap
from clipsilon.report.palette import PALETTE
from clipsilon.report.sections import contents, footer, header
from clipsilon.report.text import readable

_PLACES = {"devices": "Devices and rounds", "budgets": "Budgets", "privacy": "Privacy"}
_ERROR = "squared distance from θ*"
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)
_DELTA = 1e-5


def write_simulation_page(path: str | Path, study: Study) -> None:
    """Write a page about a simulated crowd.

    Parameters
    ----------
    path : str or Path
        An .html file. A page that clipsilon wrote is replaced; any other file is left alone.
    study : Study
        The simulations.
    """
    path = checks.path("report", path)
    check_page(path)
    text = simulation_page(study)
    write_atomically(path, lambda file: file.write(text.encode()))


def simulation_page(study: Study) -> str:
    """Return the whole page."""
    crowd = study.simulations[0].crowd
    title = f"{readable(crowd.devices)} simulated devices"
    figures = "".join(embedded_figure(name, chart) for name, chart in error_charts(study).items())
    budgets = embedded_figure("budgets", budget_chart(study))
    body = [
        header(title, _lead(study), _tiles(study), contents(_PLACES)),
        element("h2", _PLACES["devices"], id="devices"),
        *map(_paragraph, _words(study)),
        wrap("div", figures, class_="figures many"),
        embedded_sheet("errors", error_table(study)),
        element("h2", _PLACES["budgets"], id="budgets"),
        _paragraph(
            f"All budgets are multiplied by a factor, for {readable(study.fewer)} devices in rounds of "
            f"{readable(max(each.averaging.batch for each in study.simulations))}. Weights by budget count a report "
            "less if it carries more noise."
        ),
        wrap("div", budgets, class_="figures many"),
        element("h2", _PLACES["privacy"], id="privacy"),
        _paragraph(
            "Each device adds the noise of its own budget μ before anything leaves it, so its report is μ-GDP, "
            "whatever the size and the weights of its round. In a deployment, the users' ε would be as follows."
        ),
        embedded_sheet("privacy", privacy_table(crowd)),
        footer("Written by `clipsilon local simulate`. No person's data was used. The page needs no network."),
    ]
    return frame(title, body)


def _paragraph(text: str) -> str:
    return element("p", text)


def _lead(study: Study) -> str:
    crowd, how = study.simulations[0].crowd, study.simulations[0].averaging
    weights = "weighted by budget" if how.weights == "budget" else "with equal weights"
    failings = [
        f"{crowd.dropout:.0%} vanish" if crowd.dropout else "",
        f"reports are {crowd.delay:g} rounds late on average, and refused after {how.staleness}" if crowd.delay else "",
        f"{crowd.liars:.1%} lie" if crowd.liars else "",
        f"{how.trim:.0%} of the values at each end are left out" if how.trim else "",
    ]
    more = "; ".join(filter(None, failings))
    more = f" {more[0].upper()}{more[1:]}." if more else ""
    return (
        f"A {crowd.population} model with {crowd.truth.size} parameters learns from reports under local privacy, with "
        f"budgets μ drawn from {crowd.budgets}, in rounds {weights}.{more}"
    )


def _tiles(study: Study) -> str:
    """Return the numbers that a reader looks for first."""
    best = min(study.simulations, key=lambda each: float(each.average[:, -1].mean()))
    tiles = [
        (readable(best.crowd.devices), "devices came, each once"),
        (readable(float(best.average[:, -1].mean())), f"{_ERROR} at the end, in {_name(best)}"),
        (readable(float(np.sum((best.crowd.start - best.crowd.truth) ** 2))), "of the start, without learning"),
    ]
    items = (wrap("li", element("b", value) + element("span", words), class_="plain") for value, words in tiles)
    return wrap("ul", "".join(items), class_="tally")


def _name(one: Simulation) -> str:
    return f"rounds of {readable(one.averaging.batch)}"


def _words(study: Study) -> list[str]:
    many = study.simulations[0].last.shape[0]
    words = [
        f"The lines show the mean of all models, which `LDPASGD` releases: its mean over {many} simulation(s), and a "
        "band with 10 % of them on either side."
    ]
    if np.isfinite(study.limits).all():
        words.append(
            "The dashed lines are the theory's limit for many rounds, a constant divided by the number of reports. It "
            "is reached slowly, as the first models remain in the mean."
        )
    return words


def error_charts(study: Study) -> dict[str, Chart]:
    """Return the error of the mean model against devices and against rounds."""
    by_devices, by_rounds = [], []
    for each, limit, colour in zip(study.simulations, study.limits, PALETTE, strict=False):
        name, has_round = _name(each), each.rounds.min(axis=0) > 0
        errors, devices = each.average[:, has_round], each.devices[has_round]
        by_devices.append(band(name, devices, errors, colour=colour))
        by_rounds.append(band(name, each.rounds.mean(axis=0)[has_round], errors, colour=colour))
        if np.isfinite(limit):
            reports = each.counts["reports"] / each.last.shape[0] / each.crowd.devices * devices
            by_devices.append(Series(f"theory, {name}", devices, limit / reports, kind="dashed", colour=colour))
    return {
        "against-devices": Chart("Error against devices", "devices", _ERROR, by_devices, True, True),
        "against-rounds": Chart("Error against rounds", "rounds", _ERROR, by_rounds, True, True),
    }


def budget_chart(study: Study) -> Chart:
    """Return the error at the end against the factor of all budgets, for both kinds of weights."""
    names = {"budget": "weights by budget", "equal": "equal weights"}
    series = [band(names[kind], FACTORS, errors.T) for kind, errors in study.by_budget.items()]
    return Chart("Error against budgets", "factor of all budgets", _ERROR, series, True, True)


def error_table(study: Study) -> Table:
    """Return the ends of all simulations."""
    columns = ("reports per round", "rounds", "last model", "mean model", "theory", "vanished", "refused", "lies")
    return Table(f"{_ERROR.capitalize()} at the end", columns, [_row(*each) for each in _ends(study)])


def _ends(study: Study) -> list[tuple[Simulation, float]]:
    return list(zip(study.simulations, study.limits, strict=True))


def _row(one: Simulation, limit: float) -> list[Cell]:
    replicates = one.last.shape[0]
    lost = [one.counts[name] // replicates for name in ("vanished", "refused", "lies")]
    ends = [float(errors[:, -1].mean()) for errors in (one.last, one.average)]
    reports = one.counts["reports"] / replicates
    theory = limit / reports if np.isfinite(limit) and reports else None
    return [one.averaging.batch, int(one.rounds[:, -1].mean()), *ends, theory, *lost]


def privacy_table(crowd: Crowd) -> Table:
    """Return quantiles of the budgets with the ε that they allow."""
    mus = np.quantile(crowd.law.draw(100_000, np.random.default_rng(0)), _QUANTILES)
    names = ("smallest", "a quarter below", "half below", "three quarters below", "largest")
    epsilons = account_users(mus, _DELTA).epsilons
    rows: list[list[Cell]] = [[name, float(mu), float(eps)] for name, mu, eps in zip(names, mus, epsilons, strict=True)]
    return Table(f"Users' budgets, and ε at δ = {_DELTA:g}", ("users", "μ", "ε"), rows)
