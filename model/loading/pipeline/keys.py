"""Check the keys and values in the files of sentence-transformers' modules.

A key that is not of KNOWN_KEYS is refused by name: a later version, or a fork, may compute with
it. Source: sentence-transformers 6.2, `config_keys` and the constructors of its modules.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from model.errors import refuse_unsupported
from model.loading.files import CONFIG
from model.loading.modules import (
    LOGIT_SCORE,
    MODULES_FILE,
    PROMPTS_FILE,
    TRANSFORMER_KINDS,
    find_encoder_folder,
    read_model_type,
    read_modules,
    read_optional,
    read_transformer_settings,
)
from model.loading.pipeline.router import check_routes

SETTINGS_FILE = "sentence_bert_config.json"  # in messages; older folders have other names
# names by which modules pass on their outputs
TOKENS_OUTPUT, VECTOR_OUTPUT, SCORES_OUTPUT = "token_embeddings", "sentence_embedding", "scores"
LOGITS_OUTPUT = "causal_logits"  # of the next token
GENERATION_TASK = "text-generation"  # the transformer_task of a generative reranker
SIDE_KEYS = ("query_length", "document_length", "query_expansion")  # of a late interaction
CUT_KEYS = ("truncate_dim", "max_active_dims")  # cut vectors after all modules
# keys of which only the default is supported
FIXED_VALUES: dict[str, object] = {
    "processing_kwargs": {},
    "tokenizer_name_or_path": None,
    "keep_only_token_ids": [],
}
MODULE_KINDS = {  # whose config.json is checked
    *("Pooling", "Dense", "LayerNorm", "Dropout", "Normalize", "MultiVectorMask", "SpladePooling")
}
KNOWN_KEYS = {  # of all modules together: keys that are read, or that change no answer
    *("max_seq_length", "do_lower_case", "transformer_task", "modality_config", "unpad_inputs"),
    *("backend", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"),
    *("model_args", "model_kwargs", "module_input_name", "module_output_name", "pooling_mode"),
    *("pooling_mode_cls_token", "pooling_mode_max_tokens", "pooling_mode_mean_tokens"),
    *("pooling_mode_mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens"),
    *("pooling_mode_lasttoken", "include_prompt", "embedding_dimension", "pooling_strategy"),
    *("word_embedding_dimension", "in_features", "out_features", "bias", "activation_function"),
    *("use_residual", "dimension", "dropout", "skiplist_words", "skiplist_tasks", "chunk_size"),
    *("true_token_id", "false_token_id", *SIDE_KEYS, *FIXED_VALUES),
}

OUTPUT_OF_TASK = {  # by a Transformer's task: the model's output, and the name it is passed on by
    "feature-extraction": ("last_hidden_state", TOKENS_OUTPUT),
    "fill-mask": ("logits", TOKENS_OUTPUT),
    "sequence-classification": ("logits", SCORES_OUTPUT),
    GENERATION_TASK: ("logits", LOGITS_OUTPUT),
}


def check_module_keys(folder: Path) -> None:
    """Check a folder's routes, and the keys of its modules against the known ones.

    Raises:
        CheckpointError: names a key that is unknown, or a value that is not supported.
    """
    check_routes(folder)
    stored = read_optional(folder / PROMPTS_FILE)
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    others = CUT_KEYS[1:] if "Pooling" in kinds else CUT_KEYS  # a pooled vector is cut
    cuts = (f"{key} {stored[key]!r}" for key in others if stored.get(key) is not None)
    refuse_unsupported(PROMPTS_FILE, *cuts)
    for kind, path in modules:
        if kind in TRANSFORMER_KINDS and path not in (folder, find_encoder_folder(folder)):
            refuse_unsupported(MODULES_FILE, f"a {kind} in {path.name}, next to the encoder")
        if kind in TRANSFORMER_KINDS:
            config = read_transformer_settings(path)
            _check_keys(config, SETTINGS_FILE)
            _check_output(kind, config, _expected_output(kinds, read_model_type(folder)))
            if read_model_type(folder) != "MultiVectorEncoder":
                sides = (f"{key} {config[key]!r}" for key in SIDE_KEYS if config.get(key))
                refuse_unsupported(SETTINGS_FILE, *sides)
        elif kind == LOGIT_SCORE:
            _check_keys(read_optional(path / CONFIG), path.name, module_input_name=LOGITS_OUTPUT)
        elif kind in MODULE_KINDS:
            _check_keys(read_optional(path / CONFIG), path.name)


def _check_keys(config: Mapping[str, Any], where: str, **fixed: object) -> None:
    """Refuse keys that are not known, and values that are not supported.

    Args:
        where: the name of their file, for the message.
        fixed: more keys of which only this value is supported.
    """
    supported = {**FIXED_VALUES, **fixed}
    wrong = [f"unknown key {key!r}" for key in config if key not in KNOWN_KEYS]
    wrong += [
        f"{key} {config[key]!r}"
        for key, value in supported.items()
        if config.get(key, value) not in (value, None)
    ]
    refuse_unsupported(where, *wrong)


def _expected_output(kinds: Collection[str], model_type: str | None) -> str:
    """Return the task, a key of OUTPUT_OF_TASK, that the modules after a Transformer need."""
    if "SpladePooling" in kinds:
        return "fill-mask"
    if LOGIT_SCORE in kinds:
        return GENERATION_TASK
    alone = len(kinds) == 1 and model_type == "CrossEncoder"
    return "sequence-classification" if alone else "feature-extraction"


def _check_output(kind: str, config: Mapping[str, Any], expected: str) -> None:
    """Refuse a Transformer of another task than expected, or with another output."""
    task = config.get("transformer_task", "fill-mask" if kind == "MLMTransformer" else None)
    if (task or "feature-extraction") != expected:
        what = f"transformer_task {task!r}, and the modules take {expected!r}"
        refuse_unsupported(SETTINGS_FILE, what)
    output, name = OUTPUT_OF_TASK[expected]
    modality = {"text": {"method": "forward", "method_output_name": output}}
    stored = config.get("modality_config", modality)
    if expected == GENERATION_TASK:  # pairs are messages, which the template joins
        modality["message"] = {**modality["text"], "format": "flat"}
    if stored != modality:
        refuse_unsupported(SETTINGS_FILE, f"modality_config {stored!r}")
    written = config.get("module_output_name")
    if "modality_config" in config and written != name:
        refuse_unsupported(SETTINGS_FILE, f"module_output_name {written!r}")
