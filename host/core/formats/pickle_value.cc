#include <coupler/error.h>
#include <fmt/format.h>

#include <array>

#include "formats/pickle.h"
#include "formats/pickle_globals.h"

namespace coupler::pickle {
namespace {

constexpr std::array<std::string_view, 12> kKinds{
    "None",   "a boolean", "an integer",   "a number", "a string",  "bytes",
    "a list", "a tuple",   "a dictionary", "a type",   "a storage", "a tensor"};

[[noreturn]] void mismatch(Kind kind, std::string_view wanted) {
  throw Error(ErrorCode::kIo, fmt::format("{} where {} is expected", to_string(kind), wanted),
              {.subject = {}, .hint = "check that the file is of the expected kind"});
}

}  // namespace

std::string_view to_string(Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

bool Value::boolean() const {
  if (kind_ != Kind::kBool) mismatch(kind_, to_string(Kind::kBool));
  return std::get<bool>(content_);
}

int64_t Value::integer() const {
  if (kind_ != Kind::kInt) mismatch(kind_, to_string(Kind::kInt));
  return std::get<int64_t>(content_);
}

double Value::real() const {
  if (kind_ == Kind::kInt) return static_cast<double>(std::get<int64_t>(content_));
  if (kind_ != Kind::kDouble) mismatch(kind_, to_string(Kind::kDouble));
  return std::get<double>(content_);
}

std::string_view Value::text() const {
  if (kind_ == Kind::kGlobal) return std::get<const Global*>(content_)->name;
  if (kind_ != Kind::kString && kind_ != Kind::kBytes) mismatch(kind_, to_string(Kind::kString));
  return std::get<std::string_view>(content_);
}

const Storage& Value::storage() const {
  if (kind_ != Kind::kStorage) mismatch(kind_, to_string(Kind::kStorage));
  return *std::get<const Storage*>(content_);
}

const Tensor& Value::tensor() const {
  if (kind_ != Kind::kTensor) mismatch(kind_, to_string(Kind::kTensor));
  return *std::get<const Tensor*>(content_);
}

std::span<const Value* const> Value::items() const {
  const auto* items = std::get_if<Items>(&content_);
  if (items == nullptr) mismatch(kind_, "a list, tuple or dictionary");
  return {items->data(), items->size()};
}

const Value* Value::find(std::string_view key) const {
  if (kind_ != Kind::kDict) mismatch(kind_, to_string(Kind::kDict));
  const auto all = items();
  for (size_t i = 0; i < all.size(); i += 2)
    if (all[i]->kind() == Kind::kString && all[i]->text() == key) return all[i + 1];
  return nullptr;
}

}  // namespace coupler::pickle
