"""What a log says of a run's memory: why it failed, which term was at fault, what to change, and what a forecast learns of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from foretell.core.forecast import Forecast
from foretell.core.serving import Deployment
from foretell.core.solver._result import plain
from foretell.plan._log_anchor import Anchor, Measured, anchored, measured
from foretell.plan._log_serving import Part, parts, refusal_remedies, refused, serving_findings
from foretell.plan._log_training import cause_of, failure, findings, remedies, short_of
from foretell.plan._log_words import Finding, Remedy, size
from foretell.readers.logs import HostFailure, LogReading, Oom, Refusal

__all__ = ["Anchor", "Explanation", "Finding", "Measured", "Part", "Remedy", "explain"]


@dataclass(frozen=True)
class Explanation:
    """The answer to a log."""

    path: str
    verdict: str
    """died, healthy (memory was measured, nothing failed) or nothing (the log says nothing of memory)."""
    headline: str
    cause: str
    """other-processes, fragmentation, full, limit, request, host, refusal; empty where nothing failed."""
    phase: str
    """Of the failure, as forecasts name it."""
    term: str
    """Term of a forecast's breakdown that failed last; empty where it is not known."""
    tried_bytes: float | None
    short_bytes: float | None
    """Missing for the request that failed: the least that has to be saved."""
    findings: tuple[Finding, ...]
    remedies: tuple[Remedy, ...]
    """Those that are enough first."""
    measured: tuple[Measured, ...]
    anchor: Anchor | None
    """The forecast held against the log."""
    parts: tuple[Part, ...]
    """Of a serving engine's memory."""
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON-able data; sizes in bytes, and the answer as lines of text under ``explanation``."""
        out: dict[str, Any] = {name: plain(getattr(self, name)) for name in self.__dataclass_fields__}
        for made, one in zip(out["measured"], self.measured, strict=True):
            made["ratio"] = one.ratio
        if self.anchor is not None:
            out["anchor"] |= {"ratio": self.anchor.by.ratio, "factor": self.anchor.factor}
        return out | {"explanation": list(self.lines())}

    def lines(self) -> Iterator[str]:
        """Yield the answer as lines of text."""
        yield self.headline
        for finding in self.findings[1:]:
            yield f"  {finding.text}" + (f"  [{self.path}:{finding.line}]" if finding.line is not None else "")
        if self.anchor is not None:
            low, high = self.anchor.interval_bytes
            was = "forecast {} to {}".format(*map(size, self.anchor.before_bytes))
            yield f"  total of a process: {size(self.anchor.total_bytes)} ({size(low)} to {size(high)}; {was}); {self.anchor.how}"
        for remedy in self.remedies:
            saved = "" if remedy.saved_bytes is None else f", {size(remedy.saved_bytes)}"
            enough = {True: " (enough)", False: " (not enough alone)", None: ""}[remedy.enough]
            yield f"  {remedy.change}{f': {remedy.flags}' if remedy.flags else ''}{saved}{enough}"


def explain(
    log: LogReading,
    made: Forecast | Deployment | None = None,
    suggestions: Sequence[Mapping[str, Any]] = (),
) -> Explanation:
    """Explain a log, beside the forecast of the training run, or the deployment, whose log it is.

    ``suggestions``: changes that were tried on the forecast, as ``Suggestion.to_dict`` gives them (else those that it
    carries); each is held against the log.
    """
    forecast = made if isinstance(made, Forecast) else None
    serving = made.capacity if isinstance(made, Deployment) else None
    found = parts(log, serving)
    oom = log.ooms[0] if log.ooms else None
    refusal = log.refusals[0] if log.refusals else _starved(log)
    host = log.hosts[0] if log.hosts else None
    anchor = anchored(log, forecast) if forecast is not None else None
    said: list[Finding] = []
    fixes: list[Remedy] = []
    cause, headline = "", ""
    if oom is not None and (refusal is None or oom.line <= refusal.line):
        cause, headline = cause_of(oom), failure(oom)
        said += findings(oom, log, forecast)
        fixes += remedies(oom, log, forecast)
    elif refusal is not None:
        cause, headline = "refusal", refused(refusal)
        said.append(Finding("refusal", headline, refusal.line, refusal.needed))
        fixes += refusal_remedies(refusal, log)
    elif host is not None:
        cause, headline = "host", _host(host)
        said += _host_findings(host, forecast)
    if cause and cause != "host" and host is not None:
        said.append(Finding("host", _host(host), host.line, host.tried))
    said += serving_findings(log, serving, found)
    if not cause:
        headline = _healthy(log, anchor)
        said.insert(0, Finding("measured", headline))
    if anchor is not None:
        said += _anchor_findings(anchor)
    fixes += _tried(forecast, suggestions, anchor, short_of(oom) if oom is not None else None)
    order = {True: 0, None: 1, False: 2}
    fixes.sort(key=lambda one: (one.cures != cause or not cause, order[one.enough]))
    return Explanation(
        path=log.path,
        verdict="died" if cause else "nothing" if log.empty else "healthy",
        headline=headline,
        cause=cause,
        phase=oom.phase if oom is not None else "",
        term=oom.term if oom is not None else "",
        tried_bytes=oom.tried if oom is not None else None,
        short_bytes=short_of(oom) if oom is not None else None,
        findings=tuple(said),
        remedies=tuple(fixes),
        measured=tuple(measured(log, forecast)) if forecast is not None else (),
        anchor=anchor,
        parts=found,
        notes=(*log.notes, *_more_notes(log, oom)),
    )


def _starved(log: LogReading) -> Refusal | None:
    """Return the refusal that follows from a KV pool of nothing, where the log ends before it."""
    pool = log.figure("kv_pool")
    if pool is None or pool.bytes > 0:
        return None
    return Refusal(pool.line, pool.source, "no-blocks", f"KV pool of {pool.said}")


def _healthy(log: LogReading, anchor: Anchor | None) -> str:
    """Say what a log without a failure shows."""
    pool, tokens = log.figure("kv_pool"), log.count("kv_tokens")
    if pool is not None:
        count = f", {tokens.value:,.0f} tokens" if tokens is not None else ""
        return f"no failure: {pool.source} has a KV pool of {size(pool.bytes)}{count}"
    figure = log.figure("reserved", "allocated", "active", "process", "device")
    if figure is None:
        return "nothing in this log speaks of memory that is known here"
    words = {"device": "in use on the device", "process": "of a process"}
    peak = "at the peak" if figure.moment == "peak" else "at that moment"
    text = f"no failure: {size(figure.bytes)} {words.get(figure.counter, figure.counter)} {peak} ({figure.source})"
    return text if anchor is None else f"{text}, {anchor.by.ratio:.2f} of the {anchor.by.counter} forecast"


def _host(host: HostFailure) -> str:
    """Say how the host failed."""
    asked = f" ({size(host.tried)} were asked for)" if host.tried is not None else ""
    return {
        "allocation": f"the host had no memory left{asked}",
        "killed": "a process was killed: the host (or its container) ran out of memory",
        "shared-memory": "shared memory (/dev/shm) is too small for the data loader's workers",
        "pinned": f"the host had no memory left to pin{asked}",
    }[host.kind]


def _host_findings(host: HostFailure, forecast: Forecast | None) -> Iterator[Finding]:
    yield Finding("host", _host(host), host.line, host.tried)
    need = forecast.host_memory_bytes if forecast is not None else None
    if forecast is not None and need is not None:
        largest = sorted(forecast.host.items(), key=lambda item: -item[1])[:3]
        names = ", ".join(f"{name.replace('_', ' ')} {size(amount)}" for name, amount in largest)
        yield Finding("host", f"the forecast has {size(need)} of host memory in a node: {names}", None, need)


def _anchor_findings(anchor: Anchor) -> Iterator[Finding]:
    by = anchor.by
    least = "at least " if by.bound else ""
    text = f"{by.counter} as {by.source} counts it: {least}{size(by.measured_bytes)}, forecast {size(by.predicted_bytes)}"
    yield Finding("measured", f"{text} (ratio {least}{by.ratio:.3f})", by.line, by.measured_bytes)
    if not anchor.agrees:
        yield Finding("measured", "forecast and log disagree: check what was described against what ran", by.line)


def _tried(
    forecast: Forecast | None, suggestions: Sequence[Mapping[str, Any]], anchor: Anchor | None, short: float | None
) -> Iterator[Remedy]:
    """Yield the changes that a forecast was tried with, each held against the log."""
    factor = 1.0 if anchor is None else anchor.factor
    for row in suggestions or (forecast.suggestions if forecast is not None else ()):
        if row.get("kind") == "relax":
            continue
        total, saved, enough = row["total_bytes"], row["saved_bytes"], bool(row["fits"])
        if forecast is not None and total is not None and saved is not None:
            total, saved = float(total) * factor, float(saved) * factor
            enough = enough and total <= forecast.available_bytes and (short is None or saved >= short)
        yield Remedy(str(row["change"]), str(row["flags"]), saved, enough, str(row["price"]), "forecast", total)


def _more_notes(log: LogReading, oom: Oom | None) -> Iterator[str]:
    """Yield what was left out of the answer."""
    if oom is not None and len(log.ooms) > 1:
        yield f"{len(log.ooms) - 1} further out-of-memory messages follow the first, which is explained"
    if len(log.refusals) > 1:
        yield f"{len(log.refusals) - 1} further refusals to start are not explained"
