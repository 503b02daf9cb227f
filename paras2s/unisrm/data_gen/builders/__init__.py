"""Builders of UniSRM-Data: pairs from LibriTTS-R (T1), ESD (T3) and DailyTalk (T4), made, spoken, judged and filtered."""
