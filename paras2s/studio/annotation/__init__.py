"""Blind listening studies with people: forms, studies, clicks, results and their export."""
