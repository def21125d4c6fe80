"""A folder -> a model: config, weights, tokenizer, pooling; or one of random weights.

Reads config.json, tokenizer.json and safetensors (one file, or shards with their index). Nothing
is guessed: what the encoder does not compute exactly is refused by name. What families call their
tensors: families.py; the files of sentence-transformers: sentence_transformers.py.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.config import EncoderConfig
from model.embeddings import Embeddings
from model.encoder import Encoder, Layer, LayerWeights
from model.errors import CheckpointError
from model.kernels import Affine, Kernels
from model.loading import sentence_transformers
from model.loading.families import Family, Names, read_config
from model.loading.sentence_transformers import Prompts, read_json
from model.pooling import Pooling
from model.positions import Rotation, sinusoids
from model.tokenizer import Tokenizer

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG, TOKENIZER = "config.json", "tokenizer.json"
DIGEST_DIGITS = 12
SEED = 0  # of a preset's weights
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.bin")
CONVERT = "load it with transformers once and call save_pretrained: that writes safetensors"
# heads and buffers that are in many files and never part of encodings
SPARE = (
    "pooler.",
    "cls.",
    "lm_head.",
    "classifier.",
    "qa_outputs.",
    "vocab_",
    "discriminator_predictions.",
    "generator_",
    "head.",
    "decoder.",
    "embeddings.position_ids",
)
SPARE_ENDS = ("inv_freq", "original_inv_freq")
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}  # LayerNorm's, in files made before 2019

Weights = Callable[[str], Tensor]  # our name with .weight or .bias -> the tensor


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded checkpoint.

    Args:
        pooling: the checkpoint's own way to one vector.
        max_tokens: its own longest sequence, special tokens included.
        digest: `sha256:` and 12 hex digits over all that decides about an answer together.
        trained: False for weights drawn at random.
        prompts: what goes before a text, by name.
    """

    config: EncoderConfig
    encoder: Encoder
    tokenizer: Tokenizer
    pooling: Pooling
    max_tokens: int
    digest: str
    trained: bool = True
    prompts: Prompts = field(default_factory=Prompts)


def read(folder: Path) -> EncoderConfig:
    """The sizes of a checkpoint folder; its weights stay where they are.

    Raises:
        CheckpointError: a file is missing or broken, or the architecture is not supported.
    """
    _files(folder)
    return read_config(read_json(folder / CONFIG))[0]


def load(folder: Path, device: torch.device, dtype: torch.dtype, kernels: Kernels) -> Model:
    """Load a checkpoint folder.

    Raises:
        CheckpointError: a file is missing or broken, the architecture is not supported, or
            tensors are missing, extra, misshapen or not finite; the message names them.
    """
    files = _files(folder)
    config, family = read_config(read_json(folder / CONFIG))
    tokenizer = _tokenizer(
        folder / TOKENIZER, config, sentence_transformers.read_lower_case(folder)
    )
    with _opened(files) as found:
        weights = _checked(found, config, family)
        encoder = build(config, weights, device, dtype, kernels)
    pooling = sentence_transformers.read_pooling(folder, config.width, device, kernels)
    max_tokens = sentence_transformers.read_max_tokens(folder, config.max_tokens)
    prompts = sentence_transformers.read_prompts(folder)
    paths = [
        *files,
        folder / CONFIG,
        folder / TOKENIZER,
        *sentence_transformers.dense_files(folder),
    ]
    digest = _digest(paths, pooling, max_tokens, tokenizer.lower_case, prompts)
    return Model(config, encoder, tokenizer, pooling, max_tokens, digest, prompts=prompts)


def preset(
    config: EncoderConfig,
    tokenizer: Path,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Kernels,
) -> Model:
    """An untrained model: weights from a fixed seed, the same on every machine.

    Args:
        tokenizer: the tokenizer.json it reads texts with.

    Raises:
        CheckpointError: the tokenizer cannot be read, or has ids beyond the vocabulary.
    """
    read = _tokenizer(tokenizer, config)
    drawn = _drawn(config)
    encoder = build(config, drawn.__getitem__, device, dtype, kernels)
    total = hashlib.sha256()
    for name in sorted(drawn):
        total.update(name.encode() + drawn[name].numpy().tobytes())
    total.update(repr(config).encode() + tokenizer.read_bytes())
    return Model(
        config,
        encoder,
        read,
        Pooling(("mean",), normalize=False),
        config.max_tokens,
        _short(total),
        trained=False,
    )


def build(
    config: EncoderConfig,
    weights: Weights,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Kernels,
) -> Encoder:
    """An encoder from its weights, by our names; every tensor is asked for once."""

    def tensor(name: str) -> Tensor:
        # a copy: the file's mapping may then be dropped
        return weights(name).to(device, dtype, copy=True)

    def linear(*names: str) -> Affine:
        """One linear of the rows of several."""
        rows = torch.cat([weights(f"{name}.weight") for name in names])
        biases = [weights(f"{name}.bias") for name in names] if config.biases else None
        bias = None if biases is None else torch.cat(biases).to(device, dtype)
        return rows.to(device, dtype), bias

    def norm(name: str) -> Affine:
        bias = tensor(f"{name}.bias") if config.norm_bias else None
        return tensor(f"{name}.weight"), bias

    embeddings = _embeddings(config, tensor, norm, linear, kernels)
    rotations = {
        theta: Rotation(theta, config.head, config.max_tokens, device)
        for theta in set(config.thetas)
    }
    layers = []
    for i in range(config.layers):
        rotation = rotations[config.thetas[i]] if config.thetas else None
        window = config.windows[i] if config.windows else None
        layers.append(Layer(config, _layer(config, i, linear, norm), kernels, rotation, window))
    return Encoder(
        config,
        embeddings,
        layers,
        norm=norm("final_norm") if config.pre_norm else None,
        distances=tensor("distances.weight") if config.buckets else None,
    )


def expected(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor an encoder needs, by our names."""
    width, inner, narrow = config.width, config.feed_forward, config.embedding_width
    shapes: dict[str, tuple[int, ...]] = {"word.weight": (config.vocabulary, narrow)}
    if config.positions == "learned":
        shapes["position.weight"] = (config.max_tokens + config.position_offset, narrow)
    if config.types:
        shapes["types.weight"] = (config.types, narrow)
    if config.buckets:
        shapes["distances.weight"] = (config.buckets, config.heads)
    linears: dict[str, tuple[int, int]] = {}
    norms = {"norm": narrow} if config.embedding_norm else {}
    norms |= {"final_norm": width} if config.pre_norm else {}
    for i in range(config.layers):
        linears |= {f"layers.{i}.{name}": (width, width) for name in ("query", "key", "value")}
        linears |= {f"layers.{i}.output": (width, width), f"layers.{i}.up": (inner, width)}
        linears |= {f"layers.{i}.gate": (inner, width)} if config.gated else {}
        linears |= {f"layers.{i}.down": (width, inner)}
        norms |= {f"layers.{i}.feed_forward_norm": width}
        if i or not config.pre_norm:
            norms |= {f"layers.{i}.attention_norm": width}
    shapes |= {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items() if config.biases}
    if narrow != width:  # ELECTRA's projection has a bias whatever the layers have
        shapes |= {"project.weight": (width, narrow), "project.bias": (width,)}
    shapes |= {f"{name}.weight": (size,) for name, size in norms.items()}
    return shapes | {f"{name}.bias": (size,) for name, size in norms.items() if config.norm_bias}


def _drawn(config: EncoderConfig) -> dict[str, Tensor]:
    """Every tensor of an encoder at the start of training, from SEED.

    Linears as Glorot and Bengio 2010, embeddings of variance 1, norms of no effect.
    """
    random = torch.Generator().manual_seed(SEED)
    tensors = {}
    for name, shape in expected(config).items():
        if len(shape) == 1:
            fill = torch.ones if name.endswith("norm.weight") else torch.zeros
            tensors[name] = fill(shape)
        else:
            linear = name.startswith(("layers.", "project."))
            most = math.sqrt(6 / sum(shape) if linear else 3)
            tensors[name] = torch.empty(shape).uniform_(-most, most, generator=random)
    return tensors


def _tokenizer(path: Path, config: EncoderConfig, lower_case: bool = False) -> Tokenizer:
    """A tokenizer all of whose ids and types have a row.

    Raises:
        CheckpointError: it cannot be read, or a text could reach beyond a table.
    """
    tokenizer = Tokenizer(path, lower_case=lower_case)
    highest, type_ = tokenizer.highest()
    beyond = []
    if highest >= config.vocabulary:
        beyond += [f"id {highest}, and the embedding table has {config.vocabulary} rows"]
    if config.types > 1 and type_ >= config.types:  # a table of one row tells nothing apart
        beyond += [f"token type {type_}, and the table of types has {config.types} rows"]
    if beyond:
        raise CheckpointError(f"{path.name} reaches {'; '.join(beyond)}")
    return tokenizer


def _digest(
    paths: list[Path], pooling: Pooling, max_tokens: int, lower_case: bool, prompts: Prompts
) -> str:
    """What names a checkpoint: a digest over the files' bytes and over what is read of others.

    Args:
        paths: the files that count to the byte, in a fixed order.
    """
    read = {
        "files": [_sha256(path) for path in paths],
        "pooling": pooling.modes,
        "normalize": pooling.normalize,
        "max_tokens": max_tokens,
        "lower_case": lower_case,
        "prompts": {name: text for name, text in prompts.named.items() if text},
        "prompt": prompts.find(None),
    }
    return _short(hashlib.sha256(json.dumps(read, sort_keys=True).encode()))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _short(total: "hashlib._Hash") -> str:
    return f"sha256:{total.hexdigest()[:DIGEST_DIGITS]}"


def _files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, in a fixed order.

    Raises:
        CheckpointError: it lacks what every checkpoint has, or holds a pickle instead.
    """
    missing = [name for name in (CONFIG, TOKENIZER) if not (folder / name).is_file()]
    if (folder / INDEX).is_file():
        try:
            shards = sorted(set(read_json(folder / INDEX)["weight_map"].values()))
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{INDEX} has no weight_map") from error
        if any("/" in shard or "\\" in shard for shard in shards):
            raise CheckpointError(f"{INDEX} names files outside the folder")
        missing += [shard for shard in shards if not (folder / shard).is_file()]
    else:
        shards = [WEIGHTS]
        pickles = [name for name in PICKLES if (folder / name).is_file()]
        if not (folder / WEIGHTS).is_file() and pickles:
            raise CheckpointError(f"{pickles[0]} is a pickle, which can run code; {CONVERT}")
        missing += [] if (folder / WEIGHTS).is_file() else [WEIGHTS]
    if missing:
        raise CheckpointError(f"{folder} lacks {', '.join(missing)}")
    return [folder / shard for shard in shards]


@contextmanager
def _opened(files: list[Path]) -> Iterator[dict[str, tuple[Any, str]]]:
    """Every tensor of the files by its name, as (the open file, the name in it)."""
    with ExitStack() as stack:
        found: dict[str, tuple[Any, str]] = {}
        for path in files:
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except SafetensorError as error:
                raise CheckpointError(f"{path.name} is not a safetensors file: {error}") from error
            found |= {name: (file, name) for name in file.keys()}
        yield found


def _checked(
    found: Mapping[str, tuple[Any, str]], config: EncoderConfig, family: Family
) -> Weights:
    """The tensors by our names, once all are there, in shape and finite.

    Raises:
        CheckpointError: names every tensor that is not.
    """
    plain = {_plain(name, family.prefixes): where for name, where in found.items()}
    plain = {
        name: where
        for name, where in plain.items()
        if not name.startswith(SPARE) and not name.endswith(SPARE_ENDS)
    }
    places = min(
        (_places(config, names) for names in family.names),
        key=lambda places: len({name for name, _ in places.values()} - plain.keys()),
    )
    needed = {name for name, _ in places.values()}
    problems = [f"missing {name}" for name in needed - plain.keys()]
    problems += [f"unexpected {name}" for name in plain.keys() - needed]
    problems += _misfits(plain, places, expected(config))
    if problems:
        raise CheckpointError(f"{WEIGHTS}: {'; '.join(sorted(problems))}")

    def weights(ours: str) -> Tensor:
        name, part = places[ours]
        file, stored = plain[name]
        tensor: Tensor = file.get_tensor(stored)
        return tensor if part is None else tensor.chunk(part[1])[part[0]]

    return weights


# our name -> the checkpoint's, and which of how many equal parts of its rows
Places = dict[str, tuple[str, tuple[int, int] | None]]


def _places(config: EncoderConfig, names: Names) -> Places:
    """Where each tensor the encoder needs stands in a checkpoint of this layout."""
    fused = {"query": ("qkv", 0, 3), "key": ("qkv", 1, 3), "value": ("qkv", 2, 3)}
    fused |= {"gate": ("gate_up", 0, 2), "up": ("gate_up", 1, 2)}
    places: Places = {}
    for ours in expected(config):
        base, _, kind = ours.rpartition(".")
        layer = base.split(".")[1] if base.startswith("layers.") else ""
        short = base.rpartition(".")[2]
        key = f"layers.{{i}}.{short}" if layer else base
        if key in names:
            places[ours] = (f"{names[key].format(i=layer)}.{kind}", None)
            continue
        whole, part, parts = fused[short]
        name = names[f"layers.{{i}}.{whole}"].format(i=layer)
        places[ours] = (f"{name}.{kind}", (part, parts))
    return places


def _misfits(
    plain: Mapping[str, tuple[Any, str]], places: Places, shapes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """What is wrong with the tensors that are there: shape, then content."""
    wanted: dict[str, tuple[int, ...]] = {}
    for ours, (name, part) in places.items():
        rows, *rest = shapes[ours]
        wanted[name] = (rows * (part[1] if part else 1), *rest)
    problems = []
    for name in wanted.keys() & plain.keys():
        file, stored = plain[name]
        shape = tuple(file.get_slice(stored).get_shape())
        if shape != wanted[name]:
            problems.append(f"{name} is {shape}, not {wanted[name]}")
        elif not file.get_tensor(stored).isfinite().all():
            problems.append(f"{name} holds NaN or infinity")
    return problems


def _plain(name: str, prefixes: tuple[str, ...]) -> str:
    """A tensor's name without the prefix of a model with a head, in today's spelling."""
    for prefix in prefixes:
        name = name.removeprefix(prefix)
    for old, new in OLD_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _embeddings(
    config: EncoderConfig,
    tensor: Weights,
    norm: Callable[[str], Affine],
    linear: Callable[..., Affine],
    kernels: Kernels,
) -> Embeddings:
    word = tensor("word.weight")
    position = tensor("position.weight") if config.positions == "learned" else None
    if config.positions == "sinusoidal":
        position = sinusoids(config.max_tokens, config.width).to(word)
    narrow = config.embedding_width != config.width
    return Embeddings(
        word,
        position=position,
        offset=config.position_offset,
        types=tensor("types.weight") if config.types else None,
        norm=norm("norm") if config.embedding_norm else None,
        eps=config.norm_eps,
        project=kernels.linear(*linear("project")) if narrow else None,
    )


def _layer(
    config: EncoderConfig,
    i: int,
    linear: Callable[..., Affine],
    norm: Callable[[str], Affine],
) -> LayerWeights:
    own = f"layers.{i}"
    up = (f"{own}.gate", f"{own}.up") if config.gated else (f"{own}.up",)
    first = config.pre_norm and i == 0
    return LayerWeights(
        qkv=linear(f"{own}.query", f"{own}.key", f"{own}.value"),
        output=linear(f"{own}.output"),
        attention_norm=None if first else norm(f"{own}.attention_norm"),
        up=linear(*up),
        down=linear(f"{own}.down"),
        feed_forward_norm=norm(f"{own}.feed_forward_norm"),
    )
