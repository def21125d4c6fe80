"""GET / of a model whose vocabulary is of bytes and whose layers normalise first (ModernBERT)."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import ModernBertConfig, ModernBertModel, PreTrainedTokenizerFast

from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.conftest import application, listening
from tests.service.page.browser import NEEDED, Page, ask, labelled

pytestmark = NEEDED

TEXT = "Hello 你好 unheard 🦔"
MARKS = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}


def modern(folder: Path) -> None:
    """A small ModernBERT of random weights, with a byte-level vocabulary."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=list(MARKS.values())
    )
    library.train_from_iterator(["Hello 你好 hello 你好"] * 3, trainer)
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    assert library.encode(TEXT, add_special_tokens=False).tokens[1] == "Ġä½łå¥½"
    marks = {f"{name}_token": mark for name, mark in MARKS.items()}
    PreTrainedTokenizerFast(tokenizer_object=library, **marks).save_pretrained(folder)
    torch.manual_seed(0)
    config = ModernBertConfig(
        vocab_size=library.get_vocab_size(),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=3,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    ModernBertModel(config).save_pretrained(folder)


@pytest_asyncio.fixture(scope="module")
async def url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Where that model answers."""
    folder = tmp_path_factory.mktemp("modern")
    modern(folder)
    replica = await Replica.start(Settings(model=str(folder), device="cpu", threads=1), "modern-1")
    try:
        async with listening(application(replica)) as url:
            yield url
    finally:
        await replica.close()


async def test_words_are_the_texts_own(browser: Page, url: str) -> None:
    """In every view, by token and by word; what a vocabulary calls them is shown nowhere."""
    await ask(browser, url, TEXT, "你好")
    await browser.run(f"{labelled('L0H1')}.click()")
    await browser.wait("return document.querySelector('.head .equation')")
    await browser.run(
        """document.querySelector("#dominance details").open = true;
        document.querySelector("#pipeline .bar button").click()"""
    )
    await browser.wait("return document.querySelector('#dominance table')")
    await browser.wait("return document.querySelector('#pipeline table')")
    tokens = await browser.run(COLUMN)
    everything = await browser.run("return document.getElementById('views').textContent")
    alike = await browser.run(
        """return [...document.querySelectorAll("#alike table:first-of-type tbody th")].map(
          (cell) => cell.textContent)"""
    )
    rows = await browser.run(
        """return [...document.querySelectorAll("#pipeline tbody th")].map(
          (cell) => cell.textContent)"""
    )
    await browser.run(
        """const select = [...document.querySelectorAll("#looks select")].at(-1);
        select.value = "word"; select.onchange()"""
    )
    await browser.wait("return document.querySelector('.head').ariaBusy === 'false'")
    words = await browser.run(COLUMN)
    await browser.open("about:blank")

    assert tokens[:3] == ["[CLS]", "Hello", "你好"] and tokens[-1] == "[SEP]"
    assert "".join(tokens[3:-1]).strip("␣🦔") == "unheard" and "🦔" in tokens
    assert words == alike[: len(words)] == ["[CLS]", "Hello", "你好", "unheard", "🦔", "[SEP]"]
    assert rows[:3] == ["[CLS]", "Hello", "你好"]
    assert not any(strange in everything for strange in ("Ġ", "ä½ł", "ð", "\ufffd"))


COLUMN = """return [...document.querySelectorAll(".lines ol:first-child button")].map(
  (button) => button.textContent)"""


@pytest.mark.prove
async def test_what_is_no_word_of_the_text_keeps_its_name(browser: Page, address: str) -> None:
    """Special tokens; next to a word that the vocabulary does not have, and one that it cuts."""
    await ask(browser, address, "Unbelievable 🦔")
    await browser.run(f"{labelled('L0H1')}.click()")
    await browser.wait("return document.querySelector('.head .equation')")

    tokens = await browser.run(COLUMN)
    assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]"
    assert "".join(tokens[1:-1]) == "Unbelievable🦔", "no ## and no [UNK]"


@pytest.mark.prove
@pytest.mark.parametrize("layer", [0, pytest.param(1, marks=pytest.mark.prove)])
async def test_a_layer_that_normalises_first_says_what_enters_q(
    browser: Page, url: str, layer: int
) -> None:
    """Its norm is a step with the API's numbers; ModernBERT's first layer has none there."""
    await ask(browser, url, TEXT)
    await browser.run(
        f"""const select = document.querySelector("#pipeline select");
        select.value = "{layer}"; select.onchange()"""
    )
    await browser.wait("return document.querySelector('#pipeline table')")
    async with httpx.AsyncClient(base_url=url) as client:
        body = {"text": TEXT, "layer": layer}
        told = (await client.post("/v1/explain", json=body)).json()
    titles = await browser.run(
        """return [...document.querySelectorAll("#pipeline .steps button")].map(
          (button) => button.textContent)"""
    )
    said = {}
    for title in titles:
        await browser.run(
            f"""[...document.querySelectorAll("#pipeline .steps button")].find(
              (button) => button.textContent === {json.dumps(title)}).click()"""
        )
        said[title] = await browser.run("return document.querySelector('#pipeline > p').innerText")
        if title == "Norm":
            shown = await browser.run(
                """return [...document.querySelectorAll("#pipeline tbody tr")].map(
                  ({ cells }) => cells[1].textContent)"""
            )
    await browser.open("about:blank")

    assert titles[:3] == ["X'", "Norm", "Q"] and "Add & norm" in titles
    assert shown == [f"{row[0]:.4f}" for row in told["entered"]]
    assert all(
        said[name].startswith(f"Each head's {of}: Norm times its W_{name}")
        for name, of in (("Q", "queries"), ("K", "keys"), ("V", "values"))
    )
    same = told["entered"] == told["x"]
    assert same == (layer == 0) and ("as it is" in said["Norm"]) == same
    assert "rotated by its position" in said["Q"] and "rotated" not in said["V"]
    assert "normalised" not in said["Output"] or layer == 1
