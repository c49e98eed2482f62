"""Networks of torchvision and transformers: weights, logits, losses and gradients; model_answers.cpp is the same in C++.

usage: models.py --record FOLDER       writes the files that the tests without Python read

Requests:
* {"resnet": "resnet18" or "resnet50", "seed", "options": {"width", "num_classes", "small_images"}, "size", "batch", "steps"}: initial
  weights from a seed, logits of random images, and the losses of SGD steps with momentum.
* {"llama": FOLDER, "batch", "length", "seed"}: a folder that transformers' save_pretrained wrote. The logits of random tokens, and the loss
  and gradients of one step.
* {"config": FOLDER, "seed"}: the weights that LlamaForCausalLM draws from a seed.

Answers have losses, and hashes of tensors, by name where there are several. Everything must be equal to the bit.
"""
import hashlib
import json
import os
import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

import resnet

logging.disable_progress_bar()
logging.set_verbosity_error()
RESNETS = {"resnet18": resnet.torchvision_resnet18, "resnet50": resnet.torchvision_resnet50}


def digest(tensor):
    return hashlib.sha256(bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())).hexdigest()


def digests(named):
    return {name: digest(tensor) for name, tensor in named}


def answer(request):
    if "resnet" in request:
        return resnet_answer(request)
    if "config" in request:
        torch.manual_seed(request["seed"])
        model = LlamaForCausalLM(LlamaConfig.from_pretrained(request["config"]))
        return {"weights": digests(model.named_parameters()), "next": digest(torch.rand(3))}
    return llama_answer(request)


def resnet_answer(request):
    torch.manual_seed(request["seed"])
    options = request["options"]
    model = RESNETS[request["resnet"]](**options)
    weights = digests(model.state_dict().items())
    images = torch.rand(request["batch"], 3, request["size"], request["size"])
    targets = torch.randint(options["num_classes"], [request["batch"]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses = []
    logits = model(images)
    for _ in range(request["steps"]):
        loss = functional.cross_entropy(model(images), targets)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"weights": weights, "logits": digest(logits), "losses": losses, "trained": digests(model.state_dict().items())}


def llama_answer(request):
    model = LlamaForCausalLM.from_pretrained(request["llama"], dtype=torch.float32, attn_implementation="sdpa")
    for parameter in model.parameters():  # into aligned memory, unlike that of a mapped file: MKL's order of sums depends on the alignment
        parameter.data = parameter.data.clone()
    torch.manual_seed(request["seed"])
    tokens = torch.randint(model.config.vocab_size, [request["batch"], request["length"]])
    model.eval()
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
    if request["length"] == 1:  # without a next token
        return {"logits": digest(logits)}
    model.train()
    loss = model(tokens, labels=tokens, use_cache=False).loss
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"logits": digest(logits), "loss": loss.item(), "gradients": digests(gradients.items())}


def random_llama(rng):
    heads = rng.choice([1, 2, 4, 6])
    head_dim = rng.choice([2, 4, 8, 10, 16, 64])
    vocab_size = rng.choice([7, 50, 256, 300])
    rope = {"rope_type": "default"}
    if rng.random() < 0.4:
        rope = {"rope_type": rng.choice(["linear", "llama3"]), "factor": rng.choice([1.5, 4.0, 32.0])}
    if rope["rope_type"] == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice([2.0, 4.0]), "original_max_position_embeddings": rng.choice([8, 16, 32])}
    has_bias = rng.random() < 0.3
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=heads * rng.choice([head_dim, head_dim, 4, 12]),
        intermediate_size=rng.choice([1, 5, 16, 33, 64, 200]),
        num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=heads,
        num_key_value_heads=rng.choice([count for count in range(1, heads + 1) if heads % count == 0]),
        head_dim=head_dim,
        max_position_embeddings=rng.choice([64, 100, 128]),
        rms_norm_eps=rng.choice([1e-6, 1e-5, 0.1]),
        initializer_range=rng.choice([0.02, 0.1, 0.5]),
        tie_word_embeddings=rng.random() < 0.5,
        attention_bias=has_bias,
        mlp_bias=has_bias,
        pad_token_id=rng.choice([None, None, 0, vocab_size - 1]),
        rope_parameters=rope | {"rope_theta": rng.choice([100.0, 10000.0, 500000.0])},
    )


def with_other_values(model):
    """Norms of 1 and biases of 0 would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def save_as_version_4(folder):
    """Rewrites config.json with the keys of version 4: rope_theta and rope_scaling."""
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        config = json.load(file)
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    with open(path, "w") as file:
        json.dump(config, file, indent=2)


def random_requests(rng, folder, count):
    requests = []
    for number in range(count):
        place = os.path.join(folder, str(number))
        torch.manual_seed(rng.randrange(1 << 31))
        model = with_other_values(LlamaForCausalLM(random_llama(rng)))
        model.save_pretrained(place, max_shard_size=rng.choice(["5GB", "5KB", "50KB"]))
        if rng.random() < 0.3:
            save_as_version_4(place)
        request = {"llama": place, "batch": rng.randint(1, 4), "length": rng.choice([1, 2, 7, 33, 64]), "seed": rng.randrange(1 << 31)}
        requests += [request, {"config": place, "seed": request["seed"]}]
    for name in RESNETS:
        for options, size in (({"width": 64, "num_classes": 1000}, 64), ({"width": rng.choice([1, 3, 8]), "num_classes": 10, "small_images": True}, 32)):
            requests.append({"resnet": name, "seed": rng.randrange(1 << 31), "options": options, "size": size, "batch": 3, "steps": 3})
    return requests


def difference(their, our):
    for key, value in their.items():
        if our[key] == value:
            continue
        if isinstance(value, dict):
            names = sorted(name for name in value.keys() | our[key].keys() if value.get(name) != our[key].get(name))
            return f"{key} of {len(names)} tensors, such as {names[0]}"
        return f"{key}: {value} and {our[key]}"
    return None


# --- files for the tests without Python ------------------------------------------------------------------------------------


def record(folder):
    """A Llama in one file with rotary embeddings as in Llama 3, a tied one in three files, and what they answer."""
    rope = {"rope_type": "llama3", "rope_theta": 1000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    sizes = {"vocab_size": 13, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    llama3 = LlamaConfig(**sizes, num_hidden_layers=2, head_dim=8, rms_norm_eps=1e-5, rope_parameters=rope)
    tied = LlamaConfig(**sizes, num_hidden_layers=1, tie_word_embeddings=True, attention_bias=True, mlp_bias=True)
    tokens = torch.arange(22).reshape(2, 11) * 5 % 13
    for name, config, max_shard_size in (("llama3", llama3, "5GB"), ("tied", tied, "1KB")):
        config.initializer_range = 0.3
        torch.manual_seed(7)
        model = with_other_values(LlamaForCausalLM(config)).eval()
        model.save_pretrained(os.path.join(folder, name), max_shard_size=max_shard_size)
        os.remove(os.path.join(folder, name, "generation_config.json"))
        output = model(tokens, labels=tokens)
        output.loss.backward()
        answers = {"tokens": tokens, "logits": output.logits, "loss": output.loss, "gradient": model.model.embed_tokens.weight.grad}
        save_file({key: tensor.detach().contiguous() for key, tensor in answers.items()}, os.path.join(folder, f"{name}_answers.safetensors"))


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "--record":
        sys.exit(__doc__)
    record(sys.argv[2])
