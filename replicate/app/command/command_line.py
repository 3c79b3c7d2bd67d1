"""How commands are made: a function with options, whose configs' keys are options as well.

Help needs no config and no TensorFlow: nothing that reads or runs one is imported here.
"""

import importlib.metadata
import platform
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

import replicate
from replicate import errors
from replicate.app.command import completion

_DEFAULTS = {"configs": (), "set": (), "model_dir": None, "quiet": False, "json": False}
_TENSORFLOWS = ("tensorflow", "tensorflow-cpu", "tensorflow-macos", "tf-nightly")


class Command(click.Command):
    """A command, whose help ends with an example.

    Args:
        *args: See base class.
        examples: Lines.
        configs: How many it takes, -1: any number; their keys are options, too.
        section: The section of a config that it needs.
        **options: See base class.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str],
        configs: int = 0,
        section: str | None = None,
        **options: Any,
    ):
        super().__init__(*args, **options)
        self.short_help = str(self.help).partition("\n")[0]
        self.examples, self.section, self._has_keys = examples, section, bool(configs)
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
        """See base class; a shell gets keys of a config as options, too."""
        is_asked = self._has_keys and ctx.resilient_parsing
        return super().get_params(ctx) + (completion.key_options() if is_asked else [])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """See base class; keys are many, so they are shown when one is begun."""
        found = super().shell_complete(ctx, incomplete)
        own = {name for one in super().get_params(ctx) for name in one.opts}
        return [one for one in found if incomplete.strip("-") or one.value in own]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """See base class; takes keys of a config for options."""
        if ctx.resilient_parsing:  # for a shell; where an option lacks its value, nothing is read
            is_open = args and args[-1].startswith("--")
            return super().parse_args(ctx, args[:-1] if is_open else args)
        at = args.index("--") if self.name == "launch" and "--" in args else len(args)
        args, script = args[:at], args[at + 1 :]
        try:
            rest = super().parse_args(ctx, _with_assignments(args) if self._has_keys else args)
        except click.NoSuchOption as e:
            own = [str(one.name) for one in self.params if isinstance(one, click.Option)]
            near = completion.meant(e.option_name, own, self._has_keys)
            then = f" Did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"No such option '{e.option_name}'.{then}", ctx) from None
        ctx.params["script"] = script
        number = len(ctx.params["configs"]) if self.name == "launch" else None
        if number is not None and (number > 1 or bool(script) == bool(number)):
            text = f"CONFIG must be one, or a command behind --; got {number} configs."
            raise click.UsageError(text, ctx)
        if script and any(ctx.params[name] for name in ("set", "json", "print_config")):
            raise click.UsageError("A command behind -- reads no config: leave that out.", ctx)
        return rest

    def invoke(self, ctx: click.Context) -> tuple["Command", types.SimpleNamespace]:
        """Returns what is to be run, with its options."""
        options = types.SimpleNamespace(**{**_DEFAULTS, **ctx.params}, command=self.name)
        configs = options.configs
        options.configs = [configs] if isinstance(configs, str) else list(configs)
        return self, options

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """See base class."""
        formatter.write("\nexample:\n" + "".join(f"  {line}\n" for line in self.examples))


def _with_assignments(arguments: Sequence[str]) -> list[str]:
    """Returns arguments in which each option that is a config's key is a `--set` of it.

    So `--train.steps 10` and `--seed=3` are `--set` of `train.steps=10` and `seed=3`.

    Raises:
        ConfigError: If such an option comes without a value.
    """
    made, rest = [], list(arguments)
    while rest and rest[0] != "--":
        one = rest.pop(0)
        name, equals, _ = one.partition("=")
        if name.startswith("--") and completion.is_key(name[2:]):
            if not equals and (not rest or rest[0].startswith("--")):
                then = "Write e.g. --train.steps 10 or --train.steps=10."
                raise errors.ConfigError(f"{one}: must have a value. {then}")
            one = f"--set={one}" if equals else f"--set={one}={rest.pop(0)}"
        made.append(one)
    return made + rest


def option(name: str, metavar: str, text: str, kind: Any = None, **more: Any) -> Any:
    """Returns an option with a value."""
    return click.option(name, metavar=metavar, type=kind, help=text, **more)


def flag(name: str, text: str, **more: Any) -> Any:
    """Returns an option without a value."""
    return click.option(name, is_flag=True, help=text, **more)


def folder(name: str, text: str) -> Any:
    """Returns an option that is a folder."""
    return option(name, "DIR", text, shell_complete=completion.folder)


def file(name: str, text: str, *endings: str, **more: Any) -> Any:
    """Returns an option that is a file, with one of some endings, if any are given."""

    def read(path: str) -> str:
        if endings and Path(path).suffix.lower() not in endings:
            one_of = "one of " * (len(endings) > 1)
            raise click.BadParameter(f"must end in {one_of}{', '.join(endings)}, got {path!r}")
        return path

    return option(name, "FILE", text, read, shell_complete=completion.file, **more)


def printing(name: str, text: str, make: Callable[[], str]) -> Any:
    """Returns an option that prints a text and ends, as `--help` does."""

    def show(ctx: click.Context, _: click.Parameter, is_asked: bool) -> None:
        if is_asked and not ctx.resilient_parsing:
            click.echo(make(), nl=False)
            ctx.exit()

    return flag(name, text, is_eager=True, expose_value=False, callback=show)


def _versions() -> str:
    """Returns the versions; TensorFlow's from what is installed, without importing it."""
    found = {
        version
        for one in importlib.metadata.distributions()
        if (one.name or "").lower() in _TENSORFLOWS and (version := one.version)
    }
    tensorflow, python = " ".join(found) or "not installed", platform.python_version()
    return f"replicate {replicate.__version__}\nTensorFlow {tensorflow}\nPython {python}\n"


quiet = flag("--quiet", "no progress, only results")


@click.command()
@option(
    "--set",
    "KEY=VALUE",
    "override a key, e.g. train.steps=1e3; may be repeated. --train.steps 1e3 is the same",
    multiple=True,
)
@folder("--model-dir", "override the key model_dir")
@flag("--print-config", "print the config with all defaults, and stop")
@quiet
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
@printing(
    "--version", "print the versions of replicate, TensorFlow and Python, and stop", _versions
)
def whole_line() -> None:
    """Runs a TensorFlow Estimator model on many devices."""


def command(
    *examples: str, configs: int = 0, section: str | None = None
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Makes a command of a function's name, help text and options; see `Command`."""
    return whole_line.command(cls=Command, examples=examples, configs=configs, section=section)
