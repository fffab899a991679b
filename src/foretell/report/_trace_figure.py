"""The figure of a traced run, in matplotlib: nothing else of foretell imports this module but at the moment of drawing."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib import patheffects
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.offsetbox import AnnotationBbox, TextArea, VPacker
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import blended_transform_factory
from numpy.typing import NDArray

from foretell.report._trace_style import (
    ALARM,
    AXES,
    BRIEF,
    COLOUR,
    COLUMNS,
    DPI,
    DURING,
    FAINT,
    HAIR,
    INK,
    LIGHT,
    LINES,
    PHASE,
    PLACE,
    SIZE,
    SOFT,
    STACK,
    STYLE,
    TITLE,
    Scene,
    gib,
    short,
)
from foretell.trace.events import CATEGORIES, Phase
from foretell.trace.levels import Indices
from foretell.units import GIB

if TYPE_CHECKING:
    from matplotlib.text import Annotation

__all__ = ["TraceFigure"]

Floats = NDArray[np.float64]


class TraceFigure:
    """The figure of one scene."""

    def __init__(self, scene: Scene) -> None:
        """Compose it."""
        self.scene = scene
        with _drawing():
            self.figure = Figure(figsize=SIZE, dpi=DPI, facecolor="white")
            FigureCanvasAgg(self.figure)
            self.axes = self.figure.add_axes(AXES)
            rows = [CATEGORIES.index(name) for name in STACK]
            self.tops = np.cumsum(scene.levels[rows], axis=0) / GIB
            self._axes()
            self._areas()
            self._limits(self._peak())
            self._borders()
            self._lines()
            self._bands()
            self._phases()
            self._panel()
            self._headline()

    def save(self, path: Path) -> None:
        """Write the file; the suffix says which kind. The same scene gives the same bytes."""
        with _drawing():
            self.figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else {"Software": None})

    # -- parts ----------------------------------------------------------------------------------------------

    def _axes(self) -> None:
        axes = self.axes
        axes.set_xlim(0, self.scene.events)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,g}"))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.tick_params(length=0, labelcolor=SOFT, labelsize=8.5)
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.set_xlabel("allocation events (no time is predicted)", color=SOFT, labelpad=7)
        axes.set_ylabel("GiB", color=SOFT, labelpad=6)

    def _areas(self) -> None:
        below = np.zeros(self.tops.shape[1])
        for name, top in zip(STACK, self.tops, strict=True):
            if (top > below).any():
                x, low, high = self._steps(below, top)
                self.axes.fill_between(x, low, high, step="post", color=COLOUR[name], linewidth=0, zorder=2)
            below = top
        # a hairline, so that a peak of one event among a hundred thousand is seen
        self.axes.step(*self._steps(below), where="post", color=HAIR, linewidth=0.5, zorder=4)

    def _steps(self, *curves: Floats) -> list[Floats]:
        """Return where the curves change, and their levels from there on; the last hold until the run's end."""
        kept = np.ones(len(self.scene.at), dtype=bool)
        kept[1:] = np.any([np.diff(curve) != 0 for curve in curves], axis=0)
        ends = [np.append(curve[kept], curve[-1]) for curve in curves]
        return [np.append(self.scene.at[kept], self.scene.events).astype(np.float64), *ends]

    def _peak(self) -> VPacker:
        """Mark the peak and say whose it is; return the words."""
        scene = self.scene
        x, y = scene.peak + 0.5, scene.peak_allocated / GIB
        phase = scene.peak_phase
        where = DURING[phase.name]
        if phase.name != "load":
            where += f", step {phase.step}" + (f", micro-step {phase.micro}" if any(p.micro for p, _ in scene.phases) else "")
        rows = [(f"{gib(scene.peak_allocated)} allocated at the peak", 10.0, INK, "bold"), (where, 8.5, INK, "normal")]
        owner = scene.owner
        if owner is not None:
            times = f"{owner.count} \N{MULTIPLICATION SIGN} " if owner.count > 1 else ""
            largest = f"largest owner: {gib(owner.bytes)} of {owner.category}, {times}{owner.op}".rstrip(", ")
            rows.append((short(largest, PLACE + 10), 8.0, SOFT, "normal"))
            rows += [(short(place), 8.0, SOFT, "normal") for place in (owner.module, owner.line) if place]
        share = x / scene.events
        right = share < 0.5  # the box stands where there is more room
        packed = VPacker(
            children=[
                TextArea(text, textprops={"size": size, "color": colour, "weight": weight}) for text, size, colour, weight in rows
            ],
            align="left" if right else "right",
            pad=0,
            sep=3.2,
        )
        box = AnnotationBbox(
            packed,
            (x, y),
            xybox=(share + (0.012 if right else -0.012), 0.985),
            xycoords="data",
            boxcoords="axes fraction",
            box_alignment=(0 if right else 1, 1),
            frameon=True,
            pad=0.35,
            bboxprops={"edgecolor": "none", "facecolor": "white", "alpha": 0.88},
            arrowprops={
                "arrowstyle": "-",
                "color": INK,
                "linewidth": 0.8,
                "relpos": (0 if right else 1, 0),
                "shrinkA": 0,
                "shrinkB": 3,
            },
            zorder=9,
        )
        self.axes.add_artist(box)
        self.axes.plot(
            [x], [y], marker="o", markersize=5, color=INK, markeredgecolor="white", markeredgewidth=0.9, zorder=10, clip_on=False
        )
        return packed

    def _limits(self, words: VPacker) -> None:
        """Leave room for the peak's words above everything that is drawn."""
        scene = self.scene
        highest = max(scene.peak_allocated, scene.peak_reserved)
        if self._shows_capacity():
            highest = max(highest, int(scene.capacity or 0))
        height = words.get_window_extent(self._renderer()).height / self.axes.bbox.height
        self.axes.set_ylim(0, max(highest, 1) / GIB / (1 - height - 0.11))

    def _shows_capacity(self) -> bool:
        """Whether the device's line is near enough to what is drawn."""
        capacity = self.scene.capacity
        return capacity is not None and capacity < 1.7 * max(self.scene.peak_reserved, self.scene.peak_allocated)

    def _borders(self) -> None:
        for phase in self._bordered():
            column = int(np.searchsorted(self.scene.at, phase.start, side="right")) - 1
            self.axes.axvline(phase.start, color=FAINT, linewidth=0.6, zorder=0.5)
            self.axes.vlines(phase.start, 0, self.tops[-1, column], color="white", alpha=0.75, linewidth=0.7, zorder=3)

    def _bordered(self) -> list[Phase]:
        """Return the phases whose beginning is drawn: those of the steps alone where all would be too many."""
        phases = [phase for phase, _ in self.scene.phases if phase.start > 0]
        if len(phases) > LINES:
            phases = [b for a, b in pairwise(phases) if a.step != b.step]
        return phases if len(phases) <= LINES else []

    def _lines(self) -> None:
        """Reserved, the device's capacity, and the end of memory."""
        scene, axes = self.scene, self.axes
        axes.step(*self._steps(scene.reserved / GIB), where="post", color=INK, linewidth=1.15, zorder=5)
        if self._shows_capacity() and scene.capacity is not None:
            axes.axhline(scene.capacity / GIB, color=ALARM, linewidth=1.1, linestyle=(0, (5, 3)), zorder=5)
            self._words(f"capacity {gib(scene.capacity)}", 0.003, scene.capacity / GIB, ALARM, "left")
        if scene.tried is not None:
            axes.plot([scene.events], [scene.reserved[-1] / GIB], marker="X", markersize=9, color=ALARM, clip_on=False, zorder=11)
        self._name_reserved()

    def _name_reserved(self) -> None:
        """Name the line of reserved bytes where it ends; not on the peak's mark, nor on the capacity's line."""
        scene, axes = self.scene, self.axes
        text = self._words(f"reserved, {gib(scene.peak_reserved)} at most", 0.997, 0, INK, "right")
        extent = text.get_window_extent(self._renderer())
        width = extent.width / axes.bbox.width
        share = scene.peak / scene.events
        right = 0.997 if share < 0.99 - width else max(share - 0.02, width + 0.003)
        under = (scene.at >= (right - width) * scene.events) & (scene.at <= right * scene.events)
        under[int(np.searchsorted(scene.at, (right - width) * scene.events, side="right")) - 1] = True
        levels = scene.reserved[under] / GIB
        top = float(levels.max())
        letters = 1.9 * extent.height * axes.get_ylim()[1] / axes.bbox.height
        below = self._shows_capacity() and 0 <= (scene.capacity or 0) / GIB - top < letters
        text.xy = (right, float(levels.min()) if below else top)
        if below:
            text.set_position((0, -3.5))
            text.set_verticalalignment("top")

    def _words(self, words: str, share: float, level: float, colour: str, side: Literal["left", "right"]) -> Annotation:
        """Write words above a line; the line's colour says which."""
        return self.axes.annotate(
            words,
            (share, level),
            xycoords=blended_transform_factory(self.axes.transAxes, self.axes.transData),
            xytext=(0, 3.5),
            textcoords="offset points",
            ha=side,
            va="bottom",
            fontsize=8.5,
            color=colour,
            path_effects=[patheffects.withStroke(linewidth=2.6, foreground="white")],
            zorder=8,
        )

    def _bands(self) -> None:
        """Write the names into the areas that have room for them."""
        axes, events = self.axes, self.scene.events
        starts = np.searchsorted(self.scene.at, np.linspace(0, events, COLUMNS, endpoint=False), side="right") - 1
        per_unit = axes.bbox.height / axes.get_ylim()[1]
        bordered = np.zeros(COLUMNS)
        bordered[[p.start * COLUMNS // events for p in self._bordered()]] = 1
        below = np.zeros(self.tops.shape[1])
        for name, top in zip(STACK, self.tops, strict=True):
            low, high = (_over(np.maximum, below, starts) * per_unit, _over(np.minimum, top, starts) * per_unit)
            below = top
            text = axes.text(0, 0, name, fontsize=9.5, ha="center", va="center", zorder=6)
            text.set_color(INK if name in LIGHT else "white")
            extent = text.get_window_extent(self._renderer())
            width = int(extent.width / axes.bbox.width * COLUMNS) + 10
            window = np.lib.stride_tricks.sliding_window_view
            lowest, highest = window(low, width).max(axis=1), window(high, width).min(axis=1)
            room = (highest - lowest) / extent.height
            centres = (np.arange(len(room)) + width / 2) / COLUMNS
            # enough room first, then away from a border, then near the middle
            score = np.minimum(room, 2.5) - 0.4 * window(bordered, width).max(axis=1) - 0.1 * abs(centres - 0.5)
            best = int(score.argmax())
            if room[best] < 1.35:  # letters need air
                text.remove()
                continue
            text.set_position((centres[best] * events, (lowest[best] + highest[best]) / 2 / per_unit))

    def _phases(self) -> None:
        """A strip above the picture: the phases, and over them the steps."""
        axes = self.axes
        strip = blended_transform_factory(axes.transData, axes.transAxes)
        steps: dict[int, list[int]] = {}
        for phase, end in self.scene.phases:
            self._cell(strip, phase.start, end, 1.015, PHASE[phase.name], (phase.name, BRIEF[phase.name]))
            if phase.name != "load":
                steps.setdefault(phase.step, [phase.start, end])[1] = end
        for step, (start, end) in steps.items():
            self._cell(strip, start, end, 1.062, None, (f"step {step}", f"{step}"))

    def _cell(self, strip: Any, start: int, end: int, bottom: float, colour: str | None, names: tuple[str, ...]) -> None:
        """Draw one stretch of the strip with the longest of its names that fits."""
        axes = self.axes
        height = 0.041
        if colour is not None:
            axes.add_patch(
                Rectangle(
                    (start, bottom),
                    end - start,
                    height,
                    transform=strip,
                    clip_on=False,
                    facecolor=colour,
                    edgecolor="white",
                    linewidth=0.7,
                )
            )
        else:
            axes.plot(
                [start, end - 0.002 * self.scene.events],
                [bottom + 0.004] * 2,
                transform=strip,
                clip_on=False,
                color=SOFT,
                linewidth=0.9,
                solid_capstyle="butt",
            )
        width = (end - start) / self.scene.events * axes.bbox.width
        text = axes.text(
            (start + end) / 2,
            bottom + height / 2 + (0 if colour else 0.006),
            "",
            transform=strip,
            ha="center",
            va="center",
            fontsize=8,
            color=INK,
            clip_on=False,
        )
        for name in names:
            text.set_text(name)
            if text.get_window_extent(self._renderer()).width + 6 <= width:
                return
        text.remove()

    def _panel(self) -> None:
        """What the peak is made of, in the order of the areas; it is the key to their colours, too."""
        scene, figure = self.scene, self.figure
        column = int(np.flatnonzero(scene.at == scene.peak)[0])
        left, right, y = 0.822, 0.985, AXES[1] + AXES[3] - 0.004
        line = 0.041
        figure.text(left, y, "At the peak", fontsize=9.5, weight="bold", va="top")
        figure.text(right, y, "GiB", fontsize=8.5, color=SOFT, va="top", ha="right")
        y -= line * 1.25
        for name in reversed(STACK):
            row = scene.levels[CATEGORIES.index(name)]
            if not row.any():
                continue
            size = int(row[column])
            figure.add_artist(
                Rectangle((left, y - 0.0195), 0.0095, 0.0178, transform=figure.transFigure, facecolor=COLOUR[name], linewidth=0)
            )
            figure.text(left + 0.0155, y, name, fontsize=8.5, va="top", color=INK if size else SOFT)
            figure.text(right, y, self._figure(size), fontsize=8.5, va="top", ha="right", color=INK if size else SOFT)
            y -= line
        y -= 0.004
        figure.add_artist(
            mpl.lines.Line2D([left, right], [y + 0.008] * 2, transform=figure.transFigure, color=FAINT, linewidth=0.9)
        )
        totals = [("allocated", scene.peak_allocated), ("reserved", int(scene.reserved[column]))]
        if scene.capacity is not None:
            totals.append(("capacity" if self._shows_capacity() else "capacity (off scale)", int(scene.capacity)))
        for label, size in totals:
            weight = "bold" if label == "allocated" else "normal"
            figure.text(left, y, label, fontsize=8.5, va="top", weight=weight)
            figure.text(right, y, self._figure(size), fontsize=8.5, va="top", ha="right", weight=weight)
            y -= line

    def _figure(self, size: int) -> str:
        """A number of the panel; small ones matter only where all are small."""
        if 0 < size < GIB / 100 <= self.scene.peak_allocated / 50:
            return "< 0.01"
        return gib(size).removesuffix(" GiB")

    def _headline(self) -> None:
        scene = self.scene
        left = AXES[0] - 0.04
        if scene.tried is not None:
            held = gib(int(scene.reserved[-1]))
            words, colour = f"Out of memory: {gib(scene.tried)} more do not fit beside {held} reserved", ALARM
        else:
            words, colour = f"Peak {gib(scene.peak_allocated)} allocated, {gib(scene.peak_reserved)} reserved", INK
            if scene.capacity is not None and scene.peak_reserved > scene.capacity:
                words += ", more than the device holds"
        self.figure.text(left, 0.955, words, fontsize=14.5, weight="bold", va="center", color=colour)
        self.figure.text(left, 0.908, short(scene.title, TITLE), fontsize=9, color=SOFT, va="center")

    def _renderer(self) -> Any:
        canvas = self.figure.canvas
        assert isinstance(canvas, FigureCanvasAgg)  # noqa: S101  # made above
        return canvas.get_renderer()  # type: ignore[no-untyped-call]


@contextmanager
def _drawing() -> Iterator[None]:
    """Draw in our style; a letter that the font lacks becomes a box without a word."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        yield


def _over(function: np.ufunc, values: Floats, starts: Indices) -> Floats:
    """Fold the values of each column with a ufunc; a column begins with the level that it inherits."""
    out = function.reduceat(values, starts)
    out[:-1] = function(out[:-1], values[starts[1:]])  # the level that the next column begins with starts in this one
    return out
