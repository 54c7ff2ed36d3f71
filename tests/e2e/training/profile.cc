// accelerator.profile(): what a scope records, with and without a schedule, and what it rejects.
#include <coupler/coupler.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "check.h"
#include "shared_folder.h"

namespace {

using coupler::Accelerator;
using nlohmann::json;

std::string rank_of(const Accelerator& accelerator) { return std::to_string(accelerator.rank()); }

bool exists(const std::string& path) { return std::filesystem::exists(path); }

json read(const std::string& path) {
  std::ifstream in(path);
  const json content = json::parse(in, nullptr, /*allow_exceptions=*/false);
  EXPECT(content.is_object(), path + " is not a JSON object");
  return content;
}

size_t steps_in(const std::string& folder, const Accelerator& accelerator) {
  return read(folder + "/profile-rank" + rank_of(accelerator) + ".json").at("step_seconds").size();
}

int64_t count(const json& trace, const std::string& part_of_name) {
  int64_t result = 0;
  for (const json& event : trace.at("traceEvents")) {
    result += event.value("name", "").find(part_of_name) != std::string::npos;
  }
  return result;
}

// A small model with a prepared loader of `steps` batches per rank.
class Training {
 public:
  Training(Accelerator& accelerator, int64_t steps)
      : accelerator_(accelerator),
        loader_(coupler::data_loader(
            coupler::TensorDataset(torch::ones({4 * steps * accelerator.world_size(), 6}),
                                   torch::zeros({4 * steps * accelerator.world_size(), 2})),
            {.batch_size = 4})) {
    accelerator_.prepare(model_);
    batches_ = accelerator_.prepare(loader_);
  }
  void epoch() {
    for (auto& batch : *batches_) {
      auto step = accelerator_.accumulate(model_);
      accelerator_.backward(torch::mse_loss(model_->forward(batch.data), batch.target));
      model_->zero_grad();
    }
  }

 private:
  using Loader = coupler::DataLoader<coupler::TensorDataset>;
  Accelerator& accelerator_;
  torch::nn::Linear model_{6, 2};
  Loader loader_;
  std::optional<Loader> batches_;
};

// Without a schedule: all passes in the scope and no others.
void whole_scope(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  const std::string dir = folder.path() + "/traces";
  Training training(accelerator, 4);
  training.epoch();
  {
    auto profiling = accelerator.profile({.dir = dir, .record_shapes = true});
    training.epoch();
  }
  training.epoch();
  // Work after the last complete pass is not recorded.
  EXPECT(steps_in(dir, accelerator) == 4, std::to_string(steps_in(dir, accelerator)) + " steps");
  const json trace = read(dir + "/trace-rank" + rank_of(accelerator) + ".json");
  const int64_t products = count(trace, "aten::addmm");
  EXPECT(products == 4, std::to_string(products) + " products");
  bool shapes = false;
  for (const json& event : trace.at("traceEvents")) {
    shapes |= event.contains("args") && event["args"].contains("Input Dims");
  }
  EXPECT(shapes, "no shapes were recorded");
  if (accelerator.world_size() > 1) {
    EXPECT(count(trace, "all_reduce") >= 4, "collectives are missing");
  }
  // Joined when the scope ends on rank 0.
  if (accelerator.is_main_process()) {
    EXPECT(count(read(dir + "/trace.json"), "aten::addmm") == 4 * accelerator.world_size(),
           "the joined trace lacks a rank's products");
  }
  accelerator.wait_for_everyone();
}

void flops_and_memory_are_recorded_on_request(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  const std::string dir = folder.path() + "/traces";
  Training training(accelerator, 1);
  {
    auto profiling = accelerator.profile({.dir = dir, .profile_memory = true, .with_flops = true});
    training.epoch();
  }
  const json trace = read(dir + "/trace-rank" + rank_of(accelerator) + ".json");
  EXPECT(count(trace, "[memory]") > 0, "no allocation was recorded");
  int64_t flops = 0;
  for (const json& event : trace.at("traceEvents")) {
    if (event.value("name", "") == "aten::addmm") flops = event.at("args").value("flops", 0);
  }
  EXPECT(flops == 2 * 4 * 6 * 2, std::to_string(flops) + " operations");  // [4, 6] times [6, 2]
  accelerator.wait_for_everyone();
}

// With a schedule, in arbitrary loops; a second scope replaces the first one's traces.
void scheduled(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  const std::string dir = folder.path() + "/traces";
  const std::string second = dir + "/trace-rank" + rank_of(accelerator) + "-1.json";
  const auto passes = [&](int number) {
    const torch::Tensor x = torch::ones({4, 4});
    for (int i = 0; i < number; ++i) {
      torch::mm(x, x);
      accelerator.on_step_end();
    }
  };
  {
    auto profiling = accelerator.profile(
        {.dir = dir, .skip_first = 1, .wait = 1, .warmup = 1, .active = 2, .repeat = 2});
    passes(20);
  }
  EXPECT(steps_in(dir, accelerator) == 2, std::to_string(steps_in(dir, accelerator)) + " steps");
  const std::string first = dir + "/trace-rank" + rank_of(accelerator) + ".json";
  EXPECT(count(read(first), "aten::mm") == 2, "the first round's products are wrong");
  EXPECT(count(read(second), "aten::mm") == 2, "the second round's products are wrong");
  accelerator.wait_for_everyone();
  {
    auto profiling = accelerator.profile({.dir = dir, .active = 1});
    passes(3);
  }
  EXPECT(count(read(first), "aten::mm") == 1, "the second scope's products are wrong");
  EXPECT(!exists(second), "the first scope's second trace still exists");
  accelerator.wait_for_everyone();
  // A scope that records nothing is not an error.
  { auto profiling = accelerator.profile({.dir = dir, .wait = 10, .active = 1}); }
  EXPECT(!exists(first), "there is a trace of a scope that records nothing");
}

// What a scope rejects, and a scope that ends with an exception.
void refused(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  const auto message_of = [&](const coupler::ProfileOptions& options) {
    return error_of([&] { auto profiling = accelerator.profile(options); });
  };
  const auto expect_text = [](const std::string& message, const std::string& text) {
    EXPECT(message.find(text) != std::string::npos, message);
  };
  expect_text(message_of({.dir = folder.path(), .wait = -1}), "wait is -1");
  expect_text(message_of({.dir = folder.path(), .active = -3}), "active is -3");
  expect_text(message_of({.dir = ""}), "dir is empty");
  const std::string trace = folder.path() + "/trace-rank" + rank_of(accelerator) + ".json";
  try {
    auto profiling = accelerator.profile({.dir = folder.path()});
    expect_text(message_of({.dir = folder.path() + "/other"}), "another profile is active");
    torch::ones({2, 2}) + 1;
    throw std::runtime_error("out of the scope");
  } catch (const std::runtime_error&) {
  }
  EXPECT(count(read(trace), "aten::add") > 0, "records before the exception are lost");
  accelerator.wait_for_everyone();
}

// profile.dir is traces: the scope records nothing, and its folder is not created.
void configured(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  const std::string dir = folder.path() + "/traces";
  {
    auto profiling = accelerator.profile({.dir = dir});
    Training training(accelerator, 6);
    training.epoch();
  }
  EXPECT(!exists(dir), "a scope wrote traces although profile.dir is set");
  EXPECT(exists("traces/trace-rank0.json"), "the configuration's profile wrote no trace");
}

}  // namespace

std::vector<Check> all_checks() {
  return {{"whole_scope", whole_scope},
          {"flops_and_memory_are_recorded_on_request", flops_and_memory_are_recorded_on_request},
          {"scheduled", scheduled},
          {"refused", refused},
          {"configured", configured, true}};
}
