"""Discrete-event simulators: a server that batches continuously.  Imports from the rooms up to core; SimPy, when one runs."""
