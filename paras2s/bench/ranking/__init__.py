"""Systems ranked by verdicts on pairs (AudioJudge)."""
