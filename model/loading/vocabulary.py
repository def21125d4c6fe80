"""A tokenizer made of a vocabulary's own files, where a folder has no tokenizer.json.

Only the vocabulary is read here: text/rules.py gives it the steps and the special tokens of its
class, as it gives them to that of a tokenizer.json. The tests compare all of it with transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE, Unigram, WordPiece

from model.errors import CheckpointError
from model.loading.files import TOKENIZER
from model.loading.sentencepiece import CONTROL, UNKNOWN, USER, read_sentencepiece
from model.text.rules import MARKS, OWN, Kind, Rules, needed, rebuild, special_tokens

Bare = tuple[Library, Rules]  # a tokenizer without steps, and what is said about it


@dataclass(frozen=True, slots=True)
class Source:
    """Where a folder's tokenizer comes from.

    Args:
        tokenizer: its tokenizer.json, or what was made of its vocabulary.
        files: that were read to the byte.
        choices: what was read from the others.
    """

    tokenizer: Path | Library
    files: list[Path]
    choices: list[str] = field(default_factory=list)


def find_tokenizer(folder: Path, said: Rules) -> Source:
    """Find the tokenizer of a folder; without tokenizer.json it is made from the vocabulary.

    Raises:
        CheckpointError: it cannot be made, or not as transformers makes it.
    """
    if (folder / TOKENIZER).is_file():
        return Source(folder / TOKENIZER, [folder / TOKENIZER])
    names, read = VOCABULARIES[said.kind]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise CheckpointError(f"{folder} lacks {TOKENIZER} or {' and '.join(missing)}")
    paths = [folder / name for name in names]
    try:
        bare, said = read(paths, said)
        library = rebuild(bare, said)
    except CheckpointError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{names[0]} cannot be read: {error}") from error
    return Source(library, paths, _choices(library, said))


def _choices(library: Library, said: Rules) -> list[str]:
    """List, for the digest, what other files than the vocabulary decide."""
    special = special_tokens(said, said.added)
    order = [name for name in dict.fromkeys((*OWN[said.kind], *MARKS)) if name in special]
    roles = {name.removesuffix("_token"): str(special[name]) for name in order}
    switches: dict[str, bool | None] = {}
    if said.kind in ("bert", "mpnet", "albert", "deberta-v2"):
        switches["do_lower_case"] = said.lower_case
    if said.kind in ("bert", "mpnet"):
        switches["tokenize_chinese_chars"] = said.chinese
        switches["strip_accents"] = said.strip_accents
    else:
        switches |= {"keep_accents": said.keep_accents} if said.kind == "albert" else {}
        switches |= {"split_by_punct": said.split_marks} if said.kind == "deberta-v2" else {}
        switches["add_prefix_space"] = said.begins_with_space
        switches |= {"trim_offsets": said.trim_offsets} if said.kind == "roberta" else {}
    tokens = sorted(library.get_added_tokens_decoder().items())
    own = [f"{switches}", f"{roles}", *(f"{id} {token!r}" for id, token in tokens)]
    return [*own, "split_special_tokens"] if said.split_special else own


def _wordpiece(paths: list[Path], said: Rules) -> Bare:
    unknown = needed(special_tokens(said, said.added), "unk_token")
    return Library(WordPiece.from_file(str(paths[0]), unk_token=unknown)), said


def _bpe(paths: list[Path], said: Rules) -> Bare:
    vocabulary, merges = map(str, paths)
    ends = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    return Library(BPE.from_file(vocabulary, merges, fuse_unk=False, **ends)), said


def _unigram(paths: list[Path], said: Rules) -> Bare:
    """Read a SentencePiece model; its own special tokens count where no file names any."""
    model, file = read_sentencepiece(paths[0]), paths[0].name
    special = special_tokens(said, said.added)
    bos, pad, eos, unk, mask = (
        needed(special, f"{role}_token") for role in ("bos", "pad", "eos", "unk", "mask")
    )
    pieces = [(piece.text, piece.score) for piece in model.pieces]
    places = [place for place, piece in enumerate(model.pieces) if piece.type == UNKNOWN]
    unknown = 1
    if said.kind == "albert" and unknown not in places:
        raise CheckpointError(f"{file}: its second piece is not the unknown token")
    if said.kind == "xlm-roberta":  # fairseq's four special tokens before the pieces, a mask after
        first = [text for text, _ in pieces[:3]]
        if first != ["<unk>", "<s>", "</s>"]:
            raise CheckpointError(f"{file} begins with {first}, not <unk>, <s>, </s>")
        before = [(text, 0.0) for text in (bos, pad, eos, unk)]
        pieces, unknown = [*before, *pieces[3:], (mask, 0.0)], 3
    if said.kind == "camembert":
        if 0 not in places:
            raise CheckpointError(f"{file} does not begin with its unknown token")
        before = [(text, 0.0) for text in ("<s>NOTUSED", pad, "</s>NOTUSED", unk)]
        pieces = [*before, ("<unk>NOTUSED", -100.0), *pieces[1:], (mask, 0.0)]
        unknown = next(i for i, (text, _) in enumerate(pieces) if text == unk)
    if said.kind == "deberta-v2":
        unknown = places[0] if places else 0  # text/rules.py looks for it by its name
    library = Library(Unigram(pieces, unk_id=unknown, byte_fallback=False))
    if model.charsmap:
        library.normalizer = normalizers.Precompiled(model.charsmap)
    own = tuple(
        AddedToken(piece.text, normalized=False, special=piece.type == CONTROL)
        for piece in model.pieces
        if piece.type in (CONTROL, USER)
    )
    return library, said if said.extra is not None else replace(said, extra=own)


SENTENCEPIECE = (("sentencepiece.bpe.model",), _unigram)
# the files of each kind's vocabulary, and what reads them
VOCABULARIES: dict[Kind, tuple[tuple[str, ...], Callable[[list[Path], Rules], Bare]]] = {
    "bert": (("vocab.txt",), _wordpiece),
    "mpnet": (("vocab.txt",), _wordpiece),
    "roberta": (("vocab.json", "merges.txt"), _bpe),
    "xlm-roberta": SENTENCEPIECE,
    "camembert": SENTENCEPIECE,
    "albert": (("spiece.model",), _unigram),
    "deberta-v2": (("spm.model",), _unigram),
    "qwen2": (("vocab.json", "merges.txt"), _bpe),
}
