"""What transformers makes of a tokenizer's files, in a process of its own: a tokenizer.json.

    python -I library.py FOLDER TOKENIZER_JSON < {"settings": {..}, "texts": [[TEXT], [TEXT, PAIR]]}

It prints what the library itself reads of the texts: their ids, token types and offsets. A refusal
is one line on stderr. The file imports nothing of ours, so that it runs by its path; transformers
is part of the extra `convert`.
"""

import json
import sys
from typing import Any


def make_tokenizer(
    folder: str, target: str, settings: dict[str, Any], texts: list[list[str]]
) -> list[Any]:
    """Write the tokenizer.json of a folder.

    Args:
        settings: that go before those of tokenizer_config.json.

    Returns:
        The ids, token types and offsets of each text, or pair of texts.

    Raises:
        SystemExit: why not, in one line.
    """
    import sentencepiece  # noqa: F401 - else the library takes its files for another's
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
    read = [tokenizer(*text, return_offsets_mapping=True) for text in texts]
    return [
        [one["input_ids"], one.get("token_type_ids"), list(map(list, one["offset_mapping"]))]
        for one in read
    ]


def error_line(error: Exception) -> str:
    """Write an error in one line."""
    return " ".join(str(error).split())[:300] or type(error).__name__


if __name__ == "__main__":
    arguments = json.load(sys.stdin)
    print(
        json.dumps(
            make_tokenizer(sys.argv[1], sys.argv[2], arguments["settings"], arguments["texts"])
        )
    )
