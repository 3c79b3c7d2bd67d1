"""Workers that split the same graph are one device on all their rows.

These join whatever can be joined; that Estimators do is in `tests/cluster/test_training.py`.
"""

import pathlib
import pickle

import numpy as np
import pytest

from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives
from replicate.splitting import batches
from tests import exactness
from tests.cluster import once, processes
from tests.splitting import workers_models

SCRIPT = pathlib.Path(__file__).with_name("workers_script.py")
MODELS = [
    "plain",
    "looked_up",
    "clipped_by_the_norm",
    "joins_of_all_kinds",
    "joins_in_branches",
    "picked_rows",
    "random_by_the_first",
    "norm_layers_2d",
]
FEW = ["looked_up", "joins_of_all_kinds", "joins_in_branches", "picked_rows"]
STATIC = ["static rows_read_whole", "static joins_of_all_kinds"]
IN_PARTS = [f"in_parts {name}" for name in FEW]
ALL = [*MODELS, *STATIC, *IN_PARTS]


def ran(factory, towers: int, rows: tuple[int, ...], works: list[str]) -> pathlib.Path:
    """Returns a folder with what workers make of works."""

    def run(folder):
        settings = {"TOWERS": str(towers), "ROWS": ",".join(map(str, rows))}
        ended = processes.run(folder, works, settings, 240, number=len(rows), script=SCRIPT)
        assert ended.codes == [0] * len(rows), "\n".join(ended.logs)
        return folder

    return once.made(factory, f"split_by_{towers}_on_{'_'.join(map(str, rows))}", run)


@pytest.fixture(scope="module")
def two_by_two(request, tmp_path_factory) -> pathlib.Path:
    """What two workers of two devices make, of 4 and 3 rows."""
    ours = [one for one in request.session.items if one.path == request.path]
    wanted = {one.callspec.params["name"] for one in ours if "two_by_two" in one.fixturenames}
    return ran(
        tmp_path_factory,
        2,
        (4, 3),
        [each for each in ALL if each in wanted],
    )


@pytest.fixture(scope="module")
def one_without_rows(tmp_path_factory) -> pathlib.Path:
    """What three workers of one device make, of 3, 0 and 2 rows."""
    return ran(tmp_path_factory, 1, (3, 0, 2), [*FEW, *IN_PARTS])


def require_one_device(folder: pathlib.Path, name: str, rows: tuple[int, ...]) -> None:
    """Requires that all workers have the same, and that it is one device's."""
    found = [pickle.loads((folder / f"{name}-{n}.pickle").read_bytes()) for n in range(len(rows))]
    bare, is_static = name.split()[-1], name.startswith("static ")
    total = len(rows) * rows[0] if is_static else sum(rows)
    for each in found[1:]:
        exactness.compare(each, found[0], 0.0, 0.0)
    if name != "random_by_the_first":
        expected = workers_models.run_alone(bare, is_static, total)
        exactness.compare(found[0], expected, *workers_models.MODELS[bare].tolerance)


@pytest.mark.thorough("plain", "joins_of_all_kinds", "picked_rows", "norm_layers_2d")
@pytest.mark.parametrize("name", ALL)
def test_two_workers_of_two_devices_are_one_device(two_by_two, name):
    require_one_device(two_by_two, name, (4, 3))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*FEW, *IN_PARTS])
def test_a_worker_of_three_may_have_no_rows(one_without_rows, name):
    require_one_device(one_without_rows, name, (3, 0, 2))


# Parts of it, in one process.


class TwoAlike(collectives.CollectiveWorkers):
    """Stands for two workers, which bring the same."""

    def __init__(self):
        super().__init__(collectives.Options(2, 0), "/device:CPU:0")

    def gathered(self, tensor, kind):
        return tf.concat([tensor, tensor], 0)

    def max(self, tensors):
        return tensors


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [[1.0], [2.0], [3.0]], ["a", "", "cde"]])
@pytest.mark.parametrize("is_static", [True, False])
def test_ragged_rows_are_those_of_all_workers(session, values, is_static):
    splits, flat = tf.constant([0, 2, 2, 3], tf.int64), tf.constant(values)
    if not is_static:
        splits = tf1.placeholder_with_default(splits, [None])
        flat = tf1.placeholder_with_default(flat, [None, *flat.shape[1:]])
    own = tf.RaggedTensor.from_row_splits(flat, splits, validate=False)
    number = 3 if is_static else tf.constant(3)
    (found,) = batches.ragged_of_all([own], number, TwoAlike())
    assert found.shape[0] == (6 if is_static else None)
    assert found.flat_values.shape.as_list() == [None, *np.shape(values)[1:]]
    rows, number = session.run([found, found.nrows()])
    assert number == 6
    # Rows of two values, none and one, and again.
    assert rows.row_splits.tolist() == [0, 2, 2, 3, 5, 5, 6]
    np.testing.assert_array_equal(rows.flat_values, session.run(tf.constant(values + values)))
