"""Read the task head of a checkpoint folder, if it has one that is supported.

config.json                         architectures, id2label, problem_type
config_sentence_transformers.json   a CrossEncoder's activation
1_SpladePooling/config.json         how logits over the vocabulary become weights

A checkpoint has one task head, except for BGE-M3's two (formats/bge_m3.py). Its config.json names
it under "architectures", behind the family's name, as in BertForSequenceClassification. The
family's recipe says which tensors it has and how it computes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.config import EncoderConfig
from model.decider import Decider
from model.errors import CheckpointError, refuse_unsupported
from model.families import fields
from model.families.family import (
    MASKED_LM,
    SEQUENCE_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Family,
    HeadRecipe,
)
from model.kernels import Affine, Kernels
from model.loading.files import CONFIG, WEIGHTS, read_object
from model.loading.modules import (
    MODULES_FILE,
    PROMPTS_FILE,
    find_misfit,
    is_chained_reranker,
    read_modules,
    read_optional,
)
from model.loading.pipeline.keys import SCORES_OUTPUT
from model.loading.pipeline.layers import LAYER_KINDS, read_layers, read_modes
from model.loading.tensors import Shape, StoredTensor, check_tensors
from model.pooling import Dense, Norm, Pooling, PoolingLayer, identity
from model.projection import Projection
from model.steady import ACTIVATIONS
from model.task_heads import (
    Classifier,
    Lexical,
    ScoreActivation,
    Splade,
    Tagger,
    TaskHead,
    VectorHead,
)

# how the names of supported architectures end
ARCHITECTURE_ENDS = SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION, MASKED_LM
ENTAILMENT_LABEL = "entail"  # prefix of the class's name, in any case
# class of torch.nn that a CrossEncoder names -> activation
ACTIVATION_OF_CLASS: dict[str, ScoreActivation] = {
    "Sigmoid": "sigmoid",
    "Identity": "none",
    "Softmax": "softmax",
}
ACTIVATION_OF_PROBLEM: dict[str, ScoreActivation] = {  # by problem_type of config.json
    "regression": "none",
    "multi_label_classification": "sigmoid",
    "single_label_classification": "softmax",
}


@dataclass(frozen=True, slots=True)
class HeadSource:
    """All that a task head is read from.

    Args:
        raw: config.json.
        config: the encoder config read from it.
        family: the checkpoint's.
        tensors: the checkpoint's, by their names without the family's prefix.
    """

    folder: Path
    raw: Mapping[str, Any]
    config: EncoderConfig
    family: Family
    tensors: Mapping[str, StoredTensor]
    device: torch.device
    kernels: Kernels

    @property
    def embeddings_name(self) -> str:
        """Return the name of the word embeddings' tensor."""
        names = [f"{names['word']}.weight" for names in self.family.tensor_names]
        return next((name for name in names if name in self.tensors), names[0])


def read_task_head(parts: HeadSource) -> TaskHead | None:
    """Return the task head of a folder; None where it has none that is supported.

    Raises:
        CheckpointError: a part of it is missing, misshapen or not finite, or is not supported.
    """
    if is_chained_reranker(parts.folder):
        return _read_chain(parts)
    names = parts.raw.get("architectures") or [""]
    if not isinstance(names, list):
        raise CheckpointError(f"config.json: architectures is no list: {names!r}")
    kind = next((kind for kind in ARCHITECTURE_ENDS if str(names[0]).endswith(kind)), "")
    recipe = parts.family.head_recipes.get(kind)
    if recipe is None:
        return None
    if kind == MASKED_LM:
        return _read_splade(parts, recipe)
    if f"{recipe.output}.weight" not in parts.tensors:
        return None
    outputs = parts.tensors[f"{recipe.output}.weight"].shape[0]
    project, labels = _build_projection(parts, recipe, outputs), _read_labels(parts.raw, outputs)
    if kind == TOKEN_CLASSIFICATION:
        return Tagger(labels, project)
    pooling = parts.raw.get("classifier_pooling", "cls")
    if pooling not in ("cls", "mean"):
        raise CheckpointError(f"not supported: classifier_pooling {pooling!r}")
    activations = read_activations(parts, outputs)
    entailment = _find_entailment(parts.raw, labels)
    return Classifier(labels, Pooling((pooling,), False), project, *activations, entailment)


def list_digest_facts(folder: Path, head: TaskHead) -> list[str]:
    """List, for the digest, a head's settings from files other than config.json and weights."""
    if isinstance(head, Classifier) and is_chained_reranker(folder):
        steps = [type(layer).__name__ for layer in head.project.layers]
        return [head.activation, *head.pooling.modes, *steps]
    if isinstance(head, Classifier) and (folder / PROMPTS_FILE).is_file():
        return list(dict.fromkeys((head.activation, head.ranking)))
    if isinstance(head, VectorHead):
        return [f"{side} {role.describe()}" for side, role in sorted(head.roles.items())]
    if isinstance(head, Lexical):
        return [f"unused {sorted(head.unused)}"]
    if isinstance(head, Decider):
        return [*map(str, head.marks)]
    if isinstance(head, Splade):
        return [head.pooling, str(head.log_twice)]
    return []


def _read_chain(parts: HeadSource) -> Classifier:
    """Return the classifier made of a CrossEncoder's Pooling and the layers behind it."""
    modules = read_modules(parts.folder)
    kinds = [kind for kind, _ in modules]
    culprit = find_misfit(kinds, ["Transformer", "Pooling"], LAYER_KINDS)
    refuse_unsupported(MODULES_FILE, culprit or (None if "Dense" in kinds else "no Dense"))
    last = len(kinds) - kinds[::-1].index("Dense")  # modules after it do not change scores
    modes = read_modes(modules[1][1])
    inputs = len(modes) * parts.config.width
    layers = read_layers(modules[2:last], inputs, parts.device, parts.kernels, SCORES_OUTPUT)
    outputs = layers[-1].outputs
    labels = tuple(f"LABEL_{i}" for i in range(outputs))  # config.json names the encoder's own
    activations = read_activations(parts, outputs)
    return Classifier(labels, Pooling(modes, False), Projection(layers), *activations)


def _read_splade(parts: HeadSource, recipe: HeadRecipe) -> Splade | None:
    """Return the head of a SparseEncoder; None without a SpladePooling module."""
    folders = [path for kind, path in read_modules(parts.folder) if kind == "SpladePooling"]
    if not folders:
        return None
    if not parts.raw.get("legacy", True):  # DeBERTa's other head over its vocabulary
        raise CheckpointError("not supported: legacy False, with a SpladePooling")
    config = read_object(folders[0] / CONFIG)
    pooling, activation = config.get("pooling_strategy"), config.get("activation_function", "relu")
    if pooling not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        wrong = f"pooling_strategy {pooling!r}, activation_function {activation!r}"
        raise CheckpointError(f"SpladePooling: not supported: {wrong}")
    project = _build_projection(parts, recipe, parts.config.vocabulary)
    return Splade(project, pooling, activation == "log1p_relu")


def _build_projection(parts: HeadSource, recipe: HeadRecipe, outputs: int) -> Projection:
    """Build the linears of a task head by its recipe, with this many outputs."""
    shapes, linear = _expected_shapes(parts, recipe, outputs), parts.kernels.linear
    tensors = parts.tensors
    check_tensors({name: tensors[name] for name in shapes if name in tensors}, shapes, WEIGHTS)

    def affine(weight: str, bias: str) -> Affine:
        """Read a weight, and the bias if the head has one."""
        return read(weight), read(bias) if bias in shapes else None

    def read(name: str) -> Tensor:
        """Read a tensor as float32 to the device."""
        return tensors[name].read().float().to(parts.device)

    def dense(weight: str, bias: str, activation: Callable[[Tensor], Tensor]) -> Dense:
        """Read a linear with an activation behind it."""
        shape = shapes[weight]
        return Dense(linear(*affine(weight, bias)), activation, shape[0], math.prod(shape))

    names, layers = _output_names(parts, recipe), list[PoolingLayer]()
    if recipe.dense:
        activation = _dense_activation(parts.raw, recipe)
        layers.append(dense(f"{recipe.dense}.weight", f"{recipe.dense}.bias", activation))
    if recipe.norm:
        norm = affine(f"{recipe.norm}.weight", f"{recipe.norm}.bias")
        layers.append(Norm(norm, parts.config.norm_eps, layers[-1].outputs))
    return Projection((*layers, dense(*names, identity)))


def _expected_shapes(parts: HeadSource, recipe: HeadRecipe, outputs: int) -> dict[str, Shape]:
    """Return the shapes of a task head's tensors, by name."""
    width = parts.config.width
    inner = parts.config.embedding_width if _predicts_words(parts, recipe) else width
    weight, bias = _output_names(parts, recipe)
    shapes: dict[str, Shape] = {weight: (outputs, inner), bias: (outputs,)}
    if recipe.dense:
        shapes |= {f"{recipe.dense}.weight": (inner, width), f"{recipe.dense}.bias": (inner,)}
    if recipe.norm:
        shapes |= {f"{recipe.norm}.weight": (inner,), f"{recipe.norm}.bias": (inner,)}
    absent = [
        name for name, (key, own) in recipe.optional_biases.items() if not parts.raw.get(key, own)
    ]
    return {name: shape for name, shape in shapes.items() if name not in absent}


def _output_names(parts: HeadSource, recipe: HeadRecipe) -> tuple[str, str]:
    """Return the names of the last linear's weight and bias, those tied to it if not stored."""
    weight, bias = f"{recipe.output}.weight", f"{recipe.output}.bias"
    if _predicts_words(parts, recipe) and parts.raw.get("tie_word_embeddings", True):
        if weight not in parts.tensors:
            weight = parts.embeddings_name
        bias = bias if bias in parts.tensors else recipe.tied_bias or bias
    return weight, bias


def _predicts_words(parts: HeadSource, recipe: HeadRecipe) -> bool:
    """Tell whether a head has an output for each token of the vocabulary."""
    return recipe is parts.family.head_recipes.get(MASKED_LM)


def _dense_activation(raw: Mapping[str, Any], recipe: HeadRecipe) -> Callable[[Tensor], Tensor]:
    """Return the activation behind a task head's dense layer."""
    name = recipe.activation
    if recipe.activation_key:
        name = raw.get(recipe.activation_key, name)
    if name == "tanh":
        return torch.tanh
    if not isinstance(name, str) or name not in fields.ACTIVATIONS:
        raise CheckpointError(f"not supported: {recipe.activation_key} {name!r}")
    return ACTIVATIONS[fields.ACTIVATIONS[name]]


def _read_labels(raw: Mapping[str, Any], outputs: int) -> tuple[str, ...]:
    """Return a name for each output; transformers leaves out its two default ones."""
    stored = raw.get("id2label")
    if stored is None:
        return tuple(f"LABEL_{i}" for i in range(outputs))
    names = {str(i) for i in range(outputs)}
    if not isinstance(stored, Mapping) or stored.keys() != names:
        raise CheckpointError(
            f"config.json: id2label does not name the task head's {outputs} outputs"
        )
    return tuple(str(stored[str(i)]) for i in range(outputs))


def _find_entailment(raw: Mapping[str, Any], labels: Sequence[str]) -> int | None:
    """Return the index of the entailment class for zero-shot classification; None: none.

    As transformers' pipeline, it goes by label2id alone; without one, by the labels.
    """
    stored = raw.get("label2id")
    indices = stored if isinstance(stored, Mapping) else {b: a for a, b in enumerate(labels)}
    found = next(
        (index for name, index in indices.items() if name.lower().startswith(ENTAILMENT_LABEL)),
        None,
    )
    return found if type(found) is int and len(labels) > 1 and found in range(len(labels)) else None


def read_activations(parts: HeadSource, classes: int) -> tuple[ScoreActivation, ScoreActivation]:
    """Return the activations for scores of classes, and for pairs that are ranked.

    One stored by a CrossEncoder is for both. Otherwise pairs are scored as CrossEncoder does by
    default, and classes too where the folder is a CrossEncoder's; a plain checkpoint's classes are
    scored as in transformers' pipeline for text classification.
    """
    saved = read_optional(parts.folder / PROMPTS_FILE) if read_modules(parts.folder) else {}
    is_cross_encoder = saved.get("model_type") == "CrossEncoder"
    stored = _stored_activation(parts.raw, saved if is_cross_encoder else {})
    if stored is not None:
        name = str(stored).removeprefix("torch.nn.").rpartition(".")[2]
        if name not in ACTIVATION_OF_CLASS or not str(stored).startswith("torch.nn."):
            raise CheckpointError(f"not supported: activation_fn {stored!r}")
        return ACTIVATION_OF_CLASS[name], ACTIVATION_OF_CLASS[name]
    ranking: ScoreActivation = "sigmoid" if classes == 1 else "none"
    if is_cross_encoder:
        return ranking, ranking
    return _pipeline_activation(parts.raw.get("problem_type"), classes), ranking


def _stored_activation(raw: Mapping[str, Any], saved: Mapping[str, Any]) -> object:
    """Return the name of the activation that a CrossEncoder stored; None: it stored none.

    Args:
        raw: config.json, which counts where `saved` names none.
        saved: config_sentence_transformers.json of a CrossEncoder's folder, else empty.
    """
    of_config = raw.get("sentence_transformers") or {}
    if (name := saved.get("activation_fn")) is not None:
        return name
    if "activation_fn" in of_config:
        return of_config["activation_fn"]
    return raw.get("sbert_ce_default_activation_function")


def _pipeline_activation(problem: object, classes: int) -> ScoreActivation:
    """Return transformers' activation of scores for a problem_type, if any, and so many classes."""
    if problem is None:
        return "sigmoid" if classes == 1 else "softmax"
    if not isinstance(problem, str) or problem not in ACTIVATION_OF_PROBLEM:
        raise CheckpointError(f"not supported: problem_type {problem!r}")
    own = ACTIVATION_OF_PROBLEM[problem]
    return "sigmoid" if classes == 1 and own == "softmax" else own  # one class has no softmax
