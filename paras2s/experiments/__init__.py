"""Renew this project's own pages: results over seeds, the paper's figures in miniature, UniSRM's tables."""
