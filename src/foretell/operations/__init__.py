"""The run as a business: queues of requests now, then failures, money and carbon.

May import: errors, units, dtypes, validation, catalog, arch, machine, recipe, cost.
"""
