"""Files, caches, processes, progress bars, HTML."""
