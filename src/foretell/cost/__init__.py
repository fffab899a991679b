"""The folds over operators: memory now, time later.

May import: errors, units, dtypes, validation, catalog, arch, machine, recipe.
"""
