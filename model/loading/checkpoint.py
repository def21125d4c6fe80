"""Load a checkpoint folder as a model, or make one with random weights.

Reads config.json, tokenizer.json and safetensors (one file, or shards with their index). Nothing is
guessed: what the encoder does not compute exactly is refused by name. This is the outline; the
details are in files.py, families/ (the families' names of sizes and tensors), formats/ (what a
folder holds besides an encoder), tensors.py, assembly.py, agreement.py (tokenizers) and
sentence_transformers.py.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from model.adapters import Adapter
from model.config import EncoderConfig, Task
from model.encoder import Encoder
from model.errors import CheckpointError
from model.families import read_config_and_family
from model.kernels import Kernels
from model.loading import jina_adapters, sentence_transformers
from model.loading.adapters import count_stored, read_adapter
from model.loading.agreement import read_tokenizer
from model.loading.assembly import build_encoder, draw_tensors, expected_shapes
from model.loading.digests import (
    digest_checkpoint,
    hash_facts,
    hash_file,
    short_digest,
    vector_facts,
)
from model.loading.files import TOKENIZER, WEIGHTS, find_weight_files
from model.loading.formats import find_format
from model.loading.formats.folder import ReadingRules
from model.loading.modules import (
    MODULES_FILE,
    find_encoder_folder,
    find_folders,
    find_weighed_files,
    read_modules,
    read_raw_config,
)
from model.loading.pipeline.keys import check_module_keys
from model.loading.sentence_transformers import Prompts
from model.loading.task_heads import HeadSource
from model.loading.tensors import by_bare_name, open_tensors, translate_names
from model.pooling import Pooling
from model.task_heads import Classifier, TaskHead, VectorHead
from model.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded checkpoint.

    Args:
        pooling: how the checkpoint pools token vectors.
        max_tokens: its longest sequence, special tokens included.
        digest: `sha256:` and 12 hex digits over everything that decides an answer.
        digest_parts: digests of what decides a vector: its weights, tokenizer and dense layers.
        trained: False for weights drawn at random.
        states_pooling: False where the checkpoint does not say how it is pooled.
        prompts: texts put before a text, by name.
        task_heads: the heads on the encoder, each for other tasks.
        adapters: LoRA adapters that requests may choose, by name; first those of its own tasks.
        instructions: texts put before a text, by the name of the adapter chosen.
        tokenizer_note: how tokenizer.json differs from the tokenizer of the class that is named or
            meant, where it is read as it is; "": it does not.
    """

    config: EncoderConfig  # of the encoder
    encoder: Encoder
    tokenizer: Tokenizer
    pooling: Pooling
    max_tokens: int
    digest: str
    digest_parts: Mapping[str, str]
    trained: bool = True
    states_pooling: bool = True
    prompts: Prompts = field(default_factory=Prompts)
    task_heads: tuple[TaskHead, ...] = ()
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    instructions: Mapping[str, str] = field(default_factory=dict)
    tokenizer_note: str = ""

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks that the model can do."""
        return ("encode", *(task for head in self.task_heads for task in head.tasks))

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of its classes; none for a model that does not classify."""
        return next((head.labels for head in self.task_heads if isinstance(head, Classifier)), ())


def read_sizes(folder: Path) -> EncoderConfig:
    """Return the encoder config of a checkpoint folder, without reading its weights.

    Raises:
        CheckpointError: a file is missing or broken, or the architecture is not supported.
    """
    check_module_keys(folder)
    find_weight_files(find_folders(folder), folder)
    raw = read_raw_config(folder)
    find_format(folder, raw)
    return read_config_and_family(raw)[0]


def load_checkpoint(
    folder: Path,
    device: torch.device,
    dtype: torch.dtype,
    kernels: Kernels,
    *,
    numbers: bool = True,
) -> Model:
    """Load a checkpoint folder as a model.

    Args:
        numbers: whether the encoder's weights are read; else only the headers of their files are
            checked, on torch's meta device, and the model has no digest.

    Raises:
        CheckpointError: a file is missing or broken, the architecture is not supported, or
            tensors are missing, extra, misshapen or not finite; the message names them.
    """
    check_module_keys(folder)
    files = find_weight_files(find_folders(folder), folder)
    raw = read_raw_config(folder)
    config, family = read_config_and_family(raw)
    form, stack = find_format(folder, raw), jina_adapters.read_stack(raw, family)
    lower_case = sentence_transformers.read_lower_case(folder)
    tokenizer, rules = read_tokenizer(
        folder, family, raw, lower_case=lower_case, template=form.read_template()
    )
    _check_vocabulary(tokenizer, config)
    roles = form.read_roles(config, tokenizer)
    if roles and kernels.attend_packed and roles["query"].filling and not roles["query"].attended:
        # varlen attention cannot hide tokens
        kernels = replace(kernels, name="grouped", attend_packed=None)
    pooling = form.choose_pooling(
        sentence_transformers.read_pooling(folder, raw, config.width, device, kernels.single)
    )
    max_tokens = form.choose_max_tokens(
        sentence_transformers.read_max_tokens(folder, config.max_tokens), config
    )
    prompts = sentence_transformers.read_prompts(folder)
    with open_tensors({path.name: path for path in files}, numbers=numbers) as stored:
        tensors = jina_adapters.without_adapters(stack, stored)
        weights = translate_names(
            form.select_encoder_tensors(tensors), expected_shapes(config), family
        )
        encoder = build_encoder(config, weights, device, dtype, kernels)
        source = HeadSource(
            folder, raw, config, family, by_bare_name(tensors, family), device, kernels.single
        )
        heads = form.read_heads(source, ReadingRules(rules, tokenizer, max_tokens, prompts, roles))
    # a late interaction states its own lengths, which override that file's
    longest = (head.longest for head in heads if isinstance(head, VectorHead))
    max_tokens = next(longest, max_tokens)
    digest, parts = "", dict[str, str]()
    if numbers:
        digest, parts = digest_checkpoint(
            folder, files, form, tokenizer, pooling, max_tokens, prompts, heads
        )
    return Model(
        config,
        encoder,
        tokenizer,
        pooling,
        max_tokens,
        digest,
        parts,
        states_pooling=all(
            pooling is not default
            for default in (sentence_transformers.MEAN_POOLING, sentence_transformers.LAST_POOLING)
        ),
        prompts=prompts,
        task_heads=heads,
        tokenizer_note=rules.note,
    )


def count_adapter_numbers(folder: Path, adapters: Mapping[str, Path]) -> int:
    """Count the numbers in memory of a checkpoint folder's own adapters and of these.

    Raises:
        CheckpointError: one is broken, or has settings that are not supported.
    """
    raw = read_raw_config(folder)
    config, family = read_config_and_family(raw)
    folders = {**jina_adapters.find_adapter_folders(raw, family, folder), **adapters}
    return sum(count_stored(own, config, family) for own in folders.values())


def with_adapters(model: Model, folder: Path, adapters: Mapping[str, Path]) -> Model:
    """Return a model with its checkpoint's own adapters, and those of other folders.

    Args:
        folder: of the checkpoint.
        adapters: other folders, by name.

    Raises:
        CheckpointError: one is broken, or has settings that are not supported.
    """
    raw = read_raw_config(folder)
    family = read_config_and_family(raw)[1]
    stack, folders = (
        jina_adapters.read_stack(raw, family),
        jina_adapters.find_adapter_folders(raw, family, folder),
    )
    if twice := adapters.keys() & {*folders, *(stack.tasks if stack else ())}:
        raise CheckpointError(f"adapter {min(twice)}: the checkpoint has a task of that name")
    folders |= adapters
    if not stack and not folders:
        return model
    for own in folders.values():
        _check_adapter_modules(model, folder, own)
    dtype, heads = model.encoder.embeddings.word.dtype, bool(model.task_heads)
    known = model.encoder, family, model.digest, dtype, heads
    read = jina_adapters.read_adapters(stack, find_encoder_folder(folder), *known) if stack else {}
    read |= {name: read_adapter(own, *known) for name, own in folders.items()}
    return replace(model, adapters=read, instructions=stack.instructions if stack else {})


def _check_adapter_modules(model: Model, folder: Path, own: Path) -> None:
    """Refuse an adapter's folder whose modules.json pools other than the model.

    Args:
        folder: of the model.
        own: of the adapter.

    Raises:
        CheckpointError: names the settings that differ.
    """
    if not read_modules(own):
        return
    device, kernels = model.encoder.device, model.encoder.kernels
    try:
        its = vector_facts(
            sentence_transformers.read_pooling(own, {}, model.config.width, device, kernels),
            sentence_transformers.read_max_tokens(own, model.max_tokens),
            sentence_transformers.read_lower_case(own),
            sentence_transformers.read_prompts(own),
        )
    except CheckpointError as error:
        raise CheckpointError(f"adapter {own}: {error}") from error
    ours = vector_facts(model.pooling, model.max_tokens, model.tokenizer.lower_case, model.prompts)
    for facts, place in ((its, own), (ours, folder)):
        facts["Dense"] = [
            hash_file(file) for file in find_weighed_files(place) if file.name == WEIGHTS
        ]
    if other := [name for name in its | ours if its.get(name) != ours.get(name)]:
        problem = f"its {MODULES_FILE} and the model's differ in {', '.join(other)}"
        raise CheckpointError(f"adapter {own}: {problem}; without that file the model's holds")


def make_untrained(
    config: EncoderConfig, folder: Path, device: torch.device, dtype: torch.dtype, kernels: Kernels
) -> Model:
    """Return an untrained model: weights from a fixed seed, the same on every machine.

    Args:
        folder: whose tokenizer it reads texts with.

    Raises:
        CheckpointError: the tokenizer cannot be read, or has ids beyond the vocabulary.
    """
    tokenizer = Tokenizer(folder / TOKENIZER)
    _check_vocabulary(tokenizer, config)
    weights = draw_tensors(config)
    encoder = build_encoder(config, weights.__getitem__, device, dtype, kernels)
    total = hashlib.sha256()
    for name in sorted(weights):
        total.update(name.encode() + weights[name].numpy().tobytes())
    total.update(repr(config).encode() + (folder / TOKENIZER).read_bytes())
    digest = short_digest(total)
    return Model(
        config,
        encoder,
        tokenizer,
        sentence_transformers.MEAN_POOLING,
        config.max_tokens,
        digest,
        {"weights": digest, "tokenizer": hash_facts(hash_file(folder / TOKENIZER)), "dense": ""},
        trained=False,
        states_pooling=False,
    )


def _check_vocabulary(tokenizer: Tokenizer, config: EncoderConfig) -> None:
    """Refuse a tokenizer that has ids or token types beyond the encoder's tables.

    Raises:
        CheckpointError: names the tables.
    """
    highest, type_ = tokenizer.highest_id_and_type()
    beyond = []
    if highest >= config.vocabulary:
        beyond += [f"id {highest}, and the embedding table has {config.vocabulary} rows"]
    if config.types > 1 and type_ >= config.types:  # a table of one row is read for all types
        beyond += [f"token type {type_}, and the table of types has {config.types} rows"]
    if beyond:
        raise CheckpointError(f"{TOKENIZER} reaches {'; '.join(beyond)}")
