// A small model with the features that make placement hard: residual connections, a tied head, both
// kinds of buffers; and its checkpoints. Single-threaded.
#pragma once

#include <ATen/ops/gelu.h>
#include <coupler/big_model.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/linear.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "formats/safetensors_writer.h"
#include "tensors/safetensors.h"

namespace coupler::testing {

namespace nn = torch::nn;

struct BlockImpl : nn::Module {
  explicit BlockImpl(int64_t width) {
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    up = register_module("up", nn::Linear(width, 4 * width));
    down = register_module("down", nn::Linear(4 * width, width));
    scale = register_buffer("scale", torch::full({1}, 0.5));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x + down->forward(at::gelu(up->forward(norm->forward(x)))) * scale;
  }
  nn::LayerNorm norm{nullptr};
  nn::Linear up{nullptr}, down{nullptr};
  at::Tensor scale;
};
TORCH_MODULE(Block);

// Shares its weight with another module.
struct HeadImpl : nn::Module {
  explicit HeadImpl(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
  at::Tensor forward(const at::Tensor& x) { return nn::functional::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Head);

struct SmallGptImpl : nn::Module {
  explicit SmallGptImpl(int64_t layers = 3, int64_t width = 32) {
    embedding = register_module("embedding", nn::Embedding(17, width));
    for (int64_t i = 0; i < layers; ++i) blocks->push_back(Block(width));
    register_module("blocks", blocks);
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    head = register_module("head", Head(embedding->weight));
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor x = embedding->forward(tokens);
    for (const auto& block : *blocks) x = x + 0.1 * block->as<BlockImpl>()->forward(x);
    return head->forward(norm->forward(x));
  }
  nn::Embedding embedding{nullptr};
  nn::ModuleList blocks;
  nn::LayerNorm norm{nullptr};
  Head head{nullptr};
};
TORCH_MODULE(SmallGpt);

inline SmallGpt real_gpt(int64_t layers = 3, int64_t width = 32) {
  torch::manual_seed(3);
  return SmallGpt(layers, width);
}
inline SmallGpt empty_gpt(int64_t layers = 3, int64_t width = 32) {
  const EmptyWeights empty;
  return SmallGpt(layers, width);
}
inline at::Tensor tokens() { return torch::arange(24, torch::kLong).remainder(17).view({2, 12}); }
inline at::Tensor output_of(SmallGpt& model, const at::Tensor& input = tokens()) {
  const torch::NoGradGuard no_grad;
  return model->forward(input).cpu();
}

// The largest difference between results that different kernels may have computed.
inline double difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.cpu() - b.cpu()).abs().max().item<double>();
}

// A temporary folder of one test.
class Folder {
 public:
  Folder() {
    std::string path = (std::filesystem::temp_directory_path() / "coupler-big-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = path;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string at(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

using TensorMap = std::map<std::string, at::Tensor>;

// Parameters and buffers; tied ones under their first names.
inline TensorMap tensors_of(const nn::Module& module) {
  TensorMap result;
  std::vector<const void*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (std::find(seen.begin(), seen.end(), tensor.unsafeGetTensorImpl()) != seen.end()) return;
    seen.push_back(tensor.unsafeGetTensorImpl());
    result[name] = tensor.detach();
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value());
  for (const auto& item : module.named_buffers()) add(item.key(), item.value());
  return result;
}

inline void write_safetensors(const std::string& path, const TensorMap& tensors) {
  std::vector<safetensors::TensorEntry> entries;
  for (const auto& [name, tensor] : tensors)
    entries.push_back(
        {name, safetensors::dtype_of(tensor.scalar_type(), name), tensor.sizes().vec()});
  safetensors::Writer writer(path, entries);
  for (const auto& info : writer.tensors()) {
    const at::Tensor tensor = tensors.at(info.name).contiguous();
    writer.write(info.name, tensor.const_data_ptr(), tensor.nbytes());
  }
  writer.finish();
}

// The message of the Error that action throws, which must have a hint.
inline std::string hinted_message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_FALSE(error.detail().hint.empty()) << error.what();
    return error.what();
  }
  return "no error";
}

// The file whose mapping contains this address; "" for other memory.
inline std::string file_at(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) continue;
    const auto place = reinterpret_cast<unsigned long>(address);
    if (place < begin || place >= end) continue;
    const size_t slash = line.find('/');
    return slash == std::string::npos ? "" : line.substr(slash);
  }
  return "";
}

}  // namespace coupler::testing
