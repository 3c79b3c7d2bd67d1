"""The command line: commands, options, help with examples, keys of a config as options.

Help needs no config and no TensorFlow: nothing that reads or runs one is imported here.
"""

import importlib.metadata
import platform
import re
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

import replicate
from replicate import errors
from replicate.app.cluster import places
from replicate.app.command import completion
from replicate.app.config import catalog

_NEEDED = {  # options that say more about another one
    "yes": "fresh",
    "signature": "saved_model",
}
_APART = (  # options that do not go together
    ("fresh", "fast_dev_run"),
    ("checkpoint", "all"),
    ("checkpoint", "saved_model"),
    ("last", "checkpoints"),
)
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly")
_COUNT, _COUNT_OR_NONE = click.IntRange(1), click.IntRange(0)


def parse(arguments: Sequence[str]) -> types.SimpleNamespace:
    """Returns what is asked for: the command, its options and arguments by their names.

    Args:
        arguments: As after `replicate` on the command line.

    Raises:
        ConfigError: If an option lacks its value, or another option.
        SystemExit: If usage is bad otherwise, or what is asked for is done, as help is.
    """
    try:
        found = whole_line.main(list(arguments), "replicate", standalone_mode=False)
    except click.UsageError as e:
        e.show()
        raise SystemExit(e.exit_code) from None
    if not isinstance(found, types.SimpleNamespace):
        raise SystemExit(found)
    if found.command == "completion":
        click.echo(completion.script(whole_line, found.shell), nl=False)
        raise SystemExit(0)
    return found


class _Command(click.Command):
    """A command, whose help ends with an example.

    Args:
        *args: See base class.
        example: A line, or several.
        configs: How many it takes, -1: any number; their keys are options, too.
        **options: See base class.
    """

    def __init__(self, *args: Any, example: str, configs: int = 0, **options: Any):
        super().__init__(*args, **options)
        self.short_help = str(self.help).partition("\n")[0]
        self.example = example
        self._has_keys = bool(configs)
        if configs:
            named = click.Argument(
                ["configs"],
                nargs=configs,
                required=self.name != "launch",
                metavar="CONFIG" if configs == 1 else "CONFIG...",
                shell_complete=completion.file,
            )
            self.params = [named, *_common.params, *self.params]

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """See base class; a shell gets keys of the config on the line as options, too."""
        params = super().get_params(ctx)
        if self._has_keys and ctx.resilient_parsing:
            params += completion.key_options(ctx.meta.get("line", ()))
        return params

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """See base class; keys are many, so they are shown when one is begun."""
        found = super().shell_complete(ctx, incomplete)
        if incomplete.strip("-"):
            return found
        own = {name for one in super().get_params(ctx) for name in one.opts}
        return [one for one in found if one.value in own]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See base class; takes keys of a config for options."""
        ctx.meta["line"] = list(args)
        if ctx.resilient_parsing:  # for a shell; where an option lacks its value, nothing is read
            is_open = args and args[-1].startswith("--")
            return super().parse_args(ctx, args[:-1] if is_open else args)
        script: Sequence[str] = ()
        if self.name == "launch" and "--" in args:
            at = args.index("--")
            args, script = args[:at], args[at + 1 :]
        try:
            rest = super().parse_args(ctx, _with_assignments(args) if self._has_keys else args)
        except click.NoSuchOption as e:
            text = f"No such option '{e.option_name}'.{self._unknown(e.option_name, args)}"
            raise click.UsageError(text, ctx) from None
        ctx.params["script"] = script
        self._check(ctx)
        return rest

    def invoke(self, ctx: click.Context) -> types.SimpleNamespace:
        """Returns what is asked for."""
        options: dict[str, Any] = {"print_config": False, "json": False, "set": (), **ctx.params}
        configs = options.get("configs", ())
        options["configs"] = [configs] if isinstance(configs, str) else list(configs)
        return types.SimpleNamespace(**options, command=self.name, assignments=list(options["set"]))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See base class."""
        formatter.write(f"\nexample:\n  {self.example}\n")

    def _check(self, ctx: click.Context) -> None:
        """Refuses options that do not go together, or lack another one."""
        given = [name for name, one in ctx.params.items() if one not in (None, False, ())]
        for pair in _APART:
            if set(pair) <= set(given):
                one, other = (f"--{name.replace('_', '-')}" for name in pair)
                raise click.UsageError(f"{one} must not come with {other}. Leave out one.", ctx)
        for name in given:
            needed = _NEEDED.get(name, name)
            if needed in ctx.params and needed not in given:
                needed = needed.replace("_", "-")
                raise errors.ConfigError(f"--{name}: must come with --{needed}. Add it.")
        if self.name == "average" and not {"last", "checkpoints"} & set(given):
            raise click.UsageError("One of --last and --checkpoints is required.", ctx)
        if self.name == "launch":
            self._require_one(ctx, given)

    def _require_one(self, ctx: click.Context, given: Sequence[str]) -> None:
        """Refuses a launch of anything but one config or one script."""
        configs, assigned = ctx.params["configs"], ctx.params["set"]
        of_config = [*configs, *assigned]
        of_config += [
            f"--{one.replace('_', '-')}" for one in ("json", "print_config") if one in given
        ]
        if ctx.params["script"] and of_config:
            raise errors.ConfigError(
                f"{of_config[0]}: must not come with a command behind --, which reads no config. "
                "Leave out one of them."
            )
        if not ctx.params["script"] and len(configs) != 1:
            raise errors.ConfigError(
                f"CONFIG: must be one, or a command behind --; got {len(configs)} configs. "
                f"Write e.g. {self.example.splitlines()[0]}"
            )

    def _unknown(self, option: str, args: Sequence[str]) -> str:
        """Returns what an unknown option may mean: by `--steps` train.steps."""
        name = option.lstrip("-").replace("-", "_")
        own = {str(one.name): one for one in self.params}
        if isinstance(own.get(name, own.get(f"{name}s")), click.Argument):
            return f" {name.upper()} comes without an option: {self.example.splitlines()[0]}"
        if not self._has_keys:
            return ""
        if name.rstrip("s") in ("cpu", "gpu"):
            count = re.search(rf"{option}[= ](\d+)", " ".join(args))
            kind, number = name.rstrip("s"), count[1] if count else "n"
            return f" Did you mean --devices='{{{kind}: {number}}}'?"
        if (self.name, name) == ("predict", "keep"):
            return " What model_fn returns among its predictions is written: add a feature there."
        near = completion.meant(name, [n for n in own if isinstance(own[n], click.Option)])
        return f" Did you mean {' or '.join(near)}?" if near else ""


def _with_assignments(arguments: Iterable[str]) -> list[str]:
    """Returns arguments in which each option that is a config's key is a `--set` of it.

    So `--train.steps 10` and `--seed=3` are `--set` of `train.steps=10` and `seed=3`.

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
        if not given.startswith("--") or not _is_key(name):
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


def _option(name: str, metavar: str, text: str, kind: Any = None, **more: Any) -> Any:
    return click.option(name, metavar=metavar, type=kind, help=text, **more)


def _flag(name: str, text: str, **more: Any) -> Any:
    return click.option(name, is_flag=True, help=text, **more)


def _json(what: str) -> Any:
    return _flag("--json", f"print {what} as JSON, and nothing else on stdout")


def _folder(name: str, text: str) -> Any:
    return _option(name, "DIR", text, shell_complete=completion.folder)


def _file(name: str, text: str, kind: Any = None, **more: Any) -> Any:
    return _option(name, "FILE", text, kind, shell_complete=completion.file, **more)


def _printing(name: str, text: str, make: Callable[[], str]) -> Any:
    """Returns an option that prints a text and ends, as `--help` does."""

    def show(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
        if is_asked and not ctx.resilient_parsing:
            click.echo(make(), nl=False)
            ctx.exit()

    return _flag(name, text, is_eager=True, expose_value=False, callback=show)


def _size(text: str) -> places.Size:
    counts = text.split(":")
    if len(counts) <= 2 and all(one.isascii() and one.isdecimal() for one in counts):
        size = places.Size(int(counts[0]), int(counts[-1]))
        if 1 <= size.least <= size.most:
            return size
    rule = "a whole number of at least 1, or MIN:MAX, MIN at most MAX"
    raise click.BadParameter(f"must be {rule}, got {text!r}")


def _listed(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise click.BadParameter(
            f"must be different checkpoints with commas between them, got {text!r}"
        )
    return names


def _ending(*endings: str) -> Callable[[str], str]:
    def read(path: str) -> str:
        if Path(path).suffix.lower() not in endings:
            one_of = "one of " * (len(endings) > 1)
            raise click.BadParameter(f"must end in {one_of}{', '.join(endings)}, got {path!r}")
        return path

    return read


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


_quiet = _flag("--quiet", "no progress, only results")
_png = _ending(".png")
_checkpoint = _option(
    "--checkpoint",
    "WHICH",
    "in place of the newest: a step, a path, best (of train.keep_best) or averaged (by `replicate "
    "average`)",
    shell_complete=completion.checkpoint,
)


@click.command()
@_option(
    "--set",
    "KEY=VALUE",
    "override a key, e.g. train.steps=1e3; may be repeated. --train.steps 1e3 is the same",
    multiple=True,
    shell_complete=completion.config_key,
)
@_folder("--model-dir", "override the key model_dir")
@_flag("--print-config", "print the config with all defaults, and stop")
@_quiet
def _common() -> None:
    """What all commands on a config share."""


_EXIT_CODES = """exit codes:
  0    it went well
  1    the run failed
  2    bad usage or config
  130  interrupted"""


@click.group(
    epilog=f"\b\n{_EXIT_CODES}",
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@_printing(
    "--version", "print the versions of replicate, TensorFlow and Python, and stop", _versions
)
def whole_line() -> None:
    """Runs a TensorFlow Estimator model on many devices."""


def _command(*examples: str, configs: int = 0) -> Callable[[Callable[[], None]], click.Command]:
    """Makes a command of a function's name, help text and options; see `_Command`."""

    def make(function: Callable[[], None]) -> click.Command:
        name, example = function.__name__.strip("_"), "\n  ".join(examples)
        return whole_line.command(name, cls=_Command, example=example, configs=configs)(function)

    return make


@_command(
    "replicate train configs/digits.yaml --model-dir runs/digits --train.steps 2000", configs=1
)
@_flag("--fresh", "begin again: delete what runs wrote in model_dir; asks before")
@_flag("--fast-dev-run", "try one batch of everything: evaluation, export, ... too")
@_flag("--yes", "answer what --fresh asks with yes")
@_json("what it came to")
def _train() -> None:
    """Train, from the last checkpoint if there is one."""


@_command(
    "replicate launch configs/digits.yaml --workers 2 --train.steps 200",
    "replicate launch --workers 2 -- python my_script.py     # which reads TF_CONFIG",
    configs=-1,
)
@_option(
    "--workers",
    "N|MIN:MAX",
    "how many workers, the chief among them; with MIN:MAX it begins with MAX, goes on at once with "
    "those that are left, at least MIN, and takes lost ones in again later",
    _size,
    required=True,
)
@_option("--ps", "M", "parameter servers, which keep the variables", _COUNT_OR_NONE)
@_flag("--evaluator", "one more process evaluates, in the chief's place")
@_option(
    "--restarts",
    "R",
    "if a process is lost, start all again, from the last checkpoint, at most R times; else 0, or "
    f"{places.Size(1, 2).restarts} with MIN:MAX",
    _COUNT_OR_NONE,
)
@_json("what it came to")
def _launch() -> None:
    """Train a config, or run a command, in several processes of this machine: a local cluster."""


@_command("replicate evaluate configs/digits.yaml --json", configs=1)
@_checkpoint
@_flag("--all", "each checkpoint in model_dir, a row for each")
@_json("them")
def _evaluate() -> None:
    """Print metrics as a table."""


@_command("replicate predict configs/digits.yaml --output digits.csv", configs=1)
@click.argument("data", metavar="[FILE]", required=False, shell_complete=completion.file)
@_file(
    "--output",
    ".jsonl, .csv or .npz; else JSON lines on stdout",
    _ending(*catalog.OUTPUT_ENDINGS),
)
@_folder("--saved-model", "predict with this SavedModel in place of a checkpoint")
@_checkpoint
@_option("--signature", "NAME", "which signature of --saved-model; else serving_default")
def _predict() -> None:
    """Write predictions, for FILE or for predict.input.

    FILE is read as predict.input is, else as eval.input, else as train.input.
    """


@_command("replicate export configs/digits.yaml --model-dir runs/digits", configs=1)
@_checkpoint
@_json("them")
def _export() -> None:
    """Write a SavedModel, print its path and signatures."""


@_command("replicate average configs/digits.yaml --last 3", configs=1)
@_option("--last", "N", "how many of the newest in model_dir", _COUNT)
@_option(
    "--checkpoints",
    "A,B",
    "these: steps, paths, best",
    _listed,
    shell_complete=completion.checkpoint,
)
@_folder("--output", "where to write it; else averaged in model_dir")
@_json("where it is")
def _average() -> None:
    """Write the mean of checkpoints as another one."""


@_command("replicate verify configs/wide-and-deep.yaml --strategy mirrored", configs=1)
@_json("what was found")
def _verify() -> None:
    """Compare the towers with one device."""


@_command("replicate describe configs/digits.yaml --png towers.png", configs=1)
@_json("them")
@_file("--png", "draw them as well", _png)
def _describe() -> None:
    """Print variables, devices and what travels."""


@_command("replicate plot runs/digits runs/digits-2 --png curves.png")
@click.argument("model_dirs", nargs=-1, required=True, shell_complete=completion.folder)
@_file("--png", "the picture; curves.png in the first MODEL_DIR", _png)
@_quiet
def _plot() -> None:
    """Draw learning curves of one or several runs."""


@_command("replicate check configs/*.yaml", configs=-1)
@_json("what was found")
@_flag("--strict", "end with 1 where files, columns or functions are not there")
@_printing("--schema", "print the JSON Schema of configs, and stop", _schema)
def _check() -> None:
    """Validate configs, without importing TensorFlow."""


@_command("replicate init my_model:model_fn table.csv --label y --output mine.yaml")
@click.argument("model_fn", shell_complete=completion.function)
@click.argument("data", shell_complete=completion.file_or_function)
@_file("--output", "the config; else config.yaml", default="config.yaml")
@_option(
    "--label", "NAME", "the column, array or feature to learn", shell_complete=completion.label
)
@_option("--optimizer", "NAME", "e.g. Adam; else model_fn has its own")
@_flag("--force", "write over a config that is there")
def _init() -> None:
    """Write a config from a model_fn and a data file.

    MODEL_FN is package.module:function. DATA is a file, or a pattern: CSV, npz, Parquet, TFRecord;
    or package.module:function.
    """


@_command(
    'eval "$(replicate completion bash)"     # in ~/.bashrc',
    'eval "$(replicate completion zsh)"      # in ~/.zshrc, after compinit',
    "replicate completion fish | source      # in ~/.config/fish/config.fish",
)
@click.argument("shell", type=click.Choice(completion.SHELLS), metavar="SHELL")
def _completion() -> None:
    """Print what lets a shell complete command lines: bash, zsh or fish."""
