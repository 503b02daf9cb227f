"""Speech-to-speech policies: the interface, a folder for each family, and the contract they keep."""
