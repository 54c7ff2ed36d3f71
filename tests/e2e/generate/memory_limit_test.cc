// max_memory is enforced: a GPT-J from a file larger than the process's memory limit, in a control
// group of that size, generates the same tokens as without a limit and never has more resident.
#include "memory_limit.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "run_program.h"

namespace coupler {
namespace {

constexpr int64_t kWidth = 512, kLayers = 24, kVocabulary = 512;  // 304 MB
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kBudget = 256 * kMiB;  // the program without a model takes half of it

// Writes a safetensors file tensor by tensor: eight bytes of length, the header, random numbers.
void write_checkpoint(const Workplace& here) {
  here.write(
      "config.json",
      fmt::format(
          R"({{"model_type": "gptj", "vocab_size": {}, "n_embd": {}, "n_layer": {}, "n_head": 8,
                             "rotary_dim": 32, "layer_norm_epsilon": 1e-5}})",
          kVocabulary, kWidth, kLayers));
  std::string header = "{";
  int64_t numbers = 0;
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns = 0) {
    const int64_t count = columns == 0 ? rows : rows * columns;
    header +=
        fmt::format(R"({}"{}": {{"dtype": "F32", "shape": [{}], "data_offsets": [{}, {}]}})",
                    numbers == 0 ? "" : ", ", name,
                    columns == 0 ? fmt::to_string(rows) : fmt::format("{}, {}", rows, columns),
                    numbers * 4, (numbers + count) * 4);
    numbers += count;
  };
  add("transformer.wte.weight", kVocabulary, kWidth);
  for (int64_t i = 0; i < kLayers; ++i) {
    const std::string layer = fmt::format("transformer.h.{}.", i);
    add(layer + "ln_1.weight", kWidth);
    add(layer + "ln_1.bias", kWidth);
    for (const char* name : {"q", "k", "v", "out"}) {
      add(fmt::format("{}attn.{}_proj.weight", layer, name), kWidth, kWidth);
    }
    add(layer + "mlp.fc_in.weight", 4 * kWidth, kWidth);
    add(layer + "mlp.fc_in.bias", 4 * kWidth);
    add(layer + "mlp.fc_out.weight", kWidth, 4 * kWidth);
    add(layer + "mlp.fc_out.bias", kWidth);
  }
  add("transformer.ln_f.weight", kWidth);
  add("transformer.ln_f.bias", kWidth);
  add("lm_head.weight", kVocabulary, kWidth);
  add("lm_head.bias", kVocabulary);
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');

  std::ofstream out(here.path() / "model.safetensors", std::ios::binary);
  const uint64_t size = header.size();
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out << header;
  std::minstd_rand random(5);
  std::vector<float> some(1 << 20);
  for (int64_t left = numbers; left > 0; left -= static_cast<int64_t>(some.size())) {
    for (float& value : some) value = static_cast<float>(random() % 2000) / 20000 - 0.05F;
    out.write(reinterpret_cast<const char*>(some.data()),
              static_cast<std::streamsize>(std::min<int64_t>(left, 1 << 20) * 4));
  }
  ASSERT_TRUE(out.flush().good());
}

Outcome go_on(const Workplace& here, const std::string& before, const std::string& options) {
  return here.coupler({"launch", "-n", "1", "sh", "-c",
                       before + "exec " GENERATE_PROGRAM " --model " + here.path().string() +
                           " --tokens 3,1,4,1,5 --max-new-tokens 4 " + options});
}

// The largest resident size of all processes waited for by this process or its descendants.
uint64_t most_resident() {
  rusage used{};
  ::getrusage(RUSAGE_CHILDREN, &used);
  return static_cast<uint64_t>(used.ru_maxrss) * 1024;
}

TEST(GenerateUnderALimit, ModelLargerThanIt_GoesOnWithinIt) {
  const Workplace here;
  write_checkpoint(here);
  here.write("disk.json", R"({"": "disk"})");
  const MemoryLimit limit(kBudget + 32 * kMiB);  // the kernel's memory for a process counts too
  const std::string before = limit.works() ? limit.enter() + "; " : "";
  const Outcome limited = go_on(
      here, before, fmt::format("--device-map disk.json --max-memory cpu={}MiB", kBudget / kMiB));
  ASSERT_EQ(limited.exit_code, 0) << limited.err;
  EXPECT_LE(most_resident(), kBudget);
  const Outcome without = go_on(here, "", "--device-map disk.json");
  EXPECT_EQ(without.out, limited.out);
  EXPECT_GT(most_resident(), kBudget);  // without max_memory it needs more
  const Outcome too_small = go_on(here, "", "--device-map disk.json --max-memory cpu=64MiB");
  EXPECT_NE(too_small.exit_code, 0);
  EXPECT_NE(too_small.err.find("max_memory gives the CPU 64.0 MiB, but "), std::string::npos)
      << too_small.err;
}

}  // namespace
}  // namespace coupler
