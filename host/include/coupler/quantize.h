// Weights of 8 or 4 bits in place of 32 or 16, for inference: a model takes a quarter or a seventh
// of the memory, and generating text, which is bound by reading weights, is as much faster.
//
//   auto placed = coupler::load_checkpoint_and_dispatch(
//       model, "gpt-j-6B", {.device_map = "auto", .quantize = coupler::QuantizeOptions{.bits =
//       4}});
//
//   auto quantized = coupler::quantize(model, {.bits = 8, .skip = {"lm_head"}});  // in memory
//
// Only weights of linear layers are quantised; embeddings, norms and biases stay. Activations stay
// what they are, and sums are made in float. No module is changed: the parameter is there with its
// name, shape and dtype, products with it use what is packed, and every other operation on it gets
// its values as they are after quantising (which is how clone() and save_pretrained see it).
// - 8 bits: one scale for each output, max|w| / 127.
// - 4 bits: a scale and a zero for each group of inputs of an output, (max - min) / 15 and
//   min + 8 * scale, rounded to bfloat16: the form of ATen's _weight_int4pack_mm.
//
// A quantised model is for inference: no parameter of it requires gradients any more, and backward
// that comes to a quantised weight, writing to one, and saving one in place are errors that name
// it.
#pragma once

#include <coupler/big_model.h>

#include <string>

namespace coupler {

// The layers, the largest relative error first, as a table, and what they take before and after in
// the last line. Ends with a newline. most: only so many layers; 0: all.
std::string to_table(const QuantizationReport& report, size_t most = 0);

// Quantises a model with values where it is, in host memory; it must not be dispatched. The values
// go; what is returned has to be kept for as long as the model is used. Throws Error as
// load_checkpoint_and_dispatch does for the options.
[[nodiscard]] DispatchedModel quantize(torch::nn::Module& model,
                                       const QuantizeOptions& options = {});

// The same for holders.
template <class Holder>
auto quantize(Holder& model, const QuantizeOptions& options = {})
    -> decltype(quantize(*model, options)) {
  return quantize(*model, options);
}

}  // namespace coupler
