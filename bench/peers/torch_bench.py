#!/usr/bin/env python3
"""Training steps in PyTorch, the same work as `plimsoll train MODEL --batch BATCH --data synthetic --optimizer sgd`.

    torch_bench.py MODEL BATCH LAYOUT [--threads N] [--saving eager|checkpoint|disk] [--folder DIR] [--device cuda] [--compile] [--tf32]
                            [--memory BYTES]
                            alexnet vgg16 inception4 resnet50 resnet101 resnet152 resnet32 resnet:6-32-788-6; nchw or channels_last
    torch_bench.py torchvision:NAME BATCH LAYOUT ... | unet BATCH LAYOUT ...     the networks that bench.py trains through the package
    torch_bench.py MODEL BATCH plimsoll                                          plimsoll.compile trains it instead

Prints a line of JSON that says what it is, then waits: for each line "run N" on standard input it runs N steps and prints
{"step_ms": [...], "loss": ..., "peak_bytes": ...}; "quit" or the end of input ends it. So a driver can take turns between several of
these and Plimsoll. What fails is a line too, {"error": ...}, and ends it. Needs torch 1.13 or later, nothing else. The models are written out here so that they are the same work as the
zoo's: AlexNet has one tower, 227 x 227 images and LRN; ResNet-32 has the parameter-free shortcuts of He et al.

--saving says what happens to what the backward pass wants: eager keeps it; checkpoint (torch.utils.checkpoint) keeps the inputs of
about sqrt(n) runs of layers and computes the rest again; disk writes every saved tensor to a file and reads it back. peak_bytes is the
largest resident size of the process less what it had before the model was made: libraries are not counted. With --device cuda it is
what PyTorch had allocated on the GPU; single precision in full unless --tf32, and cuDNN measures which kernels are fastest, as Plimsoll
does. --memory is the most that PyTorch's allocator may hold on the GPU (what CUDA itself takes is not counted); where that is too little,
"out of memory" is the last line of standard error.

With --ranks N so many processes train together by DistributedDataParallel with gloo, each with its part of BATCH and one thread; the first
one answers for all.

With plimsoll each answer has "inside_ms" too, a step's time in the core: what is missing to "step_ms" is Python's own.

With --compile the first step compiles. Each answer then has "compiler": how often the graph broke, which would leave parts of the network
as they were, and whether all of it came from the cache on disk of an earlier run, so that the first step tells little about compiling.
"""
import argparse
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time

import torch
import torch.utils.checkpoint
import torch.nn as nn
import torch.nn.functional as F


def alexnet():
    def conv(*args, **kwargs):
        return [nn.Conv2d(*args, **kwargs), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *conv(3, 96, 11, 4), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2),
        *conv(96, 256, 5, padding=2), nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2),
        *conv(256, 384, 3, padding=1), *conv(384, 384, 3, padding=1), *conv(384, 256, 3, padding=1), nn.MaxPool2d(3, 2),
        nn.Flatten(), nn.Linear(9216, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 4096),
        nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000))


def vgg16():
    layers, channels = [], 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(25088, 4096), nn.ReLU(inplace=True), nn.Dropout(),
                         nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000))


def conv_bn(channels, out, kernel, stride=1):
    return [nn.Conv2d(channels, out, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(out)]


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.body = nn.Sequential(*conv_bn(channels, width, 1), nn.ReLU(inplace=True), *conv_bn(width, width, 3, stride),
                                  nn.ReLU(inplace=True), *conv_bn(width, 4 * width, 1))
        same = stride == 1 and channels == 4 * width
        self.shortcut = nn.Identity() if same else nn.Sequential(*conv_bn(channels, 4 * width, 1, stride))

    def forward(self, x):
        y = self.body(x)
        y += self.shortcut(x)
        return F.relu_(y)


def imagenet_resnet(blocks):
    layers, channels = [*conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for stage, count in enumerate(blocks):
        for i in range(count):
            layers.append(Bottleneck(channels, 64 << stage, 2 if stage > 0 and i == 0 else 1))
            channels = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


class Basic(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.body = nn.Sequential(*conv_bn(channels, width, 3, stride), nn.ReLU(inplace=True), *conv_bn(width, width, 3))
        self.stride, self.missing = stride, width - channels

    def forward(self, x):
        y = self.body(x)
        if self.missing:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.missing))
        y += x
        return F.relu_(y)


def cifar_resnet(depth):
    layers, channels = [*conv_bn(3, 16, 3), nn.ReLU(inplace=True)], 16
    for stage in range(3):
        for i in range((depth - 2) // 6):
            layers.append(Basic(channels, 16 << stage, 2 if stage > 0 and i == 0 else 1))
            channels = 16 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Branches(nn.Module):
    """Side by side on one input, joined along the channels."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


def chain(channels, *units):
    """Convolutions with batch norm and ReLU in a row: (channels, kernel, stride), padded so that the size stays unless the stride is
    given; a module stands for itself."""
    layers = []
    for unit in units:
        if isinstance(unit, nn.Module):
            layers.append(unit)
            continue
        out, kernel, stride = (*unit, None)[:3] if len(unit) > 1 else (unit[0], 1, None)
        kernel = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        padding = (kernel[0] // 2, kernel[1] // 2) if stride is None else 0
        layers += [nn.Conv2d(channels, out, kernel, stride or 1, padding, bias=False), nn.BatchNorm2d(out, eps=1e-3), nn.ReLU(inplace=True)]
        channels = out
    return nn.Sequential(*layers)


def inception4():
    row, column, halve = (1, 7), (7, 1), nn.MaxPool2d(3, 2)

    def pooled(channels, out):
        return chain(channels, nn.AvgPool2d(3, 1, 1, count_include_pad=False), (out,))

    def a():
        return Branches(chain(384, (96,)), chain(384, (64,), (96, 3)), chain(384, (64,), (96, 3), (96, 3)), pooled(384, 96))

    def b():
        return Branches(chain(1024, (384,)), chain(1024, (192,), (224, row), (256, column)),
                        chain(1024, (192,), (192, column), (224, row), (224, column), (256, row)), pooled(1024, 128))

    def c():
        def split(channels):
            return Branches(chain(channels, (256, (1, 3))), chain(channels, (256, (3, 1))))

        return Branches(chain(1536, (256,)), chain(1536, (384,), split(384)), chain(1536, (384,), (448, (3, 1)), (512, (1, 3)), split(512)),
                        pooled(1536, 256))

    stem = [chain(3, (32, 3, 2), (32, 3, 1), (64, 3)), Branches(halve, chain(64, (96, 3, 2))),
            Branches(chain(160, (64,), (96, 3, 1)), chain(160, (64,), (64, row), (64, column), (96, 3, 1))),
            Branches(chain(192, (192, 3, 2)), halve)]
    to_b = Branches(chain(384, (384, 3, 2)), chain(384, (192,), (224, 3), (256, 3, 2)), halve)
    to_c = Branches(chain(1024, (192,), (192, 3, 2)), chain(1024, (256,), (256, row), (320, column), (320, 3, 2)), halve)
    return nn.Sequential(*stem, *(a() for _ in range(4)), to_b, *(b() for _ in range(7)), to_c, *(c() for _ in range(3)),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(1536, 1000))


# builder, side of the images, classes, parameters of the zoo's network
MODELS = {
    "alexnet": (alexnet, 227, 1000, 62_378_344),
    "vgg16": (vgg16, 224, 1000, 138_357_544),
    "inception4": (inception4, 299, 1000, 42_679_816),
    "resnet50": (lambda: imagenet_resnet((3, 4, 6, 3)), 224, 1000, 25_557_032),
    "resnet101": (lambda: imagenet_resnet((3, 4, 23, 3)), 224, 1000, 44_549_160),
    "resnet152": (lambda: imagenet_resnet((3, 8, 36, 3)), 224, 1000, 60_192_808),
    "resnet32": (lambda: cifar_resnet(32), 32, 10, 464_154),
    "resnet:6-32-788-6": (lambda: imagenet_resnet((6, 32, 788, 6)), 227, 1000, None),
}


class UNet(nn.Module):
    """Ronneberger et al.'s, with batch norm and padded convolutions: every stage halves the image and doubles the channels."""

    def __init__(self, width=32, depth=4, classes=21):
        super().__init__()
        widths = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(chain(a, (b, 3), (b, 3)) for a, b in zip([3, *widths], widths))
        self.wider = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(widths, widths[1:]))
        self.up = nn.ModuleList(chain(2 * a, (a, 3), (a, 3)) for a in widths[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        kept = []
        for stage in self.down[:-1]:
            kept.append(stage(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for wider, up in zip(reversed(self.wider), reversed(self.up)):
            x = up(torch.cat([kept.pop(), wider(x)], 1))
        return self.head(x)


MODELS["unet"] = (UNet, 128, 21, None)
TORCHVISION = "torchvision:"


def torchvision_model(name):
    import torchvision

    return lambda: torchvision.models.get_model(name, weights=None), 224, 1000, None


def known_model(name):
    if name not in MODELS and not name.startswith(TORCHVISION):
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(MODELS)}, {TORCHVISION}NAME")
    return name


def resident(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field + ":")) * 1024


class OnDisk:
    """Saved tensors as files: each is written when it is saved and read when it is wanted."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)
        return self.hooks.__enter__()

    def __exit__(self, *args):
        self.hooks.__exit__(*args)

    def pack(self, tensor):
        if tensor.is_leaf and tensor.requires_grad:  # a parameter is there anyway
            return tensor
        self.count += 1
        path = os.path.join(self.folder, f"{self.count}.pt")
        torch.save(tensor, path)
        return path

    def unpack(self, packed):
        if isinstance(packed, torch.Tensor):
            return packed
        tensor = torch.load(packed)
        os.unlink(packed)
        return tensor


def sgd(parameters):
    """In one pass over the parameters where this version can do that on this device."""
    parameters = list(parameters)
    try:
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)
    except (TypeError, RuntimeError):
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def compiler():
    """What torch.compile has done so far."""
    counters = torch._dynamo.utils.counters
    kept = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    missed = counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_bypass"]
    return {"graph_breaks": sum(counters["graph_break"].values()), "from_cache": kept > 0 and missed == 0}


class Training:
    def __init__(self, model, batch, layout, saving, folder, device="cpu", compiled=False):
        self.before = resident("VmRSS")
        self.saving, self.folder, self.device = saving, folder, device
        build, side, classes, parameters = MODELS[model] if model in MODELS else torchvision_model(model.removeprefix(TORCHVISION))
        torch.manual_seed(0)
        memory_format = torch.channels_last if layout == "channels_last" else torch.contiguous_format
        self.model = build().to(device).to(memory_format=memory_format).train()
        count = sum(p.numel() for p in self.model.parameters())
        if parameters is not None and count != parameters:
            sys.exit(f"{model} has {count} parameters here and {parameters} in the zoo")
        self.data = torch.randn(batch, 3, side, side).to(device).contiguous(memory_format=memory_format)
        self.labels = torch.randint(classes, (batch, side, side) if model == "unet" else (batch,)).to(device)
        if torch.distributed.is_initialized():
            self.model = torch.nn.parallel.DistributedDataParallel(self.model)
        if compiled:
            self.model = torch.compile(self.model)
        self.optimizer = sgd(self.model.parameters())

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        if self.saving == "disk":
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                with OnDisk(folder):
                    loss = F.cross_entropy(self.model(self.data), self.labels)
                loss.backward()
        else:
            loss = F.cross_entropy(self.forward(), self.labels)
            loss.backward()
        self.optimizer.step()
        return loss.item()

    def forward(self):
        if self.saving == "eager":
            return self.model(self.data)
        segments = max(1, round(math.sqrt(len(self.model))))
        return torch.utils.checkpoint.checkpoint_sequential(self.model, segments, self.data.requires_grad_(), use_reentrant=False)

    def peak(self):
        if self.device == "cuda":
            return torch.cuda.max_memory_allocated()
        return resident("VmHWM") - self.before


class Timed:
    """An object whose methods' time is added up."""

    def __init__(self, inside):
        self.inside, self.ms = inside, 0.0

    def __getattr__(self, name):
        found = getattr(self.inside, name)
        if not callable(found):
            return found

        def timed(*args):
            start = time.perf_counter()
            try:
                return found(*args)
            finally:
                self.ms += (time.perf_counter() - start) * 1000

        return timed


class TrainingByPlimsoll(Training):
    """The same by the package, in as much memory as it wants."""

    def __init__(self, model, batch):
        import plimsoll

        super().__init__(model, batch, "nchw", "eager", None)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.compiled = plimsoll.compile(self.model, optimizer, loss=lambda y, batch: F.cross_entropy(y, batch[1]),
                                         example=(self.data, self.labels), progress=False)
        self.core = self.compiled._core = Timed(self.compiled._core)

    def step(self):
        return self.compiled((self.data, self.labels))


def say(value):
    print(json.dumps(value), flush=True)


def inside(training):
    return training.core.ms if isinstance(training, TrainingByPlimsoll) else 0.0


def join_ranks(count):
    """Starts the other ranks, where this is the first, and joins them."""
    if "RANK" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count), RANK="0")
        for rank in range(1, count):
            subprocess.Popen([sys.executable, *sys.argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={**os.environ, "RANK": str(rank)})
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")


def commands(ranks):
    """The lines of standard input; with several ranks those of the first, for all."""
    if ranks == 1:
        yield from sys.stdin
        return
    while True:
        line = [sys.stdin.readline() if torch.distributed.get_rank() == 0 else None]
        torch.distributed.broadcast_object_list(line)
        if not line[0]:
            return
        yield line[0]


def take_turns(args):
    if args.ranks > 1:
        if args.batch % args.ranks != 0:
            sys.exit(f"a batch of {args.batch} cannot be divided among {args.ranks}")
        join_ranks(args.ranks)
        args.batch //= args.ranks
    if args.layout == "plimsoll":
        training = TrainingByPlimsoll(args.model, args.batch)
    else:
        training = Training(args.model, args.batch, args.layout, args.saving, args.folder, args.device, args.compile)
    say({"torch": torch.__version__, "model": args.model, "batch": args.batch, "layout": args.layout, "saving": args.saving,
         "threads": torch.get_num_threads()})
    for line in commands(args.ranks):
        words = line.split()
        if words == ["quit"]:
            break
        if len(words) != 2 or words[0] != "run" or not words[1].isdigit():
            sys.exit(f"expected 'run N' or 'quit', got {line.strip()!r}")
        step_ms, inside_ms, loss = [], [], None
        for _ in range(int(words[1])):
            before, start = inside(training), time.perf_counter()
            loss = training.step()
            step_ms.append((time.perf_counter() - start) * 1000)
            inside_ms.append(inside(training) - before)
        if loss is not None and not math.isfinite(loss):
            raise ArithmeticError(f"the loss is {loss}: these times would mean nothing")
        say({"step_ms": step_ms, "loss": loss, "peak_bytes": training.peak(), **({"compiler": compiler()} if args.compile else {}),
             **({"inside_ms": inside_ms} if args.layout == "plimsoll" else {})})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=known_model)
    parser.add_argument("batch", type=int)
    parser.add_argument("layout", choices=("nchw", "channels_last", "plimsoll"))
    parser.add_argument("--threads", type=int, help="default: PyTorch's own choice")
    parser.add_argument("--saving", choices=("eager", "checkpoint", "disk"), default="eager")
    parser.add_argument("--folder", help="where --saving disk writes")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train together")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--memory", type=int, metavar="BYTES", help="with --device cuda: the most that PyTorch may hold there")
    args = parser.parse_args()
    if args.device == "cuda":
        torch.backends.cudnn.benchmark = True
        if args.memory:
            torch.cuda.set_per_process_memory_fraction(min(1.0, args.memory / torch.cuda.get_device_properties(0).total_memory))
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        take_turns(args)
    except torch.cuda.OutOfMemoryError:
        say({"error": "out of memory"})
        sys.exit("out of memory")
    except Exception as error:
        told = [line for line in str(error).splitlines() if line.strip()] or [""]
        short = "out of memory" if isinstance(error, MemoryError) or "can't allocate memory" in str(error) else f"{type(error).__name__}: {told[0]}"
        say({"error": short})
        raise


if __name__ == "__main__":
    main()
