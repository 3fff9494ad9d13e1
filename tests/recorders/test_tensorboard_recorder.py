"""TensorBoard events: readable, over environment steps, purged on resume."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import numpy as np
import pytest

from evorl.recorders import TensorBoardRecorder, tensorboard_recorder
from evorl.runs.files import RunFolderError
from tests.support.errors import raises_naming
from tests.support.recorded_runs import make_plan, make_row, record


def read_events(folder: Path) -> list:
    """Return the events of a folder; records consist of length, checksum, data, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    events = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("Q", data[:8])
            events.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return events


def test_every_row_is_one_event_at_its_environment_step(tmp_path: Path) -> None:
    record(TensorBoardRecorder(tmp_path / "tensorboard"))
    events = read_events(tmp_path / "tensorboard")
    assert events[0].file_version == "brain.Event:2"
    rows = [event for event in events if event.HasField("summary")]
    assert [event.step for event in rows] == [100 * i for i in range(1, 13)]
    values = {value.tag: value.simple_value for value in rows[4].summary.value}
    assert values == pytest.approx(make_row(5), rel=1e-6)


def test_the_settings_and_the_score_are_columns_of_the_tab_hparams(tmp_path: Path) -> None:
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData

    settings = {"title": "ppo", "discount": 0.5, "num_envs": 4, "agent.normalize_obs": True, "torso": [64], "x": None}
    record(TensorBoardRecorder(tmp_path, settings))
    values = [value for event in read_events(tmp_path) for value in event.summary.value]
    stored = {
        value.tag: HParamsPluginData.FromString(value.metadata.plugin_data.content)
        for value in values
        if value.metadata.plugin_data.plugin_name == "hparams"
    }
    assert list(stored) == ["_hparams_/experiment", "_hparams_/session_start_info"]
    experiment, start = stored["_hparams_/experiment"].experiment, stored["_hparams_/session_start_info"]
    assert [column.name for column in experiment.hparam_infos] == list(settings)[:-1]
    (metric,) = experiment.metric_infos
    assert metric.name.tag in {value.tag for value in values if value.HasField("simple_value")}
    hparams = start.session_start_info.hparams
    assert (hparams["title"].string_value, hparams["torso"].string_value) == ("ppo", "[64]")
    assert (hparams["discount"].number_value, hparams["num_envs"].number_value) == (0.5, 4.0)
    assert hparams["agent.normalize_obs"].bool_value is True


def test_a_resume_purges_later_events_and_keeps_the_earlier_file(tmp_path: Path) -> None:
    from tensorboardX.proto.event_pb2 import SessionLog

    record(TensorBoardRecorder(tmp_path), last=7)
    record(TensorBoardRecorder(tmp_path), first=6)
    assert len(list(tmp_path.iterdir())) == 2
    (start,) = [event for event in read_events(tmp_path) if event.HasField("session_log")]
    assert (start.session_log.status, start.step) == (SessionLog.START, 501)


def test_a_folder_that_is_opened_again_keeps_what_it_has(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path)
    for iteration in (1, 2):  # within one second, in one process
        recorder.write(make_row(iteration))
        recorder.close()
    assert [event.step for event in read_events(tmp_path) if event.HasField("summary")] == [100, 200]


def test_rows_reach_the_disk_when_asked_and_histograms_at_once(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path)
    recorder.flush()
    assert list(tmp_path.iterdir()) == []
    recorder.write(make_row(1))
    recorder.flush()
    assert [event.step for event in read_events(tmp_path)[1:]] == [100]
    recorder.write(make_row(2))
    recorder.write_histogram("weights", 300, np.array([1.0, 1.5, 3.0]), [1.0, 2.0, 3.0], [2, 1])
    _, _, second, third = read_events(tmp_path)
    assert (second.step, third.step) == (200, 300)
    (value,) = third.summary.value
    assert (value.tag, value.histo.num, value.histo.sum, value.histo.sum_squares) == ("weights", 3, 5.5, 12.25)
    assert list(value.histo.bucket_limit) == [1.0, 2.0, 3.0]
    assert list(value.histo.bucket) == [0, 2, 1]
    recorder.close()


def test_nothing_is_written_before_the_first_row(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path / "tensorboard")
    recorder.start(make_plan())
    recorder.close()
    assert not (tmp_path / "tensorboard").exists()


def test_a_full_disk_is_told_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboardX import event_file_writer

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    recorder = TensorBoardRecorder(tmp_path)
    monkeypatch.setattr(tensorboard_recorder, "SECONDS_BETWEEN_WRITES", 0.0)
    recorder.write(make_row(1))
    assert len(read_events(tmp_path)) == 2
    with monkeypatch.context() as patch:
        patch.setattr(event_file_writer.EventsWriter, "write_event", fail)
        with raises_naming(RunFolderError, "no space"):
            recorder.write(make_row(2))
    recorder.close()


@pytest.mark.parametrize("place", ["tensorboard", "tensorboard/events"])
def test_events_are_not_written_through_a_link(tmp_path: Path, place: str) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).symlink_to(tmp_path / "target")
    recorder = TensorBoardRecorder(tmp_path / "tensorboard")
    recorder.write(make_row(1))
    with raises_naming(RunFolderError, place, "symbolic link"):
        recorder.close()
    assert list((tmp_path / "target").iterdir()) == []
