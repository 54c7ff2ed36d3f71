// Splits a value that all ranks have: each rank gets consecutive elements, in rank order, and the
// first n % world ranks get one more. A std::vector is split by elements, a tensor by rows (a
// view), a std::map by splitting every value; these must have equal lengths. Pure functions, any
// thread; used by Accelerator::split_between_processes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace coupler {
namespace detail {

struct Part {
  int64_t start = 0, end = 0;
  int64_t repeats = 0;  // copies of the last of all elements to append
};
// Throws Error(kInvalidArgument) unless rank is below world.
Part part_of(int64_t count, int rank, int world, bool apply_padding);
[[noreturn]] void refuse_lengths(const std::string& first, int64_t count, const std::string& other,
                                 int64_t other_count);

// Throws Error(kInvalidArgument) for a scalar.
int64_t rows_to_split(const at::Tensor& tensor);
at::Tensor take(const at::Tensor& tensor, const Part& part);

template <class T>
struct Splittable {
  static constexpr bool yes = false;
};
template <>
struct Splittable<at::Tensor> {
  static constexpr bool yes = true;
  static int64_t length(const at::Tensor& tensor) { return rows_to_split(tensor); }
  static at::Tensor apply(const at::Tensor& tensor, const Part& part) { return take(tensor, part); }
};
template <class T>
struct Splittable<std::vector<T>> {
  static constexpr bool yes = true;
  static int64_t length(const std::vector<T>& values) {
    return static_cast<int64_t>(values.size());
  }
  static std::vector<T> apply(const std::vector<T>& values, const Part& part) {
    std::vector<T> result(values.begin() + part.start, values.begin() + part.end);
    if (part.repeats > 0)
      result.insert(result.end(), static_cast<size_t>(part.repeats), values.back());
    return result;
  }
};
template <class T>
struct Splittable<std::map<std::string, T>> {
  static constexpr bool yes = Splittable<T>::yes;
  static int64_t length(const std::map<std::string, T>& values) {
    std::optional<int64_t> count;
    for (const auto& [name, value] : values) {
      const int64_t length = Splittable<T>::length(value);
      if (count.value_or(length) != length) {
        refuse_lengths(values.begin()->first, *count, name, length);
      }
      count = length;
    }
    return count.value_or(0);
  }
  static std::map<std::string, T> apply(const std::map<std::string, T>& values, const Part& part) {
    std::map<std::string, T> result;
    for (const auto& [name, value] : values) {
      result.emplace(name, Splittable<T>::apply(value, part));
    }
    return result;
  }
};

}  // namespace detail

// apply_padding: pads shorter parts with the last element to the length of the longest; an empty
// value stays empty. Without it, ranks from n on get an empty part.
template <class T>
T split_between(const T& value, int rank, int world, bool apply_padding = false) {
  static_assert(detail::Splittable<T>::yes,
                "split_between_processes takes a vector, a tensor, or a map of these");
  const int64_t count = detail::Splittable<T>::length(value);
  return detail::Splittable<T>::apply(value, detail::part_of(count, rank, world, apply_padding));
}

}  // namespace coupler
