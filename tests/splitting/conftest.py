"""Loops and branches of either version, for tests that make them."""

import pytest

from tests import control_flow


@pytest.fixture
def old_control_flow():
    with control_flow.of_version(1):
        yield


@pytest.fixture
def new_control_flow():
    with control_flow.of_version(2):
        yield


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def either_control_flow(request):
    with control_flow.of_version(request.param):
        yield request.param
