"""An exported UniSRM on a real vLLM server: the prompt's tokens and the greedy replies are those of this process.

Not covered: the released size, and a model that has learned anything; the weights are random.
"""

import shlex
import subprocess

import pytest
import torch
from tiny.qwen_omni import tiny_config, tiny_tokenizer
from tiny.unisrm import short_prompts, tiny_items
from tiny.vllm_server import vllm_python, vllm_server

from paras2s.audio.clip import read_clip
from paras2s.clients.chat import Reply
from paras2s.configs.schema.unisrm import ThinkerConfig
from paras2s.reward.judges.registry import open_unisrm_judge
from paras2s.unisrm.reward.export import export_served
from paras2s.unisrm.reward.items import read_items
from paras2s.unisrm.reward.thinker import UniSRM

pytestmark = pytest.mark.skipif(vllm_python() is None, reason="no .venv-vllm beside the package (make vllm-env)")
TOKENS = 12
# The first tokens of the tiny tokenizer: ! to ~.
VISIBLE = 94


def wide_thinker(tokenizer):
    """A random thinker whose heads are as wide as vLLM's CPU build takes them."""
    from transformers import Qwen2_5OmniThinkerForConditionalGeneration

    config = tiny_config(tokenizer).thinker_config
    config.text_config.hidden_size = 128
    config.text_config.rope_parameters = config.text_config.rope_parameters | {"mrope_section": [4, 6, 6]}
    config.audio_config.d_model, config.audio_config.output_dim = 64, 128
    config.vision_config.out_hidden_size = 128
    torch.manual_seed(0)
    thinker = Qwen2_5OmniThinkerForConditionalGeneration(config)
    for parameter in thinker.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    # Half of another's logit is never the largest: every reply is of visible letters, and none ends.
    head = thinker.lm_head.weight.data
    head[VISIBLE:] = 0.5 * head[0]
    return thinker.eval()


@pytest.fixture(scope="module")
def _processor():
    """vLLM makes the whole processor of Qwen2.5-Omni, of which only the feature extractor is used."""
    found = subprocess.run(
        [vllm_python(), "-c", "import torchvision.transforms.v2.functional"], capture_output=True, timeout=120
    )
    if found.returncode:
        pytest.skip("no torchvision beside vLLM; the package index has its build for CUDA alone (make vllm-env leaves it out)")


@pytest.fixture(scope="module")
def folder(_processor, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unisrm-served")
    (folder / "prompts").mkdir()
    tokenizer = tiny_tokenizer()
    config = ThinkerConfig(model="tiny", trains="all", prompts=short_prompts(folder / "prompts"))
    UniSRM(wide_thinker(tokenizer), tokenizer, config).save(folder / "model")
    tiny_items(folder)
    return folder


def test_vllm_reads_hears_and_replies_as_this_process_does(folder):
    served = export_served(folder / "model")
    model, items = UniSRM.load(served.folder), read_items(folder)
    given = [(item.texts, {name: read_clip(folder / path) for name, path in item.clips.items()}) for item in items]
    encoded = [model.encode(item.task, *inputs) for item, inputs in zip(items, given, strict=True)]
    replies = [model.reply([one], TOKENS)[0] for one in encoded]
    assert len(set(replies)) == len(replies)
    # As the command says that the export prints, but for its first words.
    more = ["--max-model-len", 4000, *shlex.split(served.command)[5:]]
    with vllm_server(served.folder, served.name, more) as url:
        called = {"served.llm.base_url": url, "served.llm.max_output_tokens": TOKENS, "served.cache_dir": str(folder / "cache")}
        judge = open_unisrm_judge(served.judge, called)
        requests = [judge.reader.requests(item.task, [inputs])[0] for item, inputs in zip(items, given, strict=True)]
        found = judge.client.complete_all(requests)
    assert all(isinstance(one, Reply) for one in found), found
    # The server counts the vectors of each clip among the prompt's tokens.
    assert [one.tokens.text_in + one.tokens.audio_in for one in found] == [len(one.ids) for one in encoded]
    assert [one.text for one in found] == replies
