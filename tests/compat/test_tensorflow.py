"""The doors to TensorFlow, and what happens before the first one opens."""

import pathlib
import re

import pytest

from replicate.compat import tensorflow as tfc
from replicate.compat import versions

ROOT = pathlib.Path(__file__).parent.parent.parent

PRIVATE_NAMES = [
    pytest.param(door, name, id=f"{door.path}.{name}")
    for door in tfc.doors().values()
    for name in door.names
]


@pytest.mark.parametrize(("door", "name"), PRIVATE_NAMES)
def test_private_name_exists_and_has_a_reason(door, name):
    assert hasattr(door.target(), name)
    assert len(door.names[name].split()) >= 3


def test_every_private_name_is_in_use():
    words = set()
    for module in (ROOT / "replicate").glob("**/*.py"):
        if module.relative_to(ROOT) != pathlib.Path("replicate", "compat", "tensorflow.py"):
            words.update(re.findall(r"\w+", module.read_text()))
    doors = tfc.doors()
    assert not {*doors} - words
    assert not {name for door in doors.values() for name in door.names} - words


def test_names_that_are_not_listed_stay_behind_the_door():
    with pytest.raises(AttributeError, match="not listed at the door of tensorflow"):
        tfc.ops.get_default_graph  # noqa: B018 - the look-up is what is tested


KERAS_2_MODULE = ".src.engine.base_layer"  # where Keras 2 has its Layer, Keras 3 has it elsewhere


def test_tf_keras_is_keras_2():
    assert tfc.tf.keras.layers.Layer.__module__.endswith(KERAS_2_MODULE)
    assert callable(tfc.tf1.layers.dense)


FAKE = """
import sys, types
tensorflow = types.ModuleType("tensorflow")
{version}
sys.modules["tensorflow"] = tensorflow
import replicate
try:
    replicate.{name}
except replicate.errors.UnsupportedTensorFlowError as e:
    print(e)
"""


@pytest.mark.parametrize("name", ["get_tower_context", "replicate_model_fn", "estimator.Estimator"])
def test_another_tensorflow_is_refused_on_first_use(run_python, name):
    said = run_python(FAKE.format(version="tensorflow.__version__ = '2.14.1'", name=name))
    assert "2.15 - 2.21; found TensorFlow 2.14.1" in said


def test_tensorflow_without_a_version_is_refused(run_python):
    assert "unknown version" in run_python(FAKE.format(version="", name="get_tower_context"))


def test_missing_tensorflow_is_refused(run_python):
    said = run_python(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'tensorflow':\n"
        "            raise ModuleNotFoundError('No module named tensorflow', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "import replicate\n"
        "try:\n"
        "    replicate.get_tower_context\n"
        "except replicate.errors.UnsupportedTensorFlowError as e:\n"
        "    print(e)\n"
    )
    assert "found no TensorFlow" in said


HAS_KERAS_3 = versions.parse(tfc.tf.__version__) >= (2, 16)
needs_keras_3 = pytest.mark.skipif(not HAS_KERAS_3, reason="TensorFlow 2.15 comes with Keras 2")


@pytest.mark.thorough("replicate.devices")
@needs_keras_3
@pytest.mark.parametrize("first_use", ["from replicate import estimator", "replicate.devices"])
def test_the_first_use_makes_tf_keras_keras_2_and_the_import_alone_does_not(run_python, first_use):
    said = run_python(
        "import os; os.environ.pop('TF_USE_LEGACY_KERAS', None)\n"
        "import replicate\n"
        "print(os.environ.get('TF_USE_LEGACY_KERAS'))\n"
        "import tensorflow as tf\n"
        f"{first_use}\n"
        "print(tf.keras.layers.Layer.__module__)"
    )
    before, module = said.split()
    assert before == "None"
    assert module.endswith(KERAS_2_MODULE)


@pytest.mark.thorough
@needs_keras_3
def test_estimators_before_tensorflow_make_imports_from_tf_keras_keras_2(run_python):
    said = run_python(
        "import os; os.environ.pop('TF_USE_LEGACY_KERAS', None)\n"
        "from replicate import estimator\n"
        "from tensorflow.keras.layers import Layer\n"
        "print(Layer.__module__)"
    )
    assert said.strip().endswith(KERAS_2_MODULE)


@pytest.mark.thorough
@needs_keras_3
def test_keras_3_in_use_is_warned_about(run_python):
    said = run_python(
        "import os; os.environ.pop('TF_USE_LEGACY_KERAS', None)\n"
        "import warnings, tensorflow as tf\n"
        "tf.keras.layers\n"
        "import replicate\n"
        "with warnings.catch_warnings(record=True) as caught:\n"
        "    warnings.simplefilter('always')\n"
        "    replicate.get_tower_context\n"
        "print([str(w.message) for w in caught])"
    )
    assert "Keras 3 is in use already, as tensorflow.keras" in said


@pytest.mark.thorough
@needs_keras_3
def test_keras_3_asked_for_is_refused_on_first_use(run_python):
    said = run_python(
        "import replicate\n"
        "try:\n"
        "    replicate.get_tower_context\n"
        "except ImportError as e:\n"
        "    print(e)",
        TF_USE_LEGACY_KERAS="0",
    )
    assert "TF_USE_LEGACY_KERAS is '0'" in said
