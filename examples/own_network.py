"""A network of one's own, trained in a stated number of bytes: run it as `python examples/own_network.py`."""

import torch
import torch.nn.functional as F
from torch import nn

import plimsoll

torch.manual_seed(0)
images = torch.randn(1000, 1, 16, 16)
labels = (images[:, 0, :, :8].mean((1, 2)) > images[:, 0, :, 8:].mean((1, 2))).long()  # which half is brighter?
train = torch.utils.data.TensorDataset(images[:840], labels[:840])
loader = torch.utils.data.DataLoader(train, batch_size=64, shuffle=True)  # the last batch is short

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.SiLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 64, 2),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=5 * len(loader))
batch, loss = next(iter(loader)), lambda output, batch: F.cross_entropy(output, batch[1])

told = plimsoll.fits(model, optimizer, loss=loss, example=batch, memory="64MiB")
print(f"the least that would do: {told['minimum_bytes'] / 2**20:.1f} MiB")
step = plimsoll.compile(model, optimizer, loss=loss, example=batch, memory="4MiB", outputs=lambda output: output)
for epoch in range(5):
    for batch in loader:
        value = step(batch)
        scheduler.step()
    test = step.evaluate((images[840:], labels[840:]))
    right = (step.evaluation_outputs["output"].argmax(1) == labels[840:]).float().mean()
    print(f"epoch {epoch}: loss {value:.3f}, test loss {test:.3f}, {right:.0%} right")
print(f"in {step.plan['measured_peak_bytes'] / 2**20:.2f} MiB; torch.save(model.state_dict(), ...) as ever")
