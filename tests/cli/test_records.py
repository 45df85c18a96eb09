"""What a run leaves behind beside the model: events, a page, a picture."""

import pathlib
import struct
import xml.etree.ElementTree as ElementTree

import pytest

from onnxtrain.cli.fitting.charts import LEFT, WIDTH, chart, powers, ticks
from onnxtrain.cli.fitting.events import EventFile, _checksum
from onnxtrain.kernels.summary import _summary_class

FIT = ("fit", "model.onnx", "--data", "data.npz", "--loss", "cross_entropy", "--device", "cpu")


def records(path: pathlib.Path) -> list[bytes]:
    """The messages of an event file, whose checksums must be right."""
    data, found = path.read_bytes(), []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert data[8:12] == _checksum(data[:8])
        body, data = data[12 : 12 + size], data[12 + size :]
        assert data[:4] == _checksum(body)
        found.append(body)
        data = data[4:]
    return found


def test_the_checksum_is_crc_32c():
    (masked,) = struct.unpack("<I", _checksum(b"123456789"))
    turned = (masked - 0xA282EAD8) % 2**32
    assert (turned << 15 | turned >> 17) % 2**32 == 0xE3069283


def scalars(body: bytes) -> tuple[int, dict[str, float]]:
    """Step and scalars of an event: time, step below 128, summary."""
    assert body[0] == 0x09 and body[9] == 0x10 and body[11] == 0x2A
    start = 13 if body[12] < 128 else 14
    summary = _summary_class()()
    summary.ParseFromString(body[start:])
    return body[10], {value.tag: value.simple_value for value in summary.value}


def test_events_hold_the_figures(tmp_path):
    file = EventFile(tmp_path / "events")
    file.add({"step": 7, "epoch": 1, "loss": 0.5, "lr": 0.25, "val_loss": 2.0})
    file.close()
    (path,) = (tmp_path / "events").iterdir()
    first, second = records(path)
    assert first.endswith(b"brain.Event:2")
    assert scalars(second) == (
        7, {"loss/training": 0.5, "learning rate": 0.25, "loss/validation": 2.0}
    )  # fmt: skip


def test_tensorboard_reads_the_events(tmp_path):
    events = pytest.importorskip(
        "tensorboard.compat.proto.event_pb2", reason="TensorBoard is an extra"
    )
    file = EventFile(tmp_path)
    file.add({"step": 300, "val_accuracy": 0.5})
    file.close()
    (path,) = tmp_path.iterdir()
    event = events.Event.FromString(records(path)[1])
    assert event.step == 300
    assert event.summary.value[0].tag == "accuracy/validation"
    assert event.summary.value[0].simple_value == 0.5


def test_ticks_are_round_and_enclose_the_values():
    assert ticks(0.13, 0.97) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(3, 3) == [3]
    for low, high in ((1e-7, 3e-7), (-5, 12), (0, 1e9), (41.2, 41.9)):
        found = ticks(low, high)
        assert found[0] <= low and found[-1] >= high and 3 <= len(found) <= 8


def test_a_chart_puts_the_largest_value_at_the_top():
    drawn = ElementTree.fromstring(chart("a & b", {"one": [(0, 1.0), (5, 3.0), (9, float("nan"))]}))
    (line,) = drawn.iter("polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]
    assert len(places) == 2
    assert places[0][0] < places[1][0] and places[0][1] > places[1][1]
    assert chart("nothing", {"one": []}) == ""


def test_a_loss_that_falls_by_orders_of_magnitude_is_drawn_by_powers_of_ten():
    points = [(0, 100.0), (5, 1.0), (10, 0.01)]
    drawn = ElementTree.fromstring(chart("loss", {"mean": points}))
    (line,) = drawn.iter("polyline")
    heights = [float(pair.split(",")[1]) for pair in line.attrib["points"].split()]
    assert heights[1] == pytest.approx((heights[0] + heights[2]) / 2, abs=0.2)
    assert "logarithmic" in "".join(drawn.itertext())
    for title, values in (("learning rate", points), ("loss", [(0, 0.0), (5, 100.0)])):
        assert "logarithmic" not in chart(title, {"one": values})
    assert powers(0.03, 40) == pytest.approx([0.01, 0.1, 1, 10, 100])


def test_charts_begin_at_zero_and_stay_inside():
    """Also where the best step is marked."""
    drawn = ElementTree.fromstring(chart("f1", {"one": [(90, 0.2), (187, 0.3)]}, mark=90))
    places = [float(x) for item in drawn.iter("text") if (x := item.attrib["x"])]
    assert all(0 <= x <= WIDTH for x in places)
    (mark,) = [item for item in drawn.iter("line") if item.attrib["class"] == "mark"]
    (line,) = drawn.iter("polyline")
    assert line.attrib["points"].startswith(mark.attrib["x1"] + ",")
    assert LEFT < float(mark.attrib["x1"]) < WIDTH / 2 + LEFT


def test_a_run_writes_events_a_page_and_a_picture(folder, cli):
    cli(*FIT, "--epochs", "3", "--val-split", "0.25", "--tensorboard", "events", "--report",
        "run.html", "--plot", "run.png", "--log-every", "1", "--seed", "0")  # fmt: skip
    (events,) = pathlib.Path("events").iterdir()
    assert len(records(events)) == 1 + 6 + 3
    page = pathlib.Path("run.html").read_text()
    body = ElementTree.fromstring(page.removeprefix("<!doctype html>").replace(' ">', '">')
                                  .replace('<meta charset="utf-8">', ""))  # fmt: skip
    titles = [item.text for item in body.iter("h2")]
    assert titles == ["Curves", "Slowest operators", "Memory over the step",
                      "Parameters that changed", "Settings", "Versions"]  # fmt: skip
    charts = {svg.attrib["aria-label"] for svg in body.iter("svg")}
    assert charts == {"loss", "accuracy", "learning rate", "MiB alive after each node"}
    cells = [cell.text for cell in body.iter("td")]
    assert "Gemm" in cells and "w1" in cells and "cross_entropy" in cells and "torch" in cells
    assert cells[cells.index("seed") + 1] == "0"
    assert "http" not in page.replace("http-equiv", "")
    assert pathlib.Path("run.png").read_bytes().startswith(b"\x89PNG")


def test_profiling_for_the_page_changes_nothing(folder, cli):
    cli(*FIT, "--epochs", "2", "--out", "a.onnx", "--checkpoint", "a.ckpt")
    cli(*FIT, "--epochs", "2", "--out", "b.onnx", "--checkpoint", "b.ckpt", "--report", "b.html")
    assert pathlib.Path("a.onnx").read_bytes() == pathlib.Path("b.onnx").read_bytes()
