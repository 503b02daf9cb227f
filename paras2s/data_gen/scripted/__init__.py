"""The demo's dataset, from scripts written by hand."""
