"""One program for each system that is compared: all do the same work, as ``process.py`` says."""
