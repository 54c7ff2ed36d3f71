#include "checkpoint/piece_writer.h"

#include <unordered_map>

#include "formats/safetensors_writer.h"
#include "residency/in_use.h"
#include "tensors/safetensors_types.h"

namespace coupler::checkpoint {

WrittenFile write_pieces(const std::string& path, const std::vector<StatePiece>& pieces,
                         const std::map<std::string, std::string>& metadata) {
  std::vector<safetensors::TensorEntry> entries;
  std::unordered_map<std::string, const at::Tensor*> values;
  for (const StatePiece& piece : pieces) {
    const std::string name = entry_name(piece);
    const auto dtype = safetensors::dtype_of(piece.values.scalar_type(), name);
    entries.push_back(
        {name, dtype, piece.whole() ? piece.shape : std::vector<int64_t>{piece.numel()}});
    values[name] = &piece.values;
  }
  safetensors::Writer writer(path, std::move(entries), {metadata.begin(), metadata.end()});
  for (const safetensors::TensorInfo& info : writer.tensors()) {
    const InUse in_memory(*values.at(info.name));
    const at::Tensor value = values.at(info.name)->cpu();  // one at a time
    writer.write(info.name, value.const_data_ptr(), value.nbytes());
  }
  return writer.finish();
}

}  // namespace coupler::checkpoint
