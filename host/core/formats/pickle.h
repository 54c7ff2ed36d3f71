// Reads the pickles that torch.save writes without executing anything. They may hold containers,
// strings, numbers, tensors and storages; a pickle that names any other function or class is
// rejected with that name. A pure function on bytes, any thread; the values it returns are
// immutable, and any thread may read them. Does not depend on LibTorch.
//
// Files are untrusted. Work and memory grow linearly with the size of the pickle (n log n for the
// keys of dictionaries); size, number of values and depth are capped; a container that holds itself
// is rejected. A walk visits shared values each time they are referenced, and the cap applies to
// that number, so that a walk over the whole tree, even a recursive one, ends soon.
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

#include "formats/safetensors_header.h"

namespace coupler::pickle {

inline constexpr uint64_t kMaxBytes = uint64_t{64} << 20;
inline constexpr uint64_t kMaxValues = uint64_t{1} << 23;
inline constexpr uint64_t kMaxDepth = 100;
inline constexpr uint64_t kMaxTensors = safetensors::kMaxTensors;
inline constexpr uint64_t kMaxRank = safetensors::kMaxRank;
inline constexpr uint64_t kMaxKeyBytes = 1024;  // of a dictionary's key

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

// The element type of a tensor or storage.
struct ElementType {
  std::string_view name;  // "torch.float32"
  uint64_t bytes;
  std::optional<safetensors::DType> dtype;  // none for torch.complex128, which safetensors lacks
};

// A reference to a storage: its bytes are an entry of the archive that contains the pickle.
struct Storage {
  std::string_view key;
  std::string_view location;  // "cpu", "cuda:0": where it was saved from
  const ElementType* type;    // null: untyped, one byte each
  uint64_t bytes;             // according to the pickle
};

// Whether the elements lie inside the storage is not checked yet.
struct Tensor {
  const Storage* storage;
  const ElementType* type;
  uint64_t offset;               // in elements; fits int64_t, like all of these
  std::vector<int64_t> shape;    // none negative
  std::vector<int64_t> strides;  // in elements, none negative, one per dimension
};

struct Global;

// One value. Reading it as a different kind throws Error(kIo) that names both kinds.
class Value {
 public:
  using Items = std::vector<Value*>;
  using Content = std::variant<std::monostate, bool, int64_t, double, std::string_view, Items,
                               const Storage*, const Tensor*, const Global*>;

  Value(Kind kind, Content content) : content_(std::move(content)), kind_(kind) {}

  Kind kind() const { return kind_; }
  bool boolean() const;
  int64_t integer() const;
  double real() const;            // also of an integer
  std::string_view text() const;  // of a string or bytes; a type's name
  const Storage& storage() const;
  const Tensor& tensor() const;
  // The items of a list or tuple; for a dictionary key, value, key, value, … in its order. Keys are
  // unique strings or integers.
  std::span<const Value* const> items() const;
  // A dictionary's value for a key, or null; a linear search.
  const Value* find(std::string_view key) const;

 private:
  friend class Machine;
  friend class TreeCheck;

  Content content_;
  Kind kind_;
  bool ordered_ = false;  // a collections.OrderedDict
  uint8_t height_ = 0;    // TreeCheck's: nesting depth including itself; 0: not yet known
  uint32_t total_ = 0;    // TreeCheck's: values that a walk from here visits
};

// The value that a pickle of protocol 2 to 5 holds; the pointer keeps everything below alive. Its
// strings point into `bytes`, which must outlive it. Throws Error(kIo) naming `file`, the byte of
// the pickle and what is wrong there.
std::shared_ptr<const Value> read(std::string_view bytes, const std::string& file);

}  // namespace coupler::pickle
