"""Heads of every family against transformers and sentence-transformers, random weights."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.sparse_encoder.modules import SpladePooling
from torch import Tensor
from transformers import PreTrainedModel

from model import families
from model.errors import CheckpointError
from model.families.family import MASKED_LM, SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION
from model.loading.checkpoint import Model
from model.packing import Sequence
from model.task_heads import TILE_ROWS, Classifier, Splade, Tagger
from tests.model.loading.test_families import FAMILIES, MOST, VOCABULARY, theirs
from tests.model.loads import load
from tests.model.small_tokenizer import FEW, save_few_words, save_small_tokenizer

NAMES = [
    one.name
    for one in families.FAMILIES
    if one.tiny_model and SEQUENCE_CLASSIFICATION in one.head_recipes
]
CLOSE = 1e-5
LENGTHS = (1, 2, 5, 9, 9, 17, 23, MOST)
LABELS = {0: "anger", 1: "joy", 2: "neither"}
KINDS = (SEQUENCE_CLASSIFICATION, TOKEN_CLASSIFICATION, MASKED_LM)

Made = Callable[..., tuple[PreTrainedModel, Model]]


def loaded(folder: Path) -> Model:
    """A folder's model as we load it."""
    save_small_tokenizer(folder)
    return load(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A model with a head as transformers runs it, and as we load it; of a kind once."""
    known: dict[tuple[str, str], tuple[PreTrainedModel, Model]] = {}

    def make(family: str, kind: str, **choices: Any) -> tuple[PreTrainedModel, Model]:
        if choices:
            return make_anew(family, kind, **choices)
        if (family, kind) not in known:
            labelled = {} if kind == KINDS[2] else {"id2label": LABELS}
            known[family, kind] = make_anew(family, kind, **labelled)
        return known[family, kind]

    def make_anew(family: str, kind: str, **choices: Any) -> tuple[PreTrainedModel, Model]:
        model, folder = theirs(family, kind, **choices), tmp_path_factory.mktemp(family)
        model.save_pretrained(folder)
        if kind == "ForMaskedLM":
            splade(folder)
        return model, loaded(folder)

    return make


def splade(folder: Path, **choices: Any) -> None:
    """The modules of a SparseEncoder next to a masked language model."""
    modules = ["sparse_encoder.modules.mlm_transformer.MLMTransformer"]
    modules += ["sparse_encoder.modules.splade_pooling.SpladePooling"]
    rows = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.{module}"}
        for i, (path, module) in enumerate(zip(("", "1_SpladePooling"), modules, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "1_SpladePooling").mkdir()
    pooling = {"pooling_strategy": "max", "activation_function": "relu"} | choices
    (folder / "1_SpladePooling" / "config.json").write_text(json.dumps(pooling))


def drawn(lengths: tuple[int, ...] = LENGTHS) -> list[list[int]]:
    """Random token ids of some lengths."""
    random = torch.Generator().manual_seed(3)
    # without the padding ids, which transformers' mean would count and ours too
    return [torch.randint(3, VOCABULARY, (n,), generator=random).tolist() for n in lengths]


@torch.inference_mode()
def ours(model: Model, batch: list[list[int]]) -> list[dict[str, Tensor]]:
    """What the head makes of each sequence of a batch."""
    encoded = model.encoder(model.encoder.pack([Sequence(ids) for ids in batch]))
    return [model.task_heads[0](encoded.last[encoded.packed.rows(i)]) for i in range(len(batch))]


def logits(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """What transformers' head makes of a sequence alone."""
    with torch.inference_mode():
        given = torch.tensor([ids])
        found: Tensor = model(input_ids=given, attention_mask=torch.ones_like(given)).logits[0]
    return found


@pytest.mark.parametrize("family", NAMES)
def test_classes_are_transformers(made: Made, family: str) -> None:
    """Logits of three classes, and their softmax, of every sequence of a mixed batch."""
    reference, model = made(family, KINDS[0])

    assert model.tasks == ("encode", "classify")
    assert isinstance(model.task_heads[0], Classifier) and model.task_heads[0].labels == tuple(
        LABELS.values()
    )
    for ids, found in zip(drawn(), ours(model, drawn()), strict=True):
        expected = logits(reference, ids)
        torch.testing.assert_close(found["logits"], expected, rtol=0, atol=CLOSE)
        torch.testing.assert_close(found["scores"], expected.softmax(-1), rtol=0, atol=CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("family", NAMES)
def test_classified_together_each_sequence_has_its_own_classes(made: Made, family: str) -> None:
    """The way of GPUs: of some of a batch, in any order, as classified one by one."""
    model = made(family, KINDS[0])[1]
    head = model.task_heads[0]
    assert isinstance(head, Classifier)
    encoded = model.encoder(model.encoder.pack([Sequence(ids) for ids in drawn()]))
    rows = [encoded.packed.rows(index) for index in (7, 0, 3, 4)]

    together = dataclasses.replace(head, activation="sigmoid").classify_together(encoded.last, rows)

    alone = torch.stack([head(encoded.last[own])["logits"] for own in rows])
    torch.testing.assert_close(together["logits"], alone, rtol=0, atol=CLOSE)
    torch.testing.assert_close(together["scores"], alone.sigmoid(), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("bias", [False, True], ids=["as it is", "with biases"])
def test_modernbert_classifies_the_mean_where_its_config_says_so(made: Made, bias: bool) -> None:
    """With the biases that its config switches on."""
    choices = {"classifier_pooling": "mean", "classifier_bias": bias, "num_labels": 2}
    reference, model = made("modernbert", KINDS[0], **choices)

    for ids, found in zip(drawn(), ours(model, drawn()), strict=True):
        torch.testing.assert_close(found["logits"], logits(reference, ids), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("activation", ["gelu", "tanh", "relu"])
def test_a_deberta_that_ranks_has_its_poolers_activation(made: Made, activation: str) -> None:
    """A reranker's one logit, under its sigmoid."""
    choices = {"num_labels": 1, "pooler_hidden_act": activation}
    reference, model = made("deberta-v2", KINDS[0], **choices)

    assert model.tasks == ("encode", "classify", "rerank")
    for ids, found in zip(drawn(), ours(model, drawn()), strict=True):
        expected = logits(reference, ids)
        torch.testing.assert_close(found["logits"], expected, rtol=0, atol=CLOSE)
        torch.testing.assert_close(found["scores"], expected.sigmoid(), rtol=0, atol=CLOSE)


def test_a_debertas_other_head_over_words_is_refused(made: Made) -> None:
    """By its key; without a SpladePooling it is not read."""
    with pytest.raises(CheckpointError, match="not supported: legacy False"):
        made("deberta-v2", KINDS[2], legacy=False)


@pytest.mark.parametrize("family", NAMES)
def test_labels_of_tokens_are_transformers(made: Made, family: str) -> None:
    """The best label of every token, and its probability."""
    reference, model = made(family, KINDS[1])

    assert model.tasks == ("encode", "label_tokens") and isinstance(model.task_heads[0], Tagger)
    for ids, found in zip(drawn(), ours(model, drawn()), strict=True):
        expected = logits(reference, ids).softmax(-1).max(-1)
        assert found["labels"].tolist() == expected.indices.tolist()
        torch.testing.assert_close(found["scores"], expected.values, rtol=0, atol=CLOSE)


def turns(ways: tuple[str, ...]) -> list[Any]:
    """Family and way: outside `prove` bert by all, the others by one each in turn."""
    return [
        pytest.param(
            family,
            way,
            marks=() if family == "bert" or turn % len(ways) == place else pytest.mark.prove,
        )
        for turn, family in enumerate(NAMES)
        for place, way in enumerate(ways)
    ]


@pytest.mark.parametrize(
    ("family", "tied"), turns(("tied", "untied", "tied, and stored all the same"))
)
def test_weights_of_the_vocabulary_are_sentence_transformers(
    tmp_path: Path, family: str, tied: str
) -> None:
    """Those that are not 0, by SpladePooling of transformers' logits."""
    reference = theirs(family, KINDS[2], tie_word_embeddings=tied == "tied")
    reference.save_pretrained(tmp_path)
    if tied.endswith("same"):
        broken(tmp_path, tie_word_embeddings=True)
        reference = type(reference).from_pretrained(tmp_path, attn_implementation="eager").eval()
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop(FAMILIES[family].activation_key)  # it is the class's own
    (tmp_path / "config.json").write_text(json.dumps(config))
    splade(tmp_path)
    model = loaded(tmp_path)

    assert model.tasks == ("encode", "sparse") and isinstance(model.task_heads[0], Splade)
    for ids, found in zip(drawn(), ours(model, drawn()), strict=True):
        expected = pooled(SpladePooling("max"), logits(reference, ids))
        assert found["indices"].tolist() == expected.nonzero()[:, 0].tolist()
        values = expected[found["indices"]]
        torch.testing.assert_close(found["values"], values, rtol=0, atol=CLOSE)


def pooled(pooling: SpladePooling, logits: Tensor) -> Tensor:
    """What sentence-transformers makes of logits."""
    features = {
        "token_embeddings": logits.clone()[None],
        "attention_mask": torch.ones(1, len(logits)),
    }
    vector: Tensor = pooling.eval()(features)["sentence_embedding"][0]
    return vector


@pytest.mark.parametrize("pooling", ["max", "sum"])
@pytest.mark.parametrize("activation", ["relu", "log1p_relu"])
def test_weights_are_the_same_over_tiles(tmp_path: Path, pooling: Any, activation: Any) -> None:
    """Of more tokens than have their logits in memory at once; both poolings, both activations."""
    reference = theirs("distilbert", KINDS[2], max_position_embeddings=3 * TILE_ROWS)
    reference.save_pretrained(tmp_path)
    splade(tmp_path, pooling_strategy=pooling, activation_function=activation)
    model, (ids,) = loaded(tmp_path), drawn((2 * TILE_ROWS + 7,))

    (found,) = ours(model, [ids])

    expected = pooled(SpladePooling(pooling, activation), logits(reference, ids))[found["indices"]]
    torch.testing.assert_close(found["values"], expected, rtol=1e-5, atol=CLOSE)


def test_the_largest_weights_above_a_threshold_stay(made: Made) -> None:
    """By id again; of equal ones the lower id."""
    _, model = made("bert", KINDS[2])
    assert isinstance(model.task_heads[0], Splade)
    (ids,) = drawn((7,))
    (whole,) = ours(model, [ids])
    order = whole["values"].argsort(descending=True)

    cut = [found(model, ids, k=3), found(model, ids, threshold=float(whole["values"][order[5]]))]

    assert cut[0]["indices"].tolist() == sorted(whole["indices"][order[:3]].tolist())
    assert cut[1]["indices"].tolist() == sorted(whole["indices"][order[:5]].tolist())


def found(model: Model, ids: list[int], **choices: Any) -> dict[str, Tensor]:
    """What the head makes of a sequence under a request's choices."""
    other = dataclasses.replace(
        model, task_heads=(dataclasses.replace(model.task_heads[0], **choices),)
    )
    return ours(other, [ids])[0]


@pytest.mark.parametrize(("family", "kind"), turns(KINDS))
def test_a_head_gives_the_same_bits_alone_and_in_any_batch(
    made: Made, threads: Callable[[int], None], family: str, kind: str
) -> None:
    """At every place of random batches, on one core and on two."""
    _, model = made(family, kind)
    batch = drawn()
    alone = [ours(model, [ids])[0] for ids in batch]

    for seed, cores in ((0, 1), (1, 2), (2, 2)):
        threads(cores)
        order = torch.randperm(len(batch), generator=torch.Generator().manual_seed(seed)).tolist()
        for i, together in zip(order, ours(model, [batch[i] for i in order]), strict=True):
            assert {name: torch.equal(part, alone[i][name]) for name, part in together.items()} == (
                dict.fromkeys(alone[i], True)
            )


STORED = "torch.nn.modules.linear.Identity"
REGRESSION = {"problem_type": "regression"}
MULTI = {"problem_type": "multi_label_classification"}
SINGLE = {"problem_type": "single_label_classification"}
LEGACY = {"sbert_ce_default_activation_function": STORED}
SIGMOID = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Sigmoid"}}


@pytest.mark.parametrize(
    ("choices", "labels", "marked"),
    [
        ({}, 1, False),
        ({}, 3, False),
        (REGRESSION, 1, False),
        (REGRESSION, 1, True),
        *(
            pytest.param(*cell, marks=pytest.mark.prove)
            for cell in (
                ({}, 3, True),
                (REGRESSION, 3, False),
                (MULTI, 1, False),
                (LEGACY, 1, False),
                (REGRESSION | LEGACY, 1, False),
            )
        ),
        (MULTI, 3, False),
        (SINGLE, 3, False),
        (LEGACY, 3, True),
        (SIGMOID | LEGACY, 1, False),
    ],
    ids=str,
)
def test_scores_are_those_of_cross_encoder_and_of_the_pipeline(
    tmp_path: Path, choices: dict[str, Any], labels: int, marked: bool
) -> None:
    """Ranks are the one's; classes of a plain checkpoint without an activation are the other's."""
    sizes = {"vocab_size": FEW, "max_position_embeddings": 41, "num_labels": labels}
    theirs("bert", KINDS[0], **sizes, **choices).save_pretrained(tmp_path)
    save_few_words(tmp_path)
    prompts = {"activation_fn": STORED} | ({"model_type": "CrossEncoder"} if marked else {})
    if marked:
        cross_encoder(tmp_path)
        prompts |= {"activation_fn": None}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    model = load(tmp_path)
    text = "A dog ate the food"
    (tokenized,) = model.tokenizer([(text,)], model.max_tokens)

    assert isinstance(model.task_heads[0], Classifier)
    ranking = dataclasses.replace(model.task_heads[0], activation=model.task_heads[0].ranking)
    own, ranked = (
        ours(dataclasses.replace(model, task_heads=(head,)), [tokenized.token_ids])[0]["scores"]
        for head in (model.task_heads[0], ranking)
    )

    reference = CrossEncoder(str(tmp_path), device="cpu")
    with torch.inference_mode():
        found = reference(reference.preprocess([text]))["scores"]
        expected = reference.activation_fn(found)[0]
    torch.testing.assert_close(ranked, expected, rtol=0, atol=CLOSE)
    if not marked and not {*LEGACY, *SIGMOID} & {*choices}:
        piped = transformers.pipeline("text-classification", str(tmp_path), device="cpu")
        by_label = {one["label"]: one["score"] for one in piped(text, top_k=None)}
        expected = torch.tensor([by_label[label] for label in model.task_heads[0].labels])
    torch.testing.assert_close(own, expected, rtol=0, atol=CLOSE)
    assert ("rerank" in model.tasks) == (labels == 1)


ENTAILMENTS: dict[str, tuple[dict[str, Any], int | None]] = {
    "the last class": ({"label2id": {"contradiction": 0, "neutral": 1, "entailment": 2}}, 2),
    "the first, in capitals": ({"label2id": {"ENTAILMENT": 0, "NEUTRAL": 1, "NOT": 2}}, 0),
    "of two the first named": ({"label2id": {"entails": 1, "entailment": 2, "no": 0}}, 1),
    "not entailment": ({"label2id": {"not_entailment": 0, "neutral": 1, "other": 2}}, None),
    "other names than the labels'": ({"label2id": {"a": 0, "b": 1, "entailment": 2}}, 2),
    "no label2id": ({"label2id": None, "id2label": {0: "no", 1: "entailment", 2: "x"}}, 1),
    "no class of that number": ({"label2id": {"entailment": 3}}, None),
    "a number below 0": ({"label2id": {"entailment": -1}}, None),
    "a number in words": ({"label2id": {"entailment": "2"}}, None),
    "no whole number": ({"label2id": {"entailment": 2.0}}, None),
    "a list": ({"label2id": ["entailment"]}, None),
}


@pytest.fixture(scope="module")
def three_classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of a classifier, and its config.json."""
    folder = tmp_path_factory.mktemp("three")
    theirs("bert", KINDS[0], num_labels=3).save_pretrained(folder)
    return folder, json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(("names", "place"), ENTAILMENTS.values(), ids=ENTAILMENTS)
def test_entailment_is_the_class_that_label2id_names(
    three_classes: tuple[Path, dict[str, Any]], names: dict[str, Any], place: int | None
) -> None:
    """As transformers' pipeline finds it; where it finds none, there is no such task."""
    folder, stored = three_classes
    (folder / "config.json").write_text(json.dumps(stored | names))
    model = loaded(folder)

    (head,) = model.task_heads
    assert isinstance(head, Classifier) and head.entailment == place
    assert ("zero_shot" in model.tasks) == (place is not None)


def cross_encoder(folder: Path) -> None:
    """The modules of a CrossEncoder next to a classifier."""
    kind = "sentence_transformers.base.modules.transformer.Transformer"
    row = {"idx": 0, "name": "0", "path": "", "type": kind}
    (folder / "modules.json").write_text(json.dumps([row]))
    how = {"transformer_task": "sequence-classification"}
    (folder / "sentence_bert_config.json").write_text(json.dumps(how))


@pytest.mark.parametrize(("function", "name"), [(None, "sigmoid"), ("Identity", "none")])
def test_a_cross_encoder_is_read_as_it_was_saved(
    tmp_path: Path, function: str | None, name: str
) -> None:
    """Its scores, its activation, its longest input."""
    base, saved = tmp_path / "base", tmp_path / "saved"
    sizes = {"vocab_size": FEW, "max_position_embeddings": 41, "num_labels": 1}
    theirs("bert", KINDS[0], **sizes).save_pretrained(base)
    save_few_words(base)
    activation = None if function is None else getattr(torch.nn, function)()
    reference = CrossEncoder(str(base), device="cpu", max_length=19, activation_fn=activation)
    reference.save_pretrained(str(saved))
    model = load(saved)
    pairs = [("Why is it here?", "A dog ate the food"), ("What?", "word " * 30)]

    tokenized = model.tokenizer(pairs, model.max_tokens, "right")
    sequences = [Sequence(one.token_ids, one.types) for one in tokenized]
    with torch.inference_mode():
        encoded = model.encoder(model.encoder.pack(sequences))
        assert isinstance(model.task_heads[0], Classifier)
        rows = [encoded.last[encoded.packed.rows(i)] for i in range(2)]
        scores = [float(model.task_heads[0](each)["scores"]) for each in rows]

    assert (model.task_heads[0].activation, model.max_tokens, len(tokenized[1].token_ids)) == (
        name,
        19,
        19,
    )
    np.testing.assert_allclose(scores, reference.predict(pairs), rtol=0, atol=CLOSE)


@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_a_sparse_encoder_is_read_as_it_was_saved(tmp_path: Path, family: str) -> None:
    """Weights of a text, by sentence-transformers' own class."""
    base, saved = tmp_path / "base", tmp_path / "saved"
    theirs(family, KINDS[2], vocab_size=FEW).save_pretrained(base)
    save_few_words(base)
    reference = SparseEncoder(str(base), device="cpu")
    reference.save_pretrained(str(saved))
    model = load(saved)
    text = "A dog ate the food because it was hungry"

    (tokenized,) = model.tokenizer([(text,)], model.max_tokens)
    (sparse,) = ours(model, [tokenized.token_ids])

    expected = reference.encode(text, convert_to_sparse_tensor=False)
    vector = torch.zeros(FEW)
    vector[sparse["indices"]] = sparse["values"]
    torch.testing.assert_close(vector, expected, rtol=0, atol=CLOSE)
    assert sparse["indices"].tolist() == sorted(sparse["indices"].tolist())


def broken(folder: Path, *lost: str, **config: Any) -> None:
    """Take tensors out of a saved checkpoint, and change its config.json."""
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: t for name, t in tensors.items() if name not in lost}, folder / "model.safetensors"
    )
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | config))


@pytest.mark.parametrize(
    ("family", "lost", "config", "message"),
    [
        ("bert", "classifier.bias", {}, "missing classifier.bias"),
        ("distilbert", "pre_classifier.weight", {}, "missing pre_classifier.weight"),
        ("bert", "", {"id2label": {"0": "a"}}, "id2label does not name the task head's 3 outputs"),
        ("bert", "", {"problem_type": "ranking"}, "not supported: problem_type 'ranking'"),
        (
            "modernbert",
            "",
            {"classifier_pooling": "max"},
            "not supported: classifier_pooling 'max'",
        ),
        (
            "modernbert",
            "",
            {"classifier_activation": "mish"},
            "not supported: classifier_activation",
        ),
        ("bert", "", {"sentence_transformers": {"activation_fn": "x.Y"}}, "activation_fn 'x.Y'"),
        ("bert", "", {"architectures": {"0": "a"}}, "architectures is no list: {'0': 'a'}"),
    ],
)
def test_a_head_that_is_not_whole_or_not_computed_here_is_refused(
    tmp_path: Path, family: str, lost: str, config: dict[str, Any], message: str
) -> None:
    """By name, when it is loaded."""
    theirs(family, KINDS[0], id2label=LABELS).save_pretrained(tmp_path)
    broken(tmp_path, lost, **config)

    with pytest.raises(CheckpointError, match=message):
        loaded(tmp_path)


@pytest.mark.parametrize(("family", "kind"), [("bert", KINDS[2]), ("nomic_bert", "Model")])
def test_a_model_without_a_head_of_ours_encodes_alone(
    tmp_path: Path, family: str, kind: str
) -> None:
    """A masked language model that no SparseEncoder was made of is an encoder, as before."""
    theirs(family, kind).save_pretrained(tmp_path)

    model = loaded(tmp_path)

    assert (model.task_heads, model.tasks) == ((), ("encode",))


def test_what_a_head_takes_of_other_files_names_the_weights(tmp_path: Path) -> None:
    """Two sums of the same vocabulary are two models."""
    theirs("distilbert", KINDS[2]).save_pretrained(tmp_path)
    splade(tmp_path)
    first = loaded(tmp_path).digest
    shutil.rmtree(tmp_path / "1_SpladePooling")
    splade(tmp_path, pooling_strategy="sum")

    assert loaded(tmp_path).digest != first


def test_a_weight_that_is_no_number_is_not_dropped() -> None:
    """What is not finite must reach the check of answers."""
    head = Splade(cast("Any", lambda rows: rows), "max", log_twice=False)

    shown = head(torch.tensor([[1.0, torch.nan, 0.0]]))

    assert shown["indices"].tolist() == [0, 1] and shown["values"].isnan().tolist() == [False, True]
