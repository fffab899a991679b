"""Which temporary storages are activations: what a forward pass leaves for the backward pass that follows it."""

from __future__ import annotations

from foretell.trace.events import Phase, Recording

__all__ = ["classify"]


def classify(recording: Recording) -> None:
    """Turn the temporary storages that live from a forward phase into a later backward phase into activations, in place.

    A storage counts where it was made in a forward phase and is freed in the next backward phase, after it, or never: it was
    there when the backward pass began.  What autograd did not save but the caller still held (logits, the loss) counts too.

    What a checkpoint computes again in the backward phase is made there, and stays temporary; so does what a forward pass
    frees itself, or keeps when no backward pass follows (evaluation).
    """
    phases = recording.phases
    following = _next_backward(phases)
    of_event = recording.phase_of()
    freed: dict[int, int] = {}
    for at, entry in enumerate(recording.order):
        if entry < 0:
            freed[~entry] = of_event[at]
    for index, at in recording.asked.items():  # given up before it was free
        if at < len(of_event):
            freed[index] = of_event[at]
        else:
            freed.pop(index, None)
    for index, storage in enumerate(recording.storages):
        backward = following[storage.phase]
        if storage.category != "temporary" or backward is None:
            continue
        end = freed.get(index)
        if phases[storage.phase].name == "forward" and (end is None or end >= backward):
            storage.category = "activation"


def _next_backward(phases: list[Phase]) -> list[int | None]:
    """Return, for each phase, the next backward phase that works on what it made: none where another forward comes first."""
    out: list[int | None] = [None] * len(phases)
    coming: int | None = None
    for i in range(len(phases) - 1, -1, -1):
        out[i] = coming
        if phases[i].name == "backward":
            coming = i
        elif phases[i].name == "forward":
            coming = None
    return out
