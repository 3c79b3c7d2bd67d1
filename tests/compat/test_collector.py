"""Python looks for no garbage meanwhile, and afterwards if it did before."""

import gc

import pytest

from replicate.compat import collector


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_search_for_garbage_goes_on_as_it_was(is_enabled):
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with collector.paused():
            within = gc.isenabled()
        assert (within, gc.isenabled()) == (False, is_enabled)
        with pytest.raises(KeyError), collector.paused():
            raise KeyError
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
