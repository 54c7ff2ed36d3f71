#include "checkpoint/piece_reader.h"

#include <ATen/Functions.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include "checkpoint/piece_name.h"
#include "residency/in_use.h"
#include "tensors/safetensors_types.h"

namespace coupler::checkpoint {
namespace {

int64_t numel_of(const std::vector<int64_t>& shape) {
  int64_t result = 1;
  for (const int64_t size : shape) result *= size;  // of a tensor: no overflow
  return result;
}

}  // namespace

bool StatePiece::whole() const { return begin == 0 && end == numel_of(shape); }

std::string entry_name(const StatePiece& piece) {
  return piece.whole() ? piece.name : part_name(piece.name, piece.begin, piece.end);
}

void PieceReader::read(const std::string& tensor, const StatePiece& piece) {
  const at::Tensor& values = piece.values;
  if (values.is_contiguous() && values.device().is_cpu()) {
    read_elements(tensor, piece, values);
    return;
  }
  const at::Tensor room = at::empty(values.sizes(), values.options().device(at::kCPU));
  read_elements(tensor, piece, room);
  values.copy_(room);
}

void PieceReader::read_all(
    const std::function<void(const std::string&, const at::Tensor&)>& visit) {
  for (const auto& [name, tensor] : files_.tensors()) {
    const PieceFiles::Part& first = tensor.parts.front();
    const at::Tensor value =
        at::empty(first.shape, at::TensorOptions(safetensors::scalar_type(tensor.dtype, name)));
    read(name,
         {.name = name, .shape = first.shape, .begin = 0, .end = value.numel(), .values = value});
    visit(name, value);
  }
}

void PieceReader::read_elements(const std::string& tensor, const StatePiece& piece,
                                const at::Tensor& into) {
  const auto found = files_.tensors().find(tensor);
  if (piece.numel() > 0 && found != files_.tensors().end()) {
    const auto dtype = safetensors::scalar_type(found->second.dtype, tensor);
    if (dtype != into.scalar_type()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: tensor '{}' is {}, but the program's is {}",
                      files_.path(found->second.parts.front()), tensor, c10::toString(dtype),
                      c10::toString(into.scalar_type())),
          {.subject = tensor, .hint = "load it into a model with the dtypes it was saved with"});
    }
  }
  const InUse in_memory(into, InUse::Access::kWrite);
  files_.read(tensor, piece.begin, piece.end, into.mutable_data_ptr());
}

}  // namespace coupler::checkpoint
