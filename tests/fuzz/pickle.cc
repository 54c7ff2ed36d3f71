// Arbitrary bytes as a pickle give an Error or a tree that can be walked.

#include "formats/pickle.h"

#include <coupler/error.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "pickle_walk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace pickle = coupler::pickle;
  try {
    const auto root = pickle::read({reinterpret_cast<const char*>(data), size}, "fuzzed");
    uint64_t values = 0;
    coupler::fuzz::walk(*root, [&](const pickle::Value& value) {
      ++values;
      if (value.kind() == pickle::Kind::kDict && value.items().size() % 2 != 0) std::abort();
      if (value.kind() == pickle::Kind::kTensor &&
          value.tensor().shape.size() != value.tensor().strides.size())
        std::abort();
    });
    if (values > pickle::kMaxValues) std::abort();
  } catch (const coupler::Error&) {
  }
  return 0;
}
