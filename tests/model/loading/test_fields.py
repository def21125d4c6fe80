"""Every key of config.json that transformers knows in a family: read, refused or without effect.

A key that a new release adds stands in none of the tables, and fails here until someone has looked
at what it does.
"""

import dataclasses
import inspect
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedConfig

from model import families
from model.config import EncoderConfig
from model.errors import CheckpointError
from model.loading import task_heads
from tests.model.loading.test_families import FAMILIES, MOST, VOCABULARY, described

Keys = dict[str, Any]  # key of config.json -> a value that is not its own

# what a config's class takes besides its fields, and what its model's code asks it for by name
TAKEN = re.compile(r'kwargs\.(?:pop|get)\(\s*"([a-z]\w*)"')
ASKED = re.compile(r'(?:get|has)attr\((?:\w+\.)*(?:text_|layer_|effective_)?config, "([a-z]\w*)"')
DECODERS = ("qwen3", "gemma3_text")
# these repeat what other keys say, so that the others' values would not count
DERIVED = ("rope_parameters", "layer_types", "head_dim", "pooler_hidden_size")
ROTARY_BASE = {"rope_type": "default", "rope_theta": 77.0}

SIZES: Keys = {
    "vocab_size": 98,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 81,
    "max_position_embeddings": 43,
}
OF_BERT: Keys = {**SIZES, "hidden_act": "relu", "layer_norm_eps": 0.1, "type_vocab_size": 5}
OF_ROBERTA: Keys = {**OF_BERT, "pad_token_id": 2}
READ: dict[str, Keys] = {
    "bert": OF_BERT,
    "ernie": {**OF_BERT, "use_task_id": False, "task_type_vocab_size": 4},
    "electra": {**OF_BERT, "embedding_size": 12},
    "albert": {**OF_BERT, "embedding_size": 12},
    "roberta": OF_ROBERTA,
    "xlm-roberta": OF_ROBERTA,
    "camembert": OF_ROBERTA,
    "distilbert": {
        "vocab_size": 98,
        "max_position_embeddings": 43,
        "dim": 96,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 81,
        "activation": "relu",
    },
    "mpnet": {
        **{key: value for key, value in OF_BERT.items() if key != "type_vocab_size"},
        "relative_attention_num_buckets": 16,
    },
    "deberta-v2": {
        **OF_BERT,
        "position_buckets": 6,
        "max_relative_positions": 21,
        "pos_att_type": "c2p",
        "norm_rel_ebd": "none",
        "share_att_key": False,
        "position_biased_input": True,
    },
    "nomic_bert": {
        **OF_BERT,
        "rope_parameters": ROTARY_BASE,
        "rope_scaling": ROTARY_BASE,
        "rope_theta": 77.0,
    },
    **dict.fromkeys(
        ("gte", "jina_embeddings_v3"),
        {
            **OF_BERT,
            "rope_parameters": ROTARY_BASE,
            "rope_scaling": ROTARY_BASE,
            "rope_theta": 77.0,
        },
    ),
    "modernbert": {
        **SIZES,
        "hidden_activation": "relu",
        "norm_eps": 0.1,
        "local_attention": 6,
        "layer_types": ["full_attention"] * 4,
        "global_attn_every_n_layers": 2,
        "rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), ROTARY_BASE),
        "rope_scaling": ROTARY_BASE,
        "global_rope_theta": 77.0,
        "local_rope_theta": 77.0,
    },
    "eurobert": {
        **SIZES,
        "num_attention_heads": 3,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "hidden_act": "relu",
        "rms_norm_eps": 0.1,
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": ROTARY_BASE,
        "rope_scaling": ROTARY_BASE,
        "rope_theta": 77.0,
    },
    "qwen3": {
        **SIZES,
        "num_attention_heads": 4,
        "num_key_value_heads": 3,
        "head_dim": 10,
        "hidden_act": "relu",
        "rms_norm_eps": 0.1,
        "attention_bias": True,
        "is_causal": False,
        "rope_parameters": ROTARY_BASE,
        "rope_scaling": ROTARY_BASE,
        "rope_theta": 77.0,
    },
    "gemma3_text": {
        **SIZES,
        "num_attention_heads": 4,
        "num_key_value_heads": 3,
        "head_dim": 10,
        "hidden_activation": "relu",
        "rms_norm_eps": 0.1,
        "attention_bias": True,
        "query_pre_attn_scalar": 7,
        "sliding_window": 6,
        "sliding_window_pattern": 3,
        "layer_types": ["full_attention"] * 4,
        "use_bidirectional_attention": False,
        "is_causal": False,
        "rope_parameters": dict.fromkeys(("full_attention", "sliding_attention"), ROTARY_BASE),
        "rope_scaling": ROTARY_BASE,
        "rope_theta": 77.0,
        "rope_local_base_freq": 77.0,
    },
}
FIRST = {family for family in READ if family not in ("ernie", "xlm-roberta", "camembert", "gte")}
HEADED = [
    *((family, "AutoModelForCausalLM") for family in DECODERS),
    *(
        pytest.param(family, f"AutoModelFor{head}", marks=marks)
        for family in READ
        if family not in DECODERS
        for head in ("SequenceClassification", "MaskedLM")
        # of families that share their tables the first; `make prove` tries the others and heads
        for marks in [() if family in FIRST and head[0] == "S" else pytest.mark.prove]
    ),
]
# by loading/task_heads.py, which test_task_heads.py holds to transformers
OF_HEADS = {"architectures", "id2label", "problem_type"}
OF_ITS_HEADS = {
    family: {"tie_word_embeddings"} for family in READ if family not in ("nomic_bert",)
} | {
    "nomic_bert": set[str](),
    "eurobert": {"tie_word_embeddings", "classifier_pooling"},
    "deberta-v2": {"tie_word_embeddings", "pooler_hidden_act", "legacy"},
    "modernbert": {
        "tie_word_embeddings",
        "classifier_pooling",
        "classifier_bias",
        "classifier_activation",
        "decoder_bias",
    },
}
REFUSED_EVERYWHERE: Keys = {
    "per_layer_config": {"1": {"num_attention_heads": 1}},
    "transformers_weights": "other.safetensors",
    "fusion_config": {"patch_embeddings": True},
    "is_causal": True,  # of an encoder: transformers' fused kernel follows it, its plain one not
}
DECODER: Keys = {"is_decoder": True, "add_cross_attention": True}
REFUSED: dict[str, Keys] = {
    **dict.fromkeys(
        ("bert", "ernie", "roberta", "xlm-roberta", "camembert"), {**DECODER, "embedding_size": 24}
    ),
    "electra": DECODER,
    "albert": {"num_hidden_groups": 2, "inner_group_num": 2, "embedding_size": 48},
    "distilbert": {"hidden_size": 96, "num_attention_heads": 2, "num_hidden_layers": 3},
    "mpnet": {"embedding_size": 24},
    "deberta-v2": {
        "relative_attention": False,
        "conv_kernel_size": 3,
        "attention_head_size": 8,
        "embedding_size": 24,
        "pooler_hidden_size": 24,
    },
    **dict.fromkeys(
        ("nomic_bert", "gte", "jina_embeddings_v3"), {"head_dim": 8, "partial_rotary_factor": 0.5}
    ),
    "modernbert": {
        "head_dim": 8,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "mlp_bias": True,
        "norm_bias": True,
        "sliding_window": 3,
    },
    "eurobert": {"partial_rotary_factor": 0.5},
    "qwen3": {
        "partial_rotary_factor": 0.5,
        "use_sliding_window": True,
        "layer_types": ["sliding_attention"] * 4,
    },
    "gemma3_text": {"partial_rotary_factor": 0.5, "attn_logit_softcapping": 30.0},
}
# keys that no class of the family knows, which its older code, or another family's, reads
REFUSED_BESIDE: dict[str, Keys] = {
    "electra": {"position_embedding_type": "relative_key"},
    "jina_embeddings_v3": {
        "position_embedding_type": "absolute",
        "lora_adaptations": ["separation"],
    },
    "gte": {
        "layer_norm_type": "rms_norm",
        "logn_attention_scale": True,
        "pack_qkv": False,
        "position_embedding_type": "absolute",
    },
}
IDLE: Keys = {  # in every family, but where it is read or refused
    "transformers_version": "4.0.0",
    "name_or_path": "another",
    "dtype": "float16",  # --dtype decides here, and an argument there
    "torch_dtype": "float16",
    "initializer_range": 9.0,
    "chunk_size_feed_forward": 1,
    "is_encoder_decoder": True,
    "output_hidden_states": True,
    "output_attentions": True,
    "return_dict": False,  # the form of what it returns, which the test sets back
    "attn_implementation": "sdpa",
    "experts_implementation": "eager",
    "label2id": {"another": 0},
    "num_labels": 5,  # of a classifier's head the weights say how many
    "bos_token_id": 5,  # tokenizer.json has the tokens that are used
    "eos_token_id": 6,
    "pad_token_id": 3,
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "rope_theta": 77.0,
    # of layers of their own, which are refused
    "allow_global_per_layer_attribute_access": True,
    "serialize_explicit_per_layer_config": False,
    # what code that families share asks for: of training, ..
    **{"init_std": 9.0, "initializer_factor": 9.0, "gradient_checkpointing": True},
    **{"attention_dropout": 0.9, "hidden_dropout": 0.9, "classifier_dropout": 0.9},
    # .. of generation and its caches, ..
    **{"kv_sharing_modes": None, "number_of_conv_states": 2, "qk_head_dim": 3},
    **{"num_mtp_layers": 1, "mtp_layer_types": None, "mtp_mlp_layer_types": None},
    **{"mtp_per_layer_config": None, "mtp_hidden_states_first": True},
    **{"chain_hidden_post_norm": True, "first_k_dense_replace": 1, "mlp_layer_types": None},
    **{"logits_mup_width_multiplier": 2.0, "unpadded_vocab_size": 7},
    # .. of many machines, images, the form of what is returned, ..
    **{"distributed_config": None, "hidden_sizes": [7], "text_config": None},
    **{"tie_last_hidden_states": True, "sep_token_id": 6},
    # .. and of layers that these families have not, and heads that are not read
    **{"token_classification_bias": False, "tie_word_embeddings": True},
    **{"attention_chunk_size": 3, "sliding_window": 3, "layer_types": ["sliding_attention"] * 4},
    **{"head_dim": 8, "num_key_value_heads": 1},
}
DROPPED: Keys = {
    "hidden_dropout_prob": 0.9,
    "attention_probs_dropout_prob": 0.9,
    "classifier_dropout": 0.9,
}
ENCODER: Keys = {**DROPPED, "use_cache": False}
IDLE_OF: dict[str, Keys] = {
    **dict.fromkeys(("bert", "ernie", "roberta", "xlm-roberta", "camembert"), ENCODER),
    "electra": {
        **ENCODER,
        "summary_type": "last",  # of its head for multiple choice, which there is none of here
        "summary_use_proj": False,
        "summary_proj_to_labels": False,
        "summary_first_dropout": 0.9,
        "summary_activation": "relu",
        "summary_last_dropout": 0.9,
    },
    "albert": {
        **{key: DROPPED[key] for key in DROPPED if key != "classifier_dropout"},
        "classifier_dropout_prob": 0.9,
    },
    "distilbert": {
        "dropout": 0.9,
        "attention_dropout": 0.9,
        "qa_dropout": 0.9,
        "seq_classif_dropout": 0.9,
        "sinusoidal_pos_embds": True,  # how the table begins that the weights then hold
    },
    "mpnet": {key: DROPPED[key] for key in DROPPED if key != "classifier_dropout"},
    "deberta-v2": {
        **{key: DROPPED[key] for key in DROPPED if key != "classifier_dropout"},
        "pooler_dropout": 0.9,
        "cls_dropout": 0.9,
        "conv_groups": 3,  # of the convolution, which there is none of here
        "conv_act": "relu",
    },
    **dict.fromkeys(("nomic_bert", "gte"), DROPPED),
    "jina_embeddings_v3": ENCODER,
    "modernbert": {
        "attention_dropout": 0.9,
        "embedding_dropout": 0.9,
        "mlp_dropout": 0.9,
        "classifier_dropout": 0.9,
        "initializer_cutoff_factor": 9.0,
        "deterministic_flash_attn": True,
        "sparse_prediction": True,  # of training
        "sparse_pred_ignore_index": 1,
        "cls_token_id": 5,
        "sep_token_id": 6,
    },
    "eurobert": {
        "use_cache": False,
        "attention_dropout": 0.9,
        "pretraining_tp": 2,
        "mask_token_id": 3,
    },
    "qwen3": {
        "use_cache": False,
        "attention_dropout": 0.9,
        "sliding_window": 3,  # of layers that look no farther, which are refused
        "max_window_layers": 1,
    },
    "gemma3_text": {
        "use_cache": False,
        "attention_dropout": 0.9,
        "final_logit_softcapping": None,  # of the head over its vocabulary
    },
}


def idle(family: str) -> Keys:
    """What a family's config may say without effect."""
    own = {**IDLE, **IDLE_OF[family]}
    counted = {*READ[family], *refused(family), *OF_ITS_HEADS[family]}
    return {key: own[key] for key in own if key not in counted}


def refused(family: str) -> Keys:
    """What a family's config may not say."""
    every = {k: v for k, v in REFUSED_EVERYWHERE.items() if k not in READ[family]}
    return {**every, **REFUSED[family]}


def shared() -> str:
    """The source of what the families' code is made of besides its own files."""
    kinds = (f"{tiny.class_prefix}Model" for tiny in FAMILIES.values())
    models = [inspect.getmodule(getattr(transformers, kind)) for kind in kinds]
    found = {inspect.getmodule(one) for model in models for one in vars(model).values()}
    common = [
        m for m in found if re.match(r"transformers\.(?!models\.)", getattr(m, "__name__", ""))
    ]
    return "".join(inspect.getsource(module) for module in common if module)


def known(kind: type[PreTrainedConfig], code: str = "") -> set[str]:
    """The keys that a config's class takes, and those that its model's code asks it for."""
    keys = {field.name for field in dataclasses.fields(kind)} | set(kind.attribute_map)
    for name, value in inspect.getmembers(kind):
        keys |= {name} if isinstance(value, property) and value.fset else set()
    steps = {"__post_init__"}
    steps |= {"convert_rope_params_to_dict"} if hasattr(kind, "rope_parameters") else set()
    for each in kind.__mro__:
        for step in vars(each).keys() & steps:
            keys |= set(TAKEN.findall(inspect.getsource(vars(each)[step])))
    return {key for key in keys | set(ASKED.findall(code)) if not key.startswith("_")}


def listed(family: str) -> set[str]:
    """The keys of a family in the tables above."""
    tables = (READ[family], refused(family), idle(family))
    return {key for table in tables for key in table} | OF_HEADS | OF_ITS_HEADS[family]


def written(family: str) -> Keys:
    """A family's config.json as transformers writes it."""
    config: Keys = described(family).to_dict()
    return config


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_that_transformers_knows_is_read_refused_or_without_effect(family: str) -> None:
    """A new one is in no table, and one that is gone is in one too many.

    A family whose keys all stand in tables of others needs none of its own.
    """
    prefix = FAMILIES[family].class_prefix
    code = inspect.getsource(inspect.getmodule(getattr(transformers, f"{prefix}Model")))  # type: ignore[arg-type]

    keys = known(getattr(transformers, f"{prefix}Config"), code + shared())
    if family in READ:
        assert listed(family) == keys
    else:
        assert keys <= set().union(*map(listed, READ))


def test_a_field_of_a_new_release_is_seen() -> None:
    """Fields, keys taken by name, second names and names that the model's code asks for."""

    class Newer(transformers.BertConfig):  # type: ignore[misc]
        attribute_map = {"second_name": "hidden_size"}
        new_field: int = 3

        def __post_init__(self, **kwargs: Any) -> None:
            kwargs.pop("taken", None)
            super().__post_init__(**kwargs)

    asked = 'getattr(self.config, "asked", None) if hasattr(text_config, "had") else 0'
    found = known(Newer, asked)

    assert found - listed("bert") == {"new_field", "taken", "second_name", "asked", "had"}
    assert "is_causal" in known(Newer, shared())


@pytest.mark.parametrize("family", READ)
def test_what_is_read_decides(family: str) -> None:
    """Another value of any key makes another encoder."""
    config = {k: v for k, v in written(family).items() if k not in DERIVED}
    if family == "gemma3_text":  # some layers look everywhere, without a list of them
        config["sliding_window_pattern"] = 2

    read, own = families.read_config_and_family, READ[family]
    assert [key for key in own if read({**config, key: own[key]}) == read(config)] == []


@pytest.mark.parametrize("family", READ)
def test_what_is_left_out_is_as_transformers_class_has_it(family: str) -> None:
    """Each key that decides, taken out of what the class writes by itself."""
    kind = getattr(transformers, f"{FAMILIES[family].class_prefix}Config")
    chosen: Keys = {"relative_attention": True, "pos_att_type": "c2p"}  # else it is refused
    config = kind(**chosen if family == "deberta-v2" else {}).to_dict()
    whole = derived(families.read_config_and_family(config)[0])

    for key in READ[family].keys() - chosen.keys():
        left = {k: v for k, v in config.items() if k != key}
        assert derived(families.read_config_and_family(left)[0]) == whole, key


def derived(config: EncoderConfig) -> EncoderConfig:
    """The same with what follows from its other sizes."""
    return replace(config, key_heads=config.shared_heads, head_size=config.head_dim)


@pytest.mark.parametrize("family", READ)
def test_what_decides_about_heads_is_named_where_heads_are_read(family: str) -> None:
    """test_task_heads.py holds what comes of it to transformers."""
    own = next(one for one in families.FAMILIES if one.name == family)
    code = inspect.getsource(task_heads) + json.dumps(
        [(one.activation_key, *one.optional_biases.values()) for one in own.head_recipes.values()]
    )

    assert [key for key in OF_HEADS | OF_ITS_HEADS[family] if f'"{key}"' not in code] == []


@pytest.mark.parametrize("family", READ)
def test_what_is_not_computed_is_refused_by_name(family: str) -> None:
    """With its value; as transformers writes the key, it is welcome."""
    config = written(family)
    families.read_config_and_family(config)

    for table in (refused(family), REFUSED_BESIDE.get(family, {})):
        for key, value in table.items():
            said = f"not supported: .*{key} {re.escape(repr(value))}"
            with pytest.raises(CheckpointError, match=said):
                families.read_config_and_family({**config, key: value})


def answers(folder: Path, kind: str, kernel: str) -> tuple[Tensor, Tensor]:
    """What transformers makes of a folder: logits and the last state."""
    form: Keys = {"attn_implementation": kernel, "dtype": torch.float32}
    form |= {} if kernel == "eager" else {"output_attentions": False}  # which the other has not
    model = getattr(transformers, kind).from_pretrained(folder, **form).eval()
    model.config.return_dict = True
    ids = torch.randint(0, VOCABULARY, (1, MOST), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        found = model(input_ids=ids, output_hidden_states=True)
    return found.logits, found.hidden_states[-1]


@pytest.mark.parametrize(("family", "kind"), HEADED)
def test_what_is_without_effect_changes_no_bit_of_transformers_own(
    tmp_path: Path, family: str, kind: str
) -> None:
    """All of it at once, by both kernels under one of two heads; and we read the same encoder."""
    fused = kind.endswith("LM") and family not in ("mpnet", "deberta-v2")
    kernels = ["eager", *(["sdpa"] if fused else [])]
    torch.manual_seed(0)
    path, config = tmp_path / "config.json", described(family, id2label={0: "no", 1: "yes"})
    getattr(transformers, kind).from_config(config).save_pretrained(tmp_path)
    raw = json.loads(path.read_text("utf-8"))
    before = [each for kernel in kernels for each in answers(tmp_path, kind, kernel)]

    keys = idle(family)
    if kind == "AutoModelForSequenceClassification":  # which it fails to load with another number
        del keys["num_labels"]
    path.write_text(json.dumps({**raw, **keys}), "utf-8")

    after = [each for kernel in kernels for each in answers(tmp_path, kind, kernel)]
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    assert families.read_config_and_family({**raw, **keys}) == families.read_config_and_family(raw)
