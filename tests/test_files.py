"""Files appear whole or not at all."""

from __future__ import annotations

import csv
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from npformer.files import atomic_write, output_folder, write_csv, write_json, write_text


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path: Path):
    path = tmp_path / "a" / "b.txt"
    write_text(path, "old")
    with atomic_write(path) as file:
        file.write("new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["b.txt"]


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch):
    done = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append("sync") or sync(file))
    monkeypatch.setattr(Path, "replace", lambda a, b: done.append("name") or replace(a, b))
    write_text(tmp_path / "b.txt", "text")
    assert done == ["sync", "name"]


def break_off(path: Path, error: type[BaseException], half: str | bytes, *, binary: bool) -> None:
    with atomic_write(path, binary=binary) as file:
        file.write(half)
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_nothing_is_left_of_a_write_that_failed(tmp_path: Path, error: type[BaseException]):
    path = tmp_path / "b.txt"
    with pytest.raises(error):
        break_off(path, error, "half", binary=False)
    assert list(tmp_path.iterdir()) == []
    write_text(path, "old")
    with pytest.raises(error):
        break_off(path, error, b"half", binary=True)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_text_is_utf8_with_the_newlines_it_was_given(tmp_path: Path):
    write_text(tmp_path / "t", "残差\n")
    assert (tmp_path / "t").read_bytes() == "残差\n".encode()


def test_a_link_and_a_device_stay_what_they_are(tmp_path: Path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    write_text(os.devnull, "gone")
    assert not Path(os.devnull).is_file()
    with pytest.raises(IsADirectoryError, match="folder"):
        write_text(tmp_path, "x")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
def test_permissions_are_those_of_any_new_file(tmp_path: Path):
    plain = tmp_path / "plain"
    plain.write_text("")
    write_text(tmp_path / "ours", "")
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    plain.chmod(0o640)
    write_text(plain, "again")
    assert stat.S_IMODE(plain.stat().st_mode) == 0o640


def test_numbers_come_back_as_they_were(tmp_path: Path):
    rows = [("pre", 1, 0.1 + 0.2), ("post", 2, float(np.float32(1e-7)))]
    write_csv(tmp_path / "t.csv", ["placement", "layer", "norm"], rows)
    with (tmp_path / "t.csv").open(newline="") as file:
        back = list(csv.DictReader(file))
    assert [float(r["norm"]) for r in back] == [r[2] for r in rows]
    write_json(tmp_path / "t.json", {"深度": rows[0][2]})
    assert json.loads((tmp_path / "t.json").read_text()) == {"深度": rows[0][2]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "t.json", [float("nan")])
    assert json.loads((tmp_path / "t.json").read_text()) == {"深度": rows[0][2]}


def test_a_folder_for_results_is_made_or_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home = tmp_path / "a" / "b"
    assert output_folder(str(home)) == home
    assert home.is_dir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError) as caught:
        output_folder(home)
    assert caught.value.filename == str(home)


def test_what_can_not_be_written_is_named_and_not_the_file_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(path: Path, *args: object, **options: object):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(PermissionError) as caught:
        write_text(tmp_path / "table.csv", "1")
    assert caught.value.filename == str(tmp_path / "table.csv")
