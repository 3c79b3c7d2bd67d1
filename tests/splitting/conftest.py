"""Holds the shapes of copies against the whole ones in all tests of splitting."""

import pytest


@pytest.fixture(autouse=True)
def shapes_are_checked(monkeypatch):
    monkeypatch.setenv("REPLICATE_DEBUG", "1")
