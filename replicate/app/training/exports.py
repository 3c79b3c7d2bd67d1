"""SavedModels as a config wants them: on request, after evaluations, after training."""

import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from replicate import errors, estimator
from replicate.app.config import config, export_config
from replicate.app.data import inputs
from replicate.app.runs import directories
from replicate.app.training import compared_metrics, predictions, serving
from replicate.compat.tensorflow import tf
from replicate.exporting import export

__all__ = ["Exports"]

_RECORD = "evaluation.json"  # below assets.extra: the metrics of the model beside it


class Exports:
    """Writes SavedModels of one Estimator.

    Args:
        settings: The config.
        made: The Estimator.
        input_of: Section -> its input_fn, for what a served model is fed.

    Raises:
        RunError: If what the config says cannot be written; better now than after training.
    """

    def __init__(
        self, settings: config.Config, made: Any, input_of: Callable[[str], Callable[[], Any]]
    ):
        self._wanted = settings.export or export_config.Export()
        self._made = made
        self._directory = self._wanted.directory or os.path.join(settings.model_dir, "export")
        directories.make(self._directory, "export.directory")
        self._need_assets()
        described = self._wanted.inputs
        spec = None
        if described is None:
            spec = inputs.element_of(input_of(_section_to_serve(settings)))
        self._receiver_fn = serving.receiver_fn(described, spec)
        self._exporters = [self._exporter(one) for one in self._wanted.exporters]

    def save(self, checkpoint: str | None = None) -> str:
        """Exports a checkpoint, None: the last one; returns the path."""
        saver = _Saver(self._made, self._wanted.towers, None)
        return os.fsdecode(
            saver.export_saved_model(
                self._directory, self._receiver_fn, checkpoint_path=checkpoint, **self._options()
            )
        )

    def run_exporters(
        self, metrics: Mapping[str, Any] | None, is_final: bool, checkpoint: str | None = None
    ) -> dict[str, str]:
        """Lets the config's exporters export a checkpoint.

        Args:
            metrics: Those of its evaluation; None where there was none.
            is_final: Whether training is over.
            checkpoint: Its path; None: the last one.

        Returns:
            Exporter's name -> path, for those that exported.

        Raises:
            RunError: If a metric that an exporter compares is not among them.
        """
        with tempfile.TemporaryDirectory() as folder:
            record = None
            if metrics:
                record = os.path.join(folder, _RECORD)
                with open(record, "w", encoding="utf-8") as file:
                    file.write(predictions.json_line(dict(sorted(metrics.items()))) + "\n")
            saver = _Saver(self._made, self._wanted.towers, record)
            paths = {
                one.name: one.export(
                    saver,
                    os.path.join(self._directory, one.name),
                    checkpoint or self._made.latest_checkpoint(),
                    metrics,
                    is_final,
                )
                for one in self._exporters
                if metrics or isinstance(one, estimator.FinalExporter)
            }
        return {name: os.fsdecode(path) for name, path in paths.items() if path}

    def _options(self) -> dict[str, Any]:
        return {"assets_extra": self._wanted.assets_extra, "as_text": self._wanted.as_text}

    def _exporter(self, wanted: export_config.Exporter) -> Any:
        if isinstance(wanted, export_config.Best):
            return _Best(wanted, self._receiver_fn, self._options())
        options = self._options()
        if isinstance(wanted, export_config.Latest):
            options["exports_to_keep"] = wanted.exports_to_keep
            return estimator.LatestExporter(wanted.folder, self._receiver_fn, **options)
        return estimator.FinalExporter(wanted.folder, self._receiver_fn, **options)

    def _need_assets(self) -> None:
        for name, path in self._wanted.assets_extra.items():
            try:
                with tf.io.gfile.GFile(path, "rb") as file:
                    file.read(1)
            except tf.errors.OpError as e:
                raise errors.RunError(
                    f"export.assets_extra.{name}: {path}: must be a readable file: {e.message}. "
                    "Check the path; a relative one is looked up from the config's folder."
                ) from e


class _Saver:
    """An Estimator as exporters see it; what it exports has a record of its evaluation.

    Args:
        made: The Estimator.
        towers: How many towers its exports have: one or merged.
        record: The file with the metrics; None where there are none.
    """

    def __init__(self, made: Any, towers: str, record: str | None):
        self.model_dir = made.model_dir
        self._made = made
        self._towers = towers
        self._record = {_RECORD: record} if record else {}

    def export_saved_model(
        self,
        export_dir_base: str,
        receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str],
        **options: Any,
    ) -> bytes:
        """Exports through `replicate.export_saved_model`."""
        return export.export_saved_model(
            self._made,
            export_dir_base,
            receiver_fn,
            towers=self._towers,
            assets_extra={**assets_extra, **self._record},
            **options,
        )


class _Best(estimator.BestExporter):
    """Exports what is better than all exports that are there, also those of earlier runs.

    An export holds its own metrics, so that a run that was stopped at any moment, or that
    somebody evaluated on other data meanwhile, goes on from what was really exported.
    """

    def __init__(
        self,
        wanted: export_config.Best,
        receiver_fn: Callable[[], Any],
        options: Mapping[str, Any],
    ):
        self._wanted = wanted
        super().__init__(
            wanted.folder,
            receiver_fn,
            event_file_pattern=None,
            compare_fn=self._is_better,
            exports_to_keep=wanted.exports_to_keep,
            **options,
        )

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str,
        eval_result: Mapping[str, Any],
        is_the_final_export: bool,
    ) -> bytes | None:
        """See base class."""
        if math.isnan(self._value(eval_result)):
            return None
        if not all(self._is_better(known, eval_result) for known in _records(export_path)):
            return None
        return super().export(
            estimator, export_path, checkpoint_path, eval_result, is_the_final_export
        )

    def _is_better(
        self, best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]
    ) -> bool:
        best = best_eval_result.get(self._wanted.metric)
        if not isinstance(best, int | float | np.number):
            return True  # exported when another metric was compared
        current = self._value(current_eval_result)
        return compared_metrics.is_better(current, best, self._wanted.higher_is_better)

    def _value(self, metrics: Mapping[str, Any]) -> float:
        """Returns the metric that is compared."""
        key = f"export.exporters: {self.name}: metric"
        return compared_metrics.value_of(metrics, self._wanted.metric, key)


def _records(directory: str) -> list[Mapping[str, Any]]:
    """Returns the metrics of all exports in a directory."""
    if not tf.io.gfile.isdir(directory):
        return []
    records = []
    for name in tf.io.gfile.listdir(directory):
        if not name.rstrip("/").isdecimal():
            continue  # not in its place yet
        try:
            with tf.io.gfile.GFile(os.path.join(directory, name, "assets.extra", _RECORD)) as file:
                record = json.load(file)
        except (ValueError, tf.errors.OpError):
            continue  # removed meanwhile, or not ours
        if isinstance(record, dict):
            records.append(record)
    return records


def _section_to_serve(settings: config.Config) -> str:
    for section in ("predict", "eval", "train"):
        if getattr(settings, section) is not None:
            return section
    raise errors.RunError(
        "export.inputs: must be given where the config has no predict, eval or train section. "
        "Write each feature's dtype and shape there."
    )
