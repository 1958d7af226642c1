"""Bridges to what agents are written with: a package for each, which nobody imports who does not ask for it."""
