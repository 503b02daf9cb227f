"""AudioJudge: an audio model listens and decides."""
