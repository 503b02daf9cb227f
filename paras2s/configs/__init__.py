"""YAML that users edit, and its schemas."""
