"""UniSRM's two trainers on a tiny random thinker of the true class.

Not covered: what seven billion parameters learn, several devices, and generation by vLLM.
"""

import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from tiny.unisrm import short_prompts, tiny_items, tiny_unisrm

pytest.importorskip("trl", reason="training is with trl==1.16.0")

from paras2s.configs.schema.align import ObjectiveConfig
from paras2s.configs.schema.unisrm import SftConfig, ThinkerConfig, UniSRMConfig, UniSRMGrpoConfig
from paras2s.errors import ConfigError, DataError, JudgeError
from paras2s.train.losses import LogProbBatch, grpo_loss
from paras2s.unisrm.reward.audio_check import audio_gaps, check_audio
from paras2s.unisrm.reward.grpo_trainer import RewardTerms, UniSRMGrpoTrainer
from paras2s.unisrm.reward.items import read_items
from paras2s.unisrm.reward.labels_alone import labels_alone
from paras2s.unisrm.reward.messages import SILENCE
from paras2s.unisrm.reward.reply import ParseFailure, write_reply
from paras2s.unisrm.reward.tasks import PairRecord, QualityRecord
from paras2s.unisrm.reward.thinker import ItemEncoder, UniSRM
from paras2s.unisrm.reward.train import Kind, SftCollator, make_grpo_trainer, sft_examples, train_grpo, train_sft, trainable
from paras2s.utils.io import read_jsonl

GRPO = UniSRMGrpoConfig(
    lr=1e-3, batch_size=4, micro_batch_size=4, group_size=2, max_steps=2, max_completion_tokens=4, kl_weight=0.04
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def data(tmp_path):
    return tmp_path, tiny_items(tmp_path), short_prompts(tmp_path)


def saved(folder, prompts, **settings):
    """A model as SFT leaves it: on disk, where the KL reference is read from."""
    model = tiny_unisrm(prompts=prompts, **settings)
    model.prepare_training()
    if model.config.trains != "adapters":
        model.save(folder / "sft")
        model.thinker.config._name_or_path = str(folder / "sft")
    return model


def trainer_of(folder, items, prompts, kind="all", config=GRPO):
    return make_grpo_trainer(saved(folder, prompts, trains=kind), folder, items, config, folder / "grpo")


@pytest.mark.parametrize("kind", ["all", "language_model", "adapters"])
def test_trained_weights_are_float32_whatever_they_were_read_in(data, kind):
    folder, items, prompts = data
    model = tiny_unisrm(prompts=prompts, trains=kind)
    model.thinker.to(torch.bfloat16)
    model.prepare_training()
    learned = {name: parameter for name, parameter in model.thinker.named_parameters() if parameter.requires_grad}
    assert {parameter.dtype for parameter in learned.values()} == {torch.float32}
    batch = SftCollator(model, folder, items)([{"number": 0, "kind": 0}])
    loss = model.thinker(**{name: value for name, value in batch.items() if name != "labels"}).logits.float().mean()
    loss.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in learned.values() if parameter.grad is not None)


# Items and inputs.


def test_items_are_read_as_written(data):
    folder, items, _ = data
    assert read_items(folder) == items
    assert read_items(folder, ["bench"]) == []
    rows = [json.loads(line) for line in (folder / "items.jsonl").read_text().splitlines()]
    del rows[1]["clips"]["speech"]
    (folder / "items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises((DataError, JudgeError), match="T2"):
        read_items(folder)


def test_labels_cover_the_reply_alone(data):
    folder, items, prompts = data
    model = tiny_unisrm(prompts=prompts)
    batch = SftCollator(model, folder, items)([{"number": 0, "kind": 0}, {"number": 1, "kind": 0}])
    for row, item in enumerate(items[:2]):
        labels = batch["labels"][row]
        learned = labels[labels != -100]
        assert model.text_of(learned.tolist()) == write_reply(item.task, item.record)
        assert learned[-1] == model.end_id
        assert (batch["input_ids"][row][labels != -100] == learned).all()
    assert batch["input_features"].shape[0] == 3 + 1


def test_a_share_of_the_items_is_learned_with_silence_too(data):
    folder, items, prompts = data
    model = tiny_unisrm(prompts=prompts)
    collate = SftCollator(model, folder, items)
    chosen = sft_examples(40, 0.1, seed=0)
    assert chosen["number"][:40] == list(range(40))
    assert len(set(chosen["number"][40:])) == 4
    assert chosen["kind"] == [Kind.REPLY] * 40 + [Kind.SILENT] * 4
    assert sft_examples(40, 0.1, seed=1) != chosen
    assert sft_examples(3, 0.0, seed=0) == {"number": [0, 1, 2], "kind": [Kind.REPLY] * 3}
    own, silent = (collate([{"number": 1, "kind": kind}]) for kind in (Kind.REPLY, Kind.SILENT))
    labels = [one["labels"][one["labels"] != -100].tolist() for one in (own, silent)]
    assert labels[0] == labels[1]
    assert torch.equal(silent["input_features"][0], model.features_of("silence", SILENCE))
    assert not torch.equal(own["input_features"], silent["input_features"])


def test_a_batch_gives_each_item_its_own_log_probs(data):
    folder, items, prompts = data
    model = tiny_unisrm(prompts=prompts)
    encoder = ItemEncoder(model, folder, items)
    with torch.no_grad():
        together = model.thinker(**model.batch([encoder[0], encoder[3]])).logits[:, -1]
        alone = [model.thinker(**model.batch([encoder[number]])).logits[0, -1] for number in (0, 3)]
    torch.testing.assert_close(together, torch.stack(alone), atol=1e-4, rtol=0)


@pytest.mark.parametrize("too_long", ["refuse", "cut"])
def test_a_clip_beyond_the_window_is_refused_or_cut(data, too_long):
    folder, items, prompts = data
    model = tiny_unisrm(prompts=prompts, max_audio_s=0.2, too_long=too_long)
    encoder = ItemEncoder(model, folder, items)
    if too_long == "refuse":
        with pytest.raises(JudgeError, match=r"at most 0.2 s"):
            encoder[1]
    else:
        assert [clip.shape for clip in encoder[1].clips] == [(128, 20)]


@pytest.fixture
def scored_tokens(monkeypatch):
    """The number of tokens that each call of TRL's LM head scores."""
    from trl.trainer import utils

    seen, head = [], utils._ChunkedLogProbFunction

    class Counted:
        @staticmethod
        def apply(hidden, *others):
            seen.append(len(hidden))
            return head.apply(hidden, *others)

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", Counted)
    return seen


def test_tokens_without_a_label_are_not_scored_and_loss_and_gradients_are_the_same(data, scored_tokens):
    from trl.trainer.utils import add_fused_lm_head

    folder, items, prompts = data
    model = tiny_unisrm(prompts=prompts)
    add_fused_lm_head(model.thinker)
    batch = SftCollator(model, folder, items)([{"number": 0, "kind": 0}, {"number": 1, "kind": 0}])
    results = []
    for scope in (nullcontext(), labels_alone()):
        model.thinker.zero_grad()
        with scope:
            loss = model.thinker(**batch, fused_lm_head=True).loss
        loss.backward()
        results.append([loss, *(one.grad for one in model.thinker.parameters() if one.grad is not None)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    labelled = int((batch["labels"][:, 1:] != -100).sum())
    assert scored_tokens == [batch["labels"][:, 1:].numel(), labelled]


def test_both_trainers_score_the_tokens_of_replies_alone(data, scored_tokens):
    folder, items, prompts = data
    model = tiny_unisrm(prompts=prompts)
    replies = [len(model.reply_ids(write_reply(item.task, item.record))) for item in items]
    train_sft(model, folder, items, SftConfig(batch_size=4, micro_batch_size=4), folder / "sft")
    assert scored_tokens == [sum(replies)]
    scored_tokens.clear()
    trainer_of(folder, items, prompts).train()
    assert scored_tokens
    assert max(scored_tokens) <= GRPO.micro_batch_size * GRPO.max_completion_tokens


# Supervised fine-tuning.


@pytest.mark.parametrize("kind", ["adapters", "language_model", "all"])
def test_sft_lowers_the_loss_and_trains_what_it_should(data, kind):
    folder, items, prompts = data
    model = tiny_unisrm(prompts=prompts, trains=kind, reasoning=False)
    before = {name: value.clone() for name, value in model.thinker.state_dict().items()}
    config = SftConfig(lr=1e-2, batch_size=4, micro_batch_size=2, epochs=8)
    train_sft(model, folder, items, config, folder / "sft")
    rows = list(read_jsonl(folder / "sft" / "metrics.jsonl"))
    assert len(rows) == 8
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.3
    after = model.thinker.state_dict()
    changed = {name for name, value in before.items() if name in after and not torch.equal(value, after[name])}
    assert any("audio_tower" in name for name in changed) is (kind == "all")
    assert not any("visual" in name for name in changed)
    assert bool(changed) is (kind != "adapters")
    if kind == "adapters":
        assert any("lora_B" in name and bool(value.any()) for name, value in after.items())


def test_a_saved_model_replies_as_before(data):
    folder, items, prompts = data
    model = saved(folder, prompts)
    again = UniSRM.load(folder / "sft")
    encoder = ItemEncoder(model, folder, items)
    assert again.reply([encoder[0], encoder[1]], 12) == model.reply([encoder[0], encoder[1]], 12)
    with pytest.raises(JudgeError, match="holds no UniSRM"):
        UniSRM.load(folder)


@pytest.mark.parametrize("kind", ["adapters", "all"])
def test_the_cache_of_a_cpu_changes_no_reply(data, kind):
    folder, items, prompts = data
    model = saved(folder, prompts, trains=kind)
    encoder, options = ItemEncoder(model, folder, items), dict(model.generation_options)
    assert options.pop("cache_implementation") == "static"
    inputs = model.batch([encoder[0], encoder[1]])
    # Two lengths, one after the other: a cache that is kept would be of the first.
    for length in (12, 20):
        found, expected = (
            model.thinker.generate(**inputs, **chosen, max_new_tokens=length, do_sample=False)
            for chosen in (model.generation_options, options)
        )
        assert found.shape[1] > inputs["input_ids"].shape[1]
        assert torch.equal(found, expected)


def test_adapters_are_loaded_onto_their_model(data):
    folder, items, prompts = data
    saved(folder, prompts)
    model = UniSRM.pretrained(ThinkerConfig(model=str(folder / "sft"), trains="adapters", prompts=prompts))
    encoder = ItemEncoder(model, folder, items)
    with torch.no_grad():
        plain = model.thinker(**model.batch([encoder[1]])).logits
    train_grpo(model, folder, items, GRPO, folder / "grpo")
    model.thinker.eval()
    with torch.no_grad():
        for name, parameter in model.thinker.named_parameters():
            if "lora_B" in name:
                parameter += 0.05
        model.save(folder / "adapters")
        trained = model.thinker(**model.batch([encoder[1]])).logits
        again = UniSRM.load(folder / "adapters")
        torch.testing.assert_close(again.thinker(**again.batch([encoder[1]])).logits, trained)
    assert (trained - plain).abs().max() > 1e-3
    assert not list((folder / "adapters").glob("ref*"))


def test_labels_without_reasons_are_left_out_of_reasoning(data):
    _, items, _ = data
    bare = [replace(items[0], record=PairRecord("A")), replace(items[1], record=QualityRecord((3.0,) * 7)), *items[2:]]
    assert trainable(bare, reasoning=True) == items[2:]
    assert trainable(bare, reasoning=False) == bare


# GRPO.


@pytest.mark.parametrize("kind", ["adapters", "all"])
def test_other_clips_change_generation_policy_and_reference(data, kind):
    folder, items, prompts = data
    gaps = audio_gaps(trainer_of(folder, items, prompts, kind), [0, 2])
    assert gaps.deaf == ()
    assert min(gaps.generation, gaps.policy, gaps.reference) > 1e-4


class DeafGeneration(UniSRMGrpoTrainer):
    def _tokenize_prompts(self, prompts):
        ids, images, _ = super()._tokenize_prompts(prompts)
        return ids, images, {}


class DeafPolicy(UniSRMGrpoTrainer):
    def _media(self, rows):
        return super()._media(rows) if self._scores_reference else {}

    _scores_reference = False

    def _generate_and_score_completions(self, inputs):
        self._scores_reference = True
        output = super()._generate_and_score_completions(inputs)
        self._scores_reference = False
        return output


class DeafReference(UniSRMGrpoTrainer):
    _scores_reference = False

    def _media(self, rows):
        return {} if self._scores_reference else super()._media(rows)

    def _generate_and_score_completions(self, inputs):
        self._scores_reference = True
        output = super()._generate_and_score_completions(inputs)
        self._scores_reference = False
        return output


@pytest.mark.parametrize(
    ("mutant", "place"), [(DeafGeneration, "generation"), (DeafPolicy, "policy"), (DeafReference, "reference")]
)
def test_a_trainer_that_is_deaf_in_one_place_is_refused(data, mutant, place):
    folder, items, prompts = data
    trainer = trainer_of(folder, items, prompts, "adapters")
    trainer.__class__ = mutant
    assert audio_gaps(trainer, [0, 2]).deaf == (place,)
    with pytest.raises(JudgeError, match=f"do not reach {place}:"):
        check_audio(trainer, [0, 2])


def test_a_lost_order_of_items_is_an_error(data):
    folder, items, prompts = data
    trainer = trainer_of(folder, items, prompts, "adapters")
    trainer._rows = [0]
    with pytest.raises(RuntimeError, match="order is lost"):
        trainer._get_per_token_logps_and_entropies(trainer.model, torch.ones(2, 3), torch.ones(2, 3), 1)


@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
def test_the_loss_is_that_of_our_grpo(data, ratio_level):
    folder, items, prompts = data
    trainer = trainer_of(folder, items, prompts, "adapters", GRPO.model_copy(update={"ratio_level": ratio_level}))
    draw = torch.Generator().manual_seed(1)
    logp, old, ref = (-2 * torch.rand(4, 7, generator=draw, dtype=torch.float64) for _ in range(3))
    old, ref = logp + 0.5 * (old + 1), logp + 0.5 * (ref + 1)
    mask = (torch.arange(7)[None] < torch.tensor([7, 3, 5, 1])[:, None]).double()
    advantages = torch.tensor([1.2, -0.7, 0.3, -0.8], dtype=torch.float64)
    logp.requires_grad_()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logp, torch.zeros_like(logp), None)
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    inputs = {
        "prompt_ids": torch.zeros(4, 1), "prompt_mask": torch.ones(4, 1), "completion_ids": torch.zeros(4, 7),
        "completion_mask": mask, "advantages": advantages, "old_per_token_logps": old, "ref_per_token_logps": ref,
        "item_numbers": torch.zeros(4),
    }  # fmt: skip
    theirs = trainer._compute_loss(trainer.model, inputs)
    steps, streams = torch.arange(7).expand(4, 7), torch.zeros(4, 7, dtype=torch.long)
    objective = ObjectiveConfig(
        loss_type="grpo", ratio_level=ratio_level, average="joint", kl_weight=0.04, clip_low=0.2, clip_high=0.2, kl_form="sum"
    )
    ours = grpo_loss(LogProbBatch(logp, old, ref, mask, steps, streams), advantages, objective, 7).loss
    torch.testing.assert_close(theirs, ours, atol=1e-9, rtol=0)
    gradients = [torch.autograd.grad(loss, logp)[0] for loss in (theirs, ours)]
    torch.testing.assert_close(*gradients, atol=1e-9, rtol=0)


def test_terms_are_logged_apart_and_failures_by_reason(data):
    folder, items, prompts = data
    model = tiny_unisrm(prompts=prompts)
    terms = RewardTerms(ItemEncoder(model, folder, items))
    right = write_reply("T3", items[2].record)
    texts = [right, right.replace("Speech B is better", "Speech A is better"), "no", right.replace("= 26", "= 27")]
    ids = [list(model.reply_ids(text)) for text in texts]
    logged = {}
    values = {
        function.__name__: function(["2"] * 4, completion_ids=ids, log_metric=logged.__setitem__)
        for function in terms.functions()
    }
    assert values == {"format": [0, -1, -1, -1], "accuracy": [1, 0, 0, 0], "consistency": [1, 0, 0, 0]}
    counted = {reason for reason, share in logged.items() if share}
    assert counted == {f"parse_failure/{reason}" for reason in ("answer_against_scores", "missing_think", "wrong_total")}
    assert len(logged) == len(ParseFailure)
    # A special token within a reply is no white space.
    noisy = [*ids[0][:-1], model.tokenizer.convert_tokens_to_ids("<|AUDIO|>"), model.end_id]
    assert terms.functions()[0](["2"], completion_ids=[noisy], log_metric=logged.__setitem__) == [-1]


@pytest.mark.parametrize("kind", ["adapters", "all"])
def test_grpo_trains_and_logs(data, kind):
    folder, items, prompts = data
    model = train_grpo(saved(folder, prompts, trains=kind), folder, items, GRPO, folder / "grpo")
    rows = list(read_jsonl(folder / "grpo" / "metrics.jsonl"))
    assert [row["step"] for row in rows if "reward" in row] == [1, 2]
    first = rows[0]
    # A few random bytes are no reply: the group is flat, and counted as such.
    assert (first["reward_format"], first["reward_accuracy"], first["reward_consistency"]) == (-1, 0, 0)
    assert (first["reward"], first["flat_group_share"]) == (-1, 1)
    assert first["cut_off_share"] > 0
    assert first["parse_failure_missing_think"] == 1
    assert {"kl", "entropy", "completion_tokens"} <= set(first)
    if kind == "all":
        assert isinstance(UniSRM.load(folder / "grpo").config, ThinkerConfig)
    assert model.config.trains == kind


def test_grpo_may_leave_the_audio_tower_of_a_model_that_learned_in_all_its_weights(data):
    folder, items, prompts = data
    config = GRPO.model_copy(update={"trains": "language_model"})
    both = trainer_of(folder, items, prompts, "all")
    one = trainer_of(folder, items, prompts, "all", config)
    learned, learned_alone = (
        {name for name, value in trainer.model.named_parameters() if value.requires_grad} for trainer in (both, one)
    )
    assert {name for name in learned if "audio_tower" not in name} == learned_alone
    assert learned_alone < learned
    with pytest.raises(ConfigError, match="adapters"):
        trainer_of(folder, items, prompts, "adapters", config)
    with pytest.raises(ValueError, match="both stages train the adapters"):
        UniSRMConfig.model_validate({"thinker": {"trains": "adapters"}, "grpo": {"trains": "all"}})


def test_the_learning_rate_of_grpo_rises_over_the_share_of_the_updates_that_is_asked_for(data):
    folder, items, prompts = data
    config = GRPO.model_copy(update={"warmup": 0.5, "max_steps": 8, "lr": 1e-3})
    trainer = trainer_of(folder, items, prompts, config=config)
    trainer.create_optimizer_and_scheduler(8)
    rates = []
    for _ in range(8):
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    assert rates == pytest.approx([0, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 7.5e-4, 5e-4, 2.5e-4])


def test_wrong_sizes_and_an_unsaved_model_are_refused(data):
    folder, items, prompts = data
    with pytest.raises(ConfigError, match="micro_batch_size"):
        train_sft(tiny_unisrm(prompts=prompts), folder, items, SftConfig(batch_size=3, micro_batch_size=2), folder / "sft")
    with pytest.raises(JudgeError, match="save the model"):
        make_grpo_trainer(tiny_unisrm(prompts=prompts), folder, items, GRPO, folder / "grpo")


def test_several_gpus_of_one_process_are_refused(data, monkeypatch):
    folder, items, prompts = data
    model = saved(folder, prompts)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match="2 GPUs are visible to one process"):
        make_grpo_trainer(model, folder, items, GRPO, folder / "grpo")
