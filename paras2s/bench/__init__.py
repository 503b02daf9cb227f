"""Benchmarks: of systems that answer spoken questions, and of the judges that score them."""
