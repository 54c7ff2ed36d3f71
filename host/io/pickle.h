// Reads the pickles that torch.save writes without executing anything: what they may hold is
// containers, strings, numbers, tensors and storages; a pickle that names any other function or
// class is refused by that name. A pure function on bytes, any thread; the values it returns are
// immutable, and any thread may read them. Sees no LibTorch.
//
// Files come from strangers. Work and memory grow linearly with the size of the pickle (n log n for
// the keys of dictionaries), and size, number of values and depth are capped; a container that
// holds itself is refused. Values that are shared are visited by a walk as often as they are met,
// and the cap is on that number: a walk over all of a tree, recursive too, ends soon.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "io/safetensors_header.h"

namespace coupler::pickle {

inline constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxValues = uint64_t{1} << 23;
inline constexpr uint64_t kMaxDepth = 100;
inline constexpr uint64_t kMaxTensors = safetensors::kMaxTensors;
inline constexpr uint64_t kMaxRank = safetensors::kMaxRank;
inline constexpr uint64_t kMaxKeyBytes = 1024;  // of dictionaries

enum class Kind : uint8_t {
  kNone,
  kBool,
  kInt,
  kDouble,
  kString,  // UTF-8
  kBytes,
  kList,  // or a set
  kTuple,
  kDict,
  kGlobal,  // a type such as torch.float32
  kStorage,
  kTensor,
};

std::string_view to_string(Kind kind);  // "a list"

// What a tensor's or a storage's elements are.
struct ElementType {
  std::string_view name;  // "torch.float32"
  uint64_t bytes;
  std::optional<safetensors::DType> dtype;  // none for torch.complex128, which that format lacks
};

// A storage by reference: its bytes are an entry of the archive that the pickle is in.
struct Storage {
  std::string_view key;
  std::string_view location;  // "cpu", "cuda:0": where it was
  const ElementType* type;    // null: untyped, one byte each
  uint64_t bytes;             // what the pickle says
};

// Not checked yet: whether the elements lie inside the storage.
struct Tensor {
  const Storage* storage;
  const ElementType* type;
  uint64_t offset;               // in elements; fits int64_t, as all here
  std::vector<int64_t> shape;    // none negative
  std::vector<int64_t> strides;  // in elements, none negative, one for each dimension
};

struct Global;

// One value. Reading it as another kind than it is throws Error(kIo) that names both kinds.
class Value {
 public:
  using Items = std::vector<Value*>;
  using Content = std::variant<std::monostate, bool, int64_t, double, std::string_view, Items,
                               const Storage*, const Tensor*, const Global*>;

  Value(Kind kind, Content content) : content_(std::move(content)), kind_(kind) {}

  Kind kind() const { return kind_; }
  bool boolean() const;
  int64_t integer() const;
  double real() const;            // of a whole number too
  std::string_view text() const;  // of a string, of bytes, of a type its name
  const Storage& storage() const;
  const Tensor& tensor() const;
  // Of a list or tuple; of a dictionary key, value, key, value, … in its order. Keys are strings or
  // whole numbers, none of them twice.
  std::span<const Value* const> items() const;
  // A dictionary's value for a key, or null; looks at one key after the other.
  const Value* find(std::string_view key) const;

 private:
  friend class Machine;
  friend class TreeCheck;

  Content content_;
  Kind kind_;
  bool ordered_ = false;  // a collections.OrderedDict
  uint8_t height_ = 0;    // TreeCheck's: containers below it and itself, 0 where not yet known
  uint32_t total_ = 0;    // TreeCheck's: values that a walk from here visits
};

// The value that a pickle of protocol 2 to 5 holds; the pointer keeps alive what is below. Its
// texts lie in `bytes`, which must outlive it. Throws Error(kIo) naming `file`, the byte of the
// pickle and what is wrong there.
std::shared_ptr<const Value> read(std::string_view bytes, const std::string& file);

}  // namespace coupler::pickle
