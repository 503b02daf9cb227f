"""`paras2s convert`: a run folder of version 0.5 or before, rewritten in place for this version.

Config keys, dataset columns and the name of the cascade changed; weights, checkpoints, caches and seeds did not. So a run
that was stopped before goes on after, to the same weights.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from paras2s.configs.schema.base import dump_config, parse_config
from paras2s.configs.schema.renamed import RENAMED_KEYS
from paras2s.configs.schema.run import RunConfig
from paras2s.data_gen.dataset import convert_tables
from paras2s.errors import ConfigError
from paras2s.run import RESOLVED
from paras2s.utils.io import read_json, read_jsonl, write_json, write_jsonl, write_text

# Systems of the bench, by the name that the files of version 0.5 have.
RENAMED_SYSTEMS = {"words_only": "cascade"}


def renamed(settings: dict[str, Any]) -> dict[str, Any]:
    """A config's settings under the present names; what has its present name already stays."""
    values = copy.deepcopy(settings)
    for old, new in RENAMED_KEYS.items():
        section, key = _section(values, old)
        if section is not None and key in section:
            value = section.pop(key)
            target, name = _section(values, new, make=True)
            assert target is not None
            # A role's reservation joins its count, which may be there already.
            target[name] = {**target[name], **value} if isinstance(target.get(name), dict) else value
    align = values.get("align") or {}
    # The synchronous driver was null; it is a staleness of 0 now.
    if align.get("max_staleness", 0) is None:
        align["max_staleness"] = 0
    return values


def _section(values: dict[str, Any], dotted: str, make: bool = False) -> tuple[dict[str, Any] | None, str]:
    """The section that holds a dotted key, None where there is none, and the key's own name."""
    *parents, key = dotted.split(".")
    place: Any = values
    for parent in parents:
        if make:
            place = place.setdefault(parent, {})
        elif not isinstance(place := place.get(parent), dict):
            return None, key
    return place, key


def convert_run(folder: Path) -> list[str]:
    """Rewrite a run folder, a folder of runs, or a curated dataset; returns the files that changed.

    A converted folder is left as it is.

    Raises:
        ConfigError: no run folder, or a config that even under the present names is none.
        DataError: a table that cannot be read.
    """
    path = folder / RESOLVED
    if (folder / "queries.parquet").is_file():
        return [table.name for table in convert_tables(folder)]
    runs = sorted({one.parent for one in folder.glob(f"**/{RESOLVED}")}) if not path.is_file() else []
    if runs:
        # A folder of runs, such as an ablation's; their shared stages are links to one place.
        return [f"{run.relative_to(folder)}/{name}" for run in runs for name in convert_run(run)]
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
