"""A canned estimator of version 1, whose loss is a sum and whose variables may have parts."""

import shutil

import pytest

from replicate import estimator
from replicate.compat.tensorflow import tf, tf1
from tests import exactness
from tests.models import canned
from tests.training import models

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
FIRST, MORE, LAST = 1, 3, 4  # steps


def classifier(directory):
    """Embeddings have two parts, other variables are made by partitioners with one."""
    categories = tf.feature_column.categorical_column_with_identity("c", 5)
    numbers = tf.feature_column.numeric_column("x", shape=(2,))
    return estimator.v1.DNNLinearCombinedClassifier(
        linear_feature_columns=[numbers, categories],
        dnn_feature_columns=canned.columns(),
        dnn_hidden_units=[4],
        n_classes=3,
        input_layer_partitioner=tf1.min_max_variable_partitioner(2, min_slice_size=16),
        config=estimator.RunConfig(model_dir=str(directory), tf_random_seed=3),
    )


def trained(made, steps):
    """Returns all variables after that many steps of this training and those before."""
    made.train(canned.input_fn(canned.CLASSES), max_steps=steps)
    return {name: made.get_variable_value(name) for name in made.get_variable_names()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A model_dir after the first step, and the variables after more."""
    begun = tmp_path_factory.mktemp("alone") / "begun"
    trained(classifier(begun), FIRST)
    directory = shutil.copytree(begun, begun.parent / "on")
    return begun, [trained(classifier(directory), steps) for steps in (MORE, LAST)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("reduction", "strategy", "devices"),
    [
        (None, "round_robin", 3),
        ("sum", "mirrored", 2),
    ],
)
def test_it_goes_on_where_one_device_stopped_and_back(
    alone, tmp_path, reduction, strategy, devices
):
    begun, expected = alone
    directory = shutil.copytree(begun, tmp_path / "several")
    plain = classifier(directory)
    several = models.split(plain.model_fn, devices, strategy=strategy, loss_reduction=reduction)
    found = [trained(estimator.Estimator(several, config=plain.config), MORE)]
    found.append(trained(classifier(directory), LAST))
    exactness.compare(found, expected, 1e-5, 1e-6)
