"""Random models on K devices give what one device gives; `scripts/fuzz_models.py` draws more."""

import pytest

from replicate.splitting.rules import registry
from replicate.splitting.states import Split
from scripts import fuzz_models
from scripts.fuzzing import children, growing, programs, running, shrinking

LINES = 4  # so that each takes half a second: `scripts/fuzz_models.py --lines 4`
QUICK = range(3, 13)
THOROUGH = range(19, 35)
DOUBLED = programs.Program(
    title="A model whose loss is a sum of rows.",
    setting=running.Setting(2, (3, 3), is_static=True, modes=("train", "eval")),
    features=(
        programs.Line("x0", "random.uniform(-1, 1, [rows, 2])"),
        programs.Line("x1", "random.uniform(-1, 1, [rows, 3])"),
    ),
    labels=(programs.Line("y", "random.uniform(0, 1, rows)"),),
    lines=(
        programs.Line("v0", "x0 * var('v0', 2)"),
        programs.Line("v1", "tf.tanh(x1)"),
        programs.Line("v2", "tf.concat([v0, v1], 1)"),
    ),
    losses=("tf.reduce_sum(v2)", "tf.reduce_mean(v1)"),
    predictions=("v1", "v2"),
)


@pytest.mark.filterwarnings("ignore")  # what one device warns of is no fault
@pytest.mark.parametrize(
    "seed", [*QUICK, *(pytest.param(n, marks=pytest.mark.thorough) for n in THOROUGH)]
)
def test_a_random_model_is_one_devices(seed):
    verdict = running.judge(growing.grow(seed, LINES).source())
    assert verdict.kind != "fails", f"{verdict.signature}\n{verdict.detail}"


@pytest.mark.parametrize("seeds", ["1", "x:3", "3:x", ":3", "-1:3"])
def test_seeds_that_are_no_range_are_bad_usage(capsys, seeds):
    with pytest.raises(SystemExit, match="2"):
        fuzz_models.main([f"--seeds={seeds}"])
    assert f"--seeds: must be A:B or A:, whole numbers, got '{seeds}'" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_seed_gives_one_model():
    assert growing.grow(3).source() == growing.grow(3).source() != growing.grow(4).source()


def test_a_model_that_one_device_refuses_is_discarded():
    refused = DOUBLED._replace(losses=("tf.reduce_sum(tf.matmul(x0, x0))",))
    assert running.judge(refused.source()).kind == "discarded"


def test_a_model_that_multiplies_rounding_is_discarded():
    # Sums of the same numbers in two orders are the same, or nearly.
    tossed = "tf.cast(tf.reduce_sum(v2) > tf.reduce_sum(v2[::-1]), tf.float64) + tf.reduce_sum(v0)"
    assert running.judge(DOUBLED._replace(losses=(tossed,)).source()).kind in ("holds", "discarded")


def test_a_program_has_only_what_it_needs():
    text = DOUBLED._replace(losses=("tf.reduce_sum(v0)",), predictions=()).source()
    assert "v0 = " in text
    assert "def var(" in text
    assert not {"v1 = ", "x1", 'labels["y"]', "def flat("} & set(text.splitlines())


def test_a_wrong_rule_is_found(monkeypatch):
    """A rule that says: the hyperbolic tangent of a sum is the sum of those of its parts."""
    monkeypatch.setitem(registry.RULES, "Tanh", lambda case: Split(case.inputs, case.inputs))
    wrong = DOUBLED._replace(losses=("tf.reduce_sum(tf.tanh(tf.reduce_sum(v0, 0)))",))
    verdict = running.judge(wrong.source())
    assert verdict[:2] == ("fails", "numbers differ in train: ['fetched'] [#] ['loss'] ")


def test_what_fails_is_shrunk_to_the_lines_that_fail():
    small = shrinking.shrunk(DOUBLED, lambda program: "tf.tanh(x1)" in program.source())
    assert "v0 = " not in small.source()
    assert "v2 = " not in small.source()
    assert small.losses == ("tf.reduce_sum(v1)",)
    assert small.setting == running.Setting(2, (1,), options=())


@pytest.mark.thorough
def test_a_process_that_ends_is_a_failure_and_the_next_model_is_judged():
    child = children.Child(LINES)
    crash = DOUBLED._replace(losses=("__import__('os')._exit(3)",))
    assert child.judged(crash)[:2] == ("fails", "crash, exit code 3")
    assert child.judged(DOUBLED).kind == "holds"
    child.close()
