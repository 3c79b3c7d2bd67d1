"""A directory is locked for one process, and not longer than that lives."""

import errno
import logging
import os

import filelock
import pytest

from replicate import errors
from replicate.app.runs import folders
from replicate.compat.tensorflow import tf


def test_a_lock_is_given_back(tmp_path):
    for _ in range(2):
        with folders.training(str(tmp_path)):
            pass


def test_who_holds_it_is_named(tmp_path):
    with (
        folders.training(str(tmp_path)),
        pytest.raises(errors.RunError, match=r"one training at a time; process \d+ on .*, since 2"),
        folders.training(str(tmp_path)),
    ):
        pass


def test_a_holder_that_did_not_write_down_its_name_is_another_process(tmp_path):
    with folders.training(str(tmp_path)):
        (tmp_path / "training.lock.json").write_text("{torn")
        with pytest.raises(errors.RunError, match="another process is at it"):
            folders.training(str(tmp_path)).__enter__()


def test_where_there_are_no_locks_that_is_told(tmp_path, monkeypatch, caplog):
    def refuse(*args, **kwargs):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with caplog.at_level(logging.WARNING), folders.training(str(tmp_path)):
        assert "cannot be locked ([Errno 37] No locks available)" in caplog.text


def test_a_full_disk_is_no_lack_of_locks(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    with pytest.raises(OSError, match="No space left"), folders.training(str(tmp_path)):
        pass


def test_a_folder_that_may_not_be_written_to_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(errors.RunError, match=r"^model_dir: .*: it is not"):
        folders.make(str(tmp_path), "model_dir")


def test_a_remote_directory_is_made_by_tensorflow():
    folders.make("ram://made/below", "model_dir")
    assert tf.io.gfile.isdir("ram://made/below")


def test_remote_directories_are_not_locked():
    with folders.training("gs://bucket/run"):
        pass
