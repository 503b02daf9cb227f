"""UniSRM's data: the embedded edition of its four tasks, made on this machine by construction and measurement."""
