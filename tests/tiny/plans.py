"""A tiny policy's sizes, a device and a cluster in round figures, and the plan of the paper's Kimi run."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from paras2s.configs.schema.run import load_config
from paras2s.planning.cluster import Cluster, Figure, PeakDevice, load_cluster, load_rates, policy_facts
from paras2s.planning.cost import PolicySizes
from paras2s.planning.simulate import make_plan

SHIPPED = sorted((Path(str(resources.files("paras2s"))) / "configs" / "clusters").glob("*.yaml"))
KIMI_CONFIG = Path(str(resources.files("paras2s"))) / "configs" / "kimi_paper.yaml"
RATES = load_rates()
# Two shared layers, one more in each branch; d = 4, f = 6, j = 2, V = 10.
TINY = PolicySizes(
    hidden=4, intermediate=6, layers=3, tap=1, heads=2, kv_heads=1, vocab=10, text_rows=5, audio_rows=7, codebooks=1,
    continuous=3,
)  # fmt: skip


def figure(value: float) -> Figure:
    return Figure(value=value, origin="assumed", note="for a test")


def device(**changes: float) -> PeakDevice:
    """1 TFLOP/s and 1 GB/s, all of it reached; nothing besides."""
    values = {
        "memory_gib": 80.0, "peak_tflops": 1.0, "memory_gb_s": 1.0, "train_share": 1.0, "read_share": 1.0, "decode_share": 1.0,
        "speak_share": 1.0,
        "memory_share": 1.0, "step_overhead_ms": 0.0,
    }  # fmt: skip
    return PeakDevice(kind="peak", **{name: figure(value) for name, value in (values | changes).items()})


def cluster(**changes: Any) -> Cluster:
    values: dict[str, Any] = {
        "name": "test", "device": device(), "devices": 1, "link_gb_s": figure(100), "network_gb_s": figure(10),
        "link_share": figure(0.5), "reserve_gib": figure(0), "usd_per_device_hour": figure(2),
    }  # fmt: skip
    return Cluster(**(values | changes))


def kimi_plan(**options: Any) -> Any:
    config = load_config(KIMI_CONFIG, options.pop("overrides", None))
    machines = load_cluster(options.pop("cluster", "h100x8"), RATES, options.pop("changes", None))
    return make_plan(config, machines, RATES, policy_facts(RATES, config.policy), **options)
