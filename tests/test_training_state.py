"""The state on disk: whole or not at all, whatever happens to the process or the file."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from contextlib import suppress

import numpy as np
import pytest

import npformer as nf
from npformer import files
from npformer.training import load_state, save_state, train
from npformer.training import log as tables

exact = np.testing.assert_array_equal
TEXT = np.random.default_rng(8).integers(0, 7, 60)


def language_model():
    cfg = nf.TransformerConfig(V=7, d=4, L=1, H=2, T_max=5)
    return nf.DecoderLM(cfg, rng=0)


@pytest.fixture(scope="module")
def state(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train(language_model(), TEXT, steps=2, B=2, folder=folder)
    return folder / "state.npz"


def test_a_state_comes_back_as_it_was(state, tmp_path):
    given = load_state(state)
    save_state(tmp_path / "again.npz", given)
    again = load_state(tmp_path / "again.npz")
    for field in dataclasses.fields(given):
        a, b = (getattr(s, field.name) for s in (given, again))
        if field.name in ("weights", "optimizer"):
            assert a.keys() == b.keys()
            for name in a:
                exact(a[name], b[name])
                assert a[name].dtype == b[name].dtype
        else:
            assert a == b
    assert given.step == 2
    assert {a.dtype for a in given.weights.values()} == {np.dtype(np.float32)}


def test_every_cut_off_file_is_refused(state, tmp_path):
    raw, path = state.read_bytes(), tmp_path / "cut.npz"
    for n in {*range(0, len(raw) - 1, 97), *range(64), len(raw) - 1, len(raw) - 2}:
        path.write_bytes(raw[:n])
        with pytest.raises(ValueError, match=r"cut\.npz is no training state, or it is damaged"):
            load_state(path)


def test_every_damaged_byte_is_noticed_or_changes_nothing(state, tmp_path):
    raw, path = state.read_bytes(), tmp_path / "damaged.npz"
    given, noticed = load_state(state), 0
    for n in range(0, len(raw), 97):
        bad = bytearray(raw)
        bad[n] ^= (0x55, 0x01, 0x80)[n % 3]
        path.write_bytes(bad)
        again = None
        with suppress(ValueError):
            again = load_state(path)
        if again is None:
            noticed += 1
        else:  # dates and flags of the archive, which mean nothing here
            assert again.step == given.step
            for name, a in given.weights.items():
                exact(again.weights[name], a)
            for name, a in given.optimizer.items():
                exact(again.optimizer[name], a)
    assert noticed > len(raw) / 97 / 2


def test_an_archive_that_lacks_an_array_is_refused(state, tmp_path):
    with np.load(state) as archive:
        arrays = dict(archive)
    for name in ("weights/stack.final_norm.gamma", "optimizer/t"):
        np.savez(tmp_path / "less.npz", **{n: a for n, a in arrays.items() if n != name})
        with pytest.raises(ValueError, match="no training state, or it is damaged"):
            load_state(tmp_path / "less.npz")


def rewritten(state, path, change):
    """The same file with another ``meta``."""
    with np.load(state) as archive:
        arrays = dict(archive)
    meta = json.loads(arrays["meta"].tobytes())
    change(meta)
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    np.savez(path, **arrays)
    return path


def test_another_version_is_named(state, tmp_path):
    path = rewritten(state, tmp_path / "new.npz", lambda meta: meta.update(version=7))
    with pytest.raises(ValueError, match="of version 7, but this npformer reads version 1"):
        load_state(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda meta: meta.update(format="other"),
        lambda meta: meta.pop("step"),
        lambda meta: meta["config"].update(d=-3),
        lambda meta: meta["config"].update(colour="red"),
        lambda meta: meta.update(config=None),
    ],
)
def test_what_makes_no_sense_is_refused(state, tmp_path, change):
    with pytest.raises(ValueError, match="no training state, or it is damaged"):
        load_state(rewritten(state, tmp_path / "bad.npz", change))


def test_nothing_is_ever_unpickled(state, tmp_path):
    class Bomb:
        def __reduce__(self):
            return os._exit, (3,)

    path = tmp_path / "bomb.npz"
    with np.load(state) as archive:
        arrays = dict(archive)
    first = next(name for name in arrays if name.startswith("weights/"))
    np.savez(path, **{**arrays, first: np.array([Bomb()], object)})
    with pytest.raises(ValueError, match="no training state"):
        load_state(path)
    path.write_bytes(b"\x80\x04N.")  # a pickle by itself
    with pytest.raises(ValueError, match="no training state"):
        load_state(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("meta.npy", b"\x80\x04N.")
    with pytest.raises(ValueError, match="no training state"):
        load_state(path)


def test_a_full_disk_keeps_the_old_state_and_is_said_in_one_sentence(state, tmp_path, monkeypatch):
    given, path = load_state(state), tmp_path / "state.npz"
    save_state(path, given)
    before = path.read_bytes()

    def full(file, **arrays):
        file.write(b"some of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="the state can't be written: No space left") as caught:
        save_state(path, given)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_that_cannot_be_written_names_the_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="the run's log can't be written: Not a directory") as caught:
        train(language_model(), TEXT, steps=2, B=2, folder=tmp_path / "file" / "run")
    assert caught.value.filename == str(tmp_path / "file" / "run")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.csv, "writer", full)
    with pytest.raises(OSError, match="log can't be written: No space left on device"):
        train(language_model(), TEXT, steps=2, B=2, folder=tmp_path / "run")


def test_lines_that_are_not_complete_are_dropped(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("step,loss\n1,0.5\n2,0.25\n3,0.1\n4,0.0")
    assert tables.read(path, ("step", "loss")) == [(1, 0.5), (2, 0.25), (3, 0.1)]
    path.write_text("step,loss\n1,0.5\n2\n")
    assert tables.read(path, ("step", "loss")) == [(1, 0.5)]


def test_a_line_of_the_log_is_on_disk_at_once(tmp_path):
    log = tables.Log(tmp_path)
    log.add("held_out", 3, 0.5, 1.0)  # and kill -9 now
    assert (tmp_path / "held_out.csv").read_text() == "step,loss,seconds\n3,0.5,1.0\n"
    log.close()


# ---------------------------------------------------------------------- from outside the process

PROGRAM = """
import sys
import numpy as np
import npformer as nf

text = np.random.default_rng(8).integers(0, 7, 60)
cfg = nf.TransformerConfig(V=7, d=4, L=1, H=2, T_max=5)
nf.train(
    nf.DecoderLM(cfg, rng=0), text, steps=int(sys.argv[2]), B=2, schedule="constant",
    folder=sys.argv[1], resume=sys.argv[3:] == ["resume"], save_every=1,
)
"""


def start(folder, steps, *words, limit=""):
    program = textwrap.dedent(limit) + PROGRAM
    return subprocess.Popen(
        [sys.executable, "-c", program, str(folder), str(steps), *words],
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_state(folder):
    for _ in range(1200):
        if (folder / "state.npz").exists():
            return
        time.sleep(0.05)
    raise AssertionError("no state was written")


def test_kill_9_at_any_time_leaves_a_state_that_goes_on(tmp_path):
    words, pauses = [], np.random.default_rng(2).uniform(0, 0.2, 3)
    for pause in pauses:
        process = start(tmp_path, 10**6, *words)
        wait_for_state(tmp_path)
        time.sleep(pause)
        process.kill()
        process.communicate()
        step = load_state(tmp_path / "state.npz").step
        assert step >= 1
        words = ["resume"]
    model, straight = language_model(), language_model()
    options = {"steps": step + 3, "B": 2, "schedule": "constant"}
    train(model, TEXT, folder=tmp_path, resume=True, **options)
    train(straight, TEXT, **options)
    for a, b in zip(model.parameters(), straight.parameters(), strict=True):
        exact(a.value, b.value)
    assert not list(tmp_path.glob(".state*"))


@pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
def test_sigterm_writes_the_state(tmp_path):
    process = start(tmp_path, 10**6)
    wait_for_state(tmp_path)
    process.send_signal(signal.SIGTERM)
    _, complaint = process.communicate(timeout=60)
    assert "stopped by signal 15 after step" in complaint
    assert f"after step {load_state(tmp_path / 'state.npz').step}" in complaint


@pytest.mark.skipif(sys.platform == "win32", reason="limits as POSIX has them")
def test_a_disk_that_takes_no_more_bytes(tmp_path):
    limit = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    """
    process = start(tmp_path, 3, limit=limit)
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the state can't be written: File too large" in complaint.splitlines()[-1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["steps.csv"]
