"""Read a GLiNER folder: an encoder, and a head that finds entities of labels of one's own.

gliner_config.json    the head, and under encoder_config the encoder
config.json           the encoder, where that is not there
model.safetensors     both, as gliner names them
tokenizer.json ..     the encoder's own, with or without the marks <<ENT>> and <<SEP>>

What gliner computes otherwise is refused by name. Only its first architecture is here: one encoder
for labels and text, spans by their ends ("markerV0").

Source: gliner 0.2.29, config.py and model.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model.entities import Entities, Pair
from model.errors import CheckpointError
from model.kernels import Linear
from model.loading.families import Family
from model.loading.files import CONFIG, GLINER, WEIGHTS, differences, find_weights, read_object
from model.loading.task_heads import Parts
from model.loading.tensors import Shape, check, open_tensors
from model.pooling import Dense, identity
from model.text.frame import Token
from model.text.rules import Rules
from model.text.splice import Splicer
from model.text.tokenizer import Tokenizer

ENCODER = "token_rep_layer.bert_layer.model."
WORDS = f"{ENCODER}embeddings.word_embeddings.weight"
NARROW, LSTM = "token_rep_layer.projection", "rnn.lstm"
SPAN, LABEL = "span_rep_layer.span_rep_layer", "prompt_rep_layer"
HEAD = (f"{NARROW}.", "rnn.", "span_rep_layer.", f"{LABEL}.")  # how its tensors' names begin
MOST = 16_384  # of any size that the file states
LONGEST = 2048  # tokens, where no position ends; gliner, which counts words, knows no limit
FLERT = "[FLERT]"  # a mark that gliner adds and does not use
KINDS = (None, "gliner", "gliner_uni_encoder_span")
# what other architectures of gliner set; by default unset
OTHERS: dict[str, object] = {
    "span_mode": "markerV0",
    "subtoken_pooling": "first",
    "words_splitter_type": "whitespace",
    "embed_ent_token": True,
    "fuse_layers": False,
    "represent_spans": False,
    "post_fusion_schema": "",
}
UNSET = (
    *("labels_encoder", "labels_encoder_config", "labels_decoder", "labels_decoder_config"),
    *("relations_layer", "triples_layer", "span_encoder_config", "precomputed_prompts_mode"),
)


def found(folder: Path) -> bool:
    """Tell whether a folder is a GLiNER's."""
    return (folder / GLINER).is_file()


def read_raw(folder: Path) -> Mapping[str, Any]:
    """Read the encoder's config.json of a GLiNER's folder.

    Raises:
        CheckpointError: a file is missing or broken, or the architecture is not supported.
    """
    stored = _read(folder)
    raw = stored.get("encoder_config")
    if raw is None:
        if not (folder / CONFIG).is_file():
            base = stored.get("model_name")
            raise CheckpointError(
                f"{GLINER} has no encoder_config, and {CONFIG} is missing: "
                f"copy {CONFIG} and the tokenizer of {base} into the folder"
            )
        raw = read_object(folder / CONFIG)
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"{GLINER}: encoder_config is not an object")
    raw = {"model_type": "deberta-v2", **raw}
    if raw["model_type"] != "deberta-v2":
        raise CheckpointError(f"{GLINER}: not supported: an encoder of {raw['model_type']!r}")
    files = find_weights(folder, folder)
    with open_tensors({path.name: path for path in files}, numbers=False) as tensors:
        if WORDS in tensors:  # gliner resizes it by its tokenizer, whatever the file says
            raw["vocab_size"] = tensors[WORDS].shape[0]
    return _lengthened(raw)


def _lengthened(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an encoder's config for longer texts, if it knows distances only, which share rows."""
    positions, furthest = raw.get("max_position_embeddings"), raw.get("max_relative_positions", -1)
    if raw.get("position_biased_input", True) or type(positions) is not int:
        return raw
    if isinstance(furthest, int) and furthest < 1:
        furthest = positions  # a distance's row depends on it
    more = {"max_relative_positions": furthest, "max_position_embeddings": max(positions, LONGEST)}
    return {**raw, **more}


def of_encoder(family: Family) -> Family:
    """Return a family as a GLiNER's file has its tensors, next to the head's."""
    return replace(family, prefixes=(ENCODER,), spare=(*family.spare, *HEAD))


def marked(folder: Path, said: Rules) -> Rules:
    """Return what is said about a tokenizer, and the marks that gliner adds where they are not."""
    ent, sep = _marks(_read(folder))
    return replace(said, extra=(*(said.extra or ()), FLERT, ent, sep))


def read_entities(parts: Parts, tokenizer: Tokenizer) -> Entities:
    """Read the head.

    Raises:
        CheckpointError: a tensor is missing, extra, misshapen or not finite, or the marks' ids
            are not those that the file states.
    """
    stored = _read(parts.folder)
    size, lstm = _number(stored, "hidden_size", 512), None
    if stored.get("num_rnn_layers", 1):
        lstm = nn.LSTM(size, size // 2, bidirectional=True, batch_first=True, device="meta")
        lstm.requires_grad_(False)
    shapes = _shapes(size, parts.config.width, lstm)
    own = {name: one for name, one in parts.tensors.items() if name.startswith(HEAD)}
    check(own, shapes, WEIGHTS)

    def read(name: str) -> Tensor:
        return own[name].read().float().to(parts.device)

    def linear(name: str) -> Linear:
        return parts.kernels.linear(read(f"{name}.weight"), read(f"{name}.bias"))

    def dense(name: str, activation: Callable[[Tensor], Tensor]) -> Dense:
        outputs, inputs = shapes[f"{name}.weight"]
        return Dense(linear(name), activation, outputs, outputs * inputs)

    def pair(name: str) -> Pair:
        return dense(f"{name}.0", torch.relu), dense(f"{name}.3", identity)

    if lstm is not None:
        values = {name: read(f"{LSTM}.{name}") for name, _ in lstm.named_parameters()}
        lstm.load_state_dict(values, assign=True)
    return Entities(
        _splicer(stored, tokenizer),
        _number(stored, "max_width", 12),
        linear(NARROW) if size != parts.config.width else None,
        lstm,
        start=pair(f"{SPAN}.project_start"),
        end=pair(f"{SPAN}.project_end"),
        out=pair(f"{SPAN}.out_project"),
        label=pair(LABEL),
        size=size,
    )


def _shapes(size: int, width: int, lstm: nn.LSTM | None) -> dict[str, Shape]:
    """Return the shape of each tensor of the head, whose vectors have `size` numbers."""
    linears = {NARROW: (size, width)} if size != width else {}
    ends = (f"{SPAN}.project_start", size), (f"{SPAN}.project_end", size), (LABEL, size)
    for name, inputs in (*ends, (f"{SPAN}.out_project", 2 * size)):
        linears |= {f"{name}.0": (4 * size, inputs), f"{name}.3": (size, 4 * size)}
    shapes: dict[str, Shape] = {f"{name}.weight": shape for name, shape in linears.items()}
    shapes |= {f"{name}.bias": shape[:1] for name, shape in linears.items()}
    if lstm is not None:
        shapes |= {f"{LSTM}.{name}": tuple(one.shape) for name, one in lstm.named_parameters()}
    return shapes


def _splicer(stored: Mapping[str, Any], tokenizer: Tokenizer) -> Splicer:
    """Return what reads texts behind labels.

    Raises:
        CheckpointError: the marks are not in the vocabulary, or not where the file says.
    """
    ent, sep = _marks(stored)
    own, end, stated = tokenizer.find(ent), tokenizer.find(sep), stored.get("class_token_index", -1)
    if own is None or end is None or stated not in (-1, own):
        raise CheckpointError(
            f"{GLINER}: class_token_index {stated!r}, and the tokenizer has {ent} as {own}"
        )
    longest = _number(stored, "max_len", 384)
    return Splicer(tokenizer, Token(own, ent), Token(end, sep), longest)


def _read(folder: Path) -> Mapping[str, Any]:
    """Read gliner_config.json; refuse by name what is another architecture."""
    stored = read_object(folder / GLINER)
    wrong = differences(stored, OTHERS)
    wrong += [f"{key} {stored[key]!r}" for key in UNSET if stored.get(key)]
    if stored.get("model_type") not in KINDS:
        wrong += [f"model_type {stored['model_type']!r}"]
    if (layers := stored.get("num_rnn_layers", 1)) not in (0, 1):
        wrong += [f"num_rnn_layers {layers!r}"]
    if isinstance(size := stored.get("hidden_size", 512), int) and size % 2:
        wrong += [f"hidden_size {size!r}, an odd one"]
    if wrong:
        raise CheckpointError(f"{GLINER}: not supported: {', '.join(wrong)}")
    return stored


def _marks(stored: Mapping[str, Any]) -> tuple[str, str]:
    """Return what stands before each label, and behind the last."""
    ent, sep = stored.get("ent_token", "<<ENT>>"), stored.get("sep_token", "<<SEP>>")
    if not (isinstance(ent, str) and isinstance(sep, str) and ent and sep and ent != sep):
        raise CheckpointError(
            f"{GLINER}: ent_token and sep_token are no two marks: {ent!r}, {sep!r}"
        )
    return ent, sep


def _number(stored: Mapping[str, Any], key: str, own: int) -> int:
    """Return a whole number; refuse another, and one too large for what is computed with it."""
    number = stored.get(key, own)
    if type(number) is not int or not 1 <= number <= MOST:
        raise CheckpointError(f"{GLINER}: {key} {number!r} is no whole number from 1 to {MOST:,}")
    return number
