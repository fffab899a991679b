"""The figure of a deployment over concurrency, in matplotlib: nothing else imports this module but at the moment of drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import matplotlib as mpl
from matplotlib import patheffects
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from foretell.plan.serving_curve import CurvePoint
from foretell.report._trace_style import ALARM, DPI, FAINT, INK, SIZE, SOFT, STYLE, TITLE, short
from foretell.report.screen import digits
from foretell.report.train_screen import seconds
from foretell.report.train_screen import short as amount

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["ServeFigure"]

BLUE: Final = "#0072B2"
"""Of the curve (after Okabe and Ito, as the other pictures)."""
BAND: Final = "#CFE3F1"
HERE: Final = "#D55E00"
"""Of the load that was asked for."""
GREY: Final = "#A9AEB4"
_LEFT: Final = (0.066, 0.125, 0.345, 0.685)
_RIGHT: Final = (0.447, 0.125, 0.345, 0.685)
_PANEL: Final = 0.822
_APART: Final = 21.0
"""Points between the labels of two concurrencies."""


class ServeFigure:
    """The figure of one answer."""

    def __init__(self, result: Mapping[str, Any], curve: Sequence[CurvePoint], title: str) -> None:
        """Compose it."""
        self.result, self.curve, self.title = result, curve, title
        with _drawing():
            self.figure = Figure(figsize=SIZE, dpi=DPI, facecolor="white")
            self.canvas = FigureCanvasAgg(self.figure)
            left, right = self.figure.add_axes(_LEFT), self.figure.add_axes(_RIGHT)
            self._plot(left, lambda one: 1e3 * one.itl_s, "itl_s", log=False)
            self._plot(right, lambda one: 1e3 * one.ttft_s, "ttft_s", log=True)
            left.set_xlabel("time between two tokens of a user, ITL (ms)", color=SOFT, labelpad=7)
            right.set_xlabel("time to first token, TTFT (logarithmic)", color=SOFT, labelpad=7)
            left.set_ylabel("output tokens/s of each GPU", color=SOFT, labelpad=6)
            right.set_yticklabels([])
            self._panel()
            self._headline()

    def save(self, path: Path) -> None:
        """Write the file; the suffix says which kind. The same answer gives the same bytes."""
        with _drawing():
            self.figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else {"Software": None})

    # -- curves ---------------------------------------------------------------------------------------------

    def _plot(self, axes: Axes, at: Callable[[CurvePoint], float], key: str, *, log: bool) -> None:
        """Draw throughput against one latency: the front that nothing beats, what lies behind it, the load that was asked for."""
        curve = self.curve
        xs, ys = [at(one) for one in curve], [one.output_tokens_per_s_per_gpu for one in curve]
        top = max(ys)
        axes.set_ylim(0, 1.12 * top)
        self._scale(axes, xs, key, log=log)
        _dress(axes)
        best = [i for i, one in enumerate(curve) if one.pareto]
        front = best[-1] + 1 if best else len(curve)
        axes.plot(xs[front - 1 :], ys[front - 1 :], color=GREY, linewidth=1.6, linestyle=(0, (4, 2.5)), zorder=3)
        axes.plot(xs[:front], ys[:front], color=BLUE, linewidth=2.4, solid_capstyle="round", zorder=4)
        ends = self.result[f"{key.removesuffix('_s')}_interval_s"]
        here = self.result[key]
        if ends is not None and here:  # the same factors all along the curve
            low, high = ([x * end / here for x in xs[:front]] for end in ends)
            axes.fill_betweenx(ys[:front], low, high, color=BAND, alpha=0.75, linewidth=0, zorder=1.5)
        self._target(axes, key)
        self._names(axes, xs, ys, front, key)
        self._here(axes, key)

    def _scale(self, axes: Axes, xs: Sequence[float], key: str, *, log: bool) -> None:
        """Set the range and the ticks of a latency."""
        target = self._wanted(key)
        shown = [*xs, *([1e3 * target[0]] if target is not None else [])]
        here = self.result[key]
        if here is not None:
            shown.append(1e3 * here)
        if log:
            low, high = min(shown) / 1.25, max(shown) * 1.6
            axes.set_xscale("log")
            axes.set_xlim(low, high)
            decades = math.log10(high / low)
            axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0,) if decades > 2.5 else (1.0, 2.0, 5.0)))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _plain(x / 1e3)))
        else:
            axes.set_xlim(0, 1.06 * max(shown))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))

    def _names(self, axes: Axes, xs: Sequence[float], ys: Sequence[float], front: int, key: str) -> None:
        """Mark the doublings, and write how many requests are in flight where there is room."""
        first, last = self.curve[0].concurrency, self.curve[front - 1].concurrency
        doubled = {first * 2**i for i in range(32)} | {last}
        marked = [i for i, one in enumerate(self.curve[:front]) if one.concurrency in doubled] + [*range(front, len(self.curve))][
            -1:
        ]
        axes.plot([xs[i] for i in marked if i < front], [ys[i] for i in marked if i < front], "o", color=BLUE, markersize=4.6,
                  markeredgecolor="white", markeredgewidth=0.9, zorder=5)  # fmt: skip
        taken: list[tuple[float, float]] = []
        mark, height = self.result[key], self.result["output_tokens_per_s_per_gpu"]
        here = None if mark is None or height is None else self._points(axes, 1e3 * mark, height)
        order = [i for i in (front - 1, 0, *reversed(marked)) if i in marked or i in (0, front - 1)]
        for i in dict.fromkeys(order):
            x, y = self._points(axes, xs[i], ys[i])
            if any(math.hypot(x - a, (y - b) * 1.6) < _APART for a, b in taken):
                continue
            if here is not None and 3.0 < math.hypot(x - here[0], y - here[1]) < _APART:
                continue  # its name would lie on the mark of the load
            taken.append((x, y))
            offset, side, height = self._place(axes, xs, ys, i)
            axes.annotate(f"{self.curve[i].concurrency:,}", (xs[i], ys[i]), xytext=offset, textcoords="offset points", ha=side,
                          va=height, fontsize=8, color=SOFT if i >= front else INK, zorder=8, path_effects=_HALO)  # fmt: skip

    def _points(self, axes: Axes, x: float, y: float) -> tuple[float, float]:
        """Return a place of the picture in points."""
        across, up = axes.transData.transform((x, y)) * 72.0 / self.figure.dpi
        return float(across), float(up)

    @staticmethod
    def _place(
        axes: Axes, xs: Sequence[float], ys: Sequence[float], i: int
    ) -> tuple[tuple[float, float], Literal["left", "center"], Literal["center", "top", "bottom"]]:
        """Where a name lies off the curve: beside it where it is steep, above it where it is flat, else below to the right."""
        last = len(xs) - 1
        (a, b), (c, d) = axes.transData.transform([(xs[j], ys[j]) for j in (max(i - 1, 0), min(i + 1, last))])
        rise = abs(float(d - b)) / max(abs(float(c - a)), 1e-9)
        if rise > 1.4:
            return (7.5, -0.5), "left", "center"
        return ((5.0, -3.5), "left", "top") if rise > 0.3 else ((0.0, 6.0), "center", "bottom")

    def _here(self, axes: Axes, key: str) -> None:
        """Mark the load that was asked for."""
        x, y = self.result[key], self.result["output_tokens_per_s_per_gpu"]
        if x is not None and y is not None:
            axes.plot([1e3 * x], [y], "o", color=HERE, markersize=8.5, markeredgecolor="white", markeredgewidth=1.2, zorder=9)

    def _wanted(self, key: str) -> tuple[float, str] | None:
        """Return the seconds of the tightest target of a latency, and of which requests it is."""
        slo = self.result["slo"]
        if slo is None:
            return None
        found = [
            (float(target["seconds"]), str(target["statistic"])) for target in slo["targets"] if f"{target['metric']}_s" == key
        ]
        return min(found, default=None)

    def _target(self, axes: Axes, key: str) -> None:
        """Draw a target, and shade what misses it."""
        found = self._wanted(key)
        if found is None:
            return
        target, statistic = found
        x = 1e3 * target
        axes.axvline(x, color=ALARM, linewidth=1.1, linestyle=(0, (5, 3)), zorder=2)
        axes.axvspan(x, axes.get_xlim()[1], color=ALARM, alpha=0.05, linewidth=0, zorder=1)
        axes.annotate(f"{statistic} at most {seconds(target)}", (x, 1.0), xycoords=axes.get_xaxis_transform(), xytext=(4, -3),
                      textcoords="offset points", ha="left", va="top", fontsize=8.5, color=ALARM, path_effects=_HALO)  # fmt: skip

    # -- words ----------------------------------------------------------------------------------------------

    def _panel(self) -> None:
        """What the load that was asked for gets; it is the key to its mark, too."""
        figure, result = self.figure, self.result
        y, line = _LEFT[1] + _LEFT[3] - 0.004, 0.042
        figure.add_artist(
            Line2D([_PANEL + 0.006], [y - 0.0115], marker="o", color=HERE, markersize=7, transform=figure.transFigure)
        )
        figure.text(_PANEL + 0.019, y, _asked(result["load"]), fontsize=9.5, weight="bold", va="top")
        y -= 1.25 * line
        for name, value, ends in _numbers(result):
            figure.text(_PANEL, y, name, fontsize=8.5, va="top", color=INK)
            figure.text(0.985, y, value, fontsize=8.5, va="top", ha="right", weight="bold")
            y -= 0.8 * line
            if ends:
                figure.text(0.985, y, ends, fontsize=7.8, va="top", ha="right", color=SOFT)
                y -= 0.8 * line
            y -= 0.2 * line
        y -= 0.4 * line
        figure.add_artist(Line2D([_PANEL, 0.985], [y + 0.02] * 2, transform=figure.transFigure, color=FAINT, linewidth=0.9))
        self._key(y, line)

    def _key(self, y: float, line: float) -> None:
        """Say what the lines are."""
        figure = self.figure
        waits = any(not one.pareto for one in self.curve)
        lines: list[tuple[str, Any, float, str]] = [(BLUE, "-", 2.4, "labels: requests in flight")]
        lines += [(GREY, (0, (4, 2.5)), 1.6, "more only wait")] if waits else []
        lines += [(BAND, "-", 7.0, "90 % interval")] if self.result["itl_interval_s"] is not None else []
        for colour, style, width, words in lines:
            figure.add_artist(Line2D([_PANEL, _PANEL + 0.022], [y - 0.0105] * 2, transform=figure.transFigure, color=colour,
                                     linewidth=width, linestyle=style, solid_capstyle="butt"))  # fmt: skip
            figure.text(_PANEL + 0.03, y, words, fontsize=8.2, va="top", color=SOFT)
            y -= line

    def _headline(self) -> None:
        top = max(self.curve, key=lambda one: (one.pareto, one.output_tokens_per_s_per_gpu))
        first = self.curve[0]
        each = amount(top.output_tokens_per_s_per_gpu)
        words = (
            f"From {digits(1 / first.itl_s)} tokens/s for a single user to {each} tokens/s of each GPU "
            f"with {top.concurrency:,} in flight"
        )
        left = _LEFT[0] - 0.044
        self.figure.text(left, 0.955, words, fontsize=14.5, weight="bold", va="center", color=INK)
        self.figure.text(left, 0.908, short(self.title, TITLE), fontsize=9, color=SOFT, va="center")


def _dress(axes: Axes) -> None:
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
    axes.tick_params(which="both", length=0, labelcolor=SOFT, labelsize=8.5)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


_HALO: Final = [patheffects.withStroke(linewidth=2.6, foreground="white")]


def _asked(load: Mapping[str, Any]) -> str:
    """Name the load that was asked for."""
    if load["kind"] == "open":
        return f"{digits(load['requests_per_s'])} requests/s"
    if load["kind"] in ("closed", "static"):
        return f"{load['concurrency']:,.0f} in flight" if load["kind"] == "closed" else f"a batch of {load['concurrency']:,.0f}"
    return "full load"


def _numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the quantities of the panel: name, value, interval."""
    for name, key, form in (
        ("TTFT", "ttft_s", seconds),
        ("ITL", "itl_s", seconds),
        ("tokens/s", "output_tokens_per_s", amount),
    ):
        value = result[key]
        if value is None:
            continue
        ends = result[f"{key.removesuffix('_s')}_interval_s" if form is seconds else "output_tokens_per_s_interval"]
        yield name, form(value), "" if ends is None else f"{form(ends[0])} to {form(ends[1])}"
    yield "KV pool", f"{amount(result['kv']['tokens'])} tokens", ""


def _plain(value: float) -> str:
    """Write a tick of a time."""
    return f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms"


@contextmanager
def _drawing() -> Iterator[None]:
    with mpl.rc_context(STYLE):
        yield
