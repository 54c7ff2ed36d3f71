// Traits that classify dataset types. Internal to data_loader.h; not included by users.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

namespace coupler::detail {

template <class T>
struct optional_value {};
template <class T>
struct optional_value<std::optional<T>> {
  using type = T;
};
template <class T>
using optional_value_t = typename optional_value<std::decay_t<T>>::type;

// Map-style: get_batch takes indices.
template <class D, class = void>
struct is_map_style : std::false_type {};
template <class D>
struct is_map_style<D, std::void_t<typename D::BatchRequestType>>
    : std::is_same<typename D::BatchRequestType, c10::ArrayRef<size_t>> {};

// A torch stream: get_batch(count) returns `count` samples, fewer or none at the end.
template <class D, class = void>
struct is_block_stream : std::false_type {};
template <class D>
struct is_block_stream<
    D, std::void_t<optional_value_t<decltype(std::declval<D&>().get_batch(size_t{1}))>,
                   decltype(std::declval<D&>().reset())>> : std::true_type {};

// A Coupler stream: next() returns one sample, none at the end.
template <class D, class = void>
struct is_sample_stream : std::false_type {};
template <class D>
struct is_sample_stream<D, std::void_t<optional_value_t<decltype(std::declval<D&>().next())>,
                                       decltype(std::declval<D&>().reset())>> : std::true_type {};

// Whether the dataset has set_epoch(int64_t).
template <class D, class = void>
struct wants_epoch : std::false_type {};
template <class D>
struct wants_epoch<D, std::void_t<decltype(std::declval<D&>().set_epoch(int64_t{}))>>
    : std::true_type {};

}  // namespace coupler::detail
