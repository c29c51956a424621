"""Draw pictures of the gallery into docs/images/, for the pages that show them.

`python docs/gallery/draw.py plot_amplification` draws one; without names, all existing ones are drawn again.
"""

import runpy
import sys
import warnings
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "images"


def draw(script: Path, folder: Path) -> Path:
    """Run a script and save its picture under the script's name."""
    plt.close("all")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*is non-interactive")  # there is no window to show
        runpy.run_path(str(script))
    path = folder / f"{script.stem}.png"
    plt.gcf().savefig(path, dpi=110, metadata={"Software": None})
    return path


if __name__ == "__main__":
    mpl.use("Agg")
    for name in sys.argv[1:] or sorted(path.stem for path in IMAGES.glob("plot_*.png")):
        print(draw(HERE / f"{name}.py", IMAGES).name)
