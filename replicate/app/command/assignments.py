"""Keys of a config as options of the command line: `--train.steps 10`, `--seed=3`."""

from collections.abc import Callable, Collection, Iterable

from replicate import errors

__all__ = ["spelt_out"]


def spelt_out(arguments: Iterable[str], keys: Callable[[], Collection[str]]) -> list[str]:
    """Returns arguments in which each option that is a config's key is a `--set` of it.

    What stands before the command is none.

    Args:
        arguments: The arguments.
        keys: Gives the keys that may stand without a dot; asked when there is need to.

    Raises:
        ConfigError: If such an option comes without a value.
    """
    made, rest = [], list(arguments)
    while rest:
        given = rest.pop(0)
        name, equals, value = given.removeprefix("--").partition("=")
        if given == "--":
            return [*made, given, *rest]
        has_command = any(not one.startswith("-") for one in made)
        if not given.startswith("--") or not has_command or not _is_key(name, keys):
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


def _is_key(name: str, keys: Callable[[], Collection[str]]) -> bool:
    return "." in name or ("-" not in name and name not in ("help", "set") and name in keys())
