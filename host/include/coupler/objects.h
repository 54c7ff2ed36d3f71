// Collectives over objects: anything nlohmann::json converts (numbers, strings, vectors, maps, user
// types with to_json and from_json). They travel as CBOR, plain data that cannot carry code, of at
// most kMaxObjectBytes per rank, and are validated on arrival. Every rank calls them in the same
// order, on the training thread. Not part of coupler.h because it includes nlohmann/json.hpp.
//
//   std::vector<std::string> names = coupler::gather_object(accelerator, my_name);  // per rank
//   Settings settings = coupler::broadcast_object(accelerator, mine);               // rank 0's
//   auto texts = accelerator.gather_for_metrics(predicted_texts);                   // per sample
//
// If an object is too large, nested more than kMaxObjectDepth deep or cannot be converted to JSON,
// every rank throws Error(kInvalidArgument) naming the rank at fault, and the job can continue. If
// received bytes are not a valid encoding, or the object is not a T, throws Error(kMismatch) naming
// the rank that sent it.
#pragma once

#include <coupler/accelerator.h>
#include <coupler/detail/loader.h>
#include <coupler/group.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace coupler {

inline constexpr int64_t kMaxObjectBytes = int64_t{64} << 20;  // of one rank, encoded
inline constexpr int kMaxObjectDepth = 500;                    // arrays and maps within each other

namespace detail {

using ObjectBytes = std::vector<uint8_t>;

// One rank's encoded object; problem: why it could not be encoded.
struct EncodedObject {
  ObjectBytes bytes;
  std::string problem;
};

// Transfers the bytes; not a template, and independent of the encoding.
struct ObjectCollectives {
  static std::vector<ObjectBytes> gather(const Group& group, const char* operation,
                                         const EncodedObject& object);
  static ObjectBytes broadcast(const Group& group, const EncodedObject& object, int from);
  // All ranks, and those that get different samples.
  static Group world(const Accelerator& accelerator);
  static Group samples(const Accelerator& accelerator);
  // Of this rank's current batch; nullopt outside of a loop.
  static std::optional<BatchSamples> batch_samples(const Accelerator& accelerator);
  [[noreturn]] static void refuse(const char* operation, int rank, const std::string& problem);
};

// Only measures the nesting depth. It runs first because building values uses stack per level.
class ObjectDepth : public nlohmann::json_sax<nlohmann::json> {
 public:
  const std::string& problem() const { return problem_; }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool key(string_t&) override { return true; }
  bool start_object(std::size_t) override { return deeper(); }
  bool start_array(std::size_t) override { return deeper(); }
  bool end_object() override { return --depth_, true; }
  bool end_array() override { return --depth_, true; }
  bool parse_error(std::size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    problem_ = error.what();
    return false;
  }

 private:
  bool deeper() {
    if (++depth_ <= kMaxObjectDepth) return true;
    problem_ = "it is nested more than " + std::to_string(kMaxObjectDepth) + " levels deep";
    return false;
  }
  int depth_ = 0;
  std::string problem_;
};

// Describes what is wrong with the bytes; empty if they are valid.
inline std::string object_problem(const ObjectBytes& bytes) {
  if (static_cast<int64_t>(bytes.size()) > kMaxObjectBytes) {
    return "it has " + std::to_string(bytes.size()) + " bytes, more than the limit of " +
           std::to_string(kMaxObjectBytes);
  }
  ObjectDepth depth;
  if (nlohmann::json::sax_parse(bytes, &depth, nlohmann::json::input_format_t::cbor)) return {};
  return depth.problem();
}

template <class T>
EncodedObject encode_object(const T& value) {
  EncodedObject result;
  try {
    result.bytes = nlohmann::json::to_cbor(nlohmann::json(value));
    result.problem = object_problem(result.bytes);
  } catch (
      const std::exception& error) {  // also from the user's to_json: peers must get an error, too
    result.problem = error.what();
  }
  return result;
}

template <class T>
T decode_object(const char* operation, int rank, const ObjectBytes& bytes) {
  std::string problem = object_problem(bytes);
  if (problem.empty()) {
    try {
      return nlohmann::json::from_cbor(bytes).template get<T>();
    } catch (const nlohmann::json::exception& error) {
      problem = error.what();
    }
  }
  ObjectCollectives::refuse(operation, rank, problem);
}

template <class T>
std::vector<T> gather_encoded(const Group& group, const char* operation, const EncodedObject& own) {
  const std::vector<ObjectBytes> all = ObjectCollectives::gather(group, operation, own);
  std::vector<T> result;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    result.push_back(decode_object<T>(operation, group.ranks()[rank], all[rank]));
  }
  return result;
}

}  // namespace detail

// Returns every rank's object, in rank order: of all ranks, or of a group's.
template <class T>
std::vector<T> gather_object(const Group& group, const T& value) {
  return detail::gather_encoded<T>(group, "gather_object", detail::encode_object(value));
}
template <class T>
std::vector<T> gather_object(Accelerator& accelerator, const T& value) {
  return gather_object(detail::ObjectCollectives::world(accelerator), value);
}

// Returns the object of rank `from`, of all ranks or of a group's; the other ranks' values are
// ignored.
template <class T>
T broadcast_object(const Group& group, const T& value, int from = 0) {
  detail::EncodedObject own;
  if (group.rank() == from) own = detail::encode_object(value);
  const detail::ObjectBytes bytes = detail::ObjectCollectives::broadcast(group, own, from);
  return detail::decode_object<T>("broadcast_object", group.ranks()[static_cast<size_t>(from)],
                                  bytes);
}
template <class T>
T broadcast_object(Accelerator& accelerator, const T& value, int from = 0) {
  return broadcast_object(detail::ObjectCollectives::world(accelerator), value, from);
}

// Gathers one object per sample of the batch; over an epoch, each sample's exactly once. Call it
// through Accelerator::gather_for_metrics.
template <class T>
std::vector<T> gather_objects_for_metrics(Accelerator& accelerator, const std::vector<T>& values) {
  const auto samples = detail::ObjectCollectives::batch_samples(accelerator);
  const char* operation =
      samples ? "gather_for_metrics of objects" : "gather_for_metrics of objects outside of a loop";
  const auto count = static_cast<int64_t>(values.size());
  detail::EncodedObject encoded;
  if (samples && !samples->fits(count)) {
    encoded.problem = "there are " + std::to_string(count) +
                      " objects, but this rank's batch has " + std::to_string(samples->all) +
                      " samples, " + std::to_string(samples->own) + " of them its own";
  } else {
    encoded = detail::encode_object(
        std::vector<T>(values.begin(), values.begin() + (samples ? samples->own : count)));
  }
  std::vector<T> result;
  const Group group = detail::ObjectCollectives::samples(accelerator);
  for (auto& part : detail::gather_encoded<std::vector<T>>(group, operation, encoded)) {
    for (auto&& value : part) result.push_back(std::move(value));
  }
  return result;
}

}  // namespace coupler
