"""Find the config of `paras2s data`: a run's or a curation's."""

from __future__ import annotations

import os
from pathlib import Path

from paras2s.errors import ConfigError
from paras2s.utils.io import read_yaml


def which_config(config: Path) -> tuple[Path, bool]:
    """Return the file of a config, by name or path, and whether its `kind` is curation. Raises ConfigError: no such preset."""
    from paras2s.configs.schema.base import preset_path, shipped_presets

    if (config / "config.resolved.yaml").is_file() and str(config) not in shipped_presets():
        return config, False
    if config.suffix in (".yaml", ".yml"):
        # Where there is no file, loading it says so.
        values = read_yaml(config) if os.path.isfile(config) else None
        return config, isinstance(values, dict) and values.get("kind") == "curation"
    try:
        return preset_path(str(config)), False
    except ConfigError as error:
        try:
            return preset_path(str(config), "data"), True
        except ConfigError as no_curation:
            raise ConfigError(f"{error}; for curation, {str(no_curation).rpartition('; ')[2]}") from None
