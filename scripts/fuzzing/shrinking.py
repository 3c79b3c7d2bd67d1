"""Makes a failing program smaller, as long as it fails alike."""

import re
from collections.abc import Callable, Iterator

from scripts.fuzzing import programs


def shrunk(
    program: programs.Program, fails_alike: Callable[[programs.Program], bool]
) -> programs.Program:
    """Returns the smallest program that was found.

    Args:
        program: One that fails.
        fails_alike: Whether another one fails in the same way; False once time is up.
    """
    tried = {program.source()}
    while True:
        for smaller in _smaller(program):
            source = smaller.source()
            if source in tried:
                continue
            tried.add(source)
            if fails_alike(smaller):
                program = smaller
                break
        else:
            return program


def _smaller(program: programs.Program) -> Iterator[programs.Program]:
    """Yields programs that are a step simpler, those with the largest steps first."""
    yield from _of_settings(program)
    yield from _of_endings(program)
    yield from _of_lines(program)
    yield from _of_inputs(program)


def _of_settings(program: programs.Program) -> Iterator[programs.Program]:
    setting = program.setting
    changes: list[dict] = [{"modes": (mode,)} for mode in setting.modes]
    changes += [{"sizes": (size,)} for size in dict.fromkeys(setting.sizes)]
    changes += [{"strategy": "parameter_server"}, {"devices": 2}, {"control_flow": 2}]
    changes += [{"is_static": False}, {"options": ()}]
    changes += [
        {"sizes": (*setting.sizes[:n], smaller, *setting.sizes[n + 1 :])}
        for n, size in enumerate(setting.sizes)
        for smaller in (1, 2, 3)
        if smaller < size
    ]
    for change in changes:
        yield program._replace(setting=setting._replace(**change))


def _of_endings(program: programs.Program) -> Iterator[programs.Program]:
    yield program._replace(predictions=())
    yield program._replace(metrics=())
    for name in ("losses", "predictions", "metrics"):
        listed = getattr(program, name)
        for one in listed if len(listed) > 1 else ():
            yield program._replace(**{name: (one,)})
            yield program._replace(**{name: tuple(other for other in listed if other != one)})
    yield program._replace(more="{loss}")
    yield program._replace(way="minimized", optimizer="tf1.train.GradientDescentOptimizer(0.1)")
    for n, loss in enumerate(program.losses):
        for value in sorted(programs.names([loss]) & _known(program)):
            simpler = f"tf.reduce_sum({value})"
            if len(simpler) < len(loss):
                losses = (*program.losses[:n], simpler, *program.losses[n + 1 :])
                yield program._replace(losses=losses)


def _of_lines(program: programs.Program) -> Iterator[programs.Program]:
    """Takes an earlier value in place of a line, or of what a line reads."""
    known = [line.name for line in program.features]
    for line in program.lines:
        read = sorted(programs.names([line.text]) & set(known), reverse=True)
        for other in dict.fromkeys([*read, *known]):
            yield _renamed(program, line.name, other)
        texts = [_swapped(line.text, one, other) for one in read for other in known if one != other]
        for text in [*texts, *_simpler(line.text)]:
            yield program._replace(lines=_changed(program.lines, line, text))
        known.append(line.name)


def _simpler(text: str) -> Iterator[str]:
    """Yields a line without options, without bodies of functions, with smaller numbers."""
    yield re.sub(r", \w+=[^,()]+(?=[,)])", "", text, count=1)
    for found in re.finditer(r"lambda h: (.+?)(?=, x|, v|\)$)", text):
        yield text[: found.start(1)] + "h" + text[found.end(1) :]
    for found in re.finditer(r"(?<![\w.])([2-9]|1\d)(?![\w.])", text):
        yield text[: found.start()] + "1" + text[found.end() :]


def _of_inputs(program: programs.Program) -> Iterator[programs.Program]:
    """Takes lengths of 1 or 2."""
    for line in program.features:
        for found in re.finditer(r"(?<=, )(\d+|\d \+ number|rows \+ 1)(?=[\],])", line.text):
            for smaller in ("1", "2") if found[0] != "1" else ():
                text = line.text[: found.start()] + smaller + line.text[found.end() :]
                yield program._replace(features=_changed(program.features, line, text))


def _changed(
    lines: tuple[programs.Line, ...], line: programs.Line, text: str
) -> tuple[programs.Line, ...]:
    return tuple(one._replace(text=text) if one is line else one for one in lines)


def _known(program: programs.Program) -> set[str]:
    return {line.name for line in (*program.features, *program.lines)}


def _renamed(program: programs.Program, name: str, other: str) -> programs.Program:
    """Reads another value wherever one is read."""
    return program._replace(
        lines=tuple(
            line._replace(text=_swapped(line.text, name, other))
            for line in program.lines
            if line.name != name
        ),
        losses=tuple(_swapped(text, name, other) for text in program.losses),
        more=_swapped(program.more, name, other),
        predictions=tuple(
            dict.fromkeys(_swapped(text, name, other) for text in program.predictions)
        ),
        metrics=tuple(_swapped(text, name, other) for text in program.metrics),
    )


def _swapped(text: str, name: str, other: str) -> str:
    return re.sub(rf"(?<![\w.'\"]){name}\b", other, text)
