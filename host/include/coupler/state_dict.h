// StateDict: the state that a program's own object saves in a checkpoint, or a program in a file of
// its own (Accelerator::save): named tensors, numbers and strings. A value; not thread-safe.
//
//   struct Progress {
//     int64_t best = 0;
//     void save(coupler::StateDict& state) const { state.set("best", best); }
//     void load(const coupler::StateDict& state) { best = state.integer("best"); }
//   };
//   accelerator.register_for_checkpointing(progress);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace coupler {

class StateDict {
 public:
  // Values other than tensors.
  using Value = std::variant<bool, int64_t, double, std::string>;

  // Sets a value. Tensors may have any layout and device; they are loaded as dense tensors in host
  // memory.
  void set(const std::string& name, const at::Tensor& tensor) { tensors_[name] = tensor; }
  void set(const std::string& name, const std::string& text) { values_[name] = text; }
  void set(const std::string& name, const char* text) { values_[name] = std::string(text); }
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  void set(const std::string& name, T number) {
    if constexpr (std::is_same_v<T, bool>) {
      values_[name] = number;
    } else if constexpr (std::is_integral_v<T>) {
      values_[name] = static_cast<int64_t>(number);
    } else {
      values_[name] = static_cast<double>(number);
    }
  }

  // Whether there is a tensor or value of that name.
  bool has(const std::string& name) const {
    return tensors_.count(name) != 0 || values_.count(name) != 0;
  }

  // Throw Error(kInvalidArgument) naming the value that is missing or of another kind, and the
  // values that exist.
  const at::Tensor& tensor(const std::string& name) const;
  int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;  // accepts integers, too
  bool boolean(const std::string& name) const;
  const std::string& text(const std::string& name) const;

  // Everything that was set, by name.
  const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }
  const std::map<std::string, Value>& values() const { return values_; }

 private:
  const Value& value(const std::string& name, const char* kind) const;
  [[noreturn]] void refuse(const std::string& name, const char* kind) const;

  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, Value> values_;
};

namespace detail {

// A type-erased object registered for checkpointing.
class Stateful {
 public:
  virtual ~Stateful() = default;
  virtual void save(StateDict& state) const = 0;
  virtual void load(const StateDict& state) = 0;
};

}  // namespace detail

// SafeTensors: reads the named tensors of a .safetensors file without copying them. Opening maps
// the file and checks its header against every rule of the format, which takes well under a
// millisecond for any file size. Immutable after open, so any thread may call it; cheap to copy.
class SafeTensors {
 public:
  // Throws Error(kIo) naming the file, the tensor if one is at fault, and the violated rule.
  static SafeTensors open(const std::string& path);

  // In the order of their bytes in the file.
  const std::vector<std::string>& names() const;
  bool contains(const std::string& name) const;

  // Returns the tensor, on CPU. Its storage is the mapped file, which stays mapped while any such
  // tensor is alive; treat it as read-only (a write changes this process's copy of the page, not
  // the file). It is a copy only if the file does not align the bytes to the element size. Throws
  // Error(kInvalidArgument) for a name not in the file, Error(kUnsupported) for a dtype LibTorch
  // lacks, Error(kIo) for a BOOL byte other than 0 and 1.
  at::Tensor tensor(const std::string& name) const;

  // The strings of "__metadata__"; empty if there are none.
  const std::map<std::string, std::string, std::less<>>& metadata() const;

 private:
  struct File;
  explicit SafeTensors(std::shared_ptr<const File> file);

  std::shared_ptr<const File> file_;
};

// Reads a file that Accelerator::save wrote; of another safetensors file, the tensors. Tensors are
// in host memory, as SafeTensors::tensor returns them. Throws what SafeTensors throws, and
// Error(kIo) if the values are damaged.
StateDict load_state_dict(const std::string& path);

}  // namespace coupler
