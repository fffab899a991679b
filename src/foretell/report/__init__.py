"""What people and programs read: one screen of text, one JSON object, and the schemas of the latter.

May import everything below it. A report shows what it was given; it computes nothing.
"""
