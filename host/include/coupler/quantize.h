// Quantizes weights to 8 or 4 bits for inference: a float32 model takes a quarter or a seventh of
// the memory, and generating text, which is bound by reading weights, gets faster by about as much.
//
//   auto placed = coupler::load_checkpoint_and_dispatch(
//       model, "gpt-j-6B", {.device_map = "auto", .quantize = coupler::QuantizeOptions{.bits =
//       4}});
//
//   auto quantized = coupler::quantize(model, {.bits = 8, .skip = {"lm_head"}});  // in memory
//
// Only weights of linear layers are quantized, not embeddings, norms and biases. Activations keep
// their dtype, and sums are accumulated in float. Modules are not changed: the parameter keeps its
// name, shape and dtype. Matrix products use the packed form; every other operation gets the
// dequantized values (as do clone() and save_pretrained).
// - 8 bits: one scale per output, max|w| / 127.
// - 4 bits: a scale and a zero point per group of inputs of an output, (max - min) / 15 and
//   min + 8 * scale, rounded to bfloat16, in the format of ATen's _weight_int4pack_mm.
//
// The model's parameters no longer require gradients. Gradients pass through quantized weights to
// other parameters (coupler/lora.h); a gradient of a quantized weight, writing to it or saving it
// in place is an error that names it.
#pragma once

#include <coupler/big_model.h>

#include <string>

namespace coupler {

// Formats the layers as a table, largest relative error first, with the total size before and after
// in the last line. Ends with a newline. most: the maximum number of layers; 0: all.
std::string to_table(const QuantizationReport& report, size_t most = 0);

// Quantizes a model with values in place, in host memory; the model must not be dispatched. The
// original values are freed; keep the returned object as long as the model is used. Throws Error
// for invalid options as load_checkpoint_and_dispatch does.
[[nodiscard]] DispatchedModel quantize(torch::nn::Module& model,
                                       const QuantizeOptions& options = {});

// The same for module holders.
template <class Holder>
auto quantize(Holder& model, const QuantizeOptions& options = {})
    -> decltype(quantize(*model, options)) {
  return quantize(*model, options);
}

}  // namespace coupler
