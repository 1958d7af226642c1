"""Programs that write the generated parts of the docs: ``python -m docs._generate`` from the project's folder.

Rule 1: the same code gives the same text: no clock, no terminal, no order of a set.
Rule 2: what is generated says so; everything else on a page is left alone.
"""
