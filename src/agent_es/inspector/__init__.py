"""A local page on a store: its runs, one run at any moment, what waits for a person, and a lab to crash runs in."""
