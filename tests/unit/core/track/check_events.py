"""TensorBoard itself reads the files of the tracker `tensorboard`: check_events.py TRACKING_SAMPLE"""
import math
import sys
import tempfile

from reading import need, write_run

need("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402
from tensorboard.plugins.hparams import plugin_data_pb2  # noqa: E402
from tensorboard.util import tensor_util  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    write_run(sys.argv[1], folder, "tensorboard")
    events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()

    loss = events.Scalars("train/loss")
    assert [event.step for event in loss] == list(range(1500)), loss[:3]
    assert all(abs(event.value - 1 / (1 + event.step)) < 1e-6 for event in loss)
    assert loss[0].wall_time > 1.6e9
    assert [event.value for event in events.Scalars("epoch")] == list(range(15))
    assert [(event.step, event.value) for event in events.Scalars("odd: name")] == [(7, 1.0)]
    assert math.isnan(events.Scalars("nan")[0].value)
    assert math.isinf(events.Scalars("inf")[0].value)

    assert list(events.PluginTagToContent("text")) == ["note", "words"]
    note = tensor_util.make_ndarray(events.Tensors("note")[0].tensor_proto)
    assert note.tolist() == ["seven, \"é\" \ufffd".encode()], note

    words = tensor_util.make_ndarray(events.Tensors("words")[0].tensor_proto)
    assert words.tolist() == [b"| text | loss |\n| --- | --- |\n| a | 0.5 |\n| b | 1.5 |"], words
    (picture,) = events.Images("picture")
    assert (picture.step, picture.width, picture.height) == (7, 3, 2), picture
    assert picture.encoded_image_string.startswith(b"\x89PNG"), picture

    hparams = events.PluginTagToContent("hparams")
    start = plugin_data_pb2.HParamsPluginData.FromString(
        hparams["_hparams_/session_start_info"]).session_start_info
    values = {name: getattr(value, value.WhichOneof("kind")) for name, value in start.hparams.items()}
    assert values == {"lr": 0.001, "layers": 3.0, "bf16": True, "optimizer": "AdamW"}, values
    assert start.group_name == "first"
    end = plugin_data_pb2.HParamsPluginData.FromString(
        hparams["_hparams_/session_end_info"]).session_end_info
    assert end.status == 1, end
print("TensorBoard read all of it")
