"""TRACE's models of emotion and accent by their true classes, on tiny random instances; `make trace` installs what they need.

Not covered: their weights, which come from a hub.
"""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from paras2s.audio.clip import Clip
from paras2s.reward.blueprint.accent import ACCENTS, AccentExtractor
from paras2s.reward.blueprint.emotion import EMOTIONS, EmotionExtractor, _model
from paras2s.reward.blueprint.schema import ACCENT, EMOTION
from paras2s.types import Measured

LENGTHS = (16_000, 24_000)
# As the released model writes them: in two languages, with one class that it does not know.
TOKENS = ["x/angry", "x/disgusted", "x/fearful", "x/happy", "x/neutral", "x/other", "x/sad", "x/surprised", "<unk>"]


def seed() -> None:
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)


def drawn() -> tuple[float, ...]:
    """The next number of each generator that a library may share."""
    return random.random(), float(np.random.random()), float(torch.rand(1))


@pytest.fixture
def clips() -> list[Clip]:
    rng = np.random.default_rng(0)
    return [Clip(rng.normal(0, 0.1, length).astype(np.float32), 16_000) for length in LENGTHS]


def values(fields: dict[str, object], group: str, names: tuple[str, ...]) -> list[float]:
    assert set(fields) == {f"{group}.{name}" for name in names}
    found = [fields[f"{group}.{name}"] for name in names]
    assert all(isinstance(one, Measured) for one in found)
    return [float(one.value) for one in found if isinstance(one, Measured)]


def tiny_accent(folder: Path) -> Path:
    """An ECAPA network of 16 channels in the layout of the released one, its accents in another order than TRACE's."""
    module = "speechbrain.lobes.models.ECAPA_TDNN"
    (folder / "hyperparams.yaml").write_text(
        f"""
compute_features: !new:speechbrain.lobes.features.Fbank {{n_mels: 24}}
mean_var_norm: !new:speechbrain.processing.features.InputNormalization {{norm_type: sentence, std_norm: False}}
embedding_model: !new:{module}.ECAPA_TDNN
  input_size: 24
  channels: [16, 16, 16, 16, 48]
  kernel_sizes: [5, 3, 3, 3, 1]
  dilations: [1, 2, 3, 4, 1]
  attention_channels: 8
  lin_neurons: 12
classifier: !new:{module}.Classifier {{input_size: 12, out_neurons: {len(ACCENTS)}}}
modules:
  compute_features: !ref <compute_features>
  mean_var_norm: !ref <mean_var_norm>
  embedding_model: !ref <embedding_model>
  classifier: !ref <classifier>
label_encoder: !new:speechbrain.dataio.encoder.CategoricalEncoder
pretrainer: !new:speechbrain.utils.parameter_transfer.Pretrainer
  loadables: {{label_encoder: !ref <label_encoder>}}
  paths: {{label_encoder: {folder}/accent_encoder.txt}}
"""
    )
    lines = [f"'{name}' => {place}\n" for place, name in enumerate(reversed(ACCENTS))]
    (folder / "accent_encoder.txt").write_text("".join(lines) + "================\n'starting_index' => 0\n")
    return folder


def tiny_emotion2vec(folder: Path) -> Path:
    """An emotion2vec of two layers of width 16 in the layout of the released one."""
    from funasr import AutoModel

    audio = {
        "feature_encoder_spec": "[(16, 10, 5)] + [(16, 3, 2)] * 4 + [(16, 2, 2)] * 2", "extractor_mode": "layer_norm",
        "conv_pos_depth": 1, "conv_pos_width": 5, "conv_pos_groups": 2, "conv_pos_pre_ln": False, "prenet_depth": 1,
        "model_depth": 2, "prenet_layerdrop": 0, "prenet_dropout": 0.0, "start_drop_path_rate": 0, "end_drop_path_rate": 0,
        "decoder": None, "use_alibi_encoder": True, "num_alibi_heads": 2, "alibi_scale": 1.0, "learned_alibi": False,
        "learned_alibi_scale": True, "learned_alibi_scale_per_head": True, "learned_alibi_scale_per_layer": False,
        "alibi_max_pos": None, "num_extra_tokens": 2, "init_extra_token_zero": True, "local_grad_mult": 1.0,
        "keep_masked_pct": 0, "mask_noise_std": 0.01, "inverse_mask": False,
    }  # fmt: skip
    model = {
        "embed_dim": 16, "num_heads": 2, "depth": 2, "mlp_ratio": 2, "norm_eps": 1e-5, "norm_affine": True,
        "encoder_dropout": 0, "attention_dropout": 0, "activation_dropout": 0, "post_mlp_drop": 0, "layer_norm_first": False,
        "dropout_input": 0, "end_of_block_targets": False, "start_drop_path_rate": 0, "end_drop_path_rate": 0,
        "normalize": True, "clone_batch": 1, "modalities": {"audio": audio},
    }  # fmt: skip
    config = {
        "model": "Emotion2vec",
        "model_conf": model,
        "tokenizer": "CharTokenizer",
        "tokenizer_conf": {"unk_symbol": "<unk>"},
    }
    # JSON is YAML.
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "tokens.txt").write_text("\n".join(TOKENS) + "\n")
    made = dict(config, tokenizer_conf={"unk_symbol": "<unk>", "token_list": str(folder / "tokens.txt")})
    built, _ = AutoModel.build_model(**made, device="cpu", ncpu=torch.get_num_threads())
    torch.save(built.state_dict(), folder / "model.pt")
    return folder


def test_accents_are_those_of_the_network_by_name(tmp_path: Path, clips: list[Clip]) -> None:
    classifiers = pytest.importorskip(
        "speechbrain.inference.classifiers", reason="speechbrain: run make trace", exc_type=ImportError
    )
    folder = tiny_accent(tmp_path)
    torch.manual_seed(0)
    together = [values(dict(one), ACCENT, ACCENTS) for one in AccentExtractor(str(folder)).measure(clips)]
    assert together == [
        values(dict(one), ACCENT, ACCENTS) for clip in clips for one in AccentExtractor(str(folder)).measure([clip])
    ]
    torch.manual_seed(0)
    network = classifiers.EncoderClassifier.from_hparams(source=str(folder))
    direct = network.classify_batch(torch.from_numpy(clips[0].samples)[None])[0][0].tolist()
    assert together[0] == pytest.approx(direct[::-1], abs=1e-6)
    assert all(-1 <= value <= 1 for one in together for value in one)


def test_emotions_are_a_distribution_and_nothing_else_changes(
    tmp_path: Path, clips: list[Clip], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("funasr", reason="funasr: run make trace", exc_type=ImportError)
    folder, threads = tiny_emotion2vec(tmp_path), torch.get_num_threads()
    capsys.readouterr()
    seed()
    expected = drawn()
    seed()
    _model(str(folder), "ms")
    # funasr prints its version, sets torch's threads to four and every seed to 0.
    assert (torch.get_num_threads(), drawn()) == (threads, expected)
    extractor = EmotionExtractor(str(folder))
    together = [values(dict(one), EMOTION, EMOTIONS) for one in extractor.measure(clips)]
    assert capsys.readouterr().out == ""
    assert [sum(one) for one in together] == pytest.approx([1.0, 1.0], abs=1e-5)
    assert together[0] != together[1]
    assert together == [values(dict(one), EMOTION, EMOTIONS) for clip in clips for one in extractor.measure([clip])]
