#include "sharding/decoder_plan.h"

#include <fmt/format.h>

namespace coupler::sharding {

std::vector<PlanRule> plan_of_decoder(const DecoderLayers& d, const DecoderSizes& sizes,
                                      int ranks) {
  const std::string block = d.base + "." + d.layers + ".*.";
  const std::string attention = block + d.attention + ".";
  const std::string mlp = d.mlp.empty() ? block : block + d.mlp + ".";
  std::vector<PlanRule> plan;
  const auto add = [&](const std::string& in, const std::string& name, const char* style,
                       int64_t multiple) {
    if (!name.empty()) plan.push_back({in + name, style, multiple});
  };
  if (d.fused.empty()) {
    add(attention, d.query, "colwise", sizes.head_size);
    // All query heads may share one key head.
    for (const std::string& name : {d.key, d.value})
      add(attention, name, sizes.key_heads == 1 ? "shared" : "colwise", sizes.head_size);
  } else if (d.fused_by_head) {
    add(attention, d.fused, "colwise", 3 * sizes.head_size);
  } else {
    add(attention, d.fused, "colwise/3", sizes.head_size);
  }
  add(attention, d.output, "rowwise", sizes.head_size);
  add(attention, d.query_norm, "sum_gradients", 1);
  add(attention, d.key_norm, "sum_gradients", 1);
  add(mlp, d.gate, "colwise", 1);
  add(mlp, d.up, "colwise", 1);
  add(mlp, d.down, "rowwise", 1);
  const bool divides = sizes.vocabulary % ranks == 0;
  add(d.base + ".", d.embedding, divides ? "vocab" : "sequence", 1);
  add("", d.head, divides ? "colwise_gather" : "gather_sequence", 1);
  return plan;
}

PlannedLayers planned_layers(const PlanRule& rule, const std::string& prefix) {
  const bool inside = !prefix.empty() && !rule.pattern.empty();
  PlannedLayers line{.pattern = prefix + (inside ? "." : "") + rule.pattern};
  line.text = fmt::format("the model's plan: \"{} = {}\"", line.pattern, rule.style);
  line.style = layer_style(rule.style, line.text);
  line.style.multiple = rule.multiple;
  return line;
}

}  // namespace coupler::sharding
