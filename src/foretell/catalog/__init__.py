"""The catalog: facts as data files (models, hardware, systems, grids ...), each number with source and date.

Ground floor: imports errors only. `loader` turns a reference into plain data; the rooms above give it a type.
"""
