"""The output file, whole or not."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from service.commands.bulk.vectors import VectorFile
from service.commands.terminal import Unusable

ORIGIN = {"weights": "sha256:0", "source_sha256": "1", "truncate": "refuse", "max_tokens": "256"}
ROWS = np.arange(35, dtype=np.float32).reshape(7, 5)


def begun(out: Path, **origin: str) -> closing[VectorFile]:
    """A file of seven rows, to be written or resumed."""
    return closing(VectorFile(out, 7, {**ORIGIN, **origin}))


def test_a_finished_file_is_safetensors_with_its_origin(tmp_path: Path) -> None:
    """In the order in which the rows came."""
    out = tmp_path / "v.safetensors"
    with begun(out) as vectors:
        for first, last in ((0, 2), (2, 3), (3, 7)):
            vectors.append(ROWS[first:last])
        vectors.finish()

    np.testing.assert_array_equal(load_file(out)["pooled"], ROWS, strict=True)
    with safe_open(out, "np") as file:
        assert file.metadata() == ORIGIN
    assert [path.name for path in tmp_path.iterdir()] == ["v.safetensors"]


def test_rows_that_are_read_keep_the_file_from_another_run(tmp_path: Path) -> None:
    """Also when the file is closed: its owner may be about to remove it."""
    out = tmp_path / "v.npy"
    with begun(out) as vectors:
        vectors.append(ROWS)
        rows = vectors.read()

    with pytest.raises(Unusable, match="another process"):
        begun(out)
    np.testing.assert_array_equal(rows, ROWS)
    del rows
    with begun(out) as again:
        assert again.rows == len(ROWS)


def test_a_file_named_npy_is_numpys(tmp_path: Path) -> None:
    """For np.load, mapped to memory too; without an origin, for which its header has no place."""
    out = tmp_path / "v.npy"
    with begun(out) as vectors:
        vectors.append(ROWS[:2])
    with begun(out) as vectors:
        vectors.append(ROWS[2:])
        vectors.finish()

    np.testing.assert_array_equal(np.load(out), ROWS, strict=True)
    mapped = np.load(out, mmap_mode="r")
    assert mapped.offset % 64 == 0 and out.stat().st_size == mapped.offset + ROWS.nbytes
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]


def test_a_finished_npy_that_did_not_get_its_name_is_for_its_owner_to_rename(
    tmp_path: Path,
) -> None:
    """Which job it is of, it no longer says."""
    with begun(tmp_path / "v.npy") as vectors:
        vectors.append(ROWS)
        vectors.finish()
    (tmp_path / "v.npy").rename(tmp_path / "v.npy.partial")

    with pytest.raises(Unusable, match=r"v\.npy\.partial is finished: rename it to v\.npy"):
        begun(tmp_path / "v.npy")


@pytest.mark.parametrize("name", ["v.safetensors", "v.npy"])
def test_wherever_writing_is_cut_off_whole_rows_are_kept(tmp_path: Path, name: str) -> None:
    """At every byte, of the header too; the result is the same file."""
    out = tmp_path / name
    with begun(out) as vectors:
        vectors.append(ROWS)
        written = vectors.partial.read_bytes()
        vectors.finish()
    finished = out.read_bytes()
    out.unlink()
    start = len(written) - ROWS.nbytes

    for cut in range(len(written) + 1):
        (tmp_path / f"{name}.partial").write_bytes(written[:cut])
        with begun(out) as vectors:
            assert vectors.rows == max(0, cut - start) // 20
            if vectors.rows < 7:
                vectors.append(ROWS[vectors.rows :])
            vectors.finish()
        assert out.read_bytes() == finished
        out.unlink()


def test_a_partial_file_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    """Readers of safetensors refuse it."""
    with begun(tmp_path / "v") as vectors:
        vectors.append(ROWS[:6])

    with pytest.raises(SafetensorError):
        load_file(tmp_path / "v.partial")


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"weights": "sha256:9"}, "weights was sha256:0 and is sha256:9"),
        ({"source_sha256": "2"}, "source_sha256 was 1 and is 2"),
    ],
    ids=["model", "source"],
)
def test_rows_of_another_origin_are_not_continued(
    tmp_path: Path, change: dict[str, str], line: str
) -> None:
    """Nor touched."""
    with begun(tmp_path / "v") as vectors:
        vectors.append(ROWS[:2])
    before = (tmp_path / "v.partial").read_bytes()

    remedy = "; remove it to start over, or choose another --out"
    with pytest.raises(Unusable, match=line + remedy):
        begun(tmp_path / "v", **change)

    assert (tmp_path / "v.partial").read_bytes() == before


def test_rows_of_another_kind_are_not_continued(tmp_path: Path) -> None:
    """Whatever the origin says: bytes would be taken for others."""
    with closing(VectorFile(tmp_path / "v", 7, ORIGIN, kind="I8")) as vectors:
        vectors.append(ROWS[:2].astype(np.int8))
        np.testing.assert_array_equal(vectors.read(), ROWS[:2].astype(np.int8), strict=True)

    with pytest.raises(Unusable, match="its numbers are I8, not F32; remove it"):
        begun(tmp_path / "v")


def test_rows_of_texts_that_fitted_may_be_followed_by_cut_ones_but_not_the_other_way(
    tmp_path: Path,
) -> None:
    """The file then says that texts were cut."""
    out = tmp_path / "v"
    with begun(out) as vectors:
        vectors.append(ROWS[:2])
    with begun(out, truncate="left") as vectors:
        assert vectors.rows == 2
        vectors.append(ROWS[2:4])
    with pytest.raises(Unusable, match="truncate was left and is refuse"):
        begun(out)
    with begun(out, truncate="left") as vectors:
        vectors.append(ROWS[4:])
        vectors.finish()

    np.testing.assert_array_equal(load_file(out)["pooled"], ROWS)
    with safe_open(out, "np") as file:
        assert file.metadata()["truncate"] == "left"


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (("right", "256"), ("right", "128"), "max_tokens was 256 and is 128"),
        (("right", "256"), ("right", "512"), "max_tokens was 256 and is 512"),
        (("refuse", "256"), ("right", "128"), "truncate was refuse and is right"),
        (("refuse", "256"), ("refuse", "128"), "max_tokens was 256 and is 128"),
        (("refuse", "256"), ("right", "512"), None),
        (("refuse", "256"), ("refuse", "512"), None),
    ],
)
def test_rows_are_followed_only_by_such_as_are_cut_at_the_same_place(
    tmp_path: Path, before: tuple[str, str], now: tuple[str, str], says: str | None
) -> None:
    """Of texts that all fitted, at any place that is no shorter."""
    out = tmp_path / "v"
    with begun(out, truncate=before[0], max_tokens=before[1]) as vectors:
        vectors.append(ROWS[:2])
    if says:
        with pytest.raises(Unusable, match=says):
            begun(out, truncate=now[0], max_tokens=now[1])
    else:
        with begun(out, truncate=now[0], max_tokens=now[1]) as vectors:
            assert vectors.rows == 2


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    """Whatever it is."""
    (tmp_path / "v").write_text("mine")

    with pytest.raises(Unusable, match="v already exists; remove it or choose another"):
        begun(tmp_path / "v")


@pytest.mark.parametrize(
    "content",
    [b"\xff" * 100, b"\x10" + b"\0" * 7 + b"x" * 50, b"\x02" + b"\0" * 7 + b"{}" + b"\0" * 9],
    ids=["length", "no JSON", "no origin"],
)
def test_a_partial_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    """It is not ours."""
    (tmp_path / "v.partial").write_bytes(content)

    with pytest.raises(Unusable, match="not a partial file of this command"):
        begun(tmp_path / "v")

    assert (tmp_path / "v.partial").read_bytes() == content


def test_two_at_once_do_not_write_one_file(tmp_path: Path) -> None:
    """The second is refused, as long as the first runs."""
    with begun(tmp_path / "v"), pytest.raises(Unusable, match="by another process"):
        begun(tmp_path / "v")
    with begun(tmp_path / "v"):
        pass


def test_rows_of_another_width_are_refused(tmp_path: Path) -> None:
    """Also after an interruption."""
    with begun(tmp_path / "v") as vectors:
        vectors.append(ROWS[:1])
    with begun(tmp_path / "v") as vectors, pytest.raises(Unusable, match="4 numbers"):
        vectors.append(ROWS[:1, :4])


def test_what_is_left_of_a_torn_header_is_no_row(tmp_path: Path) -> None:
    """Though it was longer than the header and row that follow."""
    (tmp_path / "v.partial").write_bytes((4096).to_bytes(8, "little") + b"{" * 2000)

    with begun(tmp_path / "v") as vectors:
        vectors.append(ROWS[:1])
    with begun(tmp_path / "v") as vectors:
        assert vectors.rows == 1


@pytest.mark.parametrize("pad", range(64))
def test_a_longer_origin_never_reaches_into_the_rows(tmp_path: Path, pad: int) -> None:
    """Whatever room the first header left: `max_tokens` may get a digit more."""
    out, origin = tmp_path / "v", {"model": "m" * pad}
    with begun(out, **origin, max_tokens="9") as vectors:
        vectors.append(ROWS[:2])
    with begun(out, **origin, max_tokens="1024") as vectors:
        vectors.append(ROWS[2:])
        vectors.finish()

    np.testing.assert_array_equal(load_file(out)["pooled"], ROWS)
