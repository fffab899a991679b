"""Logs of runs: what ran out of memory and where, and what was measured, each with its line.

``read_log_text`` takes the text of a file or a pipe of any size, ``read_log`` reads it.  Nothing of a log is executed, and no log
is too strange: what is not understood is left out.  May import: errors, units.
"""

from foretell.readers.logs._log import Count, Figure, Frame, HostFailure, LogReading, Oom, Process, Refusal, Retry, Told
from foretell.readers.logs._read import read_log, read_log_text

__all__ = [
    "Count",
    "Figure",
    "Frame",
    "HostFailure",
    "LogReading",
    "Oom",
    "Process",
    "Refusal",
    "Retry",
    "Told",
    "read_log",
    "read_log_text",
]
