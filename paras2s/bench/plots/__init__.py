"""The plots of reports, one file for each kind.

A new kind is a file here with one subclass of `base.Plot`, and an example of it in tests/bench/test_plot_kinds.py.
"""
