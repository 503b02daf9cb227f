"""Published data sets as UniSRM items: one file a layout, each with the layout that it reads in its docstring."""
