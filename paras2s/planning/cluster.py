"""Inputs of a plan: a cluster, its devices' rates, and facts about policies and rewards that no run's config holds.

Every number that is not a count or a switch is a `Figure`: its value, where it is from, and a note. `paras2s plan` lists
those it used. Two kinds of device: `peak`, a data sheet's rates and the shares of them that programs reach; `measured`,
the rates of each kind of work by itself, as `benchmarks/plan_check.py` measures them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from paras2s.configs.schema.align import AlignConfig
from paras2s.configs.schema.base import Section, parse_config
from paras2s.configs.schema.run import PolicyConfig
from paras2s.errors import ConfigError
from paras2s.utils.io import read_yaml
from paras2s.utils.suggest import did_you_mean

CLUSTERS = "configs/clusters"


class Figure(Section):
    """A number and where it is from: measured here, published by others, or assumed by us."""

    value: float
    origin: Literal["measured", "published", "assumed"]
    note: str = Field(min_length=1, description="measurement, publication, or reason for the assumption")


class PeakDevice(Section):
    """A data sheet's rates, and the shares of them that are reached. The shares cover whatever is not a product."""

    kind: Literal["peak"]
    memory_gib: Figure
    peak_tflops: Figure = Field(description="dense, in the dtype trained in")
    memory_gb_s: Figure
    train_share: Figure = Field(description="share of peak_tflops while learning, work done twice counted twice")
    read_share: Figure = Field(description="share of peak_tflops while prompts are read and answers are judged")
    decode_share: Figure = Field(description="share of peak_tflops in the products of a decoded step")
    speak_share: Figure = Field(description="share of peak_tflops while answers are spoken")
    memory_share: Figure = Field(description="share of memory_gb_s in a decoded step")
    step_overhead_ms: Figure = Field(description="overhead of a decoded step: launches, the draw, the host")
    host_gb_s: Figure | None = Field(None, description="rate from page-locked host memory; null: not counted")
    context_gib: Figure | None = Field(None, description="a process's context and its libraries' workspaces; null: none")
    recorded_launch_kib: Figure | None = Field(
        None, description="memory of a launch in a recorded step; null: steps are not recorded"
    )


class MeasuredDevice(Section):
    """Rates of each kind of work by itself; the times add up, since nothing here overlaps."""

    kind: Literal["measured"]
    memory_gib: Figure
    product_gflops: Figure = Field(description="speed of a linear layer over many rows")
    weight_gb_s: Figure = Field(description="rate at which a linear layer reads its weights, for any number of rows")
    attention_gflops: Figure = Field(description="speed of masked attention over full sequences")
    cache_gb_s: Figure = Field(description="keys and values read for one new position")
    vector_gb_s: Figure = Field(description="bytes by cost.py's count through norms, rotations, gates and sums")
    backward_gb_s: Figure = Field(description="vector_gb_s of the backward pass")
    stream_gb_s: Figure = Field(description="read and written by a copy of something large")
    drawn_mlogits_s: Figure = Field(description="millions of logits a second from which tokens are drawn")
    scored_mlogits_s: Figure = Field(description="millions of logits a second for looking up one of each row")
    launch_us: Figure = Field(description="time of one small operation")


Device = Annotated[PeakDevice | MeasuredDevice, Field(discriminator="kind")]


class Driver(Section):
    """When rollouts may start: `sync`, with the newest weights; `async`, with weights up to `max_staleness` steps older."""

    kind: Literal["sync", "async"] = "sync"
    max_staleness: int = Field(0, ge=0)

    @model_validator(mode="after")
    def _agree(self) -> Driver:
        if (self.max_staleness > 0) != (self.kind == "async"):
            raise ValueError("sync means a max_staleness of 0, async one of at least 1")
        return self


class Roles(Section):
    """Assignment of roles to devices. `colocated`: every device does everything in turn; `apart`: n devices each."""

    layout: Literal["colocated", "apart"] = "colocated"
    rollout: int = Field(0, ge=0)
    speak: int = Field(
        0, ge=0, description="make answers' sound while others are sampled; 0: the rollout devices do, at the end"
    )
    learner: int = Field(0, ge=0)
    reward: int = Field(0, ge=0, description="0: rewards come from elsewhere, or from the rollout devices")


class Engine(Section):
    """The sampling engine. `continuous`: a finished answer's row is taken by the next; `static`: a batch lasts its longest."""

    batching: Literal["continuous", "static"] = "continuous"
    rows: int = Field(256, ge=1, description="answers under way on one device")
    leave_share: float = Field(0.0, ge=0, lt=1, description="share of rows that must have ended before they leave together")
    dtype_bytes: Literal[2, 4] = 2


class LearnerPlan(Section):
    """Settings of the learner; the run's config overrides them (see `override_by_run`)."""

    trainable: Literal["full", "lora"] = "full"
    lora_rank: int = Field(16, ge=1)
    weight_bytes: Literal[2, 4] = Field(2, description="bytes of a weight in products; trained weights have 4 more")
    gradient_bytes: Literal[2, 4] = 4
    checkpointing: bool = Field(True, description="activations of one layer at a time, computed again in the backward pass")
    rows: int | None = Field(8, ge=1, description="answers in memory at once on a device; null: all of a step")
    chunk_rows: int | None = Field(None, ge=1, description="answers that go through together; null: as many as rows")
    logits_at_once: int | None = Field(2**25, ge=1, description="more are made in parts; null: all at once")
    shard_over: int = Field(1, ge=1, description="devices that share one copy of weights and optimiser (FSDP)")
    gather: Literal["step", "layer"] = Field(
        "step", description="step: full weights and gradients while learning; layer: one after another (train/fsdp.py)"
    )


class Judging(Section):
    """Settings of scoring."""

    streaming: bool = Field(False, description="an answer is scored when it ends, not when the last one of its step does")
    concurrency: int | None = Field(None, ge=1, description="calls under way at once; null: as the judge's config says")


class Cluster(Section):
    """Machines and their use."""

    name: str
    device: str | Device = Field(description="a device of rates.yaml, or its rates")
    devices: int = Field(ge=1)
    devices_per_node: int = Field(1, ge=1)
    link_gb_s: Figure = Field(description="one way, a device, within a node")
    network_gb_s: Figure = Field(description="one way, a device, between nodes")
    link_share: Figure = Field(description="share of either rate that collectives reach")
    transport_gb_s: Figure | None = Field(None, description="rate of new weights from learner to rollout; null: by the links")
    reserve_gib: Figure = Field(description="a device's memory that is not ours: context, buffers, fragments")
    usd_per_device_hour: Figure
    driver: Driver = Driver()
    roles: Roles = Roles()
    engine: Engine = Engine()
    learner: LearnerPlan = LearnerPlan()
    judging: Judging = Judging()

    @property
    def rates(self) -> PeakDevice | MeasuredDevice:
        """Rates of the device; `load_cluster` has put them in place of its name."""
        if isinstance(self.device, str):
            raise ConfigError(f"{self.name}: the rates of {self.device!r} have not been looked up")
        return self.device

    def count(self, role: Literal["rollout", "speak", "learner", "reward"]) -> int:
        """Return the number of devices of a role; 0 for `speak`: rollout devices do its work."""
        every = self.roles.layout == "colocated" and role != "speak"
        return self.devices if every else getattr(self.roles, role)


class Encoder(Section):
    """A frozen network beside the policy, such as the question's audio encoder."""

    parameters: Figure
    positions: Figure = Field(description="positions per question")
    held_gib: Figure = Field(description="weights of all encoders of a question, in their stored precisions")


class VocoderFacts(Section):
    """The vocoder that turns audio tokens into sound."""

    held_gib: Figure = Field(description="memory of its weights, in their stored precisions")
    gflop_per_s: Figure = Field(description="work per second of sound")
    state_gib: Figure | None = Field(None, description="keys and values of the answers spoken at once, on a device")


class PolicyFacts(Section):
    """Facts about a policy beside its sizes, and the sizes where a run names it by its kind alone."""

    kind: str | None = Field(None, description="kind, as in the run's policy.kind")
    memory_only: bool = Field(False, description="no dual-stream decoder: `align --meta` counts it, and no plan its seconds")
    sizes: dict[str, int] = Field({}, description="sizes of PolicyConfig; {}: any")
    text_vocab: int | None = Field(None, description="null: the run's word pieces and `special_ids`")
    special_ids: int = 0
    codebook_sizes: tuple[int, ...]
    masked: bool = Field(description="only ids that mean something in a stream are scored there")
    continuous_dim: int
    prompt_steps_per_s: Figure | None = Field(None, description="rate of a question's positions; null: an answer's")
    steps_per_s: Figure
    question_s: Figure
    prompt_extra_steps: int = Field(description="steps of a prompt, beside its speech")
    answer_s: Figure
    answer_spread: Figure = Field(description="lengths are drawn evenly from the mean less this share to the mean more it")
    text_steps_per_s: Figure = Field(description="tokens of text, a second of answer")
    longest_answer_s: Figure = Field(description="longest answer, unless the run's config sets policy.max_answer_steps")
    audio_encoder: Encoder | None = None
    speaking: VocoderFacts | None = None


class RewardFacts(Section):
    """Cost of scoring an answer: a worker's processor, a network on devices, or a call of an endpoint."""

    seconds: Figure | None = Field(None, description="processor time of a worker, per answer")
    seconds_per_s: Figure | None = Field(None, description="processor time of a worker, per second of answer")
    parameters: Figure | None = Field(
        None, description="parameters that every position passes through; null: no network on a device"
    )
    positions_per_s: Figure | None = Field(None, description="positions of question and answer per second")
    prompt_positions: Figure | None = None
    held_gib: Figure | None = Field(None, description="weights of a reward worker on its device; null: none")
    position_bytes: Figure | None = Field(None, description="activations of a layer, per position while answers are scored")
    batch_size: Figure | None = Field(None, description="answers scored at once")
    encoder_parameters: Figure | None = None
    encoder_positions_per_s: Figure | None = None
    tokens_in: Figure | None = Field(None, description="text tokens of a call, null: no call")
    tokens_out: Figure | None = None
    latency_s: Figure | None = None


class Rates(Section):
    """The shipped table `planning/rates.yaml`, or a user's."""

    devices: dict[str, Device]
    policies: dict[str, PolicyFacts]
    rewards: dict[str, RewardFacts]


def load_rates(path: Path | None = None) -> Rates:
    """Load the shipped rates, or a user's file. Raises ConfigError: missing, not YAML, unknown key, bad value."""
    source = path or resources.files("paras2s.planning").joinpath("rates.yaml")
    return parse_config(read_yaml(source, "not a table of rates"), str(source), Rates)


def cluster_path(name: str) -> Path:
    """Return the path of a YAML file, or of a shipped cluster by its name. Raises ConfigError: no such cluster."""
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    folder = Path(str(resources.files("paras2s"))) / CLUSTERS
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = sorted(path.stem for path in folder.glob("*.yaml"))
        raise ConfigError(f"no cluster {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}; or give a YAML file")
    return path


def load_cluster(name: str, rates: Rates, overrides: dict[str, Any] | None = None) -> Cluster:
    """Load a cluster with its device's rates and dotted overrides. Raises ConfigError: names the key, device or role."""
    path = cluster_path(name)
    values = read_yaml(path, "not a cluster")
    for dotted, value in (overrides or {}).items():
        *parents, key = dotted.split(".")
        device = values.get("device") if isinstance(values, dict) else None
        if parents[:1] == ["device"] and isinstance(device, str) and device in rates.devices:
            # To change one of its rates, its rates must be there.
            values["device"] = rates.devices[device].model_dump()
        section = values
        for parent in parents:
            section = section.setdefault(parent, {}) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            raise ConfigError(f"{dotted}: leads through a value, not a section")
        section[key] = value
    return check_cluster(parse_config(values, str(path), Cluster), rates)


def check_cluster(cluster: Cluster, rates: Rates) -> Cluster:
    """Validate a cluster and fill in its device's rates. Raises ConfigError: an unknown device, or wrong roles or shards."""
    if isinstance(cluster.device, str):
        if cluster.device not in rates.devices:
            raise ConfigError(f"{cluster.name}: no device {cluster.device!r}; there are {', '.join(sorted(rates.devices))}")
        cluster = cluster.model_copy(update={"device": rates.devices[cluster.device]})
    roles = cluster.roles
    assigned = roles.rollout + roles.speak + roles.learner + roles.reward
    if roles.layout == "colocated" and assigned:
        raise ConfigError(f"{cluster.name}: roles.layout colocated gives every role every device; leave the counts out")
    if roles.layout == "apart" and (assigned != cluster.devices or not roles.rollout or not roles.learner):
        raise ConfigError(
            f"{cluster.name}: {roles.rollout} + {roles.speak} + {roles.learner} + {roles.reward} devices in roles, "
            f"{cluster.devices} there; "
            "rollout and learner need at least one each"
        )
    shards, learners = cluster.learner.shard_over, cluster.count("learner")
    if learners % shards:
        raise ConfigError(f"{cluster.name}: learner.shard_over {shards} does not divide the {learners} devices that learn")
    return cluster


@dataclass(frozen=True)
class KnownPolicy:
    """A row of the rates, and the sizes that go with it."""

    name: str
    facts: PolicyFacts
    sizes: PolicyConfig


def policy_facts(rates: Rates, config: PolicyConfig, name: str | None = None, memory_only: bool = False) -> KnownPolicy:
    """Find facts by a given name, else by the run's policy.kind, else the first whose sizes are the run's.

    Raises:
        ConfigError: no such name or kind, released weights whose kind the config does not name, or facts that tell no seconds
            unless they are for `memory_only`.
    """
    found_by_kind = name is None and config.kind is not None
    if found_by_kind:
        name = next((row for row, facts in rates.policies.items() if facts.kind == config.kind), config.kind)
    elif name is None and config.weights is not None:
        raise ConfigError(f"policy.weights: {config.weights} is not opened; name its family by --policy or policy.kind")
    if name is not None:
        if name not in rates.policies:
            raise ConfigError(f"no policy {name!r} in the rates; there are {', '.join(rates.policies)}")
        facts = rates.policies[name]
        if facts.memory_only and not memory_only:
            raise ConfigError(f"no plan of {name}'s seconds; `paras2s align CONFIG --meta` counts its memory")
        # A name that was asked for brings its sizes; where the run's kind led here, sizes that the run sets stay.
        kept = config.model_fields_set if found_by_kind else set()
        sizes = {key: value for key, value in facts.sizes.items() if key not in kept}
        return KnownPolicy(name, facts, config.model_copy(update=sizes))
    for row, facts in rates.policies.items():
        if all(getattr(config, key) == value for key, value in facts.sizes.items()):
            return KnownPolicy(row, facts, config)
    raise ConfigError("no policy in the rates has the sizes of policy.hidden_size and the like")


def override_by_run(cluster: Cluster, align: AlignConfig) -> Cluster:
    """Lay the run's learner and driver settings over the cluster's; devices and roles stay the cluster's."""
    changed: dict[str, Any] = {}
    if "lora" in align.model_fields_set:
        changed["trainable"] = "full" if align.lora is None else "lora"
        if align.lora is not None:
            changed["lora_rank"] = align.lora.rank
    optimizer = align.optimizer
    if "mixed_precision" in optimizer.model_fields_set:
        if optimizer.mixed_precision:
            changed["weight_bytes"] = 2
        elif changed.get("trainable", cluster.learner.trainable) == "full":
            # Weights that are trained are float32; those beneath adapters stay as they are stored.
            changed["weight_bytes"] = 4
    if "micro_batch_size" in optimizer.model_fields_set:
        changed["rows"] = optimizer.micro_batch_size
    if "gradient_checkpointing" in optimizer.model_fields_set:
        changed["checkpointing"] = optimizer.gradient_checkpointing
    if "gather" in align.workers.learner.model_fields_set:
        changed["gather"] = align.workers.learner.gather
    driver = cluster.driver
    if "max_staleness" in align.model_fields_set:
        driver = Driver(kind="async", max_staleness=align.max_staleness) if align.max_staleness else Driver()
    return cluster.model_copy(update={"learner": cluster.learner.model_copy(update=changed), "driver": driver})


def figures(value: Any, name: str = "") -> Iterator[tuple[str, Figure]]:
    """List all figures below a section, with their dotted names."""
    if isinstance(value, Figure):
        yield name, value
    elif isinstance(value, BaseModel):
        for key in type(value).model_fields:
            yield from figures(getattr(value, key), f"{name}.{key}" if name else key)
