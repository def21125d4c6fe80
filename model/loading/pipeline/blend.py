"""A WeightedLayerPooling: which hidden states it weighs, and by how much.

1_WeightedLayerPooling/config.json         layer_start, num_hidden_layers
1_WeightedLayerPooling/model.safetensors   layer_weights, one number for each state from there on

Source: sentence-transformers 6.2, sentence_transformer/modules/weighted_layer_pooling.py.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model.config import EncoderConfig
from model.encoder import Blend
from model.errors import CheckpointError
from model.loading.files import CONFIG, read_object
from model.loading.modules import MODULES, WEIGHTED, model_type, read_modules
from model.loading.pipeline.layers import weights
from model.loading.tensors import check, open_tensors
from model.loading.texts.arguments import says_hidden_states

FACTORS = "layer_weights"


def read_blend(folder: Path, raw: Mapping[str, Any], config: EncoderConfig) -> Blend | None:
    """What a folder's token vectors are blended of; None where they are the last layer's.

    Where config.json does not say "output_hidden_states": true the library hands its module
    nothing to weigh, and the last layer's vectors go through: so they do here.

    Args:
        raw: config.json, with what is laid over it.

    Raises:
        CheckpointError: the module stands elsewhere than before a Pooling of texts, or says what
            does not fit this encoder.
    """
    modules = read_modules(folder)
    kinds = [kind for kind, _ in modules]
    if WEIGHTED not in kinds:
        return None
    before = kinds[1:3] == [WEIGHTED, "Pooling"] and kinds.count(WEIGHTED) == 1
    if not before or model_type(folder) not in (None, "SentenceTransformer"):
        raise CheckpointError(f"{MODULES}: not supported: {', '.join(kinds)}")
    path = modules[1][1]
    first = read_object(path / CONFIG).get("layer_start", 4)  # as the library has it
    if type(first) is not int or not 0 <= first <= config.layers:
        told = f"layer_start {first!r}, of an encoder of {config.layers} layers"
        raise CheckpointError(f"{path.name}: not supported: {told}")
    file, where = weights(path)
    with open_tensors({where: file}) as tensors:
        check(tensors, {FACTORS: (config.layers + 1 - first,)}, where)
        factors = tensors[FACTORS].read().double()
    if not (total := float(factors.sum())):
        raise CheckpointError(f"{where}: {FACTORS} that sum to 0")
    if not says_hidden_states(folder, raw):
        return None
    shares = (factors / total).tolist()
    return Blend(dict(enumerate(shares, first)))
