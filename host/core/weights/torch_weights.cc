#include "weights/torch_weights.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "base/file_text.h"
#include "formats/torch_archive.h"
#include "weights/row_major.h"

namespace coupler {
namespace {

// Shared by all tensors of a file.
struct OpenArchive {
  TorchArchive archive;
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
      keys += fmt::format("{}'{}'", keys.empty() ? "" : ", ", shown(items[i]->text()));
  }
  return keys;
}

[[noreturn]] void refuse_torch_file(const std::string& path, const std::string& problem,
                                    std::string hint) {
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path, problem),
              {.subject = path, .hint = std::move(hint)});
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
    refuse_torch_file(path, "its root is not a state dict, but contains others", hint);
  }
  const pickle::Value* found = root.find(key);
  if (found == nullptr) refuse_torch_file(path, fmt::format("it has no '{}'", shown(key)), hint);
  if (!is_state_dict(*found) && !keys.empty())
    refuse_torch_file(path, fmt::format("'{}' is not a dictionary of tensors", shown(key)), hint);
  return *found;
}

WeightTensor torch_weight(const std::shared_ptr<OpenArchive>& open, const TorchTensor& tensor) {
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
  return std::make_shared<OpenArchive>(OpenArchive{TorchArchive::open(path)});
}

}  // namespace

WeightSource open_torch(const std::string& path, const std::string& key) {
  const auto open = open_archive(path);
  const pickle::Value& dictionary = find_state_dict(open->archive.root(), path, key);
  WeightSource source{.tensors = {}, .aliases = {}, .files = {path}, .folder = {}};
  using View = std::tuple<std::string, uint64_t, safetensors::DType, std::vector<int64_t>,
                          std::vector<int64_t>>;
  std::map<View, std::string> views;
  for (const TorchTensor& tensor : open->archive.tensors(dictionary)) {
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

}  // namespace coupler
