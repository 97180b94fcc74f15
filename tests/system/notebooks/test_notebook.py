"""notebooks/explore_archive.ipynb runs as it is committed, and what it shows is so."""

from __future__ import annotations

import ast
import base64
import gzip
import io
import json
import re
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import matplotlib.image
import nbformat
import numpy as np
import pandas as pd
import pytest
from nbformat.v4 import new_code_cell
from notebooks.execute import MOST_BYTES, NOTEBOOK, execute

from coldlog.model.states import IndexStatus
from coldlog.runtime.timestamps import timestamp_from_text
from worlds.kafka_sample import KAFKA_SAMPLE, true_segments

CELLS: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
SOURCE = {cell["id"]: "".join(cell["source"]) for cell in CELLS}
LATE = ("late.events", "2023-11-16T00:00:00Z", "2023-11-18T00:00:00Z")
"""An incident of three partitions: one has late records, one ends before it, one begins behind it."""
ORDERS = ("orders", "2023-11-15T10:00:00Z", "2023-11-15T10:15:00Z")
ASKED_AGAIN = ("lookup", "late", "kafka", "reader")

pytestmark = pytest.mark.timeout(1200)


def test_committed_notebook_names_its_cells_and_its_kernel() -> None:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["metadata"]["kernelspec"]["name"] == "python3"
    assert (content["nbformat"], content["nbformat_minor"]) >= (4, 5)
    assert len(SOURCE) == len(CELLS)


class Shown:
    """The outputs of an executed notebook, by the cells' ids."""

    def __init__(self, cells: list[Any]) -> None:
        self.outputs = {cell.id: cell.outputs for cell in cells if cell.cell_type == "code"}

    def streams(self, cell: str, name: str) -> str:
        """What a cell printed."""
        return "".join(each.text for each in self.outputs[cell] if each.output_type == "stream" and each.name == name)

    def data(self, cell: str, kind: str) -> str:
        """What a cell displayed, once, as `kind`."""
        (shown,) = [each.data[kind] for each in self.outputs[cell] if kind in each.get("data", {})]
        return str(shown)

    def rows(self, cell: str) -> list[list[str]]:
        """A table's rows; no text in it has blanks."""
        return [line.split()[1:] for line in self.data(cell, "text/plain").splitlines()[1:]]


@pytest.fixture(scope="module")
def shown(golden_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """The notebook, executed; at its end the incident's cells again, for a topic with more partitions."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    incident = "TOPIC, BEGIN, END = " + repr(LATE)
    notebook.cells.append(new_code_cell(incident, id="again"))
    notebook.cells.extend(new_code_cell(SOURCE[cell], id=f"{cell}-again") for cell in ASKED_AGAIN)
    execute(notebook, golden_uri, tmp_path_factory.mktemp("jupyter"))
    return Shown(notebook.cells)


def test_every_cell_runs_without_a_warning(shown: Shown) -> None:
    assert {cell: shown.streams(cell, "stderr") for cell in shown.outputs} == dict.fromkeys(shown.outputs, "")
    assert not [cell for cell, outputs in shown.outputs.items() for each in outputs if each.output_type == "error"]


def shape(output: Any) -> tuple[object, ...]:
    """What is shown: of texts and tables the words without the digits, of a picture that there is one."""
    if output["output_type"] == "stream":
        return output["name"], re.sub(r"\d+", "0", "".join(output["text"]))
    kinds = sorted(output["data"])
    return tuple(kinds), len("".join(output["data"]["text/plain"]).splitlines()), output["output_type"]


def test_committed_outputs_have_the_shape_of_those_that_the_notebook_shows(shown: Shown) -> None:
    nbformat.validate(nbformat.read(NOTEBOOK, as_version=4))
    committed = {cell["id"]: cell["outputs"] for cell in CELLS if cell["cell_type"] == "code"}
    assert len(committed) > 8
    for cell, outputs in committed.items():
        assert [shape(each) for each in outputs] == [shape(each) for each in shown.outputs[cell]], cell
    assert all(cell["execution_count"] for cell in CELLS if cell["cell_type"] == "code")


def test_committed_outputs_are_small_and_name_no_path_of_a_machine() -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert len(text) < MOST_BYTES
    assert "image/png" in text
    outputs = json.dumps([cell.get("outputs") for cell in CELLS])
    assert not re.findall(r"/(?:home|root|tmp|work|Users|usr)/", outputs)


def test_picture_shows_the_segments(shown: Shown) -> None:
    picture = matplotlib.image.imread(io.BytesIO(base64.b64decode(shown.data("picture", "image/png"))))
    height, width, _ = picture.shape
    assert 1000 < width < 2000
    assert 700 < height < 1400
    served = np.abs(picture[:, :, :3] - mpl.colors.to_rgb("#0072b2")).max(axis=2) < 0.02
    assert 0.1 < served.mean() < 0.6
    # Every third row of partitions is another one: 30 of them have to be told apart.
    rows = served[:, : width // 2].mean(axis=1) > 0.05
    assert np.count_nonzero(np.diff(rows.astype(int)) == 1) > 15


def test_outliers_do_not_squash_the_picture(shown: Shown) -> None:
    printed = shown.streams("picture", "stdout")
    window = re.search(r"^window: (\S+) to (\S+)$", printed, re.MULTILINE)
    assert window is not None
    first_ms, last_ms = map(timestamp_from_text, window.groups())
    assert first_ms < timestamp_from_text(ORDERS[1]) < timestamp_from_text(ORDERS[2]) < last_ms
    assert last_ms - first_ms < 3 * 86_400_000
    segments = true_segments("COPY_SEGMENT_FINISHED")
    ahead = sum(segment["topic"] in ("append-clock", "clock-switch", "payments.live") for segment in segments)
    told = re.search(r"^outside of it: (\d+) segments; in part: (\d+)$", printed, re.MULTILINE)
    assert told is not None
    assert ahead <= int(told[1]) < len(segments) // 2
    assert int(told[2]) > 0


def test_states_are_counted_alike_with_spark_and_without(shown: Shown) -> None:
    finished = len(true_segments("COPY_SEGMENT_FINISHED"))
    counts = shown.rows("states")
    assert ["COPY_SEGMENT_FINISHED", "indexed", str(finished)] in counts
    assert shown.data("states", "text/plain") == shown.data("tables", "text/plain")
    assert "copy_incomplete" in shown.data("problems", "text/plain")
    records = dict(line.split()[::3] for line in shown.data("pandas", "text/plain").splitlines()[2:])
    assert int(records["orders"]) == sum(
        len(archived_records("orders", partition)) for partition in partitions("orders")
    )


def archived_records(topic: str, partition: int) -> list[tuple[int, int]]:
    """Offset and timestamp of each, as a consumer of the broker got them."""
    path = KAFKA_SAMPLE / "truth" / "records" / f"{topic}-{partition}.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    return [(record["o"], record["ts"]) for record in records if record["arch"]]


def partitions(topic: str) -> list[int]:
    """Those of which anything is archived."""
    return sorted({each["partition"] for each in true_segments("COPY_SEGMENT_FINISHED") if each["topic"] == topic})


def first_at_or_after(records: list[tuple[int, int]], timestamp_ms: int) -> int | None:
    return next((offset for offset, own_ms in records if own_ms >= timestamp_ms), None)


INCIDENTS = pytest.mark.parametrize(("again", "topic", "begin", "end"), [("", *ORDERS), ("-again", *LATE)])


@INCIDENTS
def test_incident_begins_and_ends_where_its_records_do(
    shown: Shown, again: str, topic: str, begin: str, end: str
) -> None:
    expected = []
    for partition in partitions(topic):
        records = archived_records(topic, partition)
        first, behind = (first_at_or_after(records, timestamp_from_text(each)) for each in (begin, end))
        outcomes = ["LATER_THAN_ARCHIVE" if offset is None else "FOUND" for offset in (first, behind)]
        from_offset = records[-1][0] + 1 if first is None else first
        expected.append([str(partition), *outcomes, str(from_offset), str(-1 if behind is None else behind)])
    assert shown.rows("lookup" + again) == expected


@INCIDENTS
def test_no_record_of_the_incident_is_lost(shown: Shown, again: str, topic: str, begin: str, end: str) -> None:
    reach = {int(row[0]): int(row[2]) for row in shown.rows("late" + again) if row[0].isdigit()}
    begin_ms, end_ms = timestamp_from_text(begin), timestamp_from_text(end)
    late = 0
    for row in shown.rows("lookup" + again):
        partition, starting, ending = int(row[0]), int(row[3]), int(row[4])
        own = [offset for offset, own_ms in archived_records(topic, partition) if begin_ms <= own_ms < end_ms]
        upper = max(ending, reach.get(partition, 0)) if ending >= 0 else 2**63
        assert all(starting <= offset < upper for offset in own)
        late += sum(offset >= ending >= 0 for offset in own)
    assert (late > 0) is (topic == LATE[0])


@INCIDENTS
def test_code_for_spark_names_every_partition_of_the_topic(
    shown: Shown, again: str, topic: str, begin: str, end: str
) -> None:
    printed = shown.streams("kafka" + again, "stdout")
    options = {
        ast.literal_eval(call.args[0]): ast.literal_eval(call.args[1])
        for call in ast.walk(ast.parse(printed))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "option"
    }
    offsets = {row[0]: (int(row[3]), int(row[4])) for row in shown.rows("lookup" + again)}
    assert sorted(offsets) == sorted(str(partition) for partition in partitions(topic))
    assert options["subscribe"] == topic
    assert json.loads(options["startingOffsets"]) == {topic: {each: first for each, (first, _) in offsets.items()}}
    assert json.loads(options["endingOffsets"]) == {topic: {each: last for each, (_, last) in offsets.items()}}
    times = re.search(r'"startingOffsetsByTimestamp", (\'.*\')\)', printed)
    assert times is not None
    begin_ms = timestamp_from_text(begin)
    assert json.loads(ast.literal_eval(times[1])) == {topic: dict.fromkeys(offsets, begin_ms)}
    assert f"timestamp >= timestamp_millis({begin_ms})" in printed
    assert f"timestamp < timestamp_millis({timestamp_from_text(end)})" in printed


@INCIDENTS
def test_reader_finds_the_same_offsets(shown: Shown, again: str, topic: str, begin: str, end: str) -> None:
    found = {row[0]: row[1] for row in shown.rows("reader" + again)}
    looked_up = {row[0]: row[3] if row[1] == "FOUND" else "none" for row in shown.rows("lookup" + again)}
    assert found == looked_up


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """What the cells before the picture leave behind, but the segments."""
    # The kernel's backend draws where there is no screen, too.
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    left: dict[str, Any] = {}
    with pd.option_context("display.max_colwidth", 50, "display.max_rows", 60, "display.width", 80):
        exec(SOURCE["start"], left)
        yield left
    plt.close("all")


def draw(names: dict[str, Any], *bars: tuple[object, ...]) -> Any:
    """The picture's axes for segments (name, first day, last day, first offset, last offset, what it is shown as)."""
    columns = ["name", "first_day", "last_day", "served_from_offset", "served_to_offset", "shown_as"]
    segments = pd.DataFrame(bars, columns=columns).astype(dict.fromkeys(columns[1:5], float))
    names["segments"] = segments.assign(topic=segments.name, partition=0, topic_id="id")
    exec(SOURCE["window"], names)
    exec(SOURCE["picture"], names)
    return names["axes"]


def hourly(name: str, hours: int, first_day: float = 19675.0) -> list[tuple[object, ...]]:
    """A segment an hour, of 100 offsets each."""
    return [
        (name, first_day + hour / 24, first_day + (hour + 1) / 24, hour * 100, hour * 100 + 99, "served")
        for hour in range(hours)
    ]


def labels_beside(names: dict[str, Any]) -> list[str]:
    return [label.get_text() for label in names["beside"].get_yticklabels()]


def test_window_holds_all_of_an_archive_without_outliers(names: dict[str, Any]) -> None:
    lengths = [30, 20, 10, 5, 2, *[1] * 12]
    ends = np.cumsum([19000, *lengths])
    bars = [("traffic-0", ends[i], ends[i + 1], i, i, "served") for i in range(len(lengths))]
    first, last = draw(names, *bars).get_xlim()
    assert ends[0] - 1 < first < ends[0]
    assert ends[-1] < last < ends[-1] + 1
    assert labels_beside(names) == [""]


def test_times_that_no_clock_showed_lie_outside_of_the_window_and_are_counted(names: dict[str, Any]) -> None:
    strange = [
        ("edge-0", -1 / 86_400_000, -1 / 86_400_000, 0, 9, "served"),
        ("edge-0", -1 / 86_400_000, 19675.1, 10, 19, "served"),
        ("edge-0", 19675.1, (2**63 - 1) / 86_400_000, 20, 29, "served"),
        ("edge-0", 253402300799003 / 86_400_000, 253402300799003 / 86_400_000, 30, 39, "served"),
        ("edge-0", float("nan"), float("nan"), float("nan"), float("nan"), "quarantined"),
    ]
    first, last = draw(names, *hourly("orders-0", 10), *strange).get_xlim()
    assert 19674.9 < first < 19675 < 19675 + 10 / 24 < last < 19675.6
    assert labels_beside(names) == ["", "◂ 1  ▸ 1  ↔ 2  no time 1"]


def test_a_window_that_is_named_is_shown(names: dict[str, Any]) -> None:
    source = SOURCE["window"].replace("WINDOW = None", 'WINDOW = ("2023-11-14T06:00Z", "2023-11-14T12:00Z")')
    draw(names, *hourly("orders-0", 24))
    exec(source, names)
    exec(SOURCE["picture"], names)
    first, last = names["axes"].get_xlim()
    assert (first, last) == pytest.approx((19675.25, 19675.5), abs=0.01)
    assert labels_beside(names) == ["◂ 5  ▸ 11  ↔ 2"]


def test_missing_offsets_are_marked_where_they_lack(names: dict[str, Any]) -> None:
    whole, torn = hourly("whole-0", 10), hourly("torn-0", 10)
    axes = draw(names, *whole, *torn[:4], *torn[5:])
    marks = [(x, y) for line in axes.lines for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)]
    assert marks == [(torn[5][1], 1)]


def test_every_status_of_a_segment_has_a_colour(names: dict[str, Any]) -> None:
    kinds = ["served", "indexed, not served", *(each.value for each in IndexStatus if each is not IndexStatus.INDEXED)]
    bars = [(f"{kind}-0", 19675 + i / 24, 19675 + (i + 1) / 24, i, i, kind) for i, kind in enumerate(kinds)]
    legend = draw(names, *bars).get_legend()
    assert sorted(text.get_text() for text in legend.get_texts()) == sorted(kinds)
    assert len({patch.get_facecolor() for patch in legend.get_patches()}) == len(kinds)


def test_an_archive_without_segments_gives_an_empty_picture(names: dict[str, Any]) -> None:
    assert not draw(names).collections


def test_partitions_that_are_not_drawn_are_told(names: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    axes = draw(names, *(bar for number in range(70) for bar in hourly(f"many-{number}", 2)))
    assert len(axes.get_yticks()) == 60
    assert "not drawn: 10\n" in capsys.readouterr().out
