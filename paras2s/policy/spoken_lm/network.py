"""The network of `SpokenLmPolicy`: a causal language model with the prosody of the question, and of its own answer.

The prosody of the question is a vector that is added to the states that enter layer `prosody_layer`, at the prompt's marked
positions; so are the codes of a phrase, at the step at which the phrase begins. The layers below it see words alone: they are
frozen by default, need no gradient, and are as good as they were.

At the first step of a phrase the text token and the five codes are drawn side by side, from one state. A phrase begins with
the answer and behind each punctuation mark.
Alphabet: B prompts, N answers, L prompt positions, T steps, S slots, K codes, F features, D the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paras2s.policy.dual_stream.sampler import pick
from paras2s.policy.spoken_lm.prosody import NEUTRAL, SIZES
from paras2s.policy.streams import Reading, layer_input, roll, run_stack, score, stacked
from paras2s.policy.types import Prompt, SampleRequest, Sampling
from paras2s.types import Block

# Numbers between the question's features and the network: few, so that clips are not known one by one.
BOTTLENECK = 8


class Conditioned:
    """A stack of transformers' layers whose inputs are twice as wide: words [N, L, D], and prosody for `prosody_layer`."""

    def __init__(self, stack: Any, prosody_layer: int) -> None:
        self._stack, self._layer, self.config = stack, prosody_layer, stack.config

    def __call__(self, inputs_embeds: Tensor, **settings: Any) -> Any:
        """Run the stack. The hook is gone before a backward pass, so activations cannot be recomputed."""
        words, prosody = inputs_embeds.chunk(2, -1)
        layer = self._stack.layers[self._layer]
        hook = layer.register_forward_pre_hook(
            lambda _, inputs, named: (
                ((inputs[0] + prosody, *inputs[1:]), named)
                if inputs
                else (inputs, {**named, "hidden_states": named["hidden_states"] + prosody})
            ),
            with_kwargs=True,
        )
        try:
            return self._stack(inputs_embeds=words, **settings)
        finally:
            hook.remove()


class SpokenLmNetwork(nn.Module):
    """A language model of transformers, the reader of a question's prosody, and heads and embeddings of the codes."""

    feature_mean: Tensor
    feature_spread: Tensor
    phrase_ends: Tensor
    state_scale: Tensor
    offsets: Tensor
    prosody_heads: Any

    def __init__(self, lm: Any, prosody_layer: int, phrase_ends: Sequence[int], end_id: int, features: int) -> None:
        """Take over a causal language model; `phrase_ends`: the tokens behind which a phrase begins."""
        super().__init__()
        self.lm, self.prosody_layer, self.end_id = lm, prosody_layer, end_id
        width, like = int(lm.config.hidden_size), next(lm.parameters())
        self.prosody_reader = nn.Sequential(nn.Linear(features, BOTTLENECK), nn.Linear(BOTTLENECK, width)).to(like)
        self.prosody_embed = nn.Embedding(sum(SIZES), width).to(like)
        self.prosody_heads = nn.ModuleList(nn.Linear(width, size) for size in SIZES).to(like)
        self.register_buffer("feature_mean", torch.zeros(features))
        self.register_buffer("feature_spread", torch.ones(features))
        # Standard deviation of the states that are added to: what is added must weigh as much.
        self.register_buffer("state_scale", torch.ones(()))
        self.register_buffer("phrase_ends", torch.tensor(sorted(phrase_ends)), persistent=False)
        self.register_buffer("offsets", torch.tensor([0, *np.cumsum(SIZES)[:-1].tolist()]), persistent=False)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.feature_mean.device

    @property
    def pads(self) -> tuple[int, ...]:
        """Ids [S] where nothing was drawn."""
        return (self.end_id, *NEUTRAL)

    @property
    def stack(self) -> Conditioned:
        """The layers of the language model."""
        return Conditioned(self.lm.model, self.prosody_layer)

    def start(self, seed: int) -> None:
        """Give the new parts their first weights: speech is neutral with a probability of about a half for each code."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for head, size, neutral in zip(self.prosody_heads, SIZES, NEUTRAL, strict=True):
                head.weight.zero_()
                head.bias.zero_()
                head.bias[neutral] = float(np.log(size - 1))
            for parameter in (*self.prosody_reader.parameters(), self.prosody_embed.weight):
                drawn = torch.randn(parameter.shape, generator=generator) * (0.3 if parameter.ndim > 1 else 0.0)
                parameter.copy_(drawn)
        self.freeze_below()

    def freeze_below(self) -> None:
        """Freeze what sees words alone, and the tables of words: the layers from `prosody_layer` on learn."""
        tables = self.lm.get_input_embeddings(), self.lm.get_output_embeddings()
        for module in (*tables, *self.lm.model.layers[: self.prosody_layer]):
            module.requires_grad_(False)

    def measure_scale(self, prompts: Sequence[Prompt]) -> None:
        """Set `state_scale` to the spread of the states that enter layer `prosody_layer` for these prompts."""
        with torch.no_grad(), layer_input(self.lm.model, self.prosody_layer) as states:
            for prompt in prompts:
                ids = torch.from_numpy(prompt.text_ids)[None].to(self.device)
                run_stack(self.lm.model, self.lm.get_input_embeddings()(ids))
        # The first position's states are a hundred times as large as all others (attention sinks).
        self.state_scale.fill_(torch.cat([state[0, 1:] for state in states]).std())

    def read(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """Return the stack's input [B, L, 2 D], padded on the right, and lengths [B]."""
        lengths = torch.tensor([prompt.length for prompt in prompts], device=self.device)
        padded = nn.utils.rnn.pad_sequence
        ids = padded([torch.from_numpy(prompt.text_ids) for prompt in prompts], batch_first=True, padding_value=self.end_id)
        words = self.lm.get_input_embeddings()(ids.to(self.device))
        features = padded([torch.from_numpy(np.asarray(prompt.features)) for prompt in prompts], batch_first=True)
        marked = padded([torch.from_numpy(prompt.continuous) for prompt in prompts], batch_first=True).to(self.device)
        prosody = self.prosody_reader(features.to(words)) * self.state_scale.to(words)
        return torch.cat([words, prosody * marked[..., None]], -1), lengths

    def said(self, tokens: Tensor, begins: Tensor) -> Tensor:
        """Return the stack's input [..., 2 D] of an answer's steps [..., S]; codes count where a phrase `begins` [...]."""
        codes = self.prosody_embed(tokens[..., 1:] + self.offsets).sum(-2) * self.state_scale.to(self.prosody_embed.weight)
        return torch.cat([self.lm.get_input_embeddings()(tokens[..., 0]), codes * begins[..., None]], -1)

    def begins(self, text: Tensor) -> Tensor:
        """Return at which steps [N, T] of text a phrase begins: the first, and those behind a punctuation mark."""
        behind_mark = torch.isin(text[:, :-1], self.phrase_ends)
        return nn.functional.pad(behind_mark, (1, 0), value=True) & (text != self.end_id)

    def forward(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Block]], sampling: Sampling) -> tuple[Tensor]:
        """Return log-probs [N, T, S], 0 where not sampled; a prompt is read once for all its answers."""
        blocks = [block for (block,) in answers]
        tokens, sampled = stacked(blocks, self.pads, self.device)
        counts = torch.tensor([len(block.tokens) for block in blocks], device=self.device)
        owner = torch.arange(len(blocks), device=self.device).repeat_interleave(counts)
        x, lengths = self.read(prompts)
        reading = Reading(self.stack, x, lengths, 1, tokens.shape[1])
        reading.select(owner)
        first = reading.states[owner, reading.lengths - 1]
        # The last step is read as well: each pass reads every layer twice, also where answers have one step.
        later = reading.feed_steps(self.said(tokens, sampled[..., 1]))
        hidden, start = torch.cat([first[:, None], later[:, :-1]], 1), torch.zeros_like(owner)
        heads = (self.lm.get_output_embeddings(), *self.prosody_heads)
        heat = (sampling.text_temperature, *(sampling.audio_temperature for _ in SIZES))
        slots = [
            score(head, hidden, start, tokens[..., slot], sampled[..., slot], heat[slot]) for slot, head in enumerate(heads)
        ]
        return (torch.stack(slots, -1),)

    @torch.inference_mode()
    def sample(self, request: SampleRequest, uniforms: Tensor) -> tuple[np.ndarray, ...]:
        """Draw N answers from one prefill a prompt; return tokens, sampled and log-probs [N, T, S], and which ended [N]."""
        sampling, group_size = request.sampling, request.group_size
        x, lengths = self.read(request.prompts)
        reading = Reading(self.stack, x, lengths, group_size, sampling.max_steps)
        everyone = torch.arange(len(uniforms), device=self.device)
        begins = torch.ones(len(uniforms), dtype=torch.bool, device=self.device)
        slots = [(self.lm.get_output_embeddings(), sampling.text_temperature, sampling.text_top_k)]
        slots += [(head, sampling.audio_temperature, sampling.audio_top_k) for head in self.prosody_heads]

        def draw(state: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
            drawn = [pick(head(state), heat, uniforms[:, slot], top) for slot, (head, heat, top) in enumerate(slots)]
            return torch.stack([token for token, _ in drawn], 1), torch.stack([logp for _, logp in drawn], 1)

        def advance(rows: Tensor, step: int, tokens: Tensor) -> Tensor:
            x = self.said(tokens, begins[rows])
            begins[rows] = torch.isin(tokens[:, 0], self.phrase_ends)
            return reading.feed(x)

        state = reading.states[everyone // group_size, reading.lengths - 1]
        drawn = roll(reading, state, everyone, uniforms, draw, advance, lambda tokens: tokens[:, 0] == self.end_id)
        present = torch.arange(uniforms.shape[1], device=self.device) < drawn.counts[:, None]
        codes = (present & self.begins(drawn.tokens[..., 0]))[..., None].expand(-1, -1, len(SIZES))
        sampled = torch.cat([present[..., None], codes], -1)
        tokens = torch.where(sampled, drawn.tokens, torch.tensor(self.pads, device=self.device))
        logp = torch.where(sampled, drawn.logp, 0.0)
        return tuple(part.cpu().numpy() for part in (tokens, sampled, logp, drawn.ended))
