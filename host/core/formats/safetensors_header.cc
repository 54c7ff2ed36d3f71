#include "formats/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.h"

static_assert(std::endian::native == std::endian::little,
              "safetensors data is little-endian and is used in place");

namespace coupler::safetensors {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  uint64_t bits;
};

constexpr std::array<DTypeRow, 22> kDTypes{{
    {DType::kBool, "BOOL", 8},
    {DType::kF4, "F4", 4},
    {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6},
    {DType::kU8, "U8", 8},
    {DType::kI8, "I8", 8},
    {DType::kF8E5M2, "F8_E5M2", 8},
    {DType::kF8E4M3, "F8_E4M3", 8},
    {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8},
    {DType::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8},
    {DType::kI16, "I16", 16},
    {DType::kU16, "U16", 16},
    {DType::kF16, "F16", 16},
    {DType::kBF16, "BF16", 16},
    {DType::kI32, "I32", 32},
    {DType::kU32, "U32", 32},
    {DType::kF32, "F32", 32},
    {DType::kC64, "C64", 64},
    {DType::kF64, "F64", 64},
    {DType::kI64, "I64", 64},
    {DType::kU64, "U64", 64},
}};

// The events of one header, parsed without building a document: rejects duplicate keys, nesting,
// unknown fields and wrong types on the way. Fills the header's tensors (in JSON order), index and
// metadata; the layout is not checked yet. The state says what the enclosing brackets are; every
// handler returns false after setting problem_, which ends the parse.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderEvents(Header& header) : header_(header) {}

  std::optional<Problem> take_problem() { return std::move(problem_); }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t value) override {
    return refuse(fmt::format("the negative number {}", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    return refuse("the number " + text.substr(0, 40));
  }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) {
      if (tensor_.shape.size() == kMaxRank)
        return fail(fmt::format("shape has more than {} dimensions", kMaxRank));
      if (!std::in_range<int64_t>(value)) return fail("a dimension of shape exceeds 2^63 - 1");
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsets) {
      if (offsets_ == 2) return fail("data_offsets must hold two numbers, begin and end");
      (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    return refuse(fmt::format("the number {}", value));
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      header_.metadata[metadata_key_] = std::move(value);
      return true;
    }
    if (state_ != State::kTensor || field_ != Field::kDType) return refuse("a string");
    const auto* row = std::find_if(kDTypes.begin(), kDTypes.end(),
                                   [&](const DTypeRow& r) { return r.name == value; });
    if (row == kDTypes.end())
      return fail(
          fmt::format("the format has no dtype '{:.40}' (it has F32, BF16, I64, …)", value));
    tensor_.dtype = row->dtype;
    return true;
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTop:
        state_ = in_metadata_ ? State::kMetadata : State::kTensor;
        return true;
      default:
        return refuse("an object");
    }
  }

  bool key(string_t& name) override {
    if (state_ == State::kMetadata) {
      if (header_.metadata.contains(name))
        return fail(fmt::format("{} has the key '{:.80}' twice", kMetadataKey, name));
      metadata_key_ = std::move(name);
      return true;
    }
    return state_ == State::kTop ? top_key(name) : tensor_key(name);
  }

  bool end_object() override {
    if (state_ == State::kTop) {
      state_ = State::kStart;
      return true;
    }
    if (state_ == State::kTensor) {
      for (size_t i = 0; i < seen_.size(); ++i)
        if (!seen_[i]) return fail(fmt::format("{} is missing", kFieldNames[i]));
      header_.index.emplace(tensor_.name, header_.tensors.size());
      header_.tensors.push_back(std::move(tensor_));
    }
    state_ = State::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || field_ == Field::kDType) return refuse("an array");
    state_ = field_ == Field::kShape ? State::kShape : State::kOffsets;
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && offsets_ != 2)
      return fail("data_offsets must hold two numbers, begin and end");
    state_ = State::kTensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // The text after "syntax error …: " describes the problem; byte positions count from 1.
    problem_ = Problem{tensor_.name, fmt::format("the header is not valid JSON in UTF-8, at its "
                                                 "byte {}: {:.200}",
                                                 position, error.what())};
    return false;
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum class Field { kDType, kShape, kOffsets };
  static constexpr std::array<std::string_view, 3> kFieldNames{"dtype", "shape", "data_offsets"};

  bool top_key(string_t& name) {
    in_metadata_ = name == kMetadataKey;
    const bool twice =
        in_metadata_ ? std::exchange(metadata_seen_, true) : header_.index.contains(name);
    tensor_ = TensorInfo{std::move(name), DType::kU8, {}, 0, 0};
    if (twice) return fail("the header names it twice");
    if (!in_metadata_ && header_.tensors.size() == kMaxTensors)
      return fail(fmt::format("the header names more than {} tensors", kMaxTensors));
    seen_.fill(false);
    offsets_ = 0;
    return true;
  }

  bool tensor_key(const string_t& name) {
    for (size_t i = 0; i < kFieldNames.size(); ++i) {
      if (name != kFieldNames[i]) continue;
      if (std::exchange(seen_[i], true)) return fail(fmt::format("{} is given twice", name));
      field_ = static_cast<Field>(i);
      return true;
    }
    return fail(fmt::format("the field '{:.40}' is not one of dtype, shape, data_offsets", name));
  }

  bool refuse(const std::string& what) {
    switch (state_) {
      case State::kStart:
        return fail("the header must be one JSON object, not " + what);
      case State::kTop:
        return fail("its value must be an object, not " + what);
      case State::kMetadata:
        return fail(fmt::format("'{:.80}' must be a string, not {}", metadata_key_, what));
      case State::kTensor:
        return fail(fmt::format("{} must be {}, not {}", kFieldNames[static_cast<size_t>(field_)],
                                field_ == Field::kDType ? "a string" : "an array", what));
      case State::kShape:
        return fail("shape must hold whole numbers ≥ 0, not " + what);
      case State::kOffsets:
        return fail("data_offsets must hold whole numbers ≥ 0, not " + what);
    }
    return fail(what);
  }

  bool fail(std::string rule) {
    problem_ = Problem{tensor_.name, std::move(rule)};
    return false;
  }

  Header& header_;
  std::optional<Problem> problem_;
  State state_ = State::kStart;
  Field field_ = Field::kDType;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  std::string metadata_key_;
  TensorInfo tensor_{};
  std::array<bool, 3> seen_{};
  int offsets_ = 0;
};

const DTypeRow& row_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

[[noreturn]] void broken(const std::string& file, const Problem& problem) {
  refuse_file(ErrorCode::kIo, file, problem,
              "the file is damaged or not a safetensors file; copy or write it again");
}

// The layout rules: every tensor's range has the length that its shape and dtype require, ranges in
// offset order have neither holes nor overlaps, and the last one ends at the end of the file.
std::optional<Problem> check_layout(const std::vector<TensorInfo>& tensors, uint64_t data_bytes) {
  uint64_t previous_end = 0;
  for (const TensorInfo& tensor : tensors) {
    const auto problem = [&](std::string rule) { return Problem{tensor.name, std::move(rule)}; };
    const std::string range = fmt::format("data_offsets [{}, {}]", tensor.begin, tensor.end);
    if (tensor.begin > tensor.end) return problem(range + " end before they begin");
    if (tensor.end > data_bytes)
      return problem(fmt::format("{} reach past the file's {} bytes of data", range, data_bytes));
    const auto size = tensor_bytes(tensor.dtype, tensor.shape);
    if (!size)
      return problem(fmt::format("shape × dtype {} is not a whole number of bytes below 2^63",
                                 to_string(tensor.dtype)));
    if (tensor.end - tensor.begin != *size)
      return problem(fmt::format("{} hold {} bytes, but shape × dtype {} needs {}", range,
                                 tensor.end - tensor.begin, to_string(tensor.dtype), *size));
    if (tensor.begin != previous_end)
      return problem(fmt::format("{} {} the previous tensor, which ends at {}", range,
                                 tensor.begin < previous_end ? "overlap" : "leave a hole after",
                                 previous_end));
    previous_end = tensor.end;
  }
  if (previous_end != data_bytes)
    return Problem{"", fmt::format("{} bytes of data, but the tensors end at byte {}: trailing "
                                   "bytes are not allowed",
                                   data_bytes, previous_end)};
  return std::nullopt;
}

}  // namespace

std::string_view to_string(DType dtype) { return row_of(dtype).name; }
uint64_t bits(DType dtype) { return row_of(dtype).bits; }

void refuse_file(ErrorCode code, const std::string& file, const Problem& problem,
                 const std::string& hint) {
  const std::string tensor = for_message(problem.tensor);
  throw Error(code,
              tensor.empty() ? fmt::format("{}: {}", file, problem.rule)
                             : fmt::format("{}: tensor '{}': {}", file, tensor, problem.rule),
              {.subject = tensor.empty() ? file : tensor, .hint = hint});
}

std::optional<uint64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape) {
  constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  uint64_t elements = 1;
  bool empty = false;
  for (const int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    empty = empty || dimension == 0;
    const uint64_t factor = std::max<int64_t>(dimension, 1);
    if (elements > kMax / factor) return std::nullopt;
    elements *= factor;
  }
  if (elements > kMax / bits(dtype)) return std::nullopt;
  const uint64_t all_bits = empty ? 0 : elements * bits(dtype);
  if (all_bits % 8 != 0) return std::nullopt;
  return all_bits / 8;
}

Header parse_header(const uint8_t* bytes, uint64_t size, const std::string& file) {
  uint64_t length = 0;
  if (size < sizeof length)
    broken(file, {"", fmt::format("{} bytes are too few for the 8-byte header length", size)});
  std::memcpy(&length, bytes, sizeof length);
  const uint64_t rest = size - sizeof length;
  if (length > kMaxHeaderBytes)
    broken(file,
           {"", fmt::format("header length {} exceeds the format's {}", length, kMaxHeaderBytes)});
  if (length > rest)
    broken(file,
           {"", fmt::format("header length {} exceeds the {} bytes that follow it", length, rest)});
  const std::string_view json(reinterpret_cast<const char*>(bytes) + sizeof length, length);
  if (!json.starts_with('{')) broken(file, {"", "the header must start with '{'"});
  // The JSON parser would take it for the end and ignore what follows.
  if (json.find('\0') != std::string_view::npos) broken(file, {"", "the header holds a NUL byte"});

  Header header;
  header.data_offset = sizeof length + length;
  HeaderEvents events(header);
  nlohmann::json::sax_parse(json.begin(), json.end(), &events);
  if (const auto problem = events.take_problem()) broken(file, *problem);
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  for (size_t i = 0; i < header.tensors.size(); ++i) header.index[header.tensors[i].name] = i;
  if (const auto problem = check_layout(header.tensors, rest - length)) broken(file, *problem);
  return header;
}

}  // namespace coupler::safetensors
