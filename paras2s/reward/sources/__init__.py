"""Where a reward may come from: each source scores groups of answers from 1 to 5, and `panel` makes one reward of them."""
