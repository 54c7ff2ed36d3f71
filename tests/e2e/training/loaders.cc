// Data loaders whose ranks must agree: joined uneven inputs, streams, and batches that rank 0 reads
// for all. The end of the job shows that nothing hangs.
#include <coupler/coupler.h>

#include <fstream>
#include <memory>
#include <optional>

#include "check.h"
#include "shared_folder.h"

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

// Draws on from epoch to epoch: only its saved state can resume it.
struct Drawn : coupler::Sampler {
  size_t size() const override { return 23; }
  std::vector<size_t> indices() override {
    std::vector<size_t> order(size());
    for (size_t i = 0; i < order.size(); ++i)
      order[i] = static_cast<size_t>(drawn + 7 * static_cast<int64_t>(i)) % 23;
    ++drawn;
    return order;
  }
  void save(coupler::StateDict& state) const override {
    state.set("drawn", drawn);
    state.set("tensor", torch::tensor({drawn, drawn + 1}));
  }
  void load(const coupler::StateDict& state) override { drawn = state.integer("drawn"); }
  int64_t drawn = 0;
};

// Batches of one to three samples, other ones in every epoch.
struct Buckets : coupler::BatchSampler {
  size_t size() const override { return 13; }
  std::vector<std::vector<size_t>> batches() override {
    std::vector<std::vector<size_t>> all(size());
    for (size_t b = 0; b < all.size(); ++b)
      for (size_t i = 0; i <= b % 3; ++i)
        all[b].push_back((3 * b + i + static_cast<size_t>(now)) % 40);
    return all;
  }
  void set_epoch(int64_t epoch) override { now = epoch; }
  int64_t now = 0;
};

// Every rank reads a part, whose position the checkpoint has.
struct InParts {
  void shard(size_t of_part, size_t of_parts) {
    part = static_cast<int64_t>(of_part);
    parts = static_cast<int64_t>(of_parts);
  }
  void reset() { place = 0; }
  std::optional<Example> next() {
    if (part + place * parts >= 31) return std::nullopt;
    EXPECT(place >= only_from, "samples before the checkpoint are read again");
    const auto number = torch::tensor(part + place++ * parts);
    return Example(number, number);
  }
  void save(coupler::StateDict& state) const { state.set("place", place); }
  void load(const coupler::StateDict& state) {
    place = state.integer("place");
    only_from = place;
  }
  int64_t part = 0, parts = 1, place = 0, only_from = 0;
};

// What a loop yields, on this rank, and saves after its second batch.
std::vector<torch::Tensor> loop_and_save(Accelerator& accelerator, auto& batches,
                                         const std::string& folder, std::string& saved) {
  std::vector<torch::Tensor> seen;
  for (auto& batch : batches) {
    seen.push_back(batch.data.cpu());
    if (seen.size() == 2 && saved.empty()) saved = accelerator.save_state(folder);
  }
  return seen;
}

// Own samplers, padding, and parts of a stream: a checkpoint in the second epoch resumes exactly.
void own_samplers_resume(Accelerator& accelerator) {
  accelerator.free_memory();  // what earlier checks prepared
  const auto resumes = [&](const std::string& what, const auto& make) {
    const SharedFolder folder(accelerator);
    std::string saved = "not yet";
    std::vector<torch::Tensor> expected;
    {
      auto batches = accelerator.prepare(make());
      loop_and_save(accelerator, batches, folder.path(), saved);
      saved.clear();
      expected = loop_and_save(accelerator, batches, folder.path(), saved);
      accelerator.free_memory();
    }
    auto batches = accelerator.prepare(make());
    accelerator.load_state(saved);
    EXPECT(batches.next_epoch() == 1, what + ": it is not the interrupted epoch");
    const auto rest = loop_and_save(accelerator, batches, folder.path(), saved);
    EXPECT(rest.size() + 2 == expected.size(), what + ": other numbers of batches");
    for (size_t b = 0; b < rest.size(); ++b)
      EXPECT(torch::equal(rest[b], expected[b + 2]), what + ": another batch");
    accelerator.free_memory();
  };
  const auto numbers = torch::arange(40);
  const coupler::TensorDataset dataset(numbers, numbers);
  resumes("a sampler", [&] {
    return coupler::data_loader(dataset, {.batch_size = 1, .sampler = std::make_shared<Drawn>()});
  });
  resumes("a batch sampler", [&] {
    return coupler::data_loader(dataset, {.batch_sampler = std::make_shared<Buckets>()},
                                [](const std::vector<Example>& samples) {
                                  auto data = torch::zeros({3}, torch::kLong);
                                  for (size_t i = 0; i < samples.size(); ++i)
                                    data[static_cast<int64_t>(i)] = samples[i].data;
                                  return Example(data, torch::ones({1}));
                                });
  });
  resumes("parts of a stream",
          [] { return coupler::data_loader(InParts(), {.batch_size = 2, .workers = 1}); });
}

// Parts of different lengths stay in step, and every sample counts once.
void parts_of_a_stream(Accelerator& accelerator) {
  auto loader = coupler::data_loader(InParts(), {.batch_size = 4});
  auto batches = accelerator.prepare(loader);
  int64_t sum = 0;
  for (auto& batch : batches) {
    EXPECT(batch.data.size(0) == 4, "a batch is not full");
    sum += accelerator.gather_for_metrics(batch.data).sum().item<int64_t>();
  }
  EXPECT(sum == 31 * 30 / 2, "not every sample once");
}

// Every rank learns which ranks' samplers differ.
void samplers_that_differ(Accelerator& accelerator) {
  const int world_size = accelerator.world_size();
  const auto sampler = std::make_shared<Drawn>();
  if (accelerator.rank() == world_size - 1) sampler->drawn = 5;
  auto loader = coupler::data_loader(token_rows(23), {.sampler = sampler});
  auto batches = accelerator.prepare(loader);
  const auto loop = [&] {
    for ([[maybe_unused]] auto& batch : batches) {
    }
  };
  if (world_size == 1) return loop();
  contains(error_of(loop), "the samplers of ranks 0 and " + std::to_string(world_size - 1) +
                               " differ in epoch 0: rank 0's has sample 0 at position 0");
  sampler->drawn = 0;
  loop();
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
           "batch 1 of epoch 0 (samples " + std::to_string(world_size) + " to " +
               std::to_string(2 * world_size - 1) + " of the stream): the disk is gone");
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

// Files on disk: each rank reads its rows, and together they train on the batches of one process.
void dataset_files(Accelerator& accelerator) {
  const int world_size = accelerator.world_size();
  const SharedFolder folder(accelerator);
  const int rows = 12 * world_size;
  if (accelerator.is_main_process()) {
    std::ofstream train(folder.path() + "/train.jsonl");
    for (int i = 0; i < rows; ++i)
      train << "{\"x\": [" << i << ", " << i % 3 << "], \"y\": " << i << ", \"text\": \"" << i
            << "\"}\n";
  }
  accelerator.wait_for_everyone();
  const auto data = coupler::load_dataset(folder.path()).shuffle(7);
  const auto whole = data.to_tensors();
  torch::manual_seed(3);
  torch::nn::Linear model(2, 1);
  torch::optim::SGD optimizer(model->parameters(), 1e-4);
  auto loader = coupler::data_loader(data.map([](const coupler::Row& row) {
    return coupler::Row{{"twice", 2 * row.get<int>("y")}};
  }),
                                     {.batch_size = 4, .workers = 1});
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
  int64_t step = 0;
  for (auto& batch : batches) {
    EXPECT(batch["x"].device() == accelerator.device(), "a batch did not move to the device");
    const auto y = accelerator.gather(batch["y"]).cpu();
    EXPECT(torch::equal(y, whole["y"].narrow(0, 4 * world_size * step, 4 * world_size)),
           "a step does not have the rows of one process");
    EXPECT(torch::equal(batch["twice"], 2 * batch["y"]), "map was not applied");
    const auto first = batch["y"][0].template item<int64_t>();
    EXPECT(batch.strings.at("text")[0] == std::to_string(first), "text of another row");
    accelerator.backward(
        (net->forward(batch["x"].to(torch::kFloat)) - batch["y"].unsqueeze(1)).square().mean());
    opt.step();
    opt.zero_grad();
    ++step;
  }
  EXPECT(step == 3, "an epoch has the wrong number of steps");
  accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& tensor) {
    expect_same_everywhere(accelerator, tensor, name);
  });
}

}  // namespace

std::vector<Check> loader_checks() {
  return {
      {"uneven_training", uneven_training},
      {"uneven_streams", uneven_streams},
      {"stream_shares_the_epoch", stream_shares_the_epoch},
      {"dispatched", dispatched},
      {"own_samplers_resume", own_samplers_resume},
      {"parts_of_a_stream", parts_of_a_stream},
      {"samplers_that_differ", samplers_that_differ},
      {"dataset_files", dataset_files},
      {"loader_errors", loader_errors},
  };
}
