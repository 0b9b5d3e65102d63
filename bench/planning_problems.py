#!/usr/bin/env python3
"""Planning problems of the kinds that the field measures by, made by seed: graphs of costs only, for `plimsoll plan --graph`.

  bench/planning_problems.py FOLDER                  writes all of them
  bench/planning_problems.py FOLDER --seed 7 gan     those whose names have "gan", another draw of what is random

  layered         random layered graphs, as those of MOCCASIN's and OLLA's papers: one sink, links over several layers
  vgg, unet, fcn  training graphs as Checkmate takes them: a node an op, its gradient after it, one output each
  trace           ops as a framework runs them, as in DTR's logs: several outputs an op, views as nodes of one byte, ops in place written as
                  copies, counters, gradients that are kept, weights that a recomputation needs late: a U-Net, ResNet-32, Inception-v4, a
                  transformer, a GAN whose discriminator is unrolled

Files are lists of nodes (docs/formats.md).
"""
import argparse
import json
import pathlib
import random

MIB = 1 << 20


def peak(problem):
    """Bytes with every value kept from its node to its last reader."""
    nodes = problem["nodes"]
    last = {(i, o): i for i, node in enumerate(nodes) for o in range(len(node["out"]))}
    for i, node in enumerate(nodes):
        last |= {(n, o): i for n, o in node["in"] if n != "source"}
    last |= {tuple(kept): len(nodes) for kept in problem["keep"] if kept[0] != "source"}
    ends = {}
    for (i, o), end in last.items():
        ends[end] = ends.get(end, 0) + nodes[i]["out"][o]
    live, most = sum(problem["sources"]), 0
    for i, node in enumerate(nodes):
        live += sum(node["out"])
        most = max(most, live)
        live -= ends.get(i, 0)
    return most


def finished(about, sources, nodes, keep):
    problem = {"about": about, "sources": sources, "nodes": nodes, "keep": [list(k) for k in keep]}
    return problem | {"peak_bytes": peak(problem)}


def layered(count, seed):
    """Layers of some nodes between one source and one sink; a node reads some of those in the layer before it, and a few of earlier ones, and is
    read in the next. The wider the layers, the more a node reads: some 2.4 where there are 100 nodes, 5 where there are 1,000."""
    draw = random.Random(f"layered {count} {seed}")
    layers = [[0]]
    while (begin := sum(map(len, layers))) < count - 1:
        layers.append(list(range(begin, min(begin + draw.randint(1, round(count**0.5) - 1), count - 1))))
    layers.append([count - 1])
    reads = {0: set()}
    for k, layer in enumerate(layers[1:], 1):
        for n in layer:
            reads[n] = {m for m in layers[k - 1] if draw.random() < 0.27} or {draw.choice(layers[k - 1])}
            while k > 1 and draw.random() < 0.4:
                reads[n].add(draw.choice(layers[max(0, k - 2 - int(draw.expovariate(0.4)))]))
        for m in layers[k - 1]:  # nothing is made that nobody reads
            if not any(m in reads[n] for n in layer):
                reads[draw.choice(layer)].add(m)
    nodes = [{"name": f"n{n}", "ms": draw.randint(0, 1000), "out": [draw.randint(1, 100) * 65536], "in": [[r, 0] for r in sorted(reads[n])]} for n in range(count)]
    return finished(f"random layered graph of {count} nodes", [], nodes, [(count - 1, 0)])


class Training:
    """A network as a list of ops with one output, and the gradient of each after them, in reverse: it reads the gradients of the op's readers,
    what the op made, and what it read."""

    def __init__(self):
        self.ops = []  # name, ms, bytes, read

    def op(self, name, size, ms, *read):
        self.ops.append((name, ms, size, list(read)))
        return len(self.ops) - 1

    def problem(self, about):
        nodes = [{"name": name, "ms": ms, "out": [size], "in": [[r, 0] for r in read]} for name, ms, size, read in self.ops]
        readers = {i: [j for j, op in enumerate(self.ops) if i in op[3]] for i in range(len(self.ops))}
        gradient = {}
        for i in reversed(range(len(self.ops))):
            name, ms, size, read = self.ops[i]
            reads = sorted({*read, i, *(gradient[j] for j in readers[i])})
            gradient[i] = len(nodes)
            nodes.append({"name": f"{name}/backward", "ms": 2 * ms, "out": [size], "in": [[r, 0] for r in reads]})
        return finished(about, [], nodes, [(len(nodes) - 1, 0)])


class Images(Training):
    """Convolutions and pools over images of a batch; what an op makes is known with its channels and its side."""

    def __init__(self, batch, side, channels=3):
        super().__init__()
        self.batch, self.shape = batch, {}
        self.input = self.conv("in", None, channels, side=side)

    def conv(self, name, x, channels, stride=1, side=None):
        before, at = self.shape[x] if x is not None else (3, side)
        at //= stride
        size = 4 * self.batch * channels * at * at
        made = self.op(name, size, round(18 * self.batch * before * channels * at * at / 5e9 + size / 3e8, 3), *([] if x is None else [x]))
        self.shape[made] = channels, at
        return made

    def cheap(self, name, channels, side, *read):
        size = 4 * self.batch * channels * side * side
        made = self.op(name, size, round(size / 2e8, 3), *read)
        self.shape[made] = channels, side
        return made

    def pool(self, name, x):
        channels, side = self.shape[x]
        return self.cheap(name, channels, side // 2, x)

    def up(self, name, x, channels):
        return self.cheap(name, channels, 2 * self.shape[x][1], x)


VGG16 = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg(batch=64, side=224):
    net = Images(batch, side)
    x = net.input
    for block, (channels, repeats) in enumerate(VGG16):
        for i in range(repeats):
            x = net.conv(f"conv{block}.{i}", x, channels)
        x = net.pool(f"pool{block}", x)
    for i, width in enumerate((4096, 4096, 1000)):
        x = net.cheap(f"fc{i}", width, 1, x)
    net.op("loss", 1024, 0.1, x)
    return net.problem(f"training graph of VGG16, batch {batch}")


def fcn(batch=16, side=256):
    net = Images(batch, side)
    x, scores = net.input, []
    for block, (channels, repeats) in enumerate(VGG16):
        for i in range(repeats):
            x = net.conv(f"conv{block}.{i}", x, channels)
        x = net.pool(f"pool{block}", x)
        if block >= 2:
            scores.append(net.conv(f"score{block}", x, 21))
    y = scores.pop()
    while scores:
        y = net.up(f"up{len(scores)}", y, 21)
        y = net.cheap(f"sum{len(scores)}", 21, net.shape[y][1], y, scores.pop())
    for i in range(3):
        y = net.up(f"out{i}", y, 21)
    net.op("loss", 128, 0.1, y)
    return net.problem(f"training graph of an FCN on VGG16, batch {batch}")


def unet(batch=8, side=256, depth=4):
    net = Images(batch, side)
    x, skips = net.input, []
    for level in range(depth):
        for i in range(2):
            x = net.conv(f"down{level}.{i}", x, 64 << level)
        skips.append(x)
        x = net.pool(f"pool{level}", x)
    for i in range(2):
        x = net.conv(f"middle.{i}", x, 64 << depth)
    for level in reversed(range(depth)):
        x = net.up(f"up{level}", x, 64 << level)
        x = net.cheap(f"cat{level}", 128 << level, net.shape[x][1], x, skips.pop())
        for i in range(2):
            x = net.conv(f"back{level}.{i}", x, 64 << level)
    net.op("loss", 128, 0.1, net.conv("score", x, 2))
    return net.problem(f"training graph of a U-Net, batch {batch}")


class Tape:
    """Ops as a framework runs them, and the backward ops that it runs for them. Gradients can have gradients, as a unrolled optimizer needs."""

    def __init__(self, seed):
        self.draw = random.Random(f"tape {seed}")
        self.sources, self.nodes, self.keep, self.records, self.sizes = [], [], [], [], {}

    def source(self, size):
        self.sources.append(size)
        at = ("source", len(self.sources) - 1)
        self.sizes[at] = size
        return at

    def run(self, name, ms, out, read):
        self.nodes.append({"name": f"{name}_{len(self.nodes)}", "ms": round(ms * self.draw.uniform(0.95, 1.05), 6), "out": list(out), "in": [list(r) for r in read]})
        made = [(len(self.nodes) - 1, o) for o in range(len(out))]
        self.sizes |= dict(zip(made, out))
        return made

    def op(self, name, out, read, ms=None, gradients=None, saved=None):
        """`gradients`: which of what it reads get one (all, where it is not said); `saved`: what the backward op reads beside the gradients
        of what the op made."""
        moved = sum(out) + sum(self.sizes[r] for r in read)
        ms = moved / 4e8 + 0.004 if ms is None else ms
        made = self.run(name, ms, out, read)
        self.records.append((name, ms, made, [r for i, r in enumerate(read) if gradients is None or i in gradients], read if saved is None else [(read + made)[i] for i in saved]))
        return made[0]

    def view(self, x):
        """A node of one byte; who reads the view reads what it shows, too."""
        return self.run("view", 0.002, [1], [x])[0]

    def in_place(self, name, x, *read, gradients=(0,), saved=()):
        return self.op(f"{name}_", [self.sizes[x]], [x, *read], gradients=gradients, saved=saved)

    def count(self):
        counter = self.source(8)
        self.keep.append(self.run("add", 0.003, [8], [counter])[0])

    def conv(self, x, weight, bias, size, ms, counted=True):
        y = self.op("convolution", [size], [x, weight], ms)
        return self.in_place("add", y, bias, self.view(bias), gradients=(0, 1))

    def norm(self, x, channels):
        gamma, beta, mean, variance = (self.source(4 * channels) for _ in range(4))
        self.count()
        return self.op("batch_norm", [self.sizes[x], 4 * channels, 4 * channels, 1], [x, gamma, beta, mean, variance], gradients=(0, 1, 2), saved=(0, 1, 6, 7))

    def relu(self, x):
        return self.op("relu_", [self.sizes[x]], [x], saved=(1,))

    def backward(self, loss, wanted, records=None):
        """Gradients of `wanted`, of all that was recorded since `records`."""
        gradient = {loss: self.run("ones_like", 0.004, [self.sizes[loss]], [loss])[0]}
        begin = 0 if records is None else records
        needed = set(wanted)
        for name, ms, made, inputs, saved in self.records[begin:]:
            if any(i in needed for i in inputs):
                needed |= set(made)
        for name, ms, made, inputs, saved in reversed(self.records[begin:]):
            own = [gradient.pop(m) for m in made if m in gradient]
            into = [i for i in dict.fromkeys(inputs) if i in needed]
            if not own or not into:
                continue
            before = len(self.records)
            self.op(f"{name}_backward", [self.sizes[i] for i in into], [*own, *(s for s in dict.fromkeys(saved) if s not in own)], 1.5 * ms + 0.004)
            parts = self.records[before][2]
            for i, part in zip(into, parts):
                gradient[i] = self.op("add", [self.sizes[i]], [gradient[i], part], saved=()) if i in gradient else part
        return [gradient.get(w) for w in wanted]

    def problem(self, about, result):
        self.keep += [r for r in result if r is not None and r[0] != "source"]
        return finished(about, self.sources, self.nodes, dict.fromkeys(self.keep))


class ImageTape(Tape):
    def __init__(self, seed, batch, side):
        super().__init__(seed)
        self.batch, self.weights, self.shape = batch, [], {}
        self.input = self.source(4 * batch * 3 * side * side)
        self.shape[self.input] = 3, side

    def put(self, x, channels, side):
        self.shape[x] = channels, side
        return x

    def block(self, x, channels, stride=1, kernel=9, relu=True):
        before, side = self.shape[x]
        side //= stride
        weight, bias = self.source(4 * kernel * before * channels), self.source(4 * channels)
        self.weights += [weight, bias]
        size = 4 * self.batch * channels * side * side
        y = self.conv(x, weight, bias, size, 2 * kernel * self.batch * before * channels * side * side / 6e9 + 0.02)
        y = self.norm(y, channels)
        return self.put(self.relu(y) if relu else y, channels, side)

    def pool(self, x):
        channels, side = self.shape[x]
        size = 4 * self.batch * channels * (side // 2) ** 2
        return self.put(self.op("max_pool", [size, 2 * size], [x], saved=(0, 2)), channels, side // 2)

    def cat(self, *parts):
        channels, side = sum(self.shape[p][0] for p in parts), self.shape[parts[0]][1]
        return self.put(self.op("cat", [sum(self.sizes[p] for p in parts)], list(parts), saved=()), channels, side)

    def classify(self, x, classes):
        channels, side = self.shape[x]
        pooled = self.op("mean", [4 * self.batch * channels], [x], saved=())
        weight, bias = self.source(4 * channels * classes), self.source(4 * classes)
        self.weights += [weight, bias]
        flat = self.view(pooled)
        scores = self.op("addmm", [4 * self.batch * classes], [pooled, weight, bias, flat, self.view(weight)], gradients=(0, 1, 2), saved=(0, 1))
        return self.loss(scores)

    def loss(self, scores):
        labels = self.source(8 * self.batch)
        chances = self.op("log_softmax", [self.sizes[scores]], [scores], saved=(1,))
        return self.op("nll_loss", [4, 4], [chances, labels], gradients=(0,), saved=(0, 1, 3))

    def finish(self, about, loss):
        return self.problem(about, [loss, *self.backward(loss, self.weights)])


def unet_trace(seed, batch=4, side=256, depth=4):
    tape = ImageTape(seed, batch, side)
    x, skips = tape.input, []
    for level in range(depth):
        x = tape.block(tape.block(x, 64 << level), 64 << level)
        skips.append(x)
        x = tape.pool(x)
    x = tape.block(tape.block(x, 64 << depth), 64 << depth)
    for level in reversed(range(depth)):
        channels, side = tape.shape[x]
        x = tape.put(tape.op("upsample", [4 * tape.sizes[x]], [x], saved=()), channels, 2 * side)
        x = tape.cat(x, skips.pop())
        x = tape.block(tape.block(x, 64 << level), 64 << level)
    return tape.finish("trace of a U-Net's training step", tape.loss(tape.block(x, 2, kernel=1, relu=False)))


def resnet_trace(seed, batch=128, blocks=5):
    tape = ImageTape(seed, batch, 32)
    x = tape.block(tape.input, 16)
    for stage in range(3):
        for i in range(blocks):
            stride = 2 if stage > 0 and i == 0 else 1
            y = tape.block(tape.block(x, 16 << stage, stride), 16 << stage, relu=False)
            short = tape.block(x, 16 << stage, stride, kernel=1, relu=False) if stride == 2 else x
            x = tape.put(tape.relu(tape.in_place("add", y, short, gradients=(0, 1))), *tape.shape[y])
    return tape.finish("trace of ResNet-32's training step", tape.classify(x, 10))


def inception_trace(seed, batch=16, repeats=(4, 7, 3)):
    tape = ImageTape(seed, batch, 296)
    x = tape.block(tape.block(tape.block(tape.input, 32, 2), 32), 64)
    x = tape.cat(tape.pool(x), tape.block(x, 96, 2))
    x = tape.cat(tape.block(tape.block(x, 64, kernel=1), 96), tape.block(tape.block(tape.block(tape.block(x, 64, kernel=1), 64, kernel=7), 64, kernel=7), 96))
    x = tape.cat(tape.block(x, 192, 2), tape.pool(x))
    for stage, count in enumerate(repeats):
        width = (96, 192, 256)[stage]
        for _ in range(count):
            branches = [tape.block(x, width, kernel=1)]
            for convolutions in (1, 2, 4)[: 2 + (stage > 0)]:
                y = tape.block(x, width // 2, kernel=1)
                for i in range(convolutions):
                    y = tape.block(y, width, kernel=9 if stage == 0 else 7)
                branches.append(y)
            channels, side = tape.shape[x]
            pooled = tape.put(tape.op("avg_pool", [tape.sizes[x]], [x], saved=()), channels, side)
            x = tape.cat(*branches, tape.block(pooled, width, kernel=1))
        if stage < 2:
            x = tape.cat(tape.pool(x), tape.block(x, 2 * width, 2))
    return tape.finish("trace of Inception-v4's training step", tape.classify(x, 1000))


def transformer_trace(seed, batch=32, tokens=128, width=512, heads=8, layers=32, vocabulary=8000):
    tape = ImageTape(seed, batch, 1)
    rows, weights = batch * tokens, tape.weights

    def linear(x, wide, to):
        weight, bias = tape.source(4 * wide * to), tape.source(4 * to)
        weights.extend((weight, bias))
        shown, turned = tape.view(x), tape.view(weight)
        return tape.op("addmm", [4 * rows * to], [x, weight, bias, shown, turned], 2 * rows * wide * to / 6e9 + 0.01, gradients=(0, 1, 2), saved=(0, 1))

    def norm(x):
        gamma, beta = tape.source(4 * width), tape.source(4 * width)
        weights.extend((gamma, beta))
        return tape.op("layer_norm", [tape.sizes[x], 4 * rows, 4 * rows], [x, gamma, beta], saved=(0, 1, 4, 5))

    def dropout(x):
        mask = tape.run("bernoulli", tape.sizes[x] / 8e8, [tape.sizes[x] // 4], [x])[0]
        return tape.op("mul", [tape.sizes[x]], [x, mask], gradients=(0,), saved=(1,))

    ids, table = tape.source(8 * rows), tape.source(4 * vocabulary * width)
    weights.append(table)
    x = tape.op("embedding", [4 * rows * width], [table, ids], gradients=(0,), saved=(1,))
    for _ in range(layers):
        y, parts = norm(x), []
        for _ in range(3):
            part = linear(y, width, width)
            parts.append(tape.op("contiguous", [4 * rows * width], [part, tape.view(part), tape.view(part)], gradients=(0,), saved=()))
        scores = tape.op("bmm", [4 * batch * heads * tokens * tokens], parts[:2], 2 * rows * tokens * width / 6e9)
        scores = dropout(tape.op("softmax", [tape.sizes[scores]], [tape.in_place("div", scores)], saved=(1,)))
        y = tape.op("bmm", [4 * rows * width], [scores, parts[2]], 2 * rows * tokens * width / 6e9)
        x = tape.op("add", [4 * rows * width], [x, dropout(linear(y, width, width))], saved=())
        y = tape.relu(linear(norm(x), width, 4 * width))
        x = tape.op("add", [4 * rows * width], [x, dropout(linear(y, 4 * width, width))], saved=())
    return tape.finish("trace of a transformer's training step", tape.loss(linear(norm(x), width, vocabulary)))


def gan_trace(seed, batch=512, width=128, steps=24, layers=6):
    """The discriminator's steps stay on the tape: the generator's loss is differentiated through all of them."""
    tape = Tape(seed)
    size = 4 * batch * width
    generator = [tape.source(4 * width * width) for _ in range(layers)]
    trained = [tape.source(4 * width * width) for _ in range(layers)]
    moments = [tape.source(4 * width * width) for _ in range(layers)]

    def network(weights, x):
        for weight in weights[:-1]:
            x = tape.relu(tape.op("addmm", [size], [x, weight, tape.view(weight)], gradients=(0, 1), saved=(0, 1)))
        return tape.op("addmm", [size], [x, weights[-1], tape.view(weights[-1])], gradients=(0, 1), saved=(0, 1))

    def loss(score, weights, other):
        return tape.op("bce", [4], [tape.op("mean", [4], [network(weights, score)]), other])

    def sample():
        return tape.source(size)

    fake = network(generator, sample())
    for _ in range(steps):
        begin = len(tape.records)
        total = loss(fake, trained, loss(sample(), trained, tape.source(4)))
        gradients = tape.backward(total, trained, begin)
        for i, gradient in enumerate(gradients):
            moments[i] = tape.op("add", [tape.sizes[gradient]], [tape.op("mul", [tape.sizes[gradient]], [moments[i]]), gradient], saved=())
            scaled = tape.op("div", [tape.sizes[gradient]], [moments[i], tape.op("sqrt", [tape.sizes[gradient]], [moments[i]], saved=(1,))])
            trained[i] = tape.op("sub", [tape.sizes[gradient]], [trained[i], scaled], saved=())
    end = loss(fake, trained, tape.source(4))
    return tape.problem("trace of a GAN whose discriminator is unrolled", [end, *tape.backward(end, generator)])


# By name: how it is made, and the shares of its peak that plans are made for.
PROBLEMS = {
    "layered-100": (lambda seed: layered(100, seed), (0.9, 0.8)),
    "layered-250": (lambda seed: layered(250, seed), (0.9, 0.8)),
    "layered-1000": (lambda seed: layered(1000, seed), (0.9, 0.8)),
    "vgg16": (lambda seed: vgg(), (0.95, 0.9, 0.85)),
    "fcn": (lambda seed: fcn(), (0.9, 0.7, 0.6)),
    "unet": (lambda seed: unet(), (0.9, 0.7, 0.6)),
    "trace-unet": (unet_trace, (0.9, 0.7, 0.5, 0.4)),
    "trace-resnet32": (resnet_trace, (0.9, 0.8, 0.5, 0.3, 0.2, 0.15)),
    "trace-inception4": (inception_trace, (0.9, 0.5, 0.3, 0.2)),
    "trace-transformer": (transformer_trace, (0.9, 0.5, 0.3, 0.2)),
    "trace-gan": (gan_trace, (0.9, 0.7, 0.5, 0.3)),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("words", nargs="*", help="only problems whose names have one of these words")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, (make, shares) in PROBLEMS.items():
        if options.words and not any(word in name for word in options.words):
            continue
        problem = make(options.seed)
        (options.folder / f"{name}.json").write_text(json.dumps(problem, separators=(",", ":")) + "\n")
        print(f"{name}: {len(problem['nodes'])} nodes, peak {problem['peak_bytes'] / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
