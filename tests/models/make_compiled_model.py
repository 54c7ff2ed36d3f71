"""Writes a package of AOTInductor, other weights for it, and what PyTorch computes with both, into fixtures. Run by
hand to change it, with PyTorch 2.11, the oldest whose packages are read. Its code is for any x86-64 processor.
"""
import pathlib
import struct
import tempfile
import zipfile

import torch
from safetensors.torch import save_file
from torch._inductor import cpp_builder

HERE = pathlib.Path(__file__).resolve().parent / "fixtures"


class Net(torch.nn.Module):
    """Two inputs of which one is in a dictionary, two outputs, one weight that is not part of the code."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 3)

    def forward(self, x, more):
        hidden = torch.relu(self.first(x) + more["shift"])
        return self.second(hidden), hidden.sum(1)


def without_executable_stack(library):
    """PyTorch's constants ask for one, which glibc 2.41 refuses: clears the flag of the program header PT_GNU_STACK."""
    library = bytearray(library)
    offset, = struct.unpack_from("<Q", library, 0x20)
    size, count = struct.unpack_from("<HH", library, 0x36)
    for header in range(offset, offset + size * count, size):
        kind, flags = struct.unpack_from("<II", library, header)
        if kind == 0x6474E551:
            struct.pack_into("<I", library, header + 4, flags & ~1)
    return bytes(library)


flags = cpp_builder._get_optimization_cflags
cpp_builder._get_optimization_cflags = lambda *args, **named: tuple(
    [flag for flag in part if flag != "march=native"] for part in flags(*args, **named))

torch.manual_seed(5)
net = Net().eval()
x, shift = torch.randn(6, 4), torch.randn(8)
batch = torch.export.Dim("batch", min=1, max=64)
exported = torch.export.export(net, (x, {"shift": shift}), dynamic_shapes=({0: batch}, {"shift": None}))
tensors = {"x": x, "shift": shift}
tensors["logits"], tensors["sums"] = net(x, {"shift": shift})
with tempfile.TemporaryDirectory() as folder, torch._inductor.config.patch({"cpp.simdlen": 1}):
    made = pathlib.Path(torch._inductor.aoti_compile_and_package(exported, package_path=f"{folder}/model.pt2"))
    # Compressed, and without the sources.
    with zipfile.ZipFile(made) as full, zipfile.ZipFile(HERE / "compiled_model.pt2", "w") as small:
        for entry in full.infolist():
            text = b"" if entry.filename.endswith(".cpp") else full.read(entry)
            if entry.filename.endswith(".so"):
                text = without_executable_stack(text)
            small.writestr(zipfile.ZipInfo(entry.filename), text, zipfile.ZIP_DEFLATED)
other = Net().eval()
save_file(other.state_dict(), HERE / "compiled_weights.safetensors")
with torch.no_grad():
    for (_, own), (_, given) in zip(net.named_parameters(), other.named_parameters()):
        if own.dim() == 2:  # biases may have become part of the code
            own.copy_(given)
tensors["other_logits"] = net(x, {"shift": shift})[0]
save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()},
          HERE / "compiled_model.safetensors")
