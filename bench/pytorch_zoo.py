"""Networks that people train, for bench/python_networks.py: of torchvision, timm and transformers as they are, and some written by hand.

NETS = {name: (family, build)}; build() gives (module that returns its loss, arguments, keywords). Language models are made small, by their
own configurations; networks of images have their usual size, with a batch of two.
"""
import torch
import torch.nn.functional as F
from torch import nn

CLASSES, WORDS, BATCH = 10, 512, 2
NETS = {}


def network(name, family):
    def enter(build):
        NETS[name] = (family, build)
        return build

    return enter


class Loss(nn.Module):
    """A network with its loss of one batch: the cross entropy of what `logits` finds in its output."""

    def __init__(self, network, logits=lambda output: output, smoothing=0.0):
        super().__init__()
        self.network, self.logits, self.smoothing = network, logits, smoothing

    def forward(self, *inputs):
        *inputs, labels = inputs
        found = self.logits(self.network(*inputs))
        # Heads beside the last one count less, as GoogLeNet's authors have it.
        main, *beside = found if isinstance(found, (tuple, list)) else [found]
        loss = F.cross_entropy(main, labels, label_smoothing=self.smoothing)
        return loss + sum(0.3 * F.cross_entropy(head, labels) for head in beside)


class OwnLoss(nn.Module):
    """A model of transformers, which gives its loss where it is given labels."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, **batch):
        return self.network(**batch).loss


# --- images ---


def images(size):
    return torch.randn(BATCH, 3, size, size)


def image_labels(*shape, classes=CLASSES):
    return torch.randint(0, classes, (BATCH, *shape))


def torchvision_network(name, family, builder=None, size=224, **settings):
    def build():
        import torchvision

        made = torchvision.models.get_model(builder or name, weights=None, num_classes=CLASSES, **settings)
        return Loss(made), (images(size), image_labels()), {}

    NETS[name] = (family, build)


def timm_network(name, family, builder, size=224, **settings):
    def build():
        import timm

        made = timm.create_model(builder, pretrained=False, num_classes=CLASSES, **settings)
        return Loss(made, smoothing=0.1), (images(size), image_labels()), {}

    NETS[name] = (family, build)


torchvision_network("alexnet", "convolutional")
torchvision_network("vgg16", "convolutional")
torchvision_network("resnet50", "convolutional")
torchvision_network("resnext50", "convolutional", "resnext50_32x4d")
torchvision_network("densenet121", "convolutional")
torchvision_network("inception_v3", "convolutional", size=299, init_weights=False)
torchvision_network("googlenet", "convolutional", init_weights=False)
torchvision_network("mobilenet_v3", "convolutional", "mobilenet_v3_large")
torchvision_network("efficientnet_b0", "convolutional")
torchvision_network("regnet_y", "convolutional", "regnet_y_400mf")
torchvision_network("shufflenet", "convolutional", "shufflenet_v2_x1_0")
torchvision_network("convnext_tiny", "convolutional")
torchvision_network("vit_b_16", "vision transformer")
torchvision_network("swin_t", "vision transformer")
timm_network("timm_resnet50d", "convolutional", "resnet50d")
timm_network("timm_efficientnetv2", "convolutional", "efficientnetv2_rw_t")
timm_network("timm_convnextv2", "convolutional", "convnextv2_atto")
timm_network("timm_nfnet", "convolutional", "nfnet_l0")
timm_network("timm_vit_s", "vision transformer", "vit_small_patch16_224")
timm_network("timm_mixer", "vision transformer", "mixer_s32_224")
timm_network("timm_deit3", "vision transformer", "deit3_small_patch16_224", drop_path_rate=0.1)
timm_network("timm_eva02", "vision transformer", "eva02_tiny_patch14_224")
timm_network("timm_maxvit", "vision transformer", "maxvit_nano_rw_256", size=256)


@network("deeplabv3", "segmentation")
def deeplabv3():
    from torchvision.models import segmentation

    made = segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=4)
    return Loss(made, lambda output: output["out"]), (images(64), image_labels(64, 64, classes=4)), {}


class UNet(nn.Module):
    def __init__(self, norm, activation, widths=(16, 32, 64), classes=4):
        super().__init__()

        def stage(inner, outer):
            layers = []
            for n in (inner, outer):
                layers += [nn.Conv2d(n, outer, 3, padding=1), norm(outer), activation()]
            return nn.Sequential(*layers)

        a, b, c = widths
        self.down = nn.ModuleList([stage(3, a), stage(a, b), stage(b, c)])
        self.wider = nn.ModuleList([nn.ConvTranspose2d(c, b, 2, stride=2), nn.Upsample(scale_factor=2, mode="bilinear")])
        self.up = nn.ModuleList([stage(2 * b, b), stage(b + a, a)])
        self.head = nn.Conv2d(a, classes, 1)

    def forward(self, x):
        fine = self.down[0](x)
        middle = self.down[1](F.max_pool2d(fine, 2))
        x = self.down[2](F.max_pool2d(middle, 2))
        for wider, beside, up in zip(self.wider, (middle, fine), self.up):
            x = up(torch.cat([wider(x), beside], 1))
        return self.head(x)


@network("unet_bn", "segmentation")
def unet_bn():
    return Loss(UNet(nn.BatchNorm2d, nn.ReLU)), (images(64), image_labels(64, 64, classes=4)), {}


@network("unet_gn", "segmentation")
def unet_gn():
    return Loss(UNet(lambda n: nn.GroupNorm(8, n), nn.SiLU)), (images(64), image_labels(64, 64, classes=4)), {}


@network("hf_vit", "vision transformer")
def hf_vit():
    import transformers

    config = transformers.ViTConfig(**SMALL, image_size=64, patch_size=16, num_labels=CLASSES)
    made = transformers.ViTForImageClassification(config)
    return OwnLoss(made), (), {"pixel_values": images(64), "labels": image_labels()}


# --- language ---

SMALL = {"num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}
GROUPED = SMALL | {"num_key_value_heads": 2, "vocab_size": WORDS, "use_cache": False}


def words(length=32, count=WORDS):
    return torch.randint(0, count, (BATCH, length))


def language_model(name, config, model, **settings):
    """A model that foretells the next word, by the names of its classes."""

    def build():
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(**settings))
        text = words()
        return OwnLoss(made), (), {"input_ids": text, "labels": text}

    NETS[name] = ("language", build)


language_model("gpt2", "GPT2Config", "GPT2LMHeadModel", n_layer=2, n_embd=128, n_head=4, vocab_size=WORDS, n_positions=64, use_cache=False)
language_model("llama", "LlamaConfig", "LlamaForCausalLM", **GROUPED)
language_model("qwen3", "Qwen3Config", "Qwen3ForCausalLM", **GROUPED, head_dim=32)
language_model("gemma2", "Gemma2Config", "Gemma2ForCausalLM", **GROUPED, head_dim=32, sliding_window=16)
language_model("mixtral", "MixtralConfig", "MixtralForCausalLM", **GROUPED, num_local_experts=4)
language_model("mamba", "MambaConfig", "MambaForCausalLM", num_hidden_layers=2, hidden_size=64, state_size=8, vocab_size=WORDS, use_cache=False)


def classifier_of_texts(name, config, model, **settings):
    """A class a text, of texts that are not all equally long."""

    def build():
        import transformers

        made = getattr(transformers, model)(getattr(transformers, config)(vocab_size=WORDS, num_labels=4, **settings))
        visible = torch.ones(BATCH, 32, dtype=torch.long)
        visible[0, 20:] = 0
        return OwnLoss(made), (), {"input_ids": words(), "attention_mask": visible, "labels": image_labels(classes=4)}

    NETS[name] = ("language", build)


classifier_of_texts("bert_cls", "BertConfig", "BertForSequenceClassification", **SMALL)
classifier_of_texts("roberta", "RobertaConfig", "RobertaForSequenceClassification", **SMALL)
classifier_of_texts("distilbert", "DistilBertConfig", "DistilBertForSequenceClassification", n_layers=2, dim=128, hidden_dim=256, n_heads=4)


@network("bert_mlm", "language")
def bert_mlm():
    import transformers

    made = transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, vocab_size=WORDS))
    text = words()
    return OwnLoss(made), (), {"input_ids": text, "attention_mask": torch.ones_like(text), "labels": text}


@network("t5", "two sequences")
def t5():
    import transformers

    config = transformers.T5Config(num_layers=2, d_model=128, d_ff=256, d_kv=32, num_heads=4, vocab_size=WORDS, use_cache=False,
                                   decoder_start_token_id=0)  # fmt: skip
    return OwnLoss(transformers.T5ForConditionalGeneration(config)), (), {"input_ids": words(), "labels": words(16)}


def whisper_config():
    import transformers

    sides = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 256), ("attention_heads", 4))}
    return transformers.WhisperConfig(**sides, d_model=128, vocab_size=WORDS, max_source_positions=100, max_target_positions=64,
                                      use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)  # fmt: skip


@network("whisper", "two sequences")
def whisper():
    import transformers

    made = transformers.WhisperForConditionalGeneration(whisper_config())
    return OwnLoss(made), (), {"input_features": torch.randn(BATCH, 80, 200), "labels": words(16)}


@network("whisper_enc", "two sequences")
def whisper_encoder():
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    class Heard(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = WhisperEncoder(whisper_config()), nn.Linear(128, 4)

        def forward(self, sound):
            return self.head(self.encoder(sound).last_hidden_state.mean(1))

    return Loss(Heard()), (torch.randn(BATCH, 80, 200), image_labels(classes=4)), {}


@network("clip", "language")
def clip():
    import transformers

    side = SMALL | {"hidden_size": 64, "intermediate_size": 128}
    config = transformers.CLIPConfig(
        text_config=side | {"vocab_size": WORDS, "max_position_embeddings": 32, "eos_token_id": WORDS - 1},
        vision_config=side | {"image_size": 64, "patch_size": 16}, projection_dim=32,
    )  # fmt: skip
    return OwnLoss(transformers.CLIPModel(config)), (), {"input_ids": words(16), "pixel_values": images(64), "return_loss": True}


# --- written by hand ---


class ByWord(nn.Module):
    """The loss of a network that gives logits for every word."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, *inputs):
        *inputs, labels = inputs
        return F.cross_entropy(self.network(*inputs).flatten(0, 1), labels.flatten())


class Recurrent(nn.Module):
    def __init__(self, count=100, width=64):
        super().__init__()
        self.words, self.head = nn.Embedding(count, 32), nn.Linear(width, count)
        self.recurrent = nn.LSTM(32, width, 2, batch_first=True, dropout=0.1)

    def forward(self, text):
        return self.head(self.recurrent(self.words(text))[0])


@network("lstm", "recurrent")
def lstm():
    return ByWord(Recurrent()), (words(8, 100), words(8, 100)), {}


class Translator(nn.Module):
    def __init__(self, count=100, width=64):
        super().__init__()
        self.words, self.head = nn.Embedding(count, width), nn.Linear(width, count)
        self.transformer = nn.Transformer(width, 4, 2, 2, 128, batch_first=True)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        x = self.transformer(self.words(source), self.words(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(x)


@network("nn_transformer", "two sequences")
def nn_transformer():
    return ByWord(Translator()), (words(8, 100), words(8, 100), words(8, 100)), {}


class Layer(nn.Module):
    """A transformer's layer with its attention written out."""

    def __init__(self, width, heads, length):
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.read, self.write, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.1)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))
        self.register_buffer("visible", torch.ones(length, length).tril().bool())

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.read(self.norms[0](x)).chunk(3, 2))
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(~self.visible[:length, :length], float("-inf"))
        x = x + self.write((self.drop(scores.softmax(-1)) @ v).transpose(1, 2).reshape(rows, length, width))
        return x + self.think(self.norms[1](x))


class Gpt(nn.Module):
    """With one matrix for the words that come in and those that go out."""

    def __init__(self, count=128, width=64, length=64):
        super().__init__()
        self.words, self.places = nn.Embedding(count, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*[Layer(width, 4, length) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, count, bias=False)
        self.head.weight = self.words.weight

    def forward(self, text):
        x = self.words(text) + self.places(torch.arange(text.shape[1], device=text.device))
        return self.head(self.norm(self.layers(x)))


@network("nanogpt", "language")
def nanogpt():
    return ByWord(Gpt()), (words(16, 128), words(16, 128)), {}
