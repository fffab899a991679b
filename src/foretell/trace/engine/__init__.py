"""The only rooms that import torch: they run one training step on fake tensors and record every storage's life.

They run in a process of their own (``worker``), because a CPU build of torch is taught to take the CUDA code paths by changes
that hold for a whole process.
"""
