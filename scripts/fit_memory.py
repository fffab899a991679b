"""Fit what is fitted of the memory answers, and write ``catalog/data/calibration/memory.json``.

    python scripts/fit_memory.py            # fit, write, print the figures
    python scripts/fit_memory.py --dry      # print only

Run it twice after a change of a formula: intervals are fitted on errors that the fitted slack is part of.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

from foretell.cost.overheads import calibration
from foretell.evidence.fit import POINTS, fit

OUT = Path(__file__).parents[1] / "src/foretell/catalog/data/calibration/memory.json"


def main() -> None:
    """Fit and write."""
    data = fit(calibration())
    print(f"slack beyond the stream pools: {100 * data['slack']['pooled']['fraction']:.2f} % of what is not resident")
    seen, unseen = data["coverage"].values()
    print(f"90 % intervals cover {seen} % of the rows; {unseen} % of rows whose source was left out")
    for name, found in data["regimes"].items():
        if found["basis"] == "fit":
            low, high = (100 * math.expm1(found["log_error"][POINTS.index(p)]) for p in (0.05, 0.95))
            print(f"  {name:35s} {found['rows']:4d} rows  {low:+6.1f} % .. {high:+6.1f} %")
    for source, figures in data["left_out"].items():
        print(f"  without {source}: {figures}")
    if "--dry" not in sys.argv:
        OUT.write_text(json.dumps(data, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
