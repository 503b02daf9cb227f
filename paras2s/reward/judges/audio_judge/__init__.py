"""Audio judges: an audio model hears the clips and judges them (AudioJudge, StyleSet)."""
