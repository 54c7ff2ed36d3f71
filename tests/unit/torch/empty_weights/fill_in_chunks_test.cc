// Values that come in chunks are those of the whole, bit for bit, and leave the generator where the
// whole would.
#include "empty_weights/fill_in_chunks.h"

#include <coupler/empty_weights.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <vector>

#include "empty_weights/empty_weights.h"
#include "models.h"

namespace coupler::empty_weights {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): models.h

using MakeTensor = std::function<at::Tensor()>;

at::Tensor record(const MakeTensor& make) {
  torch::manual_seed(7);
  const EmptyWeights empty;
  return make();
}

at::Tensor make_eagerly(const MakeTensor& make) {
  torch::manual_seed(7);
  return make();
}

struct InOrder {
  std::vector<at::Tensor> values;
  ReplayReport report;
};

// The values of all these tensors, in chunks. The sink spoils each chunk, as it may.
InOrder take_in_chunks(const std::vector<MetaTensor>& wanted, size_t bytes) {
  InOrder result;
  std::vector<int64_t> next(wanted.size());
  InChunks in_chunks{.indices = {}, .sink = {}, .bytes = bytes};
  for (const MetaTensor& item : wanted) {
    in_chunks.indices.insert(result.values.size());
    result.values.push_back(
        at::empty({item.tensor.numel()}, item.tensor.options().device(at::kCPU)));
  }
  in_chunks.sink = [&](size_t i, int64_t begin, const at::Tensor& chunk) {
    EXPECT_EQ(begin, next[i]);
    EXPECT_LE(chunk.nbytes(), std::max(bytes, 16 * chunk.itemsize()) + 15 * chunk.itemsize());
    next[i] += chunk.numel();
    result.values[i].narrow(0, begin, chunk.numel()).copy_(chunk);
    chunk.fill_(-7);
  };
  result.report = materialize(
      wanted, [](size_t, const at::Tensor&) { ADD_FAILURE() << "a whole value"; }, in_chunks);
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(next[i], wanted[i].tensor.numel());
    result.values[i] = result.values[i].view(wanted[i].tensor.sizes());
  }
  return result;
}

// Where the last random operation of the tensor's recording left the generator.
GeneratorState end_of_draws(const at::Tensor& recorded) {
  Recording& recording = *Recording::tag_of(recorded)->recording;
  const auto lock = recording.lock();
  const auto& operations = recording.operations();
  const auto last = std::find_if(operations.rbegin(), operations.rend(),
                                 [](const RecordedOperation& each) { return each.random; });
  return *last->after;
}

TEST(FillInChunks, Chunks_BeginAtSixteensAndEndWithAsMany) {
  for (const int64_t numel : {1, 15, 16, 17, 31, 32, 33, 4095, 4103}) {
    for (const size_t bytes : {1, 64, 100, 4096, 1 << 20}) {
      const Chunks chunks(numel, 4, bytes);
      int64_t next = 0, largest = 0;
      chunks.each([&](int64_t begin, int64_t count) {
        EXPECT_EQ(begin, next);
        EXPECT_EQ(begin % 16, 0);
        EXPECT_GE(count, std::min<int64_t>(numel, 16));
        next += count;
        largest = std::max(largest, count);
      });
      EXPECT_EQ(next, numel);
      EXPECT_LE(largest, chunks.largest());
      EXPECT_LE(chunks.largest(), std::max<int64_t>(static_cast<int64_t>(bytes) / 4, 16) + 15);
    }
  }
}

TEST(FillInChunks, Draws_SameBitsAndSameGenerator) {
  const std::vector<std::function<void(const at::Tensor&)>> fills = {
      [](const at::Tensor& weight) { weight.uniform_(-0.3, 0.7); },
      [](const at::Tensor& weight) { weight.normal_(0.1, 0.02); },
      [](const at::Tensor& weight) { weight.uniform_().normal_(); },
  };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    for (const int64_t numel : {1, 15, 16, 17, 31, 4095, 4103}) {
      for (size_t i = 0; i < fills.size(); ++i) {
        const auto make = [&] {
          torch::empty({3}, at::kDouble).normal_();  // which leaves a sample for the next one
          const at::Tensor weight = torch::empty({numel}, dtype);
          fills[i](weight);
          return weight;
        };
        const at::Tensor expected = make_eagerly(make);
        const GeneratorState end = read_generator();
        for (const size_t bytes : {size_t{1}, size_t{200}, size_t{4096}, kChunkBytes}) {
          const at::Tensor recorded = record(make);
          const at::Tensor value = take_in_chunks({{"weight", recorded}}, bytes).values[0];
          EXPECT_TRUE(torch::equal(value, expected))
              << dtype << ", " << numel << " elements, fill " << i << ", " << bytes << " bytes";
          EXPECT_TRUE(same_state(end_of_draws(recorded), end))
              << dtype << ", " << numel << " elements, fill " << i << ", " << bytes << " bytes";
        }
      }
    }
  }
}

TEST(FillInChunks, SeveralModules_AsInOneProcess) {
  const auto make = [] {
    nn::Sequential layers(nn::Embedding(nn::EmbeddingOptions(50, 24).padding_idx(3)),
                          nn::Linear(24, 70), nn::Conv1d(70, 30, 3),
                          nn::LayerNorm(nn::LayerNormOptions({33})));
    const at::NoGradGuard no_grad;
    layers->parameters()[1].normal_(0, 0.02);  // again, after all others
    layers->parameters()[2].zero_();
    return layers.ptr();
  };
  torch::manual_seed(1);
  const ModulePtr eager = make();
  torch::manual_seed(1);
  const ModulePtr model = build_empty(make);
  const std::vector<MetaTensor> wanted = tensors_with_names(*model);
  const std::vector<bool> never = never_whole(model->parameters());
  EXPECT_EQ(std::count(never.begin(), never.end(), true), static_cast<long>(wanted.size()));
  const InOrder taken = take_in_chunks(wanted, 256);
  EXPECT_LE(taken.report.peak_bytes, 256 + 15 * sizeof(float));
  for (size_t i = 0; i < wanted.size(); ++i)
    EXPECT_TRUE(torch::equal(taken.values[i], eager->parameters()[i])) << wanted[i].name;
}

TEST(FillInChunks, WhatElseFillsAWeight_DecidesWhetherItIsEverWhole) {
  struct Case {
    const char* name;
    std::function<void(const at::Tensor&)> fill;
    bool in_chunks;
  };
  const std::vector<Case> cases = {
      {"a padding row",
       [](const at::Tensor& w) {
         w.normal_();
         w[3].zero_();
       },
       true},
      {"rows of a constant",
       [](const at::Tensor& w) {
         w.uniform_();
         w.slice(0, 2, 9).fill_(2);
       },
       true},
      {"constants only",
       [](const at::Tensor& w) {
         w.fill_(2);
         w[0].zero_();
       },
       true},
      {"a column",
       [](const at::Tensor& w) {
         w.normal_();
         w.select(1, 1).zero_();
       },
       false},
      {"a row drawn again",
       [](const at::Tensor& w) {
         w.uniform_();
         w[3].normal_();
       },
       false},
      {"a factor", [](const at::Tensor& w) { w.uniform_().mul_(2); }, false},
      {"a tensor's value", [](const at::Tensor& w) { w.fill_(torch::ones({})); }, false},
      {"a reader",
       [](const at::Tensor& w) {
         w.uniform_();
         w[0].copy_(w[1]);
       },
       false},
      {"another order", [](const at::Tensor& w) { w.t().normal_(); }, false},
  };
  for (const Case& each : cases) {
    const auto make = [&] {
      const at::Tensor weight = torch::empty({40, 12});
      each.fill(weight);
      return weight;
    };
    const at::Tensor expected = make_eagerly(make), recorded = record(make);
    EXPECT_EQ(never_whole({recorded}), std::vector<bool>{each.in_chunks}) << each.name;
    const InOrder taken = take_in_chunks({{"weight", recorded}}, 100);
    EXPECT_TRUE(torch::equal(taken.values[0], expected)) << each.name;
    EXPECT_EQ(taken.report.peak_bytes < expected.nbytes(), each.in_chunks) << each.name;
  }
  EXPECT_EQ(never_whole({torch::ones({2}), torch::empty({2}, at::kMeta), at::Tensor()}),
            std::vector<bool>(3));
}

TEST(FillInChunks, TensorsOfOneStorage_EachGetAll) {
  const auto make = [] { return torch::empty({40, 12}).normal_(); };
  const at::Tensor expected = make_eagerly(make), recorded = record(make);
  EXPECT_EQ(never_whole({recorded, recorded.slice(0, 3, 9)}), std::vector<bool>(2));
  EXPECT_EQ(never_whole({recorded}), std::vector<bool>(1, true));
  const InOrder taken =
      take_in_chunks({{"transposed", recorded.t()}, {"some rows", recorded.slice(0, 3, 9)}}, 100);
  EXPECT_TRUE(torch::equal(taken.values[0], expected.t()));
  EXPECT_TRUE(torch::equal(taken.values[1], expected.slice(0, 3, 9)));
}

TEST(FillInChunks, SinkDrawsAndThrows_GeneratorAndModesAsOutside) {
  const auto make = [] { return torch::empty({400}).normal_(); };
  const at::Tensor recorded = record(make);
  torch::manual_seed(99);
  const at::Tensor expected = torch::rand({4});
  torch::manual_seed(99);
  int64_t drawn = 0;
  InChunks in_chunks{.indices = {0}, .sink = {}, .bytes = 64};
  in_chunks.sink = [&](size_t, int64_t begin, const at::Tensor&) {
    EXPECT_TRUE(at::GradMode::is_enabled());
    EXPECT_EQ(torch::rand({1}).item<float>(), expected[drawn++].item<float>());
    if (begin == 32) throw std::runtime_error("full");
  };
  const ValueSink none = [](size_t, const at::Tensor&) { ADD_FAILURE() << "a whole value"; };
  EXPECT_THROW(materialize({{"weight", recorded}}, none, in_chunks), std::runtime_error);
  EXPECT_EQ(drawn, 3);
  EXPECT_EQ(torch::rand({1}).item<float>(), expected[3].item<float>());
  EXPECT_TRUE(
      torch::equal(take_in_chunks({{"weight", recorded}}, 64).values[0], make_eagerly(make)));
}

}  // namespace
}  // namespace coupler::empty_weights
