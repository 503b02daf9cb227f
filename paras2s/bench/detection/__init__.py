"""Detection suites of AudioJudge: one characteristic of speech at a time."""
