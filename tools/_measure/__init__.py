"""Measures the memory of training runs on a GPU, and compares what was measured with what foretell says.

What measures imports torch and the standard library alone; only the comparison imports foretell.
"""
