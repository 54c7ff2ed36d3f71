// gather_for_metrics over real loaders: an epoch has every sample of the dataset once. Runs the
// code in docs/collectives.md, too, compiled from the page.
#include <coupler/coupler.h>
#include <coupler/objects.h>

#include <optional>

#include "check.h"
#include "collectives_page.h"

namespace {

using coupler::Accelerator;

coupler::TensorDataset numbered(int64_t samples) {
  const auto numbers = torch::arange(samples);
  return {numbers.to(torch::kFloat).unsqueeze(1).repeat({1, 2}), numbers};
}

// The same samples as a stream of unknown size.
struct NumberedStream {
  std::optional<torch::data::Example<>> next() {
    if (place == samples) return std::nullopt;
    const auto number = torch::tensor(place++);
    return torch::data::Example<>(number.to(torch::kFloat).repeat({2}), number);
  }
  void reset() { place = 0; }
  int64_t samples;
  int64_t place = 0;
};

// One epoch: every sample is gathered once, in the dataset's order unless shuffled.
template <class Dataset>
void check_epoch(Accelerator& accelerator, const Dataset& dataset, int64_t samples,
                 const coupler::DataLoaderOptions& options, bool join = false) {
  const std::string what =
      "samples " + std::to_string(samples) + ", batch " + std::to_string(options.batch_size) +
      (options.shuffle ? ", shuffle" : "") + (options.even_batches ? "" : ", not even_batches") +
      (options.split_batches ? ", split_batches" : "") + (join ? ", joined" : "");
  auto loader = coupler::data_loader(dataset, options);
  auto batches = accelerator.prepare(loader);
  std::optional<coupler::ScopeGuard> scope;
  if (join) scope.emplace(accelerator.join_uneven_inputs(batches));
  std::vector<torch::Tensor> numbers, halves;
  std::vector<std::string> texts;
  for (auto& batch : batches) {
    const std::pair<torch::Tensor, std::map<std::string, torch::Tensor>> predicted = {
        batch.target, {{"half", batch.data.select(1, 1) / 2}}};
    auto [target, rest] = accelerator.gather_for_metrics(predicted);
    numbers.push_back(target);
    halves.push_back(rest.at("half"));
    std::vector<std::string> own;
    for (int64_t i = 0; i < batch.target.size(0); ++i) {
      own.push_back(std::to_string(batch.target[i].template item<int64_t>()));
    }
    for (auto& text : accelerator.gather_for_metrics(own)) texts.push_back(text);
  }
  const auto seen = torch::cat(numbers);
  const auto ordered = options.shuffle ? std::get<0>(seen.sort()) : seen;
  EXPECT(torch::equal(ordered, torch::arange(samples)), what + ": not every sample once");
  EXPECT(torch::equal(torch::cat(halves), seen.to(torch::kFloat) / 2), what + ": leaves differ");
  EXPECT(texts.size() == static_cast<size_t>(samples),
         what + ": there is not one object for each sample");
  for (int64_t i = 0; i < samples; ++i) {
    EXPECT(texts[static_cast<size_t>(i)] == std::to_string(seen[i].item<int64_t>()),
           what + ": the objects' order differs");
  }
}

void every_sample_once(Accelerator& accelerator) {
  const int64_t world_size = accelerator.world_size();
  for (const bool shuffle : {false, true}) {
    for (const int64_t batch_size : {1, 3}) {
      // Every remainder, also a dataset smaller than a step; with joined loops, also ranks without
      // a part of the last step.
      for (int64_t samples = world_size; samples <= 2 * world_size * batch_size; ++samples) {
        check_epoch(accelerator, numbered(samples), samples,
                    {.batch_size = batch_size, .shuffle = shuffle});
        check_epoch(accelerator, numbered(samples), samples,
                    {.batch_size = batch_size, .shuffle = shuffle, .even_batches = false}, true);
        if (!shuffle) {
          check_epoch(accelerator, NumberedStream{samples}, samples, {.batch_size = batch_size});
        }
      }
      // Without even_batches, if every rank has a part of the last step.
      for (int64_t last = 1; last <= batch_size; ++last) {
        const int64_t samples = world_size * batch_size + (world_size - 1) * batch_size + last;
        check_epoch(accelerator, numbered(samples), samples,
                    {.batch_size = batch_size, .shuffle = shuffle, .even_batches = false});
      }
    }
    for (int64_t samples = world_size; samples <= 5 * world_size; samples += 3) {
      check_epoch(accelerator, numbered(samples), samples,
                  {.batch_size = 2 * world_size, .shuffle = shuffle, .split_batches = true});
    }
  }
}

// The innermost loop counts; after it the outer one; outside both it is the same as gather.
void loops_within_loops(Accelerator& accelerator) {
  const int64_t world_size = accelerator.world_size();
  auto outer_loader = coupler::data_loader(numbered(2 * world_size + 1), {.batch_size = 2});
  auto inner_loader = coupler::data_loader(numbered(3 * world_size + 1), {.batch_size = 3});
  auto [outer, inner] = accelerator.prepare(outer_loader, inner_loader);
  int64_t outer_rows = 0, inner_rows = 0;
  for (auto& batch : outer) {
    for (auto& evaluated : inner) {
      inner_rows += accelerator.gather_for_metrics(evaluated.target).size(0);
    }
    outer_rows += accelerator.gather_for_metrics(batch).target.size(0);
  }
  EXPECT(outer_rows == 2 * world_size + 1, "the outer loop's samples");
  EXPECT(inner_rows == (3 * world_size + 1) * outer.size(), "the inner loop's samples");
  EXPECT(accelerator.gather_for_metrics(torch::ones({4})).size(0) == 4 * world_size,
         "outside loops");
  EXPECT(accelerator.gather_for_metrics(torch::tensor(1)).numel() == world_size,
         "a scalar outside");
}

void wrong_metrics(Accelerator& accelerator) {
  auto loader = coupler::data_loader(numbered(4 * accelerator.world_size()), {.batch_size = 4});
  auto batches = accelerator.prepare(loader);
  const auto told = [](const std::function<void()>& action, const std::string& part) {
    const std::string text = error_of(action);
    EXPECT(text.find(part) != std::string::npos, "'" + text + "' lacks '" + part + "'");
  };
  for (auto& batch : batches) {
    const std::map<std::string, torch::Tensor> averaged = {{"loss", batch.data.mean()}};
    told([&] { accelerator.gather_for_metrics(averaged); },
         "value[\"loss\"]: a scalar is not a per-sample value");
    // Only on the last rank; the others get the error too.
    const bool last = accelerator.rank() == accelerator.world_size() - 1;
    told([&] { accelerator.gather_for_metrics(batch.target.narrow(0, 0, last ? 3 : 4)); },
         "dimension 0 is 3, but this rank's batch has 4 samples, 4 of them its own");
    // For instance one row for each pair of samples: it must not be cut as if rows were samples.
    told([&] { accelerator.gather_for_metrics(torch::ones({8})); },
         "dimension 0 is 8, but this rank's batch has 4 samples, 4 of them its own");
    told([&] { accelerator.gather_for_metrics(std::vector<int>(last ? 3 : 4)); },
         "there are 3 objects, but this rank's batch has 4 samples, 4 of them its own");
    EXPECT(accelerator.gather_for_metrics(batch.target).size(0) == 4 * accelerator.world_size(),
           "gather_for_metrics after errors");
  }
}

void what_the_page_shows(Accelerator& accelerator) {
  const int64_t samples = 3 * accelerator.world_size() + 1;
  // The prediction is always 0, which is the target of two samples of the whole dataset.
  auto target = torch::ones({samples}, torch::kLong);
  target[0] = target[samples - 1] = 0;
  auto loader = coupler::data_loader(coupler::TensorDataset(torch::zeros({samples, 2}), target),
                                     {.batch_size = 2});
  torch::nn::Sequential model(torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
  auto [net, batches] = accelerator.prepare(model, loader);
  EXPECT(accuracy(accelerator, net, batches) == 2.0 / static_cast<double>(samples),
         "the page's accuracy");
  collect(accelerator, {"a", "b"});
}

}  // namespace

std::vector<Check> metrics_checks() {
  return {
      {"every_sample_once", every_sample_once},
      {"loops_within_loops", loops_within_loops},
      {"wrong_metrics", wrong_metrics},
      {"what_the_page_shows", what_the_page_shows},
  };
}
