"""Choices: what single switch makes a run fit, and how far a run that fits can be stretched.

May import everything below it: catalog, arch, machine, recipe, cost, core. Everything here asks the same
forecast that the caller would ask; no formula lives here.
"""

from foretell.plan.launch import Launch

__all__ = ["Launch"]
