"""The command line: commands, options, help with examples, keys of a config as options.

Help needs no config and no TensorFlow: nothing that reads or runs one is imported here.
"""

import argparse
import difflib
import importlib.metadata
import platform
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import replicate
from replicate import errors
from replicate.app.cluster import places
from replicate.app.command import completion
from replicate.app.config import catalog

_EXAMPLES = {
    "average": "replicate average configs/digits.yaml --last 3",
    "check": "replicate check configs/*.yaml",
    "completion": 'eval "$(replicate completion bash)"     # in ~/.bashrc\n'
    '  eval "$(replicate completion zsh)"      # in ~/.zshrc, after compinit\n'
    "  replicate completion fish | source      # in ~/.config/fish/config.fish",
    "describe": "replicate describe configs/digits.yaml --png towers.png",
    "evaluate": "replicate evaluate configs/digits.yaml --json",
    "export": "replicate export configs/digits.yaml --model-dir runs/digits",
    "init": "replicate init my_model:model_fn table.csv --label y --output mine.yaml",
    "launch": "replicate launch configs/digits.yaml --workers 2 --train.steps 200\n"
    "  replicate launch --workers 2 -- python my_script.py     # which reads TF_CONFIG",
    "plot": "replicate plot runs/digits runs/digits-2 --png curves.png",
    "predict": "replicate predict configs/digits.yaml --output digits.csv",
    "train": "replicate train configs/digits.yaml --model-dir runs/digits --train.steps 2000",
    "verify": "replicate verify configs/wide-and-deep.yaml --strategy mirrored",
}
_WITHOUT_KEYS = ("completion", "init", "plot")  # commands whose options are not a config's keys
_NEEDED = {  # options that say more about another one
    "yes": "fresh",
    "signature": "saved_model",
}
_NO_OPTIONS = {"assignments", "command", "configs", "data", "takes_keys"}  # of a parsed line
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly")


class _Adder(Protocol):
    """A parser, or a group of its options."""

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        """Adds an option."""


class _Commands(Protocol):
    """The commands of a parser."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """Adds a command."""


def parse(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Returns what is asked for.

    Args:
        parser: See `parser`.
        arguments: As after `replicate` on the command line.

    Raises:
        ConfigError: If an option lacks its value, or another option.
        SystemExit: If usage is bad otherwise, or what is asked for is done, as help is.
    """
    takes_keys = not arguments or arguments[0] not in _WITHOUT_KEYS
    script: Sequence[str] = ()
    if "launch" in arguments[:1] and "--" in arguments:
        at = list(arguments).index("--")
        arguments, script = arguments[:at], arguments[at + 1 :]
    options = _known(parser, with_assignments(arguments) if takes_keys else arguments)
    options.script = script
    if options.command == "launch":
        _require_one(options)
    for name, needed in _NEEDED.items():
        is_given = getattr(options, name, None) not in (None, False)
        if is_given and getattr(options, needed) in (None, False):
            needed = needed.replace("_", "-")
            raise errors.ConfigError(f"--{name}: must come with --{needed}. Add it.")
    return options


def _known(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Returns what is asked for; of an unknown option it says which key it may mean."""
    found, rest = parser.parse_known_args(arguments)
    if rest and not rest[0].startswith("-") and getattr(found, "data", "") is None:
        found.data = rest.pop(0)  # behind an option, where Python 3.11 looks for none
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}{_meant(found, rest)}")
    return found


def _require_one(options: argparse.Namespace) -> None:
    """Refuses a launch of anything but one config or one script."""
    of_config = [*options.configs, *options.assignments]
    of_config += ["--json"] * options.json + ["--print-config"] * options.print_config
    if options.script and of_config:
        raise errors.ConfigError(
            f"{of_config[0]}: must not come with a command behind --, which reads no config. Leave "
            "out one of them."
        )
    if not options.script and len(options.configs) != 1:
        raise errors.ConfigError(
            f"CONFIG: must be one, or a command behind --; got {len(options.configs)} configs. "
            f"Write e.g. {_EXAMPLES['launch'].splitlines()[0]}"
        )


def with_assignments(arguments: Iterable[str]) -> list[str]:
    """Returns arguments in which each option that is a config's key is a `--set` of it.

    So `--train.steps 10` and `--seed=3` behind the command are `--set` of `train.steps=10` and
    `seed=3`.

    Raises:
        ConfigError: If such an option comes without a value.
    """
    made: list[str] = []
    rest = list(arguments)
    while rest:
        given = rest.pop(0)
        name, equals, value = given.removeprefix("--").partition("=")
        if given == "--":
            return [*made, given, *rest]
        has_command = any(not one.startswith("-") for one in made)
        if not given.startswith("--") or not has_command or not _is_key(name):
            made.append(given)
            continue
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise errors.ConfigError(
                    f"{given}: must have a value. Write e.g. --train.steps 10 or --train.steps=10."
                )
            value = rest.pop(0)
        made.append(f"--set=--{name}={value}")
    return made


def _is_key(name: str) -> bool:
    if "." in name:
        return True
    return "-" not in name and name not in ("help", "set") and name in completion.keys()


def parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Returns the parser of a whole line, and those of the commands by name."""
    made = _Parser(
        prog="replicate",
        description="Runs a TensorFlow Estimator model on many devices.",
        epilog="exit codes:\n  0    it went well\n  1    the run failed\n"
        f"  2    bad usage or config\n  130  interrupted\n\nexample:\n  {_EXAMPLES['train']}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    versions = "print the versions of replicate, TensorFlow and Python, and stop"
    made.add_argument("--version", action=_Print, nargs=0, make=_versions, help=versions)
    commands = made.add_subparsers(
        metavar="COMMAND", dest="command", required=True, parser_class=argparse.ArgumentParser
    )
    _add_train(commands)
    _add_launch(commands)
    _add_evaluate(commands)
    _add_predict(commands)
    _add_export(commands)
    _add_average(commands)
    _add_json(_add(commands, "verify", "compare the towers with one device"), "what was found")
    _add_describe(commands)
    _add_plot(commands)
    _add_check(commands)
    _add_init(commands)
    _add_completion(commands)
    return made, commands.choices


def _add_bare(commands: _Commands, name: str, text: str) -> argparse.ArgumentParser:
    """Adds a command; its help ends with an example."""
    made = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=f"example:\n  {_EXAMPLES[name]}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(configs=[], assignments=[], print_config=False, json=False)
    return made


def _add(
    commands: _Commands, name: str, text: str, number: int | str = 1
) -> argparse.ArgumentParser:
    """Adds a command with the options that all commands on a config share."""
    made = _add_bare(commands, name, text)
    what = "a YAML file, or a run's folder"
    configs = made.add_argument("configs", metavar="CONFIG", nargs=number, help=what)
    completion.complete(configs, completion.paths(".yaml", ".yml"))
    assigned = made.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="assignments",
        help="override a key, e.g. train.steps=1e3; may be repeated. --train.steps 1e3 is the same",
    )
    completion.complete(assigned, completion.config_keys)
    _add_folder(made, "--model-dir", "override the key model_dir")
    _add_flag(made, "--print-config", "print the config with all defaults, and stop")
    _add_quiet(made)
    made.set_defaults(takes_keys=True)
    return made


def _add_train(commands: _Commands) -> None:
    made = _add(commands, "train", "train, from the last checkpoint if there is one")
    which = made.add_mutually_exclusive_group()
    _add_flag(which, "--fresh", "begin again: delete what runs wrote in model_dir; asks before")
    _add_flag(which, "--fast-dev-run", "try one batch of everything: evaluation, export, ... too")
    _add_flag(made, "--yes", "answer what --fresh asks with yes")
    _add_json(made, "what it came to")


def _add_launch(commands: _Commands) -> None:
    text = "train a config, or run a command, in several processes of this machine: a local cluster"
    made = _add(commands, "launch", text, "*")
    workers = "how many workers, the chief among them; with MIN:MAX it begins with MAX, goes on at "
    workers += "once with those that are left, at least MIN, and takes lost ones in again later"
    made.add_argument("--workers", metavar="N|MIN:MAX", type=_size, required=True, help=workers)
    servers = "parameter servers, which keep the variables"
    made.add_argument("--ps", metavar="M", type=_count_or_none, help=servers)
    _add_flag(made, "--evaluator", "one more process evaluates, in the chief's place")
    restarts = "if a process is lost, start all again, from the last checkpoint, at most R times; "
    restarts += f"else 0, or {places.Size(1, 2).restarts} with MIN:MAX"
    made.add_argument("--restarts", metavar="R", type=_count_or_none, help=restarts)
    _add_json(made, "what it came to")


def _add_evaluate(commands: _Commands) -> None:
    made = _add(commands, "evaluate", "print metrics as a table")
    which = made.add_mutually_exclusive_group()
    _add_checkpoint(which)
    _add_flag(which, "--all", "each checkpoint in model_dir, a row for each")
    _add_json(made, "them")


def _add_predict(commands: _Commands) -> None:
    made = _add(commands, "predict", "write predictions")
    text = "what to predict for, read as predict.input is, else as eval.input, else as train.input"
    data = made.add_argument("data", metavar="FILE", nargs="?", help=text)
    completion.complete(data, completion.paths(""))
    text = ".jsonl, .csv or .npz; else JSON lines on stdout"
    output = made.add_argument("--output", metavar="FILE", type=_output, help=text)
    completion.complete(output, completion.paths(*catalog.OUTPUT_ENDINGS))
    which = made.add_mutually_exclusive_group()
    _add_folder(which, "--saved-model", "predict with this SavedModel in place of a checkpoint")
    _add_checkpoint(which)
    text = "which signature of --saved-model; else serving_default"
    made.add_argument("--signature", metavar="NAME", help=text)


def _add_export(commands: _Commands) -> None:
    made = _add(commands, "export", "write a SavedModel, print its path and signatures")
    _add_checkpoint(made)
    _add_json(made, "them")


def _add_average(commands: _Commands) -> None:
    made = _add(commands, "average", "write the mean of checkpoints as another one")
    which = made.add_mutually_exclusive_group(required=True)
    text = "how many of the newest in model_dir"
    which.add_argument("--last", metavar="N", type=_count, help=text)
    text = "these: steps, paths, best"
    chosen = which.add_argument("--checkpoints", metavar="A,B", type=_listed, default=[], help=text)
    completion.complete(chosen, completion.checkpoints)
    _add_folder(made, "--output", "where to write it; else averaged in model_dir")
    _add_json(made, "where it is")


def _add_describe(commands: _Commands) -> None:
    made = _add(commands, "describe", "print variables, devices and what travels")
    _add_json(made, "them")
    _add_png(made, "draw them as well")


def _add_plot(commands: _Commands) -> None:
    made = _add_bare(commands, "plot", "draw learning curves of one or several runs")
    runs = made.add_argument("model_dirs", metavar="MODEL_DIR", nargs="+", help="of a run")
    completion.complete(runs, completion.folders)
    _add_png(made, "the picture; curves.png in the first MODEL_DIR")
    _add_quiet(made)


def _add_check(commands: _Commands) -> None:
    made = _add(commands, "check", "validate configs, without importing TensorFlow", "+")
    _add_json(made, "what was found")
    _add_flag(made, "--strict", "end with 1 where files, columns or functions are not there")
    text = "print the JSON Schema of configs, and stop"
    made.add_argument("--schema", action=_Print, nargs=0, make=_schema, help=text)


def _add_init(commands: _Commands) -> None:
    """Adds the command that takes no config, but writes one."""
    made = _add_bare(commands, "init", "write a config from a model_fn and a data file")
    model_fn = made.add_argument("model_fn", metavar="MODEL_FN", help="package.module:function")
    completion.complete(model_fn, completion.functions)
    data = made.add_argument(
        "data",
        metavar="DATA",
        help="a file, or a pattern: CSV, npz, Parquet, TFRecord; or package.module:function",
    )
    completion.complete(data, completion.data)
    output = made.add_argument(
        "--output", metavar="FILE", default="config.yaml", help="the config; else config.yaml"
    )
    completion.complete(output, completion.paths(".yaml", ".yml"))
    text = "the column, array or feature to learn"
    completion.complete(made.add_argument("--label", metavar="NAME", help=text), completion.labels)
    made.add_argument("--optimizer", metavar="NAME", help="e.g. Adam; else model_fn has its own")
    _add_flag(made, "--force", "write over a config that is there")


def _add_completion(commands: _Commands) -> None:
    made = _add_bare(commands, "completion", "print what lets a shell complete command lines")
    made.add_argument(
        "shell",
        action=_Print,
        make=completion.script,
        metavar="SHELL",
        choices=completion.SHELLS,
        help="bash, zsh or fish",
    )


def _add_flag(made: _Adder, option: str, text: str) -> None:
    made.add_argument(option, action="store_true", help=text)


def _add_quiet(made: _Adder) -> None:
    _add_flag(made, "--quiet", "no progress, only results")


def _add_json(made: _Adder, what: str) -> None:
    _add_flag(made, "--json", f"print {what} as JSON, and nothing else on stdout")


def _add_png(made: _Adder, text: str) -> None:
    added = made.add_argument("--png", metavar="FILE", type=_picture, help=text)
    completion.complete(added, completion.paths(".png"))


def _add_folder(made: _Adder, option: str, text: str) -> None:
    added = made.add_argument(option, metavar="DIR", help=text)
    completion.complete(added, completion.folders)


def _add_checkpoint(made: _Adder) -> None:
    text = "in place of the newest: a step, a path, best (of train.keep_best) or averaged (by "
    text += "`replicate average`)"
    added = made.add_argument("--checkpoint", metavar="WHICH", help=text)
    completion.complete(added, completion.checkpoints)


class _Parser(argparse.ArgumentParser):
    """A parser that says which known command an unknown one may mean."""

    def error(self, message: str) -> NoReturn:
        """See base class."""
        unknown = re.match(r"argument COMMAND: invalid choice: '([^']*)'", message)
        if unknown:
            near = difflib.get_close_matches(unknown[1], _EXAMPLES, n=1)
            then = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(_EXAMPLES)}."
            message = f"there is no command {unknown[1]!r}. {then}"
        elif message.endswith("required: COMMAND"):
            message = "a command is required; `replicate --help` lists them"
        super().error(message)


def _meant(found: argparse.Namespace, rest: Sequence[str]) -> str:
    """Returns what may be meant by an option: by `--steps` train.steps, by `--config` CONFIG."""
    name, _, value = rest[0].removeprefix("--").partition("=")
    name, command = name.replace("-", "_"), found.command
    if {name, f"{name}s"} & vars(found).keys():
        return f". {name.upper()} comes without an option: {_EXAMPLES[command].splitlines()[0]}"
    if not getattr(found, "takes_keys", False):
        return ""
    if name.rstrip("s") in ("cpu", "gpu"):
        count = next(filter(str.isdecimal, (value, *rest[1:2])), "n")
        return f". Did you mean --devices='{{{name.rstrip('s')}: {count}}}'?"
    if (command, name) == ("predict", "keep"):
        return ". What model_fn returns among its predictions is written: add a feature there."
    near = completion.meant(name, vars(found).keys() - _NO_OPTIONS)
    return f". Did you mean {' or '.join('--' + one for one in near)}?" if near else ""


def _count(text: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) < least:
        raise argparse.ArgumentTypeError(
            f"must be a whole number of at least {least}, got {text!r}"
        )
    return int(text)


def _count_or_none(text: str) -> int:
    return _count(text, 0)


def _size(text: str) -> places.Size:
    least, colon, most = text.partition(":")
    size = places.Size(_count(least), _count(most if colon else least))
    if size.least > size.most:
        raise argparse.ArgumentTypeError(f"must be N or MIN:MAX, MIN at most MAX, got {text!r}")
    return size


def _listed(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(
            f"must be different checkpoints with commas between them, got {text!r}"
        )
    return names


def _output(path: str) -> str:
    if Path(path).suffix.lower() not in catalog.OUTPUT_ENDINGS:
        raise argparse.ArgumentTypeError(
            f"must end in one of {', '.join(catalog.OUTPUT_ENDINGS)}, got {path!r}"
        )
    return path


def _picture(path: str) -> str:
    if Path(path).suffix.lower() != ".png":
        raise argparse.ArgumentTypeError(f"must end in .png, got {path!r}")
    return path


class _Print(argparse.Action):
    """Prints a text and ends, as `--help` does."""

    def __init__(self, make: Callable[..., str], **kwargs: Any):
        super().__init__(**kwargs)
        self._make = make

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        """See base class."""
        print(self._make(values) if values else self._make(), end="")
        parser.exit()


def _schema() -> str:
    from replicate.app.config import schema

    return schema.text()


def _versions() -> str:
    """Returns the versions; TensorFlow's from what is installed, without importing it."""
    found = "not installed"
    for name in _TENSORFLOWS:
        try:
            found = importlib.metadata.version(name)
            break
        except importlib.metadata.PackageNotFoundError:
            continue
    ours, python = replicate.__version__, platform.python_version()
    return f"replicate {ours}\nTensorFlow {found}\nPython {python}\n"
