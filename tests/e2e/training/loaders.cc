// Data loaders whose ranks must agree: joined uneven inputs, streams, and batches that rank 0 reads
// for all. The end of the job shows that nothing hangs.
#include <coupler/coupler.h>

#include <optional>

#include "check.h"

namespace {

using coupler::Accelerator;
using Example = torch::data::Example<>;

// Rows of Net's input and target.
coupler::TensorDataset token_rows(int64_t count) {
  const Batch joined = joined_batch(0, count);
  return {joined.tokens, joined.targets};
}

// 0, 1, …, count - 1 as tensors; only_rank: the only rank that may read; -1: all may.
struct Stream {
  std::optional<Example> next() {
    EXPECT(only_rank == -1 || only_rank == rank, "a rank reads that must not read");
    if (place == fails_at) throw std::runtime_error("the disk is gone");
    if (place == count) return std::nullopt;
    const auto number = torch::tensor(place++);
    return Example(number, number);
  }
  void reset() { place = 0; }
  int64_t count;
  int rank;
  int only_rank = -1;
  int64_t fails_at = -1;
  int64_t place = 0;
};

int64_t sum_of(Accelerator& accelerator, int64_t mine) {
  return accelerator.reduce(torch::tensor(mine)).item<int64_t>();
}

void contains(const std::string& text, const std::string& part) {
  EXPECT(text.find(part) != std::string::npos, "'" + text + "' lacks '" + part + "'");
}

// Trains over inputs with different numbers of batches on the ranks, sometimes none on the last
// rank: forward, backward, clipping and steps stay in sync under every backend.
void uneven_training(Accelerator& accelerator) {
  const int world_size = accelerator.world_size();
  for (const int64_t workers : {0, 2}) {
    for (const int64_t rows :
         {int64_t{world_size}, int64_t{4 * world_size + 1}, int64_t{12 * world_size - 1}}) {
      torch::manual_seed(3);
      Net model;
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      auto loader = coupler::data_loader(token_rows(rows),
                                         {.batch_size = 4, .shuffle = true, .workers = workers});
      auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
      const auto core = batches.core();
      for (int epoch = 0; epoch < 2; ++epoch) {
        int64_t own = 0, steps = 0, last = 0, batches_of_own = 0;
        {
          auto scope = accelerator.join_uneven_inputs(batches, false);
          const int64_t size = batches.size();
          for (auto& batch : batches) {
            auto window = accelerator.accumulate(net);
            const auto output = net->forward(batch.data);
            accelerator.backward(torch::cross_entropy_loss(output, batch.target));
            accelerator.clip_grad_norm(net, 1.0);
            opt.step();
            opt.zero_grad();
            EXPECT(core->stands_in() == (core->own_samples() == 0), "a substitute batch counts");
            own += core->own_samples();
            batches_of_own += core->stands_in() ? 0 : 1;
            last += core->at_last_batch() ? 1 : 0;
            ++steps;
          }
          EXPECT(steps == size, "a joined loop does not yield size() batches");
        }
        const int64_t expected = (rows + 4 * world_size - 1) / (4 * world_size);
        EXPECT(steps == expected, "the ranks made " + std::to_string(steps) + " steps");
        EXPECT(last == 1, "there is not exactly one last batch");
        EXPECT(batches_of_own >= steps - 1, "a rank repeated more batches than it lacked");
        EXPECT(sum_of(accelerator, own) == rows, "an epoch does not have every sample once");
      }
      accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& tensor) {
        expect_same_everywhere(accelerator, tensor, name);
      });
    }
  }
}

// Each rank has its own stream, and the streams end at different times.
void uneven_streams(Accelerator& accelerator) {
  const int world_size = accelerator.world_size(), rank = accelerator.rank();
  torch::nn::Linear model(1, 1);
  auto loader = coupler::data_loader(Stream{int64_t{world_size} * (rank + 1), rank},
                                     {.even_batches = false, .workers = 1});
  auto [net, batches] = accelerator.prepare(model, loader);
  auto scope = accelerator.join_uneven_inputs(net);
  const auto core = batches.core();
  int64_t steps = 0, own = 0;
  for (auto& batch : batches) {
    accelerator.backward(net->forward(batch.data.to(torch::kFloat).unsqueeze(1)).sum());
    const auto gathered = accelerator.gather(batch.data);
    for (int r = 0; r < world_size; ++r) {
      const int64_t step = std::min<int64_t>(steps, r);
      EXPECT(gathered[r].item<int64_t>() == step * world_size + r,
             "it is not that rank's latest batch");
    }
    own += core->own_samples();
    ++steps;
    EXPECT(core->at_last_batch() == (steps == world_size), "the wrong batch is the last one");
  }
  EXPECT(steps == world_size, "the shortest stream ended the loop");
  EXPECT(own == rank + 1, "a substitute batch counts");
}

// Every rank reads the stream and keeps its slice; the last step is filled.
void stream_shares_the_epoch(Accelerator& accelerator) {
  const int world_size = accelerator.world_size();
  const int64_t samples = 6 * world_size + 1;
  auto loader = coupler::data_loader(Stream{samples, accelerator.rank()}, {.batch_size = 3});
  auto batches = accelerator.prepare(loader);
  const auto core = batches.core();
  int64_t sum = 0;
  for (auto& batch : batches) {
    EXPECT(batch.data.size(0) == 3, "a batch is not full");
    sum += batch.data.narrow(0, 0, core->own_samples()).sum().item<int64_t>();
  }
  EXPECT(sum_of(accelerator, sum) == samples * (samples - 1) / 2, "not every sample once");
}

void dispatched(Accelerator& accelerator) {
  const int world_size = accelerator.world_size(), rank = accelerator.rank();
  const int64_t samples = 4 * world_size + 3;
  for (const bool even : {true, false}) {
    auto loader = coupler::data_loader(
        Stream{samples, rank, 0},
        {.batch_size = 2, .even_batches = even, .dispatch_batches = true, .workers = 1});
    auto batches = accelerator.prepare(loader);
    const auto core = batches.core();
    auto scope = accelerator.join_uneven_inputs();
    for (int epoch = 0; epoch < 2; ++epoch) {
      int64_t sum = 0, own = 0, steps = 0;
      for (auto& batch : batches) {
        const auto mine = batch.data.narrow(0, 0, core->own_samples());
        EXPECT(torch::equal(batch.data, batch.target), "data and target do not match");
        sum += mine.sum().item<int64_t>();
        own += mine.numel();
        ++steps;
      }
      EXPECT(steps == (samples + 2 * world_size - 1) / (2 * world_size),
             "the number of steps is wrong");
      EXPECT(sum_of(accelerator, own) == samples, "not every sample once");
      EXPECT(sum_of(accelerator, sum) == samples * (samples - 1) / 2, "other samples");
    }
  }
}

// Every error reaches all ranks, which stay in sync afterwards.
void loader_errors(Accelerator& accelerator) {
  const int world_size = accelerator.world_size(), rank = accelerator.rank();
  const auto loop = [&](const Stream& stream, const coupler::DataLoaderOptions& options) {
    auto loader = coupler::data_loader(stream, options);
    return error_of([&] {
      auto batches = accelerator.prepare(loader);
      auto scope = accelerator.join_uneven_inputs(batches);
      for (auto& batch : batches) accelerator.gather(batch.data);
    });
  };
  contains(loop({.count = rank == world_size - 1 ? 0 : 4, .rank = rank}, {}),
           world_size == 1 ? "the stream has no samples"
                           : "rank " + std::to_string(world_size - 1) + " has no data at all");
  accelerator.wait_for_everyone();
  contains(loop({.count = 100, .rank = rank, .only_rank = 0, .fails_at = world_size},
                {.dispatch_batches = true}),
           "batch 1 of epoch 0: the disk is gone");
  accelerator.wait_for_everyone();
  auto unprepared = coupler::data_loader(token_rows(4));
  contains(error_of([&] { auto scope = accelerator.join_uneven_inputs(unprepared); }),
           "was not prepared");
  if (world_size > 1) {
    auto small = coupler::data_loader(token_rows(world_size - 1));
    contains(error_of([&] { accelerator.prepare(small); }),
             std::to_string(world_size - 1) + " samples, fewer than the " +
                 std::to_string(world_size) + " processes");
  }
}

}  // namespace

std::vector<Check> loader_checks() {
  return {
      {"uneven_training", uneven_training},
      {"uneven_streams", uneven_streams},
      {"stream_shares_the_epoch", stream_shares_the_epoch},
      {"dispatched", dispatched},
      {"loader_errors", loader_errors},
  };
}
