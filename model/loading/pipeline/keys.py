"""Every key that sentence-transformers' modules write, and what becomes of it here.

A key on no list is refused by name: a later version, or a fork, may compute something with it.
Source: sentence-transformers 6.2, `config_keys` and the constructors of its modules.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model.errors import CheckpointError
from model.loading.files import CONFIG
from model.loading.modules import (
    LOGIT_SCORE,
    MODULES,
    PROMPTS,
    TRANSFORMERS,
    home,
    model_type,
    read_modules,
    read_optional,
    read_sentence,
)

SETTINGS = "sentence_bert_config.json"  # whatever an older folder calls it
TOKENS, VECTOR, SCORES = "token_embeddings", "sentence_embedding", "scores"
NEXT = "causal_logits"  # of the token that would follow
GENERATION = "text-generation"


@dataclass(frozen=True, slots=True)
class Keys:
    """What one kind of module may say.

    Args:
        read: keys that an answer follows.
        idle: keys that change no answer of a model that is not trained further.
        fixed: keys of which one value is supported, the default where it is left out.
    """

    read: Collection[str] = ()
    idle: Collection[str] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)


NAMES = {"module_input_name", "module_output_name"}
SIZES = {"embedding_dimension", "word_embedding_dimension"}  # said twice: tensors have them too
# modules.read_arguments follows them, or refuses
ARGUMENTS = {"tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"}
ARGUMENTS |= {"model_args", "model_kwargs"}
SIDES = ("query_length", "document_length", "query_expansion")  # of a late interaction
CUTS = ("truncate_dim", "max_active_dims")  # of vectors, when all modules are done
KEYS = {
    "Transformer": Keys(
        {"max_seq_length", "do_lower_case", "transformer_task", "modality_config"}
        | {"module_output_name", *SIDES, *ARGUMENTS},
        {"unpad_inputs", "backend"},
        {"processing_kwargs": {}, "tokenizer_name_or_path": None},
    ),
    "Pooling": Keys(
        {
            *("pooling_mode", "pooling_mode_cls_token", "pooling_mode_max_tokens"),
            *("pooling_mode_mean_tokens", "pooling_mode_mean_sqrt_len_tokens"),
            *("pooling_mode_weightedmean_tokens", "pooling_mode_lasttoken", "include_prompt"),
        },
        SIZES,
    ),
    "Dense": Keys(
        {"bias", "activation_function", "use_residual", *NAMES}, {"in_features", "out_features"}
    ),
    "WeightedLayerPooling": Keys({"layer_start"}, SIZES | {"num_hidden_layers"}),
    "LayerNorm": Keys(idle={"dimension"}),
    "Dropout": Keys(idle={"dropout"}),
    "Normalize": Keys(NAMES),
    "MultiVectorMask": Keys(
        {"skiplist_words", "skiplist_tasks"}, fixed={"keep_only_token_ids": []}
    ),
    LOGIT_SCORE: Keys({"true_token_id", "false_token_id"}, fixed={"module_input_name": NEXT}),
    "SparseStaticEmbedding": Keys(idle={"frozen"}),
    "SpladePooling": Keys({"pooling_strategy", "activation_function"}, SIZES | {"chunk_size"}),
}
KEYS["MLMTransformer"] = KEYS["Transformer"]

WAYS = {  # what a Transformer hands on, by its task: the model's output, and its name
    "feature-extraction": ("last_hidden_state", TOKENS),
    "fill-mask": ("logits", TOKENS),
    "sequence-classification": ("logits", SCORES),
    GENERATION: ("logits", NEXT),
}


def check_modules(folder: Path) -> None:
    """Check the keys of every module of a folder against the known ones.

    Raises:
        CheckpointError: names a key that is unknown, or a value that is not supported.
    """
    stored = read_optional(folder / PROMPTS)
    _refuse(PROMPTS, [f"{key} {stored[key]!r}" for key in CUTS if stored.get(key) is not None])
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    for kind, path in modules:
        if kind in TRANSFORMERS and path not in (folder, home(folder)):
            _refuse(MODULES, [f"a {kind} in {path.name}, next to the encoder"])
        if kind in TRANSFORMERS:
            config = read_sentence(path)
            check_keys(kind, config, SETTINGS)
            _check_task(kind, config, _task(kinds, model_type(folder)))
            if model_type(folder) != "MultiVectorEncoder":
                _refuse(SETTINGS, [f"{k} {config[k]!r}" for k in SIDES if config.get(k)])
        elif kind in KEYS:
            check_keys(kind, read_optional(path / CONFIG), path.name)


def check_keys(kind: str, config: Mapping[str, Any], where: str) -> None:
    """Check the keys of one module against the known ones.

    Raises:
        CheckpointError: as `check_modules`.
    """
    keys = KEYS[kind]
    known = {*keys.read, *keys.idle, *keys.fixed}
    wrong = [f"unknown key {key!r}" for key in config if key not in known]
    wrong += [
        f"{key} {config[key]!r}"
        for key, value in keys.fixed.items()
        if config.get(key, value) not in (value, None)
    ]
    _refuse(where, wrong)


def _refuse(where: str, wrong: Sequence[str]) -> None:
    """Refuse what is wrong in a file, if anything is."""
    if wrong:
        raise CheckpointError(f"{where}: not supported: {', '.join(wrong)}")


def _task(kinds: Collection[str], model: str | None) -> str:
    """Return what a Transformer is to hand on, for the modules after it."""
    if "SpladePooling" in kinds:
        return "fill-mask"
    if LOGIT_SCORE in kinds:
        return GENERATION
    alone = len(kinds) == 1 and model == "CrossEncoder"
    return "sequence-classification" if alone else "feature-extraction"


def _check_task(kind: str, config: Mapping[str, Any], expected: str) -> None:
    """Refuse a Transformer that hands on something other than what is computed here."""
    task = config.get("transformer_task", "fill-mask" if kind == "MLMTransformer" else None)
    if (task or "feature-extraction") != expected:
        told = f"transformer_task {task!r}, and the modules take {expected!r}"
        _refuse(SETTINGS, [told])
    output, name = WAYS[expected]
    way = {"text": {"method": "forward", "method_output_name": output}}
    stored = config.get("modality_config", way)
    if expected == GENERATION:  # pairs are messages, which the template puts into one text
        way["message"] = {**way["text"], "format": "flat"}
    if stored != way:
        _refuse(SETTINGS, [f"modality_config {stored!r}"])
    if "modality_config" in config and config.get("module_output_name") != name:
        _refuse(SETTINGS, [f"module_output_name {config.get('module_output_name')!r}"])
