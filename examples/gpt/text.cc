#include "text.h"

#include <ATen/ops/empty.h>
#include <coupler/error.h>

#include <fstream>
#include <iterator>
#include <string>

Text::Text(const std::string& path, int64_t sequence) : sequence_(static_cast<size_t>(sequence)) {
  std::ifstream file(path, std::ios::binary);
  bytes_.assign(std::istreambuf_iterator<char>(file), {});
  if (!file)
    throw coupler::Error(
        coupler::ErrorCode::kIo, "cannot read the text '" + path + "'",
        {.subject = path,
         .hint = "create it with examples/gpt/get-text FILE, or choose another with --text FILE"});
  if (bytes_.size() <= sequence_)
    throw coupler::Error(coupler::ErrorCode::kInvalidArgument,
                         "the text '" + path + "' has " + std::to_string(bytes_.size()) +
                             " bytes; one sample needs " + std::to_string(sequence_ + 1),
                         {.subject = path, .hint = "lower --seq or use a longer text"});
}

torch::data::Example<> Text::get_batch(c10::ArrayRef<size_t> indices) {
  const auto rows = static_cast<int64_t>(indices.size());
  const auto columns = static_cast<int64_t>(sequence_);
  at::Tensor data = at::empty({rows, columns}, at::kLong);
  at::Tensor target = at::empty({rows, columns}, at::kLong);
  auto* data_out = data.mutable_data_ptr<int64_t>();
  auto* target_out = target.mutable_data_ptr<int64_t>();
  for (const size_t index : indices) {
    const auto* window = reinterpret_cast<const unsigned char*>(&bytes_[index * sequence_]);
    for (size_t i = 0; i < sequence_; ++i) {
      *data_out++ = window[i];
      *target_out++ = window[i + 1];
    }
  }
  return {data, target};
}

std::optional<size_t> Text::size() const { return (bytes_.size() - 1) / sequence_; }
