"""The task char_gpt: a decoder-only transformer over bytes, modelled on nanoGPT (github.com/karpathy/nanoGPT, model.py) or, with rotary
positions, on transformers' Llama, of which it uses the norm and the rotary embedding."""
import dataclasses
import functools
import gzip
import math

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding, apply_rotary_pos_emb

DATA_FILE = "/usr/share/common-licenses/GPL-3"  # from Debian's package base-files
NUM_BYTES = 256


@functools.cache
def read_text(path):
    with open(path, "rb") as file:
        raw = file.read()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


class Blocks(torch.utils.data.Dataset):
    """Blocks of a text that do not overlap; the target of each byte is the next one."""

    def __init__(self, text, block_size, limit):
        self.text, self.block_size = torch.frombuffer(bytearray(text), dtype=torch.uint8), block_size
        self.length = min((len(text) - 1) // block_size, limit if limit is not None else len(text))

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        block = self.text[index * self.block_size : (index + 1) * self.block_size + 1].long()
        return block[:-1], block[1:]


def load(config):
    text, block_size = read_text(config.get("data_file", DATA_FILE)), config["model"]["block_size"]
    middle = len(text) * 9 // 10
    return Blocks(text[:middle], block_size, config.get("limit")), Blocks(text[middle:], block_size, config.get("eval_limit"))


@dataclasses.dataclass
class Options:
    """The keys of an experiment's model, as in reference/models/gpt_options.hpp."""

    layers: int
    heads: int
    width: int
    block_size: int
    dropout: float = 0.0
    bias: bool = True
    positions: str = "learned"
    norm: str = "layer_norm"
    norm_eps: float = 1e-5
    feed_forward: str = "gelu"
    feed_forward_width: int | None = None
    key_value_heads: int | None = None
    head_width: int | None = None
    tied_output: bool = True
    initial_std: float = 0.02
    dtype: str = "float32"
    rope_parameters: dict = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.feed_forward_width = self.feed_forward_width or 4 * self.width
        self.key_value_heads = self.key_value_heads or self.heads
        self.head_width = self.head_width or self.width // self.heads
        self.query_width, self.key_width = self.heads * self.head_width, self.key_value_heads * self.head_width


def make_norm(options):
    if options.norm == "rms_norm":
        return LlamaRMSNorm(options.width, eps=options.norm_eps)
    return nn.LayerNorm(options.width, eps=options.norm_eps, bias=options.bias)


def by_head(values, head_width):
    return values.view(*values.shape[:2], -1, head_width).transpose(1, 2)


def joined_heads(values):
    return values.transpose(1, 2).contiguous().flatten(2)


class Attention(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options
        self.queries_keys_values = nn.Linear(options.width, options.query_width + 2 * options.key_width, bias=options.bias)
        self.projection = nn.Linear(options.query_width, options.width, bias=options.bias)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, values, rotation):
        options = self.options
        parts = self.queries_keys_values(values).split([options.query_width, options.key_width, options.key_width], dim=2)
        queries, keys, mixed = (by_head(part, options.head_width) for part in parts)
        probability = options.dropout if self.training else 0.0
        shares_keys = options.key_width < options.query_width
        seen = functional.scaled_dot_product_attention(queries, keys, mixed, dropout_p=probability, is_causal=True, enable_gqa=shares_keys)
        return self.dropout(self.projection(joined_heads(seen)))


class RotaryAttention(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.options = options
        self.q_proj = nn.Linear(options.width, options.query_width, bias=options.bias)
        self.k_proj = nn.Linear(options.width, options.key_width, bias=options.bias)
        self.v_proj = nn.Linear(options.width, options.key_width, bias=options.bias)
        self.o_proj = nn.Linear(options.query_width, options.width, bias=options.bias)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, values, rotation):
        options = self.options
        queries, keys, mixed = (by_head(part(values), options.head_width) for part in (self.q_proj, self.k_proj, self.v_proj))
        queries, keys = apply_rotary_pos_emb(queries, keys, *rotation)
        probability = options.dropout if self.training else 0.0
        call = {"dropout_p": probability, "is_causal": values.shape[1] > 1, "scale": options.head_width**-0.5}
        shares_keys = options.key_width < options.query_width
        seen = functional.scaled_dot_product_attention(queries, keys, mixed, **call, enable_gqa=shares_keys)
        return self.dropout(self.o_proj(joined_heads(seen)))


class FeedForward(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.expansion = nn.Linear(options.width, options.feed_forward_width, bias=options.bias)
        self.projection = nn.Linear(options.feed_forward_width, options.width, bias=options.bias)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, values):
        return self.dropout(self.projection(functional.gelu(self.expansion(values), approximate="tanh")))


class SwiGLU(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.gate_proj = nn.Linear(options.width, options.feed_forward_width, bias=options.bias)
        self.up_proj = nn.Linear(options.width, options.feed_forward_width, bias=options.bias)
        self.down_proj = nn.Linear(options.feed_forward_width, options.width, bias=options.bias)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, values):
        return self.dropout(self.down_proj(functional.silu(self.gate_proj(values)) * self.up_proj(values)))


def make_feed_forward(options):
    return SwiGLU(options) if options.feed_forward == "swiglu" else FeedForward(options)


class Block(nn.Module):
    """The names and the order of modules depend on the positions."""

    def __init__(self, options):
        super().__init__()
        if options.positions == "rotary":
            self.self_attn = RotaryAttention(options)
            self.mlp = make_feed_forward(options)
            self.input_layernorm, self.post_attention_layernorm = make_norm(options), make_norm(options)
            self.parts = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
        else:
            self.attention_norm, self.attention = make_norm(options), Attention(options)
            self.feed_forward_norm, self.feed_forward = make_norm(options), make_feed_forward(options)
            self.parts = ("attention_norm", "attention", "feed_forward_norm", "feed_forward")

    def forward(self, values, rotation):
        attention_norm, attention, feed_forward_norm, feed_forward = (getattr(self, name) for name in self.parts)
        values = values + attention(attention_norm(values), rotation)
        return values + feed_forward(feed_forward_norm(values))


def draw_weights(model, std, std_of_residual):
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=std_of_residual if name.endswith(("projection.weight", "down_proj.weight")) else std)
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)


class LearnedPositionsGpt(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.block_size = options.block_size
        self.byte_embedding = nn.Embedding(NUM_BYTES, options.width)
        self.position_embedding = nn.Embedding(options.block_size, options.width)
        self.dropout = nn.Dropout(options.dropout)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = make_norm(options)
        self.output = None if options.tied_output else nn.Linear(options.width, NUM_BYTES, bias=False)
        draw_weights(self, options.initial_std, options.initial_std / math.sqrt(2 * options.layers))

    def forward(self, inputs):
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        values = self.dropout(self.byte_embedding(inputs) + self.position_embedding(positions))
        for block in self.blocks:
            values = block(values, None)
        values = self.norm(values)
        return self.output(values) if self.output else functional.linear(values, self.byte_embedding.weight)


class Decoder(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.embed_tokens = nn.Embedding(NUM_BYTES, options.width)
        self.dropout = nn.Dropout(options.dropout)
        self.layers = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = make_norm(options)
        rope = {"rope_theta": 10000.0, "rope_type": "default"} | options.rope_parameters
        sizes = {"hidden_size": options.width, "num_attention_heads": options.heads, "head_dim": options.head_width}
        # Not a submodule: FSDP would round its frequencies to bfloat16, since they are a buffer.
        self.rotary = (LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=rope)),)

    def forward(self, inputs):
        values = self.dropout(self.embed_tokens(inputs))
        rotation = self.rotary[0](values, torch.arange(inputs.shape[1], device=inputs.device).unsqueeze(0))
        for layer in self.layers:
            values = layer(values, rotation)
        return self.norm(values)


class RotaryGpt(nn.Module):
    """With rms_norm and swiglu, transformers' LlamaForCausalLM."""

    def __init__(self, options):
        super().__init__()
        self.block_size, std = options.block_size, options.initial_std
        self.model = Decoder(options)
        draw_weights(self.model, std, std)
        output = nn.Linear(options.width, NUM_BYTES, bias=False)
        draw_weights(output, std, std)
        self.lm_head = None if options.tied_output else output

    def forward(self, inputs):
        values = self.model(inputs)
        return self.lm_head(values) if self.lm_head else functional.linear(values, self.model.embed_tokens.weight)


def build(**keys):
    options = Options(**keys)
    model = RotaryGpt(options) if options.positions == "rotary" else LearnedPositionsGpt(options)
    return model.to(getattr(torch, options.dtype))


@torch.no_grad()
def write_text(model, length=200, prompt="\n", temperature=0.8, top_k=40, seed=0):
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    text = bytearray(prompt.encode())
    for _ in range(length):
        logits = model(torch.tensor([list(text[-model.block_size :])]))[0, -1]
        if not logits.isfinite().all():
            break
        logits = logits / temperature
        likeliest = logits.topk(min(top_k, NUM_BYTES)).values
        probabilities = logits.masked_fill(logits < likeliest[-1], -math.inf).softmax(-1)
        text.append(torch.multinomial(probabilities, 1, generator=generator).item())
    return bytes(text)
