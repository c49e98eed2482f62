"""The task char_gpt: a decoder-only transformer over bytes modelled on nanoGPT (github.com/karpathy/nanoGPT, model.py)."""
import functools
import gzip
import math

import torch
from torch import nn
from torch.nn import functional

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


class Attention(nn.Module):
    def __init__(self, heads, width, dropout, bias):
        super().__init__()
        self.heads, self.probability = heads, dropout
        self.queries_keys_values = nn.Linear(width, 3 * width, bias=bias)
        self.projection = nn.Linear(width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values):
        batch, length, width = values.shape
        parts = self.queries_keys_values(values).split(width, dim=2)
        queries, keys, mixed = (part.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for part in parts)
        probability = self.probability if self.training else 0.0
        seen = functional.scaled_dot_product_attention(queries, keys, mixed, dropout_p=probability, is_causal=True)
        return self.dropout(self.projection(seen.transpose(1, 2).contiguous().view(batch, length, width)))


class FeedForward(nn.Module):
    def __init__(self, width, dropout, bias):
        super().__init__()
        self.expansion = nn.Linear(width, 4 * width, bias=bias)
        self.projection = nn.Linear(4 * width, width, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, values):
        return self.dropout(self.projection(functional.gelu(self.expansion(values), approximate="tanh")))


class Block(nn.Module):
    def __init__(self, heads, width, dropout, bias):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=bias)
        self.attention = Attention(heads, width, dropout, bias)
        self.feed_forward_norm = nn.LayerNorm(width, bias=bias)
        self.feed_forward = FeedForward(width, dropout, bias)

    def forward(self, values):
        values = values + self.attention(self.attention_norm(values))
        return values + self.feed_forward(self.feed_forward_norm(values))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, block_size, dropout=0.0, bias=True):
        super().__init__()
        self.block_size = block_size
        self.byte_embedding = nn.Embedding(NUM_BYTES, width)
        self.position_embedding = nn.Embedding(block_size, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(heads, width, dropout, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                joins_residual = name.endswith("projection.weight")
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if joins_residual else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, inputs):
        positions = torch.arange(inputs.shape[1], device=inputs.device)
        values = self.dropout(self.byte_embedding(inputs) + self.position_embedding(positions))
        for block in self.blocks:
            values = block(values)
        return functional.linear(self.norm(values), self.byte_embedding.weight)


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
