"""UniSRM, a guest with a house of its own: one reasoning reward model for four speech tasks, from its data to its benchmark.

Its rooms have the order of the package's: `reward`, then `data_gen` and `bench`, then `pipeline`.
"""
