"""Queries and demonstrations at scale: written and tested by an LLM, spoken, filtered, split (ParaS2S, section 3.1)."""
