"""Converts tokenizer files to a tokenizer.json with transformers, run as a process of its own.

    python -I transformers_process.py FOLDER TOKENIZER_JSON < JSON

The JSON is {"settings": {..}, "texts": [[TEXT], [TEXT, PAIR]]}.

It prints how transformers tokenizes the texts: their ids, token types and offsets. An error is one
line on stderr. The file imports nothing of Headlight, so that it runs by its path; transformers is
part of the extra `convert`.
"""

import json
import sys
from typing import Any


def make_tokenizer(
    folder: str, target: str, settings: dict[str, Any], texts: list[list[str]]
) -> list[Any]:
    """Write the tokenizer.json of a model's folder, and tokenize texts with it.

    Args:
        folder: with the tokenizer's own files.
        target: path of the tokenizer.json to write.
        settings: of the tokenizer, which override those of tokenizer_config.json.
        texts: texts, and pairs of texts.

    Returns:
        The ids, token types (None if it has none) and offsets of each text or pair.

    Raises:
        SystemExit: why it cannot be converted, in one line.
    """
    import sentencepiece  # noqa: F401 - else transformers takes its files for another kind's
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **settings)
    except Exception as error:  # the files may be anything
        raise SystemExit(error_line(error)) from error
    if not tokenizer.is_fast:
        raise SystemExit(f"{type(tokenizer).__name__} has no fast form")
    library = tokenizer.backend_tokenizer
    library.no_truncation()
    library.no_padding()
    library.save(target)
    try:
        encodings = [tokenizer(*text, return_offsets_mapping=True) for text in texts]
    except Exception as error:  # likewise, such as no token for an unknown word
        raise SystemExit(error_line(error)) from error
    return [
        [text["input_ids"], text.get("token_type_ids"), list(map(list, text["offset_mapping"]))]
        for text in encodings
    ]


def error_line(error: Exception) -> str:
    """Return an error's message as one line of at most 300 characters, or else its class."""
    return " ".join(str(error).split())[:300] or type(error).__name__


if __name__ == "__main__":
    arguments = json.load(sys.stdin)
    print(
        json.dumps(
            make_tokenizer(sys.argv[1], sys.argv[2], arguments["settings"], arguments["texts"])
        )
    )
