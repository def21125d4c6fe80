"""A small GLiNER of random weights, its formulas, and what gliner itself finds with it.

    python -m tests.gliner

writes tests/gliner.json. It needs gliner 0.2.29, which is no dependency, since it takes no
transformers from 5.17 on. With the one here it runs where pip installs it with --no-deps.
"""

import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoTokenizer, DebertaV2Config, DebertaV2Model, DebertaV2Tokenizer

STORED = Path(__file__).with_suffix(".json")
WIDTH, SIZE = 18, 14  # numbers of the encoder's vectors, and of the head's
SPAN, WORDS, TOKENS = 5, 23, 101  # words of a span and of a text; tokens of a sequence
LABELS = ["travel", "the weather  it", "food"]
TEXTS = [
    "Where does the train to Rome leave?",
    "A dog ate the food, and slept.",
    "Ada_B-c d'e (x) f.g-h  the food",
    "   ",
    "Ümlaut 北京 ate the dog",
    "it rains and the dog ate the food and then it slept until the evening came",
]
CASES = [(threshold, several) for threshold in (0.3, 0.5, 0.8) for several in (False, True)]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
PIECES = ["the", "food", "dog", "ate", "it", "travel", "weather", "slept", "rain", "and"]
ADDED = ["[FLERT]", "<<ENT>>", "<<SEP>>"]  # what gliner adds, in its order
ENCODER = "token_rep_layer.bert_layer.model."


def save(folder: Path, *, marked: bool = True, **choices: Any) -> None:
    """Save one.

    Args:
        marked: whether its tokenizer has the marks, and its files say where.
        choices: over gliner_config.json.
    """
    words = [f"\u2581{piece}" for piece in PIECES]
    letters = ["\u2581", *"abcdefghijklmnopqrstuvwxyzARW?.,'()_-"]
    ranked = [(piece, -float(place)) for place, piece in enumerate([*words, *letters], 1)]
    vocabulary = [*((mark, 0.0) for mark in SPECIAL), *ranked]
    tokenizer = DebertaV2Tokenizer(
        vocab=vocabulary, unk_id=SPECIAL.index("[UNK]"), model_max_length=TOKENS
    )
    rows = len(tokenizer) + len(ADDED)
    if marked:
        tokenizer.add_tokens(ADDED, special_tokens=True)
    encoder = DebertaV2Config(
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=3,
        vocab_size=rows,
        intermediate_size=23,
        max_position_embeddings=TOKENS,
        type_vocab_size=0,
        relative_attention=True,
        position_buckets=12,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        initializer_range=0.5,
    )
    config = {
        "model_name": str(folder),
        "encoder_config": encoder.to_dict(),
        "span_mode": "markerV0",
        "hidden_size": SIZE,
        "max_width": SPAN,
        "max_len": WORDS,
        "class_token_index": rows - 2 if marked else -1,
        "vocab_size": rows if marked else -1,
        **choices,
    }
    torch.manual_seed(5)
    tensors = {
        f"{ENCODER}{name}": one for name, one in DebertaV2Model(encoder).state_dict().items()
    }
    tensors |= _head(config["hidden_size"], encoder.hidden_size, config.get("num_rnn_layers", 1))
    save_file(
        {name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "gliner_config.json").write_text(json.dumps(config))
    tokenizer.save_pretrained(folder)


def _head(size: int, width: int, layers: int) -> dict[str, Tensor]:
    """The head's tensors, drawn, by gliner's names."""
    linears = {"token_rep_layer.projection": (size, width)} if size != width else {}
    span = "span_rep_layer.span_rep_layer"
    inputs = {f"{span}.project_start": size, f"{span}.project_end": size}
    for name, many in {**inputs, f"{span}.out_project": 2 * size, "prompt_rep_layer": size}.items():
        linears |= {f"{name}.0": (4 * size, many), f"{name}.3": (size, 4 * size)}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": one for name, one in linears.items()}
    shapes |= {f"{name}.bias": one[:1] for name, one in linears.items()}
    if layers:
        lstm = nn.LSTM(size, size // 2, bidirectional=True)
        shapes |= {f"rnn.lstm.{name}": tuple(one.shape) for name, one in lstm.named_parameters()}
    return {name: torch.empty(shape).uniform_(-0.5, 0.5) for name, shape in shapes.items()}


class Reference:
    """The formulas of gliner 0.2.29, over the encoder of transformers.

    Sources: modeling/base.py (UniEncoderSpanModel.forward), layers.py (LstmSeq2SeqEncoder,
    create_projection_layer), span_rep.py (SpanMarkerV0), data_processing/processor.py
    (prepare_inputs), tokenizer.py (WhitespaceTokenSplitter), decoding/decoder.py (greedy_search).
    """

    def __init__(self, folder: Path) -> None:
        self.config = json.loads((folder / "gliner_config.json").read_text())
        self.tensors = load_file(folder / "model.safetensors")
        config = DebertaV2Config(**self.config["encoder_config"], attn_implementation="eager")
        own = {
            name.removeprefix(ENCODER): one
            for name, one in self.tensors.items()
            if name.startswith(ENCODER)
        }
        self.encoder = DebertaV2Model(config).eval()
        self.encoder.load_state_dict(own)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.add_tokens(ADDED, special_tokens=True)

    @torch.inference_mode()
    def scores(self, text: str, labels: list[str]) -> dict[tuple[int, int, str], float]:
        """The score of each label for each span, by the span's characters."""
        spans = [match.span() for match in re.finditer(r"\w+(?:[-_]\w+)*|\S", text)]
        prompt = [part for label in labels for part in ("<<ENT>>", label)] + ["<<SEP>>"]
        words = prompt + [text[start:end] for start, end in spans]
        read = self.tokenizer(words, is_split_into_words=True, return_tensors="pt")
        states = self.encoder(**read).last_hidden_state[0]
        if "token_rep_layer.projection.weight" in self.tensors:
            states = self._linear("token_rep_layer.projection", states)
        numbers = read.word_ids(0)
        firsts = [numbers.index(len(prompt) + place) for place in range(len(spans))]
        marks = [numbers.index(2 * place) for place in range(len(labels))]
        if not spans:
            return {}
        rows = states[firsts]
        if self.config.get("num_rnn_layers", 1):
            size = self.config["hidden_size"]
            lstm = nn.LSTM(size, size // 2, bidirectional=True, batch_first=True)
            lstm.load_state_dict(
                {name: self.tensors[f"rnn.lstm.{name}"] for name in lstm.state_dict()}
            )
            rows = lstm(rows[None])[0][0]
        span = "span_rep_layer.span_rep_layer"
        starts = self._twice(f"{span}.project_start", rows)
        ends = self._twice(f"{span}.project_end", rows)
        label = self._twice("prompt_rep_layer", states[marks])
        found = {}
        for first in range(len(spans)):
            for last in range(first, min(first + self.config["max_width"], len(spans))):
                both = torch.cat([starts[first], ends[last]]).relu()
                made = (self._twice(f"{span}.out_project", both) @ label.T).sigmoid()
                place = spans[first][0], spans[last][1]
                found |= {
                    (*place, name): float(one) for name, one in zip(labels, made, strict=True)
                }
        return found

    def entities(
        self, text: str, labels: list[str], threshold: float, several: bool
    ) -> list[tuple[int, int, str, float]]:
        """The best first, and none that overlaps one taken before; in the order of their starts."""
        scores = self.scores(text, labels)
        taken: list[tuple[int, int, str, float]] = []
        for (start, end, label), score in sorted(scores.items(), key=lambda one: -one[1]):
            apart = all(
                several if (start, end) == (a, b) else start >= b or end <= a for a, b, *_ in taken
            )
            if score > threshold and apart:
                taken.append((start, end, label, score))
        return sorted(taken, key=lambda one: one[0])

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        return F.linear(rows, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def _twice(self, name: str, rows: Tensor) -> Tensor:
        return self._linear(f"{name}.3", self._linear(f"{name}.0", rows).relu())


def write() -> None:
    """Write what gliner itself finds."""
    from gliner import GLiNER

    with tempfile.TemporaryDirectory() as path:
        save(Path(path))
        model = GLiNER.from_pretrained(path, local_files_only=True)
        found = [
            [
                [
                    [one["start"], one["end"], one["label"], one["score"]]
                    for one in model.predict_entities(
                        text, LABELS, threshold=threshold, multi_label=several
                    )
                ]
                for text in TEXTS
            ]
            for threshold, several in CASES
        ]
    STORED.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    write()
