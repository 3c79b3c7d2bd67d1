"""`scripts/benchmark.py`: what it counts is there, and what it works out is right."""

import importlib
import json
import pathlib
import socket
import subprocess
import sys

import pytest

from replicate.compat.tensorflow import tf

SCRIPTS = pathlib.Path(__file__).parent.parent / "scripts"
PEERS = ("mirrored", "central")  # measured on TensorFlow 2.15; told where another one refuses
QUICK = ("--rounds", "1", "--seconds", "0.05", "--cpu")


@pytest.fixture
def module(monkeypatch):
    """Imports a module of the benchmark."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return lambda name: importlib.import_module(f"benchmarking.{name}")


def benchmark(*arguments):
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "benchmark.py"), *arguments],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def read(file):
    rows = json.loads(file.read_text())["results"]
    return {(row["model"], row["subject"]): row["rounds"][0] for row in rows}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command", [["benchmark.py", "models", "--models", "no"], ["whole.py", "no"]]
)
def test_a_model_that_is_none_is_bad_usage(command):
    script, *arguments = command
    line = [sys.executable, str(SCRIPTS / script), *arguments]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 2
    assert "'no' is none of bert, clicks, " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.thorough
def test_every_subject_is_measured(tmp_path):
    subjects = "one,ours:call:own,mirrored,loop,bound"
    file = tmp_path / "results.json"
    choice = ("--models", "mlp", "--towers", "2", "--subjects", subjects)
    done = benchmark("all", *choice, *QUICK, "--json", str(file))
    found = {subject: result for (_, subject), result in read(file).items()}
    for subject, result in found.items():
        if subject in PEERS and not tf.__version__.startswith("2.15.") and "error" in result:
            assert f"mlp 2 {subject}: " in done.stderr
            continue
        assert {"build", "first", "steps", "nodes", "memory", "checkpoint"} <= set(result), result
        assert all(value > 0 for name, value in result.items() if name != "growth")
    assert {"predict", "export"} <= set(found["one"]) & set(found["ours:call:own"])
    assert found["one"]["nodes"] < found["loop"]["nodes"]
    assert "steps per second (more is better)" in done.stdout
    assert benchmark("show", str(file)).stdout.startswith("TensorFlow ")


@pytest.mark.thorough
def test_a_profile_counts_transfers(tmp_path):
    file = tmp_path / "results.json"
    choice = ("--models", "mlp", "--towers", "2", "--subjects", "loop,limit")
    done = benchmark("profile", *choice, *QUICK, "--json", str(file))
    loop, limit = (result["profile"] for result in read(file).values())
    # To the second tower: 3 kernels, 3 biases, features, labels; back: 6 gradients, the loss.
    assert loop["transfers"] - loop["of these, control edges"] >= 6 + 2 + 6 + 1
    # Of the whole step one thing travels: that the second tower is done.
    assert limit["transfers"] - limit["of these, control edges"] == 0
    # Each way 784 * 256 + 256 * 256 + 256 * 10 + 2 * 256 + 10 floats of 4 bytes.
    assert loop["kB sent"] > 2 * 4 * 269_322 / 1000
    assert "critical path, ms" in done.stdout


@pytest.mark.thorough
def test_a_cluster_is_measured(tmp_path):
    file = tmp_path / "results.json"
    choice = ("--models", "mlp", "--subjects", "ours", "--steps", "8", "--rounds", "1")
    done = benchmark("cluster", *choice, "--bytes", "--json", str(file))
    (result,) = read(file).values()
    # Two workers send each of 269,322 gradients of 4 bytes once, and few other things.
    assert 4 * 269_322 <= result["sent by formula"] < 4 * 269_322 + 100
    # gRPC's frames come on top, and a relay may have seen one step more or less.
    assert 0.85 < result["sent"] / result["sent by formula"] < 1.2
    assert "counted by relays" in done.stdout


def test_a_relay_counts_both_ways(module):
    relays = module("relays")
    with socket.create_server(("127.0.0.1", 0)) as server:
        mesh = relays.Mesh([server.getsockname()[1], 1])
        _, seen = mesh.seen_by(0), mesh.seen_by(1)
        assert seen[1] == 1  # its own
        with socket.create_connection(("127.0.0.1", seen[0])) as near:
            far, _ = server.accept()
            with far:
                near.sendall(b"abc")
                assert far.recv(10) == b"abc"
                far.sendall(b"de")
                assert near.recv(10) == b"de"
        mesh.close()
    assert (mesh.moved(0), mesh.moved(1)) == ((2, 3), (3, 2))


def test_a_ratio_is_the_median_of_pairs(module):
    rounds = module("rounds")
    left, right = rounds.Case("mlp", 2, "ours"), rounds.Case("mlp", 2, "loop")
    results = {
        left: [{"steps": 10.0}, {"steps": 40.0}, {"steps": 90.0}],
        right: [{"steps": 10.0}, {"steps": 20.0}, {"steps": 30.0}],
    }
    # 1, 2 and 3 within the rounds; the medians' own ratio would be 40 / 20 too.
    assert rounds.ratio(results, left, right, "steps") == 2.0
    results[right][1] = {"error": "no memory"}
    assert rounds.ratio(results, left, right, "steps") == 2.0  # of 1 and 3
    results[right] = results[right][:1]
    assert rounds.ratio(results, left, right, "steps") == 1.0
    assert rounds.ratio(results, left, right, "build") is None


def test_subjects_are_read(module):
    names = module("names")
    subject = names.parse("ours:call:mirrored:own@beside")
    assert subject[1:] == ("ours", "call", "mirrored", True, True, False, True)
    assert names.parse("ours:split").tower_building == "split"
    with pytest.raises(ValueError, match=r"options of ours are call, split, param.*got 'later'"):
        names.parse("ours:later")
    with pytest.raises(ValueError, match="only ours has options"):
        names.parse("loop:call")


def test_goals_are_measured_and_judged(module):
    goals, rounds = module("goals"), module("rounds")
    cases = goals.cases()
    assert cases[rounds.Case("deep", 32, "ours")] == {"build"}
    assert cases[rounds.Case("deep", 8, "mirrored")] == {"build", "first", "steps"}
    assert rounds.Case("cnn", 8, "mirrored") not in cases
    results = {
        rounds.Case("deep", 8, "ours"): [{"build": 2.0, "steps": 12.0}],
        rounds.Case("deep", 8, "one"): [{"build": 1.0}],
        rounds.Case("deep", 8, "loop"): [{"steps": 10.0}],
    }
    lines = [line.split() for line in goals.table(results).splitlines()]
    build = ["build", "ours", "/", "one", "deep", "8", "2.00", "1.00", "2.00", "≤"]
    assert [*build, "1.50", "no"] in lines
    steps = ["steps", "ours", "/", "loop", "deep", "8", "12.0", "10.0", "1.20", "≥"]
    assert [*steps, "0.95", "yes"] in lines
    assert [*steps, "1.30", "no"] in lines


def test_bytes_are_told_beside_their_bounds(module):
    # mlp has (784 + 1) * 256 + (256 + 1) * 256 + (256 + 1) * 10 = 269,322 weights of 4 bytes, and
    # Adam keeps two slots of each. A batch has 128 rows of 784 numbers and a label.
    weights, rows = 1077.288, 128 * 785 * 4 / 1e3
    head, *lines = map(str.split, module("traffic").counted(["mlp"], [2]).splitlines())
    found = {line[2]: dict(zip(head, line, strict=True)) for line in lines}
    assert list(found) == list(module("names").STRATEGIES)
    for row in found.values():
        assert (row["model"], row["K"]) == ("mlp", "2")
        assert row["share"] == f"{3 * weights / 2:,.1f}"
        assert row["ring"] == f"{weights:,.1f}"
        assert row["rows"] == f"{rows / 2:,.1f}"
        # Weights one way and their gradients the other, however they are placed.
        moved = float(row["sent"].replace(",", ""))
        assert weights + rows / 2 <= moved <= weights + rows / 2 + 1
        assert row["/ring"] == f"{moved / weights:.2f}"
    # The first of the kernels, which no placement divides, is 784 * 256 * 4 bytes. Slices halve it
    # and the second; one device has 3 * 4 * ((784 * 256 + 256 * 256) / 2 + 256 + 256 * 10).
    held = [row["held"] for row in found.values()]
    assert held == ["3,231.9", "3,225.6", "2,408.4", "1,631.2", "3,231.9"]
    assert [row["/share"] for row in found.values()] == ["2.00", "2.00", "1.49", "1.01", "2.00"]


@pytest.mark.thorough
def test_one_device_moves_no_bytes():
    line = [sys.executable, str(SCRIPTS / "benchmark.py"), "bytes", "--towers", "1,2"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--towers: must be at least 2; one device moves nothing" in done.stderr


def test_a_plot_is_drawn_or_its_lack_is_told(module, tmp_path):
    tables, rounds = module("tables"), module("rounds")
    results = {rounds.Case("mlp", 2, "ours"): [{"steps": 10.0}]}
    file = tmp_path / "steps.png"
    try:
        importlib.import_module("matplotlib")
    except ModuleNotFoundError:
        with pytest.raises(SystemExit, match=r"A plot needs matplotlib.*leave out --plot"):
            tables.plot(results, ["steps"], str(file))
    else:
        tables.plot(results, ["steps"], str(file))
        assert file.stat().st_size > 0


def cells(line):
    """Returns the cells of a row of a table."""
    return line.strip("| ").split(" | ")


def test_as_many_gpus_are_measured_as_there_are_and_none_is_bad_usage(module):
    towers = module("overview").towers
    assert towers(["a"] * 5, None, False) == (2, 4)
    assert towers(["a"] * 5, (3, 5), False) == (3, 5)
    assert towers([], None, True) == (2, 4, 8)
    with pytest.raises(ValueError, match=r"Measuring 2 devices .* sees 0 GPUs .* --cpu shows"):
        towers([], None, False)
    with pytest.raises(ValueError, match=r"Measuring 8 devices .* sees 4 GPUs "):
        towers(["a"] * 4, (2, 8), False)


def test_the_first_tables_have_ratios_to_each_other_way(module):
    overview, rounds = module("overview"), module("rounds")
    assert "ours:mirrored:no_nccl" in overview.SUBJECTS
    cases = overview.cases(["mlp"], [2], overview.SUBJECTS, on_cpu=True)
    assert rounds.Case("mlp", 2, "ours:mirrored:no_nccl") not in cases
    rates = {"one": 100.0, "mirrored": 50.0, "loop": 80.0, "ours": 120.0, "ours:xla": 150.0}
    results = {
        rounds.Case("mlp", 2, subject): [{"build": rate / 100}, {"steps": rate}]
        for subject, rate in rates.items()
    }
    lines = [cells(line) for line in overview.shown(results).splitlines()]
    # 120 / 100, 120 / 50, none of CentralStorageStrategy, 120 / 80.
    assert ["mlp", "2", "parameter_server", "120.0", "1.20", "2.40", "–", "1.50"] in lines
    assert ["mlp", "2", "1.00", "0.50", "–", "0.80", "1.20", "–", "1.20"] in lines
    # Neither NCCL nor one device under XLA was measured; 150 / 120 is.
    assert ["mlp", "2", "–", "–", "1.25", "–", "–"] in lines


@pytest.mark.thorough
def test_the_first_tables_are_measured_without_gpus():
    choice = ("--models", "mlp", "--towers", "2", "--subjects", "one,ours,ours:xla")
    lines = map(cells, benchmark("gpu", *choice, *QUICK).stdout.splitlines())
    steps, _, builds, with_xla, held, moved = (one for one in lines if one[:2] == ["mlp", "2"])
    assert [float(cell) > 0 for cell in (*steps[3:5], builds[2], with_xla[4])] == [True] * 4
    # (3 * 269,322 * 4 bytes) / 2, of which one device holds all or, balanced, the first kernel.
    assert held[2:] == ["1,615.9", "2.00", "2.00", "1.49", "1.01", "2.00"]
    assert moved[2] == "1,077.3"
