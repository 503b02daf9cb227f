"""Schemas of the YAML files that users edit."""
