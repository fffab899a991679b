"""Random pipelines, as any schedule takes them."""

from __future__ import annotations

from hypothesis import strategies as st

from foretell.cost.schedule_inputs import SCHEDULES, Pipeline, pipeline

__all__ = ["SCHEDULES", "pipelines"]


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Up to six ranks (and chunks) of unlike speed, and a count of micro-batches that the schedule can run."""
    schedule = draw(st.sampled_from(SCHEDULES))
    pp, m, vpp = draw(st.integers(1, 6)), draw(st.integers(1, 40)), 1
    if schedule == "interleaved-1f1b":
        vpp, m = draw(st.integers(1, 3)), pp * (1 + m // pp)
    elif schedule == "zb-v":
        vpp = 2
    elif schedule == "dualpipe":
        pp += pp % 2
        m = 2 * (pp + m)
    row = st.lists(st.floats(0.5, 2.0), min_size=vpp, max_size=vpp)
    rows = st.lists(row, min_size=pp, max_size=pp)
    return pipeline(
        schedule,
        draw(rows),
        draw(rows),
        draw(rows),
        micro_batches=m,
        p2p=draw(st.floats(0, 0.3)),
        exposed=draw(st.floats(0, 1)),
    )
