"""Answers: validate what was asked, fold it, give a typed result.  No formula lives here.

May import: everything below (cost, operations, recipe, arch, machine, catalog and the leaf modules).
"""
