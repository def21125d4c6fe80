"""A Hugging Face folder -> config and weights; one table of names per family.

Reads config.json, tokenizer.json, model.safetensors and, where they lie beside them, the files
of sentence-transformers (modules.json, 1_Pooling/config.json, sentence_bert_config.json,
tokenizer_config.json). Nothing is guessed: what the encoder does not compute exactly is refused
by name.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from model.config import EncoderConfig
from model.embeddings import Embeddings
from model.encoder import Affine, Encoder, Layer, LayerWeights
from model.errors import CheckpointError
from model.kernels import Kernels
from model.pooling import Mode, Pooling
from model.tokenizer import Tokenizer

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
MODULES, SENTENCE_BERT = "modules.json", "sentence_bert_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
DIGEST_DIGITS = 12
SPARE = ("pooler.", "cls.", "embeddings.position_ids")  # in many files, never part of encodings

# canonical name -> name in the checkpoint; {i} is the layer
BERT = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "types": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "layers.{i}.query": "encoder.layer.{i}.attention.self.query",
    "layers.{i}.key": "encoder.layer.{i}.attention.self.key",
    "layers.{i}.value": "encoder.layer.{i}.attention.self.value",
    "layers.{i}.output": "encoder.layer.{i}.attention.output.dense",
    "layers.{i}.attention_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "layers.{i}.up": "encoder.layer.{i}.intermediate.dense",
    "layers.{i}.down": "encoder.layer.{i}.output.dense",
    "layers.{i}.output_norm": "encoder.layer.{i}.output.LayerNorm",
}
PREFIXES = ("bert.",)
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}  # LayerNorm's, in files made before 2019


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded checkpoint.

    Args:
        pooling: the checkpoint's own way to one vector.
        max_tokens: its own longest sequence, special tokens included.
        digest: `sha256:` and 12 hex digits over weights, config and tokenizer together.
    """

    config: EncoderConfig
    encoder: Encoder
    tokenizer: Tokenizer
    pooling: Pooling
    max_tokens: int
    digest: str


def load(folder: Path, device: torch.device, dtype: torch.dtype, kernels: Kernels) -> Model:
    """Load a checkpoint folder.

    Raises:
        CheckpointError: a file is missing or broken, the architecture is not supported, or
            tensors are missing, extra, misshapen or not finite; the message names them.
    """
    missing = [name for name in (CONFIG, TOKENIZER, WEIGHTS) if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(f"{folder} lacks {', '.join(missing)}")
    config = read_config(_read(folder / CONFIG))
    tensors = _read_tensors(folder / WEIGHTS, config)
    encoder = _build(config, tensors, device, dtype, kernels)
    return Model(
        config,
        encoder,
        Tokenizer(folder / TOKENIZER),
        _read_pooling(folder),
        _read_max_tokens(folder, config),
        digest(folder),
    )


def digest(folder: Path) -> str:
    """What names these weights: a digest over weights, config and tokenizer together."""
    total = hashlib.sha256()
    for name in (WEIGHTS, CONFIG, TOKENIZER):
        with (folder / name).open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return f"sha256:{total.hexdigest()[:DIGEST_DIGITS]}"


def read_config(given: Mapping[str, Any]) -> EncoderConfig:
    """A config.json as the encoder's sizes.

    Raises:
        CheckpointError: anything in it that this encoder does not compute.
    """
    wanted = {
        "model_type": "bert",
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "add_cross_attention": False,
    }
    defaults = {name: value for name, value in wanted.items() if name != "model_type"}
    found = {**defaults, **given}
    wrong = [
        f"{name} {found.get(name)!r}" for name, value in wanted.items() if found.get(name) != value
    ]
    if wrong:
        raise CheckpointError(f"not supported: {', '.join(wrong)}")
    try:
        return EncoderConfig(
            family=given["model_type"],
            vocabulary=given["vocab_size"],
            width=given["hidden_size"],
            layers=given["num_hidden_layers"],
            heads=given["num_attention_heads"],
            feed_forward=given["intermediate_size"],
            positions=given["max_position_embeddings"],
            types=given["type_vocab_size"],
            norm_eps=given["layer_norm_eps"],
        )
    except KeyError as error:
        raise CheckpointError(f"{CONFIG} lacks {error}") from error
    except ValueError as error:
        raise CheckpointError(f"{CONFIG}: {error}") from error


def expected(config: EncoderConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor the encoder needs, by its name in the checkpoint."""
    width, inner = config.width, config.feed_forward
    tables = {"word": config.vocabulary, "position": config.positions, "types": config.types}
    shapes: dict[str, tuple[int, ...]] = {
        f"{BERT[name]}.weight": (rows, width) for name, rows in tables.items()
    }
    sizes = {"up": (inner, width), "down": (width, inner)}
    for canonical, name in BERT.items():
        if canonical in tables:
            continue
        short = canonical.rpartition(".")[2]
        shape = (width,) if short.endswith("norm") else sizes.get(short, (width, width))
        for i in range(config.layers if "{i}" in name else 1):
            shapes[f"{name.format(i=i)}.weight"] = shape
            shapes[f"{name.format(i=i)}.bias"] = shape[:1]
    return shapes


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path.name} is not JSON: {error}") from error


def _read_tensors(path: Path, config: EncoderConfig) -> dict[str, Tensor]:
    """The tensors the encoder needs, mapped from the file, by their names in the table."""
    try:
        with safe_open(path, framework="pt") as file:
            found = {_plain(name): file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise CheckpointError(f"{path.name} is not a safetensors file: {error}") from error
    found = {name: tensor for name, tensor in found.items() if not name.startswith(SPARE)}
    shapes = expected(config)
    problems = [f"missing {name}" for name in shapes.keys() - found.keys()]
    problems += [f"unexpected {name}" for name in found.keys() - shapes.keys()]
    for name in shapes.keys() & found.keys():
        if tuple(found[name].shape) != shapes[name]:
            problems.append(f"{name} is {tuple(found[name].shape)}, not {shapes[name]}")
        elif not found[name].isfinite().all():
            problems.append(f"{name} holds NaN or infinity")
    if problems:
        raise CheckpointError(f"{path.name}: {'; '.join(sorted(problems))}")
    return found


def _plain(name: str) -> str:
    """A tensor's name without the prefix of a model with a head, in today's spelling."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    for old, new in OLD_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return name


def _build(
    config: EncoderConfig,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype,
    kernels: Kernels,
) -> Encoder:
    def tensor(name: str) -> Tensor:
        return tensors[name].to(device, dtype)

    def affine(canonical: str, i: int = 0) -> Affine:
        name = BERT[canonical].format(i=i)
        return tensor(f"{name}.weight"), tensor(f"{name}.bias")

    def own(canonical: str, i: int = 0) -> Affine:
        weight, bias = affine(canonical, i)
        return weight.clone(), bias.clone()  # the file's mapping may then be dropped

    tables = [tensor(f"{BERT[name]}.weight").clone() for name in ("word", "position", "types")]
    embeddings = Embeddings(tables[0], tables[1], tables[2], own("norm"), config.norm_eps)
    layers = [
        Layer(_layer(affine, own, i), config.heads, config.norm_eps, kernels)
        for i in range(config.layers)
    ]
    return Encoder(embeddings, layers)


def _layer(
    affine: Callable[[str, int], Affine], own: Callable[[str, int], Affine], i: int
) -> LayerWeights:
    parts = [affine(f"layers.{{i}}.{name}", i) for name in ("query", "key", "value")]
    weights, biases = zip(*parts, strict=True)
    return LayerWeights(
        qkv=(torch.cat(weights), torch.cat(biases)),
        output=affine("layers.{i}.output", i),
        attention_norm=own("layers.{i}.attention_norm", i),
        up=affine("layers.{i}.up", i),
        down=affine("layers.{i}.down", i),
        output_norm=own("layers.{i}.output_norm", i),
    )


def _read_pooling(folder: Path) -> Pooling:
    """A sentence-transformers folder's pooling; of a plain folder the mean, not normalised."""
    if not (folder / MODULES).is_file():
        return Pooling("mean", normalize=False)
    modules = [
        (entry["type"].rpartition(".")[2], folder / entry["path"])
        for entry in _read(folder / MODULES)
    ]
    kinds = [kind for kind, _ in modules]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise CheckpointError(f"{MODULES}: not supported: {', '.join(kinds)}")
    given = _read(modules[1][1] / CONFIG)
    return Pooling(_pooling_mode(given), normalize="Normalize" in kinds)


def _pooling_mode(given: Mapping[str, Any]) -> Mode:
    flags = {
        "pooling_mode_cls_token": "cls",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_lasttoken": "last",
    }
    chosen = [name for name, on in given.items() if name.startswith("pooling_mode_") and on is True]
    chosen = [flags.get(name, name) for name in chosen]
    if "pooling_mode" in given:  # how sentence-transformers 6 writes it
        chosen = [given["pooling_mode"]]
    for mode in get_args(Mode):
        if chosen == [mode]:
            return cast(Mode, mode)
    raise CheckpointError(f"pooling not supported: {', '.join(map(str, chosen)) or 'none'}")


def _read_max_tokens(folder: Path, config: EncoderConfig) -> int:
    """What sentence-transformers stored, in one file or, since its version 6, in the other."""
    for name, key in ((SENTENCE_BERT, "max_seq_length"), (TOKENIZER_CONFIG, "model_max_length")):
        given = _read(folder / name).get(key) if (folder / name).is_file() else None
        if given:
            return min(int(given), config.positions)
    return config.positions
