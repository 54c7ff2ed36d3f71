#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/torch_archive.h"
#include "weights/open_weights.h"

namespace coupler::weights {
namespace {

struct Dimension {
  uint64_t size;
  uint64_t stride;  // in elements
};

// Drops dimensions of size 1 and joins those that are adjacent in memory: a contiguous tensor has
// at most one, of stride 1.
std::vector<Dimension> joined(const std::vector<int64_t>& shape,
                              const std::vector<int64_t>& strides) {
  std::vector<Dimension> result;
  for (size_t i = 0; i < shape.size(); ++i) {
    const Dimension next{static_cast<uint64_t>(shape[i]), static_cast<uint64_t>(strides[i])};
    if (next.size == 1) continue;
    if (!result.empty() && result.back().stride == next.stride * next.size)
      result.back() = {result.back().size * next.size, next.stride};
    else
      result.push_back(next);
  }
  return result;
}

// Collects bytes into chunks.
class Chunks {
 public:
  Chunks(const ByteSink& sink, uint64_t element) : sink_(sink), element_(element) {
    chunk_.resize(kWeightChunk / element * element);
  }

  // `count` elements, each `step` bytes after the previous one.
  void add(const uint8_t* from, uint64_t count, uint64_t step) {
    while (count > 0) {
      const uint64_t part = std::min(count, (chunk_.size() - used_) / element_);
      if (step == element_)
        std::memcpy(chunk_.data() + used_, from, part * element_);
      else
        copy(from, part, step);
      used_ += part * element_;
      from += part * step;
      count -= part;
      if (used_ == chunk_.size()) flush();
    }
  }
  void flush() {
    if (used_ > 0) sink_(chunk_.data(), used_);
    used_ = 0;
  }

 private:
  // With a size known to the compiler, each copy is a load and a store.
  template <size_t kBytes>
  void copy_each(const uint8_t* from, uint64_t count, uint64_t step) {
    char* to = chunk_.data() + used_;
    for (uint64_t i = 0; i < count; ++i) std::memcpy(to + i * kBytes, from + i * step, kBytes);
  }
  void copy(const uint8_t* from, uint64_t count, uint64_t step) {
    switch (element_) {
      case 1:
        return copy_each<1>(from, count, step);
      case 2:
        return copy_each<2>(from, count, step);
      case 4:
        return copy_each<4>(from, count, step);
      case 8:
        return copy_each<8>(from, count, step);
      default:
        for (uint64_t i = 0; i < count; ++i)
          std::memcpy(chunk_.data() + used_ + i * element_, from + i * step, element_);
    }
  }

  const ByteSink& sink_;
  const uint64_t element_;
  std::vector<char> chunk_;
  uint64_t used_ = 0;
};

// Whether the elements are already adjacent in row-major order.
bool is_row_major(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  const std::vector<Dimension> dimensions = joined(shape, strides);
  return dimensions.empty() || (dimensions.size() == 1 && dimensions[0].stride == 1);
}

}  // namespace

void read_row_major(const uint8_t* first, const std::vector<int64_t>& shape,
                    const std::vector<int64_t>& strides, uint64_t bytes, const ByteSink& sink) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
  std::vector<Dimension> dimensions = joined(shape, strides);
  if (dimensions.empty()) dimensions.push_back({1, 1});
  const Dimension row = dimensions.back();
  dimensions.pop_back();
  if (is_row_major(shape, strides)) return send_chunks(first, row.size * bytes, sink);
  Chunks chunks(sink, bytes);
  std::vector<uint64_t> index(dimensions.size(), 0);
  uint64_t offset = 0;  // of the row, in elements
  for (;;) {
    chunks.add(first + offset * bytes, row.size, row.stride * bytes);
    size_t i = dimensions.size();
    for (; i > 0; --i) {
      const Dimension& dimension = dimensions[i - 1];
      offset += dimension.stride;
      if (++index[i - 1] < dimension.size) break;
      offset -= dimension.stride * dimension.size;
      index[i - 1] = 0;
    }
    if (i == 0) break;
  }
  chunks.flush();
}

namespace {

// Shared by all tensors of a file.
struct OpenArchive {
  formats::TorchArchive archive;
  bool verified = false;
};

bool is_state_dict(const pickle::Value& value) {
  if (value.kind() != pickle::Kind::kDict || value.items().empty()) return false;
  const auto items = value.items();
  for (size_t i = 0; i < items.size(); i += 2) {
    if (items[i]->kind() != pickle::Kind::kString || items[i + 1]->kind() != pickle::Kind::kTensor)
      return false;
  }
  return true;
}

// "'model', 'ema'": the keys of the root whose values are state dicts.
std::string keys_that_would_do(const pickle::Value& root) {
  std::string keys;
  const auto items = root.items();
  for (size_t i = 0; i < items.size(); i += 2) {
    if (items[i]->kind() == pickle::Kind::kString && is_state_dict(*items[i + 1]))
      keys += fmt::format("{}'{}'", keys.empty() ? "" : ", ", for_message(items[i]->text()));
  }
  return keys;
}

const pickle::Value& find_state_dict(const pickle::Value& root, const std::string& path,
                                     const std::string& key) {
  if (root.kind() != pickle::Kind::kDict || (key.empty() && is_state_dict(root))) return root;
  const std::string keys = keys_that_would_do(root);
  const std::string hint =
      keys.empty()
          ? "no dictionary in it holds only tensors; if you trust its author, load it with "
            "PyTorch and torch.save the state_dict()"
          : "name the dictionary with --key: " + keys;
  if (key.empty()) {
    if (keys.empty()) return root;  // its reader reports what is wrong with it
    fail_argument(path + ": its root is not a state dict, but contains others", path, hint);
  }
  const pickle::Value* found = root.find(key);
  if (found == nullptr)
    fail_argument(fmt::format("{}: it has no '{}'", path, for_message(key)), path, hint);
  if (!is_state_dict(*found) && !keys.empty())
    fail_argument(fmt::format("{}: '{}' is not a dictionary of tensors", path, for_message(key)),
                  path, hint);
  return *found;
}

WeightTensor torch_weight(const std::shared_ptr<OpenArchive>& open,
                          const formats::TorchTensor& tensor) {
  const uint64_t element = safetensors::bits(tensor.dtype) / 8;
  const auto verify = [open] {
    if (!open->verified) open->archive.verify();
    open->verified = true;
  };
  WeightTensor weight{tensor.name, tensor.dtype, tensor.shape,
                      [open, verify, element, shape = tensor.shape, strides = tensor.strides,
                       begin = tensor.bytes.begin](const ByteSink& sink) {
                        verify();
                        read_row_major(open->archive.data() + begin, shape, strides, element, sink);
                      }};
  if (is_row_major(tensor.shape, tensor.strides)) {
    weight.place = {open->archive.file(), tensor.bytes.begin};
    weight.verify = verify;
  }
  return weight;
}

std::shared_ptr<OpenArchive> open_archive(const std::string& path) {
  return std::make_shared<OpenArchive>(OpenArchive{formats::TorchArchive::open(path)});
}

}  // namespace

WeightSource open_torch(const std::string& path, const std::string& key) {
  const auto open = open_archive(path);
  const pickle::Value& dictionary = find_state_dict(open->archive.root(), path, key);
  WeightSource source{.tensors = {}, .aliases = {}, .files = {path}, .folder = {}};
  using View = std::tuple<std::string, uint64_t, safetensors::DType, std::vector<int64_t>,
                          std::vector<int64_t>>;
  std::map<View, std::string> views;
  for (const formats::TorchTensor& tensor : open->archive.tensors(dictionary)) {
    // Tensors without elements all have the same (empty) bytes, but are not tied.
    const bool empty = tensor.bytes.begin == tensor.bytes.end;
    const auto [first, is_first] = views.try_emplace(
        {tensor.storage_key, tensor.offset, tensor.dtype, tensor.shape, tensor.strides},
        tensor.name);
    if (is_first || empty)
      source.tensors.push_back(torch_weight(open, tensor));
    else
      source.aliases.emplace(tensor.name, first->second);
  }
  return source;
}

WeightSource open_torch_tensor(const std::string& path, const std::string& key,
                               const std::string& name) {
  const auto open = open_archive(path);
  const pickle::Value* value = &open->archive.root();
  if (value->kind() == pickle::Kind::kDict) value = value->find(key);
  if (value == nullptr || value->kind() != pickle::Kind::kTensor)
    throw Error(
        ErrorCode::kIo, fmt::format("{}: it is not a tensor, and has no tensor '{}'", path, key),
        {.subject = path, .hint = "the file is damaged or of another kind; write it again"});
  WeightSource source{.tensors = {}, .aliases = {}, .files = {path}, .folder = {}};
  source.tensors.push_back(torch_weight(open, open->archive.place(name, value->tensor())));
  return source;
}

}  // namespace coupler::weights
