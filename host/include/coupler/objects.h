// Collectives over objects: anything nlohmann::json converts (numbers, strings, vectors, maps, the
// user's types with to_json and from_json). They travel as CBOR, plain data that cannot carry code,
// of at most kMaxObjectBytes a rank, and are checked when they arrive. Every rank calls them in the
// same order, on the thread that trains. Not part of coupler.h, for it brings nlohmann/json.hpp.
//
//   std::vector<std::string> names = coupler::gather_object(accelerator, my_name);  // one a rank
//   Settings settings = coupler::broadcast_object(accelerator, mine);               // rank 0's
//   auto texts = accelerator.gather_for_metrics(predicted_texts);                   // one a sample
//
// Error(kInvalidArgument) on every rank, naming the rank, where an object is too large, nested more
// than kMaxObjectDepth deep or cannot be converted to JSON; then the job can go on. Bytes that are
// no valid encoding, and objects that are no T, are Error(kMismatch) naming the rank they are from.
#pragma once

#include <coupler/accelerator.h>
#include <coupler/detail/loader_view.h>

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

// One rank's object on its way; problem: why there are no bytes.
struct EncodedObject {
  ObjectBytes bytes;
  std::string problem;
};

// What moves the bytes; no template, and knows nothing of the encoding.
struct ObjectTransport {
  static std::vector<ObjectBytes> gather(Accelerator& accelerator, const char* operation,
                                         const EncodedObject& object);
  static ObjectBytes broadcast(Accelerator& accelerator, const EncodedObject& object, int from);
  // Of the batch now held by this rank; none outside of a loop.
  static std::optional<BatchSamples> batch_samples(const Accelerator& accelerator);
  [[noreturn]] static void refuse(const char* operation, int rank, const std::string& problem);
};

// Only counts how deep it is. It goes first, since building values takes stack for every level.
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
    problem_ = "it is nested more than " + std::to_string(kMaxObjectDepth) + " deep";
    return false;
  }
  int depth_ = 0;
  std::string problem_;
};

// What is wrong with the bytes; empty where nothing is.
inline std::string object_problem(const ObjectBytes& bytes) {
  if (static_cast<int64_t>(bytes.size()) > kMaxObjectBytes) {
    return "it is " + std::to_string(bytes.size()) + " bytes large, of at most " +
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
      const std::exception& error) {  // also the user's own, from to_json: peers must hear of it
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
  ObjectTransport::refuse(operation, rank, problem);
}

template <class T>
std::vector<T> gather_encoded(Accelerator& accelerator, const char* operation,
                              const EncodedObject& own) {
  const std::vector<ObjectBytes> all = ObjectTransport::gather(accelerator, operation, own);
  std::vector<T> result;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    result.push_back(decode_object<T>(operation, static_cast<int>(rank), all[rank]));
  }
  return result;
}

}  // namespace detail

// Every rank's object, in the order of ranks.
template <class T>
std::vector<T> gather_object(Accelerator& accelerator, const T& value) {
  return detail::gather_encoded<T>(accelerator, "gather_object", detail::encode_object(value));
}

// The object of rank `from`; what the others pass is not looked at.
template <class T>
T broadcast_object(Accelerator& accelerator, const T& value, int from = 0) {
  detail::EncodedObject own;
  if (accelerator.rank() == from) own = detail::encode_object(value);
  return detail::decode_object<T>("broadcast_object", from,
                                  detail::ObjectTransport::broadcast(accelerator, own, from));
}

// Objects computed one for each sample of the batch: over an epoch every sample's once, as
// Accelerator::gather_for_metrics, which is the way to call this.
template <class T>
std::vector<T> gather_objects_for_metrics(Accelerator& accelerator, const std::vector<T>& values) {
  const auto samples = detail::ObjectTransport::batch_samples(accelerator);
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
  for (auto& part : detail::gather_encoded<std::vector<T>>(accelerator, operation, encoded)) {
    for (auto&& value : part) result.push_back(std::move(value));
  }
  return result;
}

}  // namespace coupler
