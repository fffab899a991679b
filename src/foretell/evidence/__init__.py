"""Measured rows: replay them through the solvers, report the errors, calibrate intervals.

May import everything below it: catalog, arch, machine, recipe, cost, core.
"""
