"""The output file, whole or not."""

from contextlib import closing
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from service.commands.bulk.vectors import VectorFile
from service.commands.terminal import Unusable

ORIGIN = {"weights": "sha256:0", "source_sha256": "1", "truncate": "refuse", "max_tokens": "256"}
ROWS = np.arange(35, dtype=np.float32).reshape(7, 5)


def begun(out: Path, **origin: str) -> closing[VectorFile]:
    """A file of seven rows, to be written or resumed."""
    return closing(VectorFile(out, 7, {**ORIGIN, **origin}))


def files(folder: Path) -> dict[str, bytes]:
    """The files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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
    assert np.load(out, mmap_mode="r").offset % 64 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]


@pytest.mark.parametrize("name", ["v.safetensors", "v.npy"])
def test_wherever_writing_is_cut_off_whole_rows_are_kept(tmp_path: Path, name: str) -> None:
    """At every byte; the result is the same file."""
    out, rows = tmp_path / name, tmp_path / f"{name}.partial" / "rows"
    with begun(out) as vectors:
        vectors.append(ROWS)
        vectors.finish()
    finished = out.read_bytes()
    out.unlink()

    for cut in range(ROWS.nbytes + 1):
        with begun(out) as vectors:
            vectors.append(ROWS)
        rows.write_bytes(ROWS.tobytes()[:cut])
        with begun(out) as vectors:
            assert vectors.rows == cut // 20
            if vectors.rows < 7:
                vectors.append(ROWS[vectors.rows :])
            vectors.finish()
        assert files(tmp_path) == {name: finished}
        out.unlink()


def test_an_output_that_could_not_be_written_is_written_again(tmp_path: Path) -> None:
    """Half of it never has the name, and no row is lost."""
    out = tmp_path / "v.npy"

    def write_half(file: IO[bytes], rows: Any) -> None:
        file.write(rows.tobytes()[:50])
        raise OSError("disk full")

    with begun(out) as vectors:
        vectors.append(ROWS)
        with pytest.raises(OSError, match="disk full"):
            vectors.finish(write_half)
        assert not out.exists()
    with begun(out) as vectors:
        assert vectors.rows == 7
        vectors.finish()

    np.testing.assert_array_equal(np.load(out), ROWS)
    assert [path.name for path in tmp_path.iterdir()] == ["v.npy"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"weights": "sha256:9"}, "weights was sha256:0 and is sha256:9"),
        ({"source_sha256": "2"}, "source_sha256 was 1 and is 2"),
        ({"precision": "int8"}, "precision was not given and is int8"),
    ],
    ids=["model", "source", "precision"],
)
def test_rows_of_another_origin_are_not_continued(
    tmp_path: Path, change: dict[str, str], line: str
) -> None:
    """Nor touched."""
    with begun(tmp_path / "v") as vectors:
        vectors.append(ROWS[:2])
    before = files(tmp_path / "v.partial")

    remedy = "; remove it to start over, or choose another --out"
    with pytest.raises(Unusable, match=line + remedy):
        begun(tmp_path / "v", **change)

    assert files(tmp_path / "v.partial") == before


def test_smaller_numbers_are_kept_as_they_are_and_not_continued_by_larger_ones(
    tmp_path: Path,
) -> None:
    """Nor the other way: bytes would be taken for others."""
    with begun(tmp_path / "v", precision="int8") as vectors:
        vectors.append(ROWS[:2].astype(np.int8))
        np.testing.assert_array_equal(vectors.read(), ROWS[:2].astype(np.int8), strict=True)

    with pytest.raises(Unusable, match="precision was int8 and is not given; remove it"):
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


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """It is not ours, and would be removed at the end."""
    (tmp_path / "v.partial").mkdir()
    (tmp_path / "v.partial" / "mine").write_text("mine")

    with pytest.raises(Unusable, match="v.partial is not of this command"):
        begun(tmp_path / "v")

    assert files(tmp_path / "v.partial") == {"mine": b"mine"}


def test_two_at_once_do_not_write_one_file(tmp_path: Path) -> None:
    """The second is refused, as long as the first runs."""
    with begun(tmp_path / "v"), pytest.raises(Unusable, match="by another process"):
        begun(tmp_path / "v")
    with begun(tmp_path / "v"):
        pass


@pytest.mark.parametrize("other", [ROWS[:1, :4], ROWS[:1].astype(np.int8)], ids=["width", "type"])
def test_other_rows_than_those_before_are_refused(tmp_path: Path, other: Any) -> None:
    """Also after an interruption."""
    with begun(tmp_path / "v") as vectors:
        vectors.append(ROWS[:1])
    with begun(tmp_path / "v") as vectors, pytest.raises(Unusable, match="those before"):
        vectors.append(other)
