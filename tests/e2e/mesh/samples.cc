// Which samples a rank gets, and which results it gathers, on any mesh.
#include <coupler/coupler.h>
#include <coupler/objects.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include "mesh_checks.h"
#include "shared_folder.h"

using coupler::Accelerator;

namespace {

constexpr int64_t kRows = 26;  // not a multiple of any batch

torch::Tensor numbered_rows(int64_t rows) { return torch::arange(rows, torch::kDouble); }

auto rows_loader(int64_t rows, bool shuffle, uint64_t seed = 3) {
  return coupler::data_loader(coupler::TensorDataset(numbered_rows(rows), numbered_rows(rows)),
                              {.batch_size = 3, .shuffle = shuffle, .seed = seed});
}

void replicas_get_different_samples(Accelerator& accelerator) {
  for (const bool shuffle : {false, true}) {
    auto batches = accelerator.prepare(rows_loader(kRows, shuffle));
    const auto replicas = accelerator.group(kSamples);
    std::vector<double> gathered;
    for (auto& batch : batches) {
      // All ranks of a replica have the same.
      const auto all = accelerator.gather(batch.data);
      const auto each = all.reshape({accelerator.world_size(), -1});
      for (const int rank : accelerator.mesh().ranks("pipeline+context+tensor"))
        EXPECT(torch::equal(each[rank], batch.data),
               "a rank of the same replica has other samples");
      const auto metrics = accelerator.gather_for_metrics(batch.data);
      std::vector<double> own, numbers;
      for (int64_t i = 0; i < batch.data.size(0); ++i) own.push_back(batch.data[i].item<double>());
      for (int64_t i = 0; i < metrics.size(0); ++i) numbers.push_back(metrics[i].item<double>());
      EXPECT(accelerator.gather_for_metrics(own) == numbers, "objects differ from tensors");
      gathered.insert(gathered.end(), numbers.begin(), numbers.end());
    }
    std::sort(gathered.begin(), gathered.end());
    std::vector<double> expected(kRows);
    std::iota(expected.begin(), expected.end(), 0);
    EXPECT(gathered == expected, "gather_for_metrics does not return each sample once");
    const int64_t steps = (kRows + 3 * replicas.world_size() - 1) / (3 * replicas.world_size());
    EXPECT(batches.size() == steps, "an epoch has another number of batches");
  }
}

// On one rank of a replica, if it has several.
bool is_odd_one(Accelerator& accelerator) {
  return accelerator.mesh().rank("pipeline+context+tensor") == 1;
}

void other_loaders_within_a_replica_are_refused(Accelerator& accelerator) {
  if (accelerator.mesh().size("pipeline+context+tensor") == 1) return;
  const bool odd = is_odd_one(accelerator);
  const std::string size =
      error_of([&] { accelerator.prepare(rows_loader(odd ? 20 : kRows, false)); });
  EXPECT(size.find("the number of samples of data loader") != std::string::npos, size);
  const std::string seed =
      error_of([&] { accelerator.prepare(rows_loader(kRows, true, odd ? 4 : 3)); });
  EXPECT(seed.find("the seed of data loader") != std::string::npos, seed);
}

void other_values_within_a_replica_are_refused_at_the_first_batch(Accelerator& accelerator) {
  if (accelerator.mesh().size("pipeline+context+tensor") == 1) return;
  const double shift = is_odd_one(accelerator) ? 0.5 : 0;
  auto batches = accelerator.prepare(coupler::data_loader(
      coupler::TensorDataset(numbered_rows(kRows) + shift, numbered_rows(kRows)),
      {.batch_size = 3}));
  const std::string message = error_of([&] {
    for (auto& batch : batches) EXPECT(!batch.data.defined(), "a batch was yielded");
  });
  EXPECT(message.find("has other values on rank") != std::string::npos, message);
  accelerator.wait_for_everyone();  // the job can go on
}

// A stream of which each replica reads its own part, whose position a checkpoint has.
struct PartOfStream {
  void shard(size_t of_part, size_t of_parts) {
    part = static_cast<int64_t>(of_part);
    parts = static_cast<int64_t>(of_parts);
  }
  void reset() { place = 0; }
  std::optional<torch::data::Example<>> next() {
    if (part + place * parts >= 48) return std::nullopt;
    const auto number = torch::tensor(part + place++ * parts);
    return torch::data::Example<>(number, number);
  }
  void save(coupler::StateDict& state) const { state.set("place", place); }
  void load(const coupler::StateDict& state) { place = state.integer("place"); }
  int64_t part = 0, parts = 1, place = 0;
};

void stream_resumes(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  std::string saved;
  const auto loop = [&](auto& batches) {
    std::vector<torch::Tensor> seen;
    for (auto& batch : batches) {
      seen.push_back(batch.data);
      if (seen.size() == 2 && saved.empty()) saved = accelerator.save_state(folder.path());
    }
    return torch::stack(seen);
  };
  const auto make = [] { return coupler::data_loader(PartOfStream(), {.batch_size = 2}); };
  auto batches = accelerator.prepare(make());
  const auto expected = loop(batches);
  accelerator.free_memory();
  if (accelerator.is_main_process()) {
    int files = 0;
    for (const auto& file : std::filesystem::directory_iterator(saved))
      files += file.path().filename().string().rfind("stream", 0) == 0 ? 1 : 0;
    EXPECT(files == accelerator.mesh().size(kSamples), std::to_string(files) + " parts are saved");
  }
  auto again = accelerator.prepare(make());
  accelerator.load_state(saved);
  EXPECT(torch::equal(loop(again), expected.slice(0, 2)), "the stream goes on elsewhere");
}

void process_steps_count_replicas(Accelerator& accelerator) {
  torch::nn::Linear model(2, 2);
  if (accelerator.mesh().size("pipeline+tensor+expert") > 1) return;  // not prepared by prepare
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  auto [net, opt, schedule] = accelerator.prepare(
      model, optimizer,
      coupler::linear_schedule(optimizer,
                               {.total_steps = 64, .unit = coupler::StepUnit::kProcessSteps}));
  accelerator.backward(net->forward(torch::ones({1, 2})).sum());
  opt.step();
  schedule.step();
  EXPECT(schedule.steps() == accelerator.mesh().size(kSamples), "steps of the scheduler");
}

}  // namespace

std::vector<Check> mesh_sample_checks() {
  return {{"any_mesh_samples", replicas_get_different_samples},
          {"any_mesh_other_loaders", other_loaders_within_a_replica_are_refused},
          {"any_mesh_other_values", other_values_within_a_replica_are_refused_at_the_first_batch},
          {"any_mesh_schedule", process_steps_count_replicas},
          {"stream_resumes", stream_resumes, /*alone=*/true}};
}
