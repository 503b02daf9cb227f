"""`paras2s convert`: a run folder of version 0.5 or before, rewritten in place for this version.

Config keys, dataset columns and the name of the cascade changed; weights, checkpoints, caches and seeds did not. So a run
that was stopped before goes on after, to the same weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from paras2s.configs.schema.base import dump_config, parse_config
from paras2s.configs.schema.renamed import RENAMED_KEYS
from paras2s.configs.schema.run import RunConfig
from paras2s.data_gen.dataset import convert_tables
from paras2s.errors import ConfigError
from paras2s.run import RESOLVED, flatten
from paras2s.utils.io import read_json, read_jsonl, write_json, write_jsonl, write_text

# Systems of the bench, by the name that the files of version 0.5 have.
RENAMED_SYSTEMS = {"words_only": "cascade"}


def renamed(settings: dict[str, Any]) -> dict[str, Any]:
    """A config's settings under the present names, nested; what has its present name already stays."""
    values: dict[str, Any] = {}
    for key, value in flatten(settings).items():
        *parents, last = _present_name(key).split(".")
        place = values
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    # The synchronous driver was null; it is a staleness of 0 now.
    align = values.get("align", {})
    if align.get("max_staleness", 0) is None:
        align["max_staleness"] = 0
    return values


def _present_name(key: str) -> str:
    """A dotted key's present name; a renamed section takes the keys below it along."""
    for old in sorted(RENAMED_KEYS, key=len, reverse=True):
        if key == old or key.startswith(f"{old}."):
            return RENAMED_KEYS[old] + key.removeprefix(old)
    return key


def convert_run(folder: Path) -> list[str]:
    """Rewrite a run folder, or a curated dataset; returns the files that changed. A converted folder is left as it is.

    Raises:
        ConfigError: no run folder, or a config that even under the present names is none.
        DataError: a table that cannot be read.
    """
    path = folder / RESOLVED
    if (folder / "queries.parquet").is_file():
        return [table.name for table in convert_tables(folder)]
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give the folder of a run, or of a curated dataset")
    before = path.read_text()
    config = parse_config(renamed(yaml.safe_load(before)), str(path), RunConfig)
    changed = []
    if (folder / "data").is_dir():
        changed += [f"data/{table.name}" for table in convert_tables(folder / "data")]
    for bench in ("bench", "bench-validation"):
        changed += _rename_systems(folder / bench)
    # Last, since a folder whose config is converted counts as converted.
    if (after := dump_config(config)) != before:
        write_text(path, after)
        changed.append(RESOLVED)
    return changed


def _rename_systems(bench: Path) -> list[str]:
    changed = []
    for old, new in RENAMED_SYSTEMS.items():
        rows = bench / f"{old}.jsonl"
        if rows.is_file():
            write_jsonl(bench / f"{new}.jsonl", [row | {"system": new} for row in read_jsonl(rows)])
            rows.unlink()
            changed.append(f"{bench.name}/{new}.jsonl")
    summary = bench / "summary.json"
    if changed and summary.is_file():
        write_json(summary, {RENAMED_SYSTEMS.get(name, name): scores for name, scores in read_json(summary).items()})
    return changed
