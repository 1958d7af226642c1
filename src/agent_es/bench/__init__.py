"""How fast it is here: workloads that need nothing but the library, each against its floor.

Rule: a figure is made by a run of the program, never written by hand; what is judged is a ratio of two sides.
"""
