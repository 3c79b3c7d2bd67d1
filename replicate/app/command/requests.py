"""A command as it was asked for: its options, its configs, where its result goes."""

import contextlib
import dataclasses
import logging
import os
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import TextIO

from replicate import errors
from replicate.app.cluster import lifeline
from replicate.app.command import command_line
from replicate.app.config import config, functions, schema
from replicate.console import json_output, messages, progress

_CALL_NOTHING = ("check", "launch")


@dataclasses.dataclass(frozen=True)
class Request:
    """What a command is to do.

    Attributes:
        options: Those of the command line.
        tell: Tells `replicate launch` something; None: it has not started this process.
        configs: The configs that can be read, by path.
        faults: What is wrong with the others, by path.
        out: Where the result goes; with `--json` nobody else writes there.
    """

    options: types.SimpleNamespace
    tell: lifeline.Tell | None
    configs: Mapping[str, config.Config]
    faults: Mapping[str, str]
    out: TextIO

    @property
    def settings(self) -> config.Config:
        """The config of a command that takes one."""
        (found,) = self.configs.values()
        return found

    @property
    def display(self) -> progress.Display:
        """Where progress goes."""
        if self.tell is None:
            return progress.Display(self.options.quiet)
        return progress.Display(self.options.quiet, tell=self.tell)

    def print_json(self, value: object) -> None:
        """Prints a result as one line of JSON."""
        json_output.write(json_output.plain(value), self.out)


def carry_out(
    command: command_line.Command,
    options: types.SimpleNamespace,
    tell: lifeline.Tell | None,
) -> int:
    """Reads the configs, all of them before any fault is reported, and runs the command."""
    messages.show_progress(False)  # commands have bars
    messages.show_news(False)  # commands say which devices they use
    if options.quiet:
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    file = getattr(options, "data", None)
    configs: dict[str, config.Config] = {}
    faults: dict[str, str] = {}
    for path in options.configs:
        try:
            configs[path] = config.load(path, options.set, options.model_dir, file, command.section)
        except errors.ConfigError as e:
            faults[path] = str(e)
    prints = options.configs and options.print_config
    if faults and (options.command != "check" or prints):
        raise errors.ConfigError("\n".join(faults.values()))
    if prints:
        _print_configs(configs.values(), options.json)
        return 0
    with _surroundings(options, configs.values()) as out:
        request = Request(options, tell, configs, faults, out)
        return (command.callback and command.callback(request)) or 0


def _print_configs(found: Iterable[config.Config], as_json: bool) -> None:
    """Prints configs with all defaults; as JSON one by itself, several as a list."""
    if not as_json:
        print("---\n".join(schema.line() + config.to_yaml(one) for one in found), end="")
        return
    plain: list[json_output.Json] = [one.model_dump(mode="json") for one in found]
    json_output.write(json_output.plain(plain[0] if len(plain) == 1 else plain), sys.stdout)


@contextlib.contextmanager
def _surroundings(
    options: types.SimpleNamespace, configs: Iterable[config.Config]
) -> Iterator[TextIO]:
    """While entered, this process is as a command wants it; yields where its result goes.

    Modules beside the first config can be imported, where its functions are to be called, and
    only training is part of a cluster.
    """
    with contextlib.ExitStack() as leave:
        for settings in [] if options.command in _CALL_NOTHING else list(configs)[:1]:
            leave.enter_context(functions.importable(settings.folder))
        told = os.environ.get("TF_CONFIG")
        if told is not None and options.command != "train":
            del os.environ["TF_CONFIG"]
            leave.callback(os.environ.__setitem__, "TF_CONFIG", told)
        # What a launched process tells goes straight to stdout.
        is_alone = options.json and options.command != "launch"
        yield leave.enter_context(json_output.alone()) if is_alone else sys.stdout
