"""A worker that waits for the others says so."""

import json
import types

import pytest

from replicate import errors, estimator
from replicate.compat.tensorflow import tf, tf1
from replicate.graph import collectives, operations
from replicate.strategy.cluster import cluster, ends, membership, sessions


def test_a_worker_that_has_no_checkpoint_is_warned(tmp_path, caplog):
    config = types.SimpleNamespace(model_dir=str(tmp_path))
    sessions.warn_of_no_checkpoint("worker:1", config)
    assert f"worker:1 has no checkpoint in its model_dir, {tmp_path}" in caplog.text
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-0"')
    (tmp_path / "model.ckpt-0.index").touch()
    caplog.clear()
    sessions.warn_of_no_checkpoint("worker:1", config)
    assert not caplog.text


def alone_of_two():
    """Returns the scaffold of a worker whose other one answers nobody, and was there before."""
    jobs = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
    own = cluster.of({"cluster": jobs, "task": {"type": "worker", "index": 0}})
    workers = collectives.CollectiveWorkers(collectives.Options(2, 0, timeout=1), "/device:CPU:0")
    spec = estimator.EstimatorSpec("train", loss=tf.constant(0.0), train_op=tf.no_op())
    member, joined = membership.Membership(own, timeout=1), ends.Input(workers=workers)
    return sessions.together(spec, member, joined, agree=lambda built: None).scaffold


def test_who_is_awaited_in_vain_at_the_start_is_named():
    with tf.Graph().as_default():
        tf1.train.create_global_step()
        scaffold = alone_of_two()
        creator = tf1.train.ChiefSessionCreator(scaffold)
        with pytest.raises(errors.ClusterError, match=r"has lost worker:1 \(127.0.0.1:2\)"):
            tf1.train.MonitoredSession(creator)


@pytest.mark.parametrize("is_meeting", [False, True])
def test_a_worker_that_ends_tells_the_others_first(fresh_graph, is_meeting):
    runs = []
    signal = types.SimpleNamespace(ended="ended", brought="brought")
    meeting = "meeting" if is_meeting else None
    session = types.SimpleNamespace(run=lambda *given: runs.append(given))
    watch = sessions._Workers(None, ends.Input(end=signal), None, meeting)
    watch.end(session)
    told = ("ended", {"brought": ends.LEAVING})
    assert runs == [told, *([("meeting",)] if is_meeting else [])]
    runs.clear()
    watch.before_run(None)  # the step has failed: who is in it tells nobody
    watch.end(session)
    assert runs == ([("meeting",)] if is_meeting else [])


@pytest.mark.parametrize("job", ["chief", "worker"])
def test_the_chief_writes_down_what_it_has_built(fresh_graph, monkeypatch, job):
    jobs = {"chief": ["a:1"], "worker": ["b:2"], "ps": ["p:3"]}
    own = cluster.of({"cluster": jobs, "task": {"type": job, "index": 0}})
    monkeypatch.setattr(membership.Membership, "wait_for", lambda self, tasks: None)
    monkeypatch.setattr(sessions._Servers, "_follow", lambda self, built: None)
    tf1.train.create_global_step()
    notes = sessions._Servers(membership.Membership(own), "/device:CPU:0", None, [])
    scaffold = sessions._Scaffold(None, ends.Input(), notes)
    assert scaffold.finalize() is scaffold  # as TensorFlow's own
    executed = operations.executed_by([scaffold.local_init_op])
    writes = [op for op in executed if op.type == "AssignVariableOp"]
    written = {op.inputs[0].op.name.rpartition("/")[2] for op in writes}
    assert written == ({"built", "over"} if job == "chief" else set())
    assert getattr(notes._missing, "dtype", None) == (None if job == "chief" else tf.string)


def is_ready(chiefs, missing):
    """Whether a worker begins, for what the chief wrote, and the variables without a value."""

    def run(fetch):
        if chiefs is None:
            raise tf.errors.FailedPreconditionError(None, None, "not initialized")
        written = json.dumps({"variables": chiefs, "of the chief alone": "x"})
        return {"written": written.encode(), "missing": missing}[fetch]

    own = types.SimpleNamespace(cluster=types.SimpleNamespace(name="worker:0"))
    notes = types.SimpleNamespace(_written="written", _missing="missing", _member=own)
    session = types.SimpleNamespace(run=run)
    return sessions._Servers._is_ready(notes, session, {"variables": "w"})


def test_a_worker_waits_until_the_chief_has_made_all_variables():
    assert not is_ready(None, [])
    assert not is_ready("w", ["b"])
    assert is_ready("w", [])


def test_a_worker_that_has_built_other_variables_than_the_chief_is_refused():
    text = "differ in variables. the chief has u; worker:0 has w"
    with pytest.raises(errors.ClusterError, match=text):
        is_ready("u", [])
