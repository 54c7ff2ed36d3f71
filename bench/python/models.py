"""The models, batches and losses of bench/steps/models.h, in plain PyTorch."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(784, 512)
        self.l2 = nn.Linear(512, 512)
        self.l3 = nn.Linear(512, 10)

    def forward(self, x):
        return self.l3(F.relu(self.l2(F.relu(self.l1(x)))))


class ConvNet(nn.Module):
    """For images of 28 x 28."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3)
        self.second = nn.Conv2d(16, 32, 3)
        self.last = nn.Linear(32 * 25, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        return self.last(F.max_pool2d(F.relu(self.second(x)), 2).flatten(1))


class LargeMLP(nn.Module):
    """201 million parameters, as in bench/large_mlp.h."""
    WIDTH, LAYERS = 4096, 12

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(self.WIDTH, self.WIDTH) for _ in range(self.LAYERS)])

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        return x


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.n1 = nn.LayerNorm(width)
        self.n2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.o = nn.Linear(width, width)
        self.f1 = nn.Linear(width, 4 * width)
        self.f2 = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, sequence, width = x.shape
        qkv = self.qkv(self.n1(x)).view(batch, sequence, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, sequence, width))
        return x + self.f2(F.gelu(self.f1(self.n2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary=8192, width=256, layers=8, heads=4, sequence=64):
        super().__init__()
        self.te = nn.Embedding(vocabulary, width)
        self.pe = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.nf = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.te(tokens) + self.pe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.nf(x))


def attend(query, key, value):
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class DividedBlock(nn.Module):
    def __init__(self, width, heads, attend):
        super().__init__()
        self.head_size = width // heads
        self.attend = attend
        self.n1 = nn.LayerNorm(width)
        self.n2 = nn.LayerNorm(width)
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)
        self.f1 = nn.Linear(width, 4 * width)
        self.f2 = nn.Linear(4 * width, width)

    def forward(self, x):
        y = self.n1(x)
        # As many heads as the rank computes.
        q, k, v = (layer(y).view(*x.shape[:2], -1, self.head_size).transpose(1, 2)
                   for layer in (self.q, self.k, self.v))
        x = x + self.o(self.attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.f2(F.gelu(self.f1(self.n2(x))))


class DividedGPT(nn.Module):
    """The GPT with a layer each for queries, keys and values, as in bench/mesh/divided_gpt.h."""

    def __init__(self, vocabulary, layers, sequence, attend, width=256, heads=4):
        super().__init__()
        self.te = nn.Embedding(vocabulary, width)
        self.pe = nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList([DividedBlock(width, heads, attend) for _ in range(layers)])
        self.nf = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, positions=None):
        """positions: of the tokens in the sequence, if they are not all of it."""
        positions = torch.arange(tokens.shape[1]) if positions is None else positions
        x = self.te(tokens) + self.pe(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.nf(x))


def gpt2_small():
    """The shape of GPT-2 124M, with an untied head."""
    return GPT(vocabulary=50304, width=768, layers=12, heads=12, sequence=1024)


def make(name):
    torch.manual_seed(0)
    return {"mlp": MLP, "conv-net": ConvNet, "gpt": GPT, "gpt2-small": gpt2_small}[name]()


def batches(name, seed):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(8):
        if name == "mlp":
            data = torch.randn(64, 784, generator=generator)
            made.append((data, torch.randint(0, 10, (64,), generator=generator)))
        else:
            vocabulary, shape = {"gpt": (8192, (4, 65)), "gpt2-small": (50304, (8, 1025))}[name]
            text = torch.randint(0, vocabulary, shape, generator=generator)
            made.append((text[:, :-1].contiguous(), text[:, 1:].contiguous()))
    return made


def loss_of(scores, target):
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), target.reshape(-1))
