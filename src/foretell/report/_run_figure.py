"""The figure of a whole run, in matplotlib: nothing else imports this module but at the moment of drawing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from foretell.report._trace_style import DPI, FAINT, INK, SIZE, SOFT, STYLE
from foretell.report.run_screen import LINKS, LOSSES, in_unit, number
from foretell.report.train_screen import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["RunFigure"]

BLUE: Final = "#0072B2"
BAND: Final = "#CFE3F1"
HERE: Final = "#D55E00"
COLOURS: Final = {"useful": "#0072B2", "checkpoints": "#E69F00", "rework": "#CC79A7", "restarts": "#A34A00"}
"""After Okabe and Ito, as the other pictures."""
_CHAIN: Final = (0.185, 0.095, 0.255, 0.715)
_CLOCK: Final = (0.605, 0.675, 0.365, 0.085)
_SAMPLES: Final = ((0.605, 0.1, 0.105, 0.39), (0.735, 0.1, 0.105, 0.39), (0.865, 0.1, 0.105, 0.39))
_ENDS: Final = (1 / 3, 3.0)
"""Of the chain's axis, as multiples of a point."""
_BINS: Final = 36
_LEGEND: Final = (0.0, 0.122, 0.262, 0.33)
"""Where the names of small parts of the wall clock begin, from its left end."""


class RunFigure:
    """The figure of one answer."""

    def __init__(self, result: Mapping[str, Any], samples: Mapping[str, Any]) -> None:
        """Compose it."""
        self.result, self.run, self.samples = result, result["run"], samples
        with _drawing():
            self.figure = Figure(figsize=SIZE, dpi=DPI, facecolor="white")
            self.canvas = FigureCanvasAgg(self.figure)
            self._headline()
            self._chain(self.figure.add_axes(_CHAIN))
            self._clock(self.figure.add_axes(_CLOCK))
            shown = ["wall_days", "cost_usd" if "cost_usd" in samples else "total_energy_kwh", "operational_carbon_kg"]
            self._heading(_SAMPLES[0][0], 0.575, f"{self.run['samples']:,} such runs")
            for name, place in zip(shown, _SAMPLES, strict=True):
                self._histogram(self.figure.add_axes(place), name)

    def save(self, path: Path) -> None:
        """Write the file; the suffix says which kind. The same answer gives the same bytes."""
        with _drawing():
            self.figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else {"Software": None})

    def _headline(self) -> None:
        run, result = self.run, self.result
        days = run["quantities"]["wall_days"]
        unit, scale = in_unit("days", 1.0, days["p90"])
        point, low, high = (number(days[key] / scale) for key in ("point", "p10", "p90"))
        text = f"{point} {unit} ({low} to {high}) for {short(result['tokens'])} tokens"
        self.figure.text(0.03, 0.935, text, fontsize=16, fontweight="bold", color=INK)
        nodes = f"{run['nodes']:,} node{'s' if run['nodes'] > 1 else ''}"
        about = f"{result['model']} on {run['gpus']:,} x {result['gpu']}, {nodes}; {run['region']}, {run['boundary']} grid factor"
        about += "; rented" if run["mode"] == "rent" else "; owned"
        self.figure.text(0.03, 0.893, about, fontsize=9.5, color=SOFT)

    def _heading(self, x: float, y: float, text: str) -> None:
        self.figure.text(x, y, text, fontsize=10, fontweight="bold", color=INK)

    # -- the chain ------------------------------------------------------------------------------------------

    def _chain(self, axes: Axes) -> None:
        """Draw each link's band around its point, on an axis of multiples of the point."""
        rows = [row for row in LINKS if row[0] in self.run["quantities"]]
        self._heading(0.03, 0.838, "the chain, point and P10 to P90")
        axes.set_xscale("log")
        axes.set_xlim(*_ENDS)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.axvline(1.0, color=FAINT, linewidth=1.0, zorder=1)
        for place, (name, title, unit, size) in enumerate(rows):
            band = self.run["quantities"][name]
            shown, scale = in_unit(unit, size, band["p90"])
            self._link(axes, place, band)
            axes.annotate(title, (0, place), xycoords=("axes fraction", "data"), xytext=(-9, 0), textcoords="offset points",
                          ha="right", va="center", fontsize=8.8, color=INK)  # fmt: skip
            point, low, high = (number(band[key] / scale) for key in ("point", "p10", "p90"))
            told = f"{point} {shown}".rstrip()
            axes.annotate(told, (1, place), xycoords=("axes fraction", "data"), xytext=(10, 0), textcoords="offset points",
                          ha="left", va="center", fontsize=8.8, color=INK, fontweight="bold")  # fmt: skip
            if (low, high) != (point, point):
                axes.annotate(f"{low} to {high}", (1, place), xycoords=("axes fraction", "data"), xytext=(76, 0),
                              textcoords="offset points", ha="left", va="center", fontsize=7.6, color=SOFT)  # fmt: skip
        axes.xaxis.set_major_locator(FixedLocator([1 / 3, 1 / 2, 1, 2, 3]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: {0.5: "half", 1.0: "point", 2.0: "twice"}.get(round(x, 3), "")))
        axes.set_yticks([])
        _bare(axes, bottom=True)

    @staticmethod
    def _link(axes: Axes, place: int, band: Mapping[str, float]) -> None:
        """Draw one band; an end beyond the axis is an arrow."""
        point = band["point"]
        axes.plot([1.0], [place], "o", color=BLUE, markersize=5.2, markeredgecolor="white", markeredgewidth=0.9, zorder=4)
        if not point or not band["p90"]:
            return  # an event that most samples never see
        low, high = (min(max(band[key] / point, _ENDS[0]), _ENDS[1]) for key in ("p10", "p90"))
        axes.plot([low, high], [place, place], color=BLUE, linewidth=6.5, alpha=0.32, solid_capstyle="butt", zorder=2)
        for key, end, mark in (("p10", _ENDS[0], "<"), ("p90", _ENDS[1], ">")):
            if not _ENDS[0] <= band[key] / point <= _ENDS[1]:
                axes.plot([end], [place], mark, color=BLUE, markersize=6.5, clip_on=False, zorder=4)

    # -- where the time goes --------------------------------------------------------------------------------

    def _clock(self, axes: Axes) -> None:
        """Draw the wall clock as one bar, with what each part is below it."""
        self._heading(_CLOCK[0], 0.838, "where the wall clock goes")
        left = 0.0
        for name, share in self.run["losses"].items():
            axes.barh(0, share, left=left, height=1.0, color=COLOURS[name], edgecolor="white", linewidth=0.8)
            if share > 0.3:
                axes.text(left + share / 2, 0, f"{LOSSES[name]} {100 * share:.1f} %", ha="center", va="center", color="white",
                          fontsize=9.5, fontweight="bold")  # fmt: skip
            left += share
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.5, 0.5)
        axes.set_xticks([])
        axes.set_yticks([])
        _bare(axes)
        small = [(name, share) for name, share in self.run["losses"].items() if share <= 0.3]
        for x, (name, share) in zip(_LEGEND, small, strict=False):
            told = f"{100 * share:.1f} %" if share >= 5e-4 else "below 0.1 %"
            self.figure.text(_CLOCK[0] + x, 0.638, "■", fontsize=8, color=COLOURS[name], va="center")
            self.figure.text(_CLOCK[0] + x + 0.012, 0.638, f"{LOSSES[name]} {told}", fontsize=8.2, color=INK, va="center")

    # -- samples --------------------------------------------------------------------------------------------

    def _histogram(self, axes: Axes, name: str) -> None:
        """Draw how often a quantity came out as what, with its point and the ends of its band."""
        title, unit, size = next((title, unit, size) for key, title, unit, size in LINKS if key == name)
        band = self.run["quantities"][name]
        shown, scale = in_unit(unit, size, band["p90"])
        values = np.asarray(self.samples[name], float) / scale
        low, high = (float(end) for end in np.quantile(values, (0.002, 0.99)))
        span = max(high - low, 1e-9 * max(abs(high), 1.0))
        counts, edges = np.histogram(values, bins=_BINS, range=(low, low + span))
        middle = 0.5 * (edges[1:] + edges[:-1])
        inside = (middle >= band["p10"] / scale) & (middle <= band["p90"] / scale)
        axes.bar(middle, counts, width=edges[1] - edges[0], color=[BLUE if one else BAND for one in inside], linewidth=0)
        axes.axvline(band["point"] / scale, color=HERE, linewidth=1.6, zorder=4)
        axes.set_xlim(low, low + span)
        axes.set_ylim(0, 1.08 * counts.max())
        axes.set_yticks([])
        axes.xaxis.set_major_locator(MaxNLocator(nbins=3, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
        axes.set_title(f"{title.removeprefix('... ')}", fontsize=8.8, color=INK, loc="left", pad=20)
        axes.text(0.0, 1.025, f"{number(band['p10'] / scale)} to {number(band['p90'] / scale)} {shown}", fontsize=7.8,
                  color=SOFT, transform=axes.transAxes)  # fmt: skip
        _bare(axes, bottom=True)


def _bare(axes: Axes, *, bottom: bool = False) -> None:
    """Leave of an axes' frame its lowest line at most."""
    for side, spine in axes.spines.items():
        spine.set_visible(bottom and side == "bottom")
    axes.tick_params(axis="x", colors=SOFT, labelsize=8, length=3, width=0.8, color=FAINT)
    axes.set_facecolor("none")


@contextmanager
def _drawing() -> Iterator[None]:
    """Draw in our style, whatever the user's own is."""
    with mpl.rc_context(STYLE):
        yield
