#!/usr/bin/env python3
"""Records whole training steps of small networks in PyTorch, in double precision, for tests/recorded/recorded_test.cpp.

    python scripts/record_torch.py [--out tests/recorded]

Needs torch (any 2.x); torchvision only for state_dicts.txt. Everything starts from numbers that both sides make from a
tensor's name (see `numbers`), so that a file holds results only:

    <optimizer>/<loss>/<step>              grad/<parameter> of the first step
    <optimizer>/<parameter or statistic>   after two steps; <optimizer>/<parameter>.momentum, .exp_avg, .exp_avg_sq

The files are safetensors with f32 values.
"""
import argparse
import json
import math
import struct
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SGD = {"momentum": 0.9, "weight_decay": 0.01}
ADAM = {"weight_decay": 0.01}
RATES = {"sgd": 0.1, "nesterov": 0.1, "adam": 0.01, "adamw": 0.01}
STEPS = 2


def numbers(name, count):
    """Even in [-1, 1): FNV-1a of the name, then splitmix64 of it plus the index; 24 bits, so exact in f32."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        x = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return (x >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0


def start_value(name, shape):
    u = numbers(name, math.prod(shape))
    if name.endswith("running_mean"):
        v = 0.125 * u
    elif name.endswith("running_var"):
        v = 1 + 0.5 * u
    elif name.endswith("bias"):
        v = 0.25 * u
    elif name.endswith("weight") and len(shape) == 1:
        v = 1 + 0.25 * u
    elif name.endswith("weight"):
        v = u * 1.5 / math.sqrt(math.prod(shape[1:]))
    else:
        v = u
    return v.astype(np.float32).astype(np.float64).reshape(shape)


class LeNet(nn.Module):
    shape, classes = (4, 1, 8, 8), 5

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 5, padding=2)
        self.conv2 = nn.Conv2d(4, 8, 5, padding=2)
        self.fc1 = nn.Linear(32, 24)
        self.fc2 = nn.Linear(24, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        out = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, out, 1, bias=False), nn.BatchNorm2d(out)
        if stride != 1 or channels != out:
            self.downsample = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (self.downsample(x) if hasattr(self, "downsample") else x))


class ResNet(nn.Module):
    shape, classes = (3, 3, 13, 11), 6

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Bottleneck(8, 4, 1), Bottleneck(16, 4, 1))
        self.layer2 = nn.Sequential(Bottleneck(16, 6, 2))
        self.fc = nn.Linear(24, 6)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


class Unit(nn.Module):
    def __init__(self, channels, out, kernel, **options):
        super().__init__()
        self.conv = nn.Conv2d(channels, out, kernel, bias=False, **options)
        self.bn = nn.BatchNorm2d(out, eps=0.001)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)))


class Inception(nn.Module):
    shape, classes = (3, 4, 9, 10), 5

    def __init__(self):
        super().__init__()
        self.a = Unit(4, 5, 1)
        self.b1, self.b2 = Unit(4, 3, 1), Unit(3, 4, 5, padding=2)
        self.c1, self.c2, self.c3 = Unit(4, 3, 1), Unit(3, 4, (1, 7), padding=(0, 3)), Unit(4, 4, (7, 1), padding=(3, 0))
        self.d = Unit(4, 3, 1)
        self.e = Unit(16, 6, 3, stride=2)
        self.f1, self.f2 = Unit(16, 4, 1), Unit(4, 5, 3, stride=2)
        self.g = Unit(27, 6, 1)
        self.ga, self.gb = Unit(6, 4, (1, 3), padding=(0, 1)), Unit(6, 4, (3, 1), padding=(1, 0))
        self.fc = nn.Linear(8, 5)

    def forward(self, x):
        c = self.c3(self.c2(self.c1(x)))
        x = torch.cat([self.a(x), self.b2(self.b1(x)), c, self.d(F.avg_pool2d(x, 3, 1, 1))], 1)
        x = torch.cat([self.e(x), self.f2(self.f1(x)), F.max_pool2d(x, 3, 2)], 1)
        x = self.g(F.avg_pool2d(x, 3, 1, 1, count_include_pad=False))
        x = torch.cat([self.ga(x), self.gb(x)], 1)
        return self.fc(x.mean((2, 3)))


class DenseLayer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features):
        y = self.conv1(F.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(F.relu(self.norm2(y)))


class DenseNet(nn.Module):
    shape, classes = (3, 2, 8, 8), 5

    def __init__(self):
        super().__init__()
        self.conv0 = nn.Conv2d(2, 6, 3, padding=1, bias=False)
        self.layer1, self.layer2, self.layer3 = DenseLayer(6, 3), DenseLayer(9, 3), DenseLayer(12, 3)
        self.norm, self.conv = nn.BatchNorm2d(15), nn.Conv2d(15, 7, 1, bias=False)
        self.layer4 = DenseLayer(7, 3)
        self.norm5 = nn.BatchNorm2d(10)
        self.classifier = nn.Linear(10, 5)

    def forward(self, x):
        features = [self.conv0(x)]
        for layer in (self.layer1, self.layer2, self.layer3):
            features.append(layer(features))
        x = F.avg_pool2d(self.conv(F.relu(self.norm(torch.cat(features, 1)))), 2)
        x = torch.cat([x, self.layer4([x])], 1)
        return self.classifier(F.relu(self.norm5(x)).mean((2, 3)))


class AlexNet(nn.Module):
    shape, classes = (3, 3, 35, 31), 6

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2)
        self.conv2 = nn.Conv2d(8, 12, 5, padding=2, groups=2)
        self.conv3 = nn.Conv2d(12, 8, 3, padding=1)
        self.fc6 = nn.Linear(48, 20)
        self.fc7 = nn.Linear(20, 6)

    def forward(self, x):
        x = F.max_pool2d(F.local_response_norm(F.relu(self.conv1(x)), 5, 0.02, 0.75, 1.0), 3, 2)
        x = F.max_pool2d(F.local_response_norm(F.relu(self.conv2(x)), 4, 0.5, 0.6, 2.0), 3, 2)
        return self.fc7(F.relu(self.fc6(F.relu(self.conv3(x)).flatten(1))))


class Autoencoder(nn.Module):
    shape, classes = (3, 2, 9, 11), 0

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(2, 6, 3, 2, 1)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=2, dilation=2)
        self.up1, self.bn1 = nn.ConvTranspose2d(8, 6, 3, 1, 1, groups=2, bias=False), nn.BatchNorm2d(6)
        self.up2 = nn.ConvTranspose2d(6, 4, 4, 2, 2, output_padding=1)
        self.out = nn.Conv2d(4, 2, 1)

    def forward(self, x):
        x = F.leaky_relu(self.conv2(torch.sigmoid(self.conv1(x))), 0.2)
        x = F.relu(self.bn1(self.up1(x)))
        return torch.tanh(self.out(self.up2(x)))


class Gan(nn.Module):
    """Both networks in one step: each trained by its own loss, both gradients taken before either update."""

    shape, z_shape = (4, 1, 8, 8), (4, 5, 1, 1)

    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(5, 8, 4, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh())
        self.discriminator = nn.Sequential(
            nn.Conv2d(1, 6, 3, 2, 1, bias=False), nn.LeakyReLU(0.2), nn.Conv2d(6, 8, 3, 1, 1, bias=False),
            nn.BatchNorm2d(8), nn.LeakyReLU(0.2), nn.Conv2d(8, 1, 4, bias=False))

    def losses(self, step):
        """By name, each with the network that it trains."""
        real = torch.from_numpy(numbers(f"data/{step}", math.prod(self.shape)).reshape(self.shape))
        z = torch.from_numpy(numbers(f"z/{step}", math.prod(self.z_shape)).reshape(self.z_shape))
        is_real = self.discriminator(real)
        is_fake = self.discriminator(self.generator(z))

        def judge(logits, target):
            return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))

        return {"discriminator_loss": (judge(is_real, 1) + judge(is_fake, 0), self.discriminator),
                "generator_loss": (judge(is_fake, 1), self.generator)}


NETWORKS = {"lenet": LeNet, "resnet": ResNet, "inception": Inception, "densenet": DenseNet, "alexnet": AlexNet,
            "autoencoder": Autoencoder, "gan": Gan}


def make_optimizer(name, parameters):
    if name in ("sgd", "nesterov"):
        return torch.optim.SGD(parameters, lr=RATES[name], nesterov=name == "nesterov", **SGD)
    kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
    return kind(parameters, lr=RATES[name], **ADAM)


def classify(model, step):
    """The loss on a step's data; a network without classes is to give its data back."""
    shape = model.shape
    data = torch.from_numpy(numbers(f"data/{step}", math.prod(shape)).reshape(shape))
    if not model.classes:
        return F.mse_loss(model(data), data)
    labels = (numbers(f"labels/{step}", shape[0]) + 1) / 2 * model.classes
    return F.cross_entropy(model(data), torch.from_numpy(labels.astype(np.int64)))


def record(kind, optimizer_name, results):
    model = kind().double().train()
    for name, value in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            value.copy_(torch.from_numpy(start_value(name, tuple(value.shape))))
    optimizer = make_optimizer(optimizer_name, model.parameters())
    for step in range(STEPS):
        losses = model.losses(step) if hasattr(model, "losses") else {"loss": (classify(model, step), model)}
        for name, (loss, trained) in losses.items():
            results[f"{optimizer_name}/{name}/{step}"] = loss.detach()
            parameters = list(trained.parameters())
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters, retain_graph=True)):
                parameter.grad = gradient
        if step == 0:
            for name, parameter in model.named_parameters():
                results[f"grad/{name}"] = parameter.grad.clone()
        optimizer.step()
    for name, value in model.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            results[f"{optimizer_name}/{name}"] = value.clone()
    for name, parameter in model.named_parameters():
        for key, state in optimizer.state[parameter].items():
            if key != "step":
                results[f"{optimizer_name}/{name}.{key.replace('momentum_buffer', 'momentum')}"] = state.clone()


def save(path, tensors):
    header, offset, parts = {}, 0, []
    for name in sorted(tensors):
        data = tensors[name].detach().numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def save_state_dicts(path):
    """Names and shapes of torchvision's networks, as the zoo must have them."""
    import torchvision

    lines = []
    for name, build in {"resnet18": torchvision.models.resnet18, "resnet50": torchvision.models.resnet50,
                        "vgg16": torchvision.models.vgg16, "densenet121": torchvision.models.densenet121,
                        "inception3": lambda: torchvision.models.inception_v3(aux_logits=False, init_weights=False)}.items():
        with torch.device("meta"):
            model = build()
        lines.append(f"# {name}")
        for key, value in model.state_dict().items():
            if not key.endswith("num_batches_tracked"):
                lines.append(f"{key} {'x'.join(str(d) for d in value.shape)}")
    path.write_text("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "tests" / "recorded")
    out = parser.parse_args().out
    torch.set_num_threads(1)
    for name, kind in NETWORKS.items():
        results = {}
        for optimizer in ("sgd", "adam"):
            record(kind, optimizer, results)
        if name == "lenet":
            record(kind, "nesterov", results)
            record(kind, "adamw", results)
        save(out / f"{name}.safetensors", results)
    save_state_dicts(out / "state_dicts.txt")


if __name__ == "__main__":
    main()
