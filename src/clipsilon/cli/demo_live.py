"""What `clipsilon demo live` runs: a lender's year, and a page about it for a reader who is new to the subject."""

from __future__ import annotations

from pathlib import Path

from clipsilon.report.files import result_files, write_files
from clipsilon.report.ownership import check_report_folder
from clipsilon.report.page import element, frame
from clipsilon.report.sections import Done, footer, header, result_section, verdict_list
from clipsilon.reproduce.base import Lab
from clipsilon.reproduce.problems import all_credit_data
from clipsilon.reproduce.runner import check_extras, choose

TITLE = "A lender's year"
LEAD = (
    "A lender deploys a model, and applicants change what they can to suit it. Four lenders learn from the "
    "applications that their own models cause: one retrains every week, and three learn with a proven privacy of each "
    "applicant. The last one estimates from its own logs how people react, and anticipates it."
)
COMMAND = "clipsilon demo live"
MADE_BY = "Written by `clipsilon demo live`. Credit data: {source}. The page is one file and needs no network."


def demo_live(lab: Lab, output: Path) -> Done:
    """Run the year and write its page.

    Raises ValueError, before anything is computed, if a package is missing or the folder holds what this tool did not
    write.
    """
    (experiment,) = choose(("ours-lender",))
    check_extras([experiment])
    check_report_folder(output, [experiment.name])
    done = Done(experiment, experiment.make(lab))
    write_files(output, result_files(experiment, done.result, lab.quick))
    write_files(output, {"index.html": page(done).encode()})
    return done


def page(done: Done) -> str:
    """Return the page: the pictures with what they show, then the verdicts."""
    data = all_credit_data()
    source = data.source if data.real else "a generated stand-in"
    body = [header(TITLE, LEAD), result_section(done, COMMAND)]
    body += [element("h2", "Every statement with its verdict", id="verdicts"), verdict_list([done])]
    return frame(TITLE, [*body, footer(MADE_BY.format(source=source))])
