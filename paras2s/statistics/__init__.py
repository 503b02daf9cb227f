"""Statistics that all rooms share: figures with 95 % intervals, resampling by cluster, agreement, correlation, tests.

Pure functions of numbers. Values of one cluster (an instruction's pairs, a contrast's answers) are not independent: intervals
and tests draw whole clusters. Alphabet: N values, C clusters, R resamples, L labels, U units.
"""
