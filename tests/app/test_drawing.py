"""Pictures of descriptions: nothing is cut off, nothing lies over something else."""

import itertools

import pytest
from matplotlib import colors as matplotlib_colors
from matplotlib import text as matplotlib_text

from replicate import errors
from replicate.app.inspect import description, drawing, pictures

NAME = "encoder/layer_{}/attention/self/query_projection/kernel/Adam"


def described(device_count, variable_count, is_mirrored=False):
    """Returns a description whose variables have 4 bytes, 8 bytes, 16 and so on, then again."""
    workers = tuple(f"/device:GPU:{i}" for i in range(device_count))
    kinds = itertools.cycle(["weight", "slot", "local"])
    variables = [
        description.Variable(
            NAME.format(i),
            next(kinds),
            (2 ** (i % 20),),
            "float32",
            4 * 2 ** (i % 20),
            workers if is_mirrored else (workers[i % device_count],),
        )
        for i in range(variable_count)
    ]
    variables.append(
        description.Variable("global_step", "other", (), "int64", 8, ("/device:CPU:0",))
    )
    found = []
    for i, name in enumerate((*workers, "/device:CPU:0")):
        own = [one.bytes for one in variables if name in one.devices]
        tower = i if i < device_count else None
        found.append(description.Device(name, tower, len(own), sum(own), 12_345))
    title = "a name that is $long$ enough to be too long " * 4
    return description.Description(title, "round_robin", 64, tuple(variables), tuple(found))


@pytest.fixture(name="drawn")
def make_drawn(monkeypatch, tmp_path):
    """Returns what draws a description, and returns the picture."""
    kept = []
    save = pictures.save

    def keep(made, path):
        kept.append(made)
        save(made, path)

    monkeypatch.setattr(pictures, "save", keep)

    def draw(found):
        drawing.draw(found, str(tmp_path / "d.png"))
        return kept[-1]

    return draw


def written(made):
    """Returns the texts of a picture, and where each is."""
    renderer = made.canvas.get_renderer()
    texts = [
        one
        for one in made.findobj(matplotlib_text.Text)
        if one.get_text() and one.get_visible() and one.axes is not None and one.axes.axison
    ]
    return [(one.get_text(), one.get_window_extent(renderer)) for one in texts]


@pytest.mark.thorough("2-150-True")
@pytest.mark.parametrize("is_mirrored", [False, True])
@pytest.mark.parametrize("variable_count", [5, 150])
@pytest.mark.parametrize("device_count", [2, 8])
def test_all_that_is_written_can_be_read(drawn, device_count, variable_count, is_mirrored):
    made = drawn(described(device_count, variable_count, is_mirrored))
    found = written(made)
    wide, high = made.canvas.get_width_height()
    assert len(found) > 5  # the variables, at least
    for text, box in found:
        assert 0 <= box.x0 < box.x1 <= wide, text
        assert 0 <= box.y0 < box.y1 <= high, text
    for (text, box), (other, beside) in itertools.combinations(found, 2):
        assert not box.padded(-1).overlaps(beside.padded(-1)), (text, other)


def test_small_variables_are_drawn_together(drawn):
    # One device has 150 variables of 4 bytes ... 2 MiB; the smallest of each twenty are no
    # thousandth of the largest.
    texts = [text for text, _ in written(drawn(described(1, 150)))]
    (more,) = [int(text.partition(" more")[0]) for text in texts if " more" in text]
    named = [text for text in texts if text.startswith("encoder")]
    assert more + len(named) == 150
    assert len(named) > 10


def test_the_legend_has_what_is_shown(drawn):
    def labels(made):
        return {one.get_text() for one in made.findobj(matplotlib_text.Text)}

    # 4, 8, 16, 32 bytes: a weight, a slot, a local one, a weight; and 8 bytes of another one.
    found = described(1, 4)
    assert {"weight", "slot", "local", "other"} <= labels(drawn(found))
    weights = tuple(one for one in found.variables if one.kind == "weight")
    texts = labels(drawn(found._replace(variables=weights)))
    assert "weight" in texts
    assert not {"slot", "local", "other", "several kinds"} & texts


@pytest.mark.parametrize("colors", drawing._COLORS.values())
def test_letters_on_a_box_can_be_read(colors):
    def luminance(name):  # WCAG 2, which wants a contrast of 4.5
        parts = matplotlib_colors.to_rgb(name)
        linear = [
            one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05

    low, high = sorted(map(luminance, colors))
    assert high / low >= 4.5


def test_a_device_tells_how_many_of_its_operations_are_split(drawn):
    found = described(2, 4)
    devices = tuple(one._replace(of_tower=1_234) for one in found.devices)
    made = drawn(found._replace(devices=devices))
    texts = {one.get_text() for one in made.findobj(matplotlib_text.Text)}
    assert sum(text.endswith("\n1,234 of them split by rows") for text in texts) == 3


def test_a_picture_is_whole_or_not_there(tmp_path):
    made = pictures.blank(1, 1)
    with pytest.raises(errors.RunError, match="must be a file that can be written: No such file"):
        pictures.save(made, str(tmp_path / "none" / "p.png"))
    with pytest.raises(errors.RunError, match="it is a directory"):
        pictures.save(made, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
