// Process control: the order of processes, globally accessible state, seeds, the batch size search,
// gathered modules, and what free_memory leaves.
#include <coupler/coupler.h>
#include <unistd.h>

#include <fstream>
#include <new>

#include "check.h"

namespace {

using coupler::Accelerator;

torch::Tensor own_rank(const Accelerator& accelerator) {
  return torch::tensor(accelerator.rank(), torch::kInt);
}

// Each function runs only on the process that it names.
void on_some_process(Accelerator& accelerator) {
  const int world_size = accelerator.world_size(), rank = accelerator.rank();
  std::vector<int> ran;
  accelerator.on_main_process([&] { ran.push_back(0); });
  accelerator.on_last_process([&] { ran.push_back(1); });
  accelerator.on_process(world_size - 1, [&] { ran.push_back(2); });
  accelerator.on_local_main_process([&] { ran.push_back(3); });
  accelerator.on_local_process(0, [&] { ran.push_back(4); });
  std::vector<int> expected;
  if (rank == 0) expected.push_back(0);
  if (rank == world_size - 1) expected.insert(expected.end(), {1, 2});
  if (accelerator.local_rank() == 0) expected.insert(expected.end(), {3, 4});
  EXPECT(ran == expected, "on_main_process or a similar function ran on the wrong process");
  EXPECT(accelerator.is_last_process() == (rank == world_size - 1), "is_last_process");
}

// The name of a folder for this job, chosen by rank 0.
std::string shared_name(Accelerator& accelerator) {
  const auto id = accelerator.broadcast(torch::tensor(static_cast<int64_t>(getpid())));
  return "/tmp/coupler-processes-" + std::to_string(id.item<int64_t>());
}

void main_process_first(Accelerator& accelerator) {
  const std::string path = shared_name(accelerator);
  // The others find what the first process made, however long it takes.
  const int found = accelerator.main_process_first([&] {
    if (accelerator.is_main_process()) {
      usleep(50000);
      EXPECT((std::ofstream(path) << "made").good(), "cannot write " + path);
    }
    return access(path.c_str(), F_OK) == 0 ? 1 : 0;
  });
  EXPECT(found == 1, "the main process was not first");
  accelerator.wait_for_everyone();
  accelerator.local_main_process_first(
      [&] { accelerator.on_local_main_process([&] { unlink(path.c_str()); }); });
  // If the first process throws, the others continue.
  bool threw = false, ran = false;
  try {
    accelerator.main_process_first([&] {
      if (accelerator.is_main_process()) throw std::runtime_error("no data");
      ran = true;
    });
  } catch (const std::runtime_error&) {
    threw = true;
  }
  EXPECT(threw == accelerator.is_main_process() && ran != threw, "the wrong process threw or ran");
}

void state_anywhere(Accelerator& accelerator) {
  coupler::PartialState partial;
  EXPECT(partial.rank() == accelerator.rank() && partial.world_size() == accelerator.world_size() &&
             partial.local_rank() == accelerator.local_rank(),
         "PartialState describes the wrong process");
  partial.wait_for_everyone();
  EXPECT(coupler::AcceleratorState::exists(), "there is no AcceleratorState");
  EXPECT(coupler::AcceleratorState().backend() == accelerator.backend(), "another backend");

  accelerator.set_gradient_accumulation_steps(2);
  torch::nn::Linear model(1, 1);
  const auto rows = torch::ones({3 * accelerator.world_size(), 1});
  auto loader = coupler::data_loader(coupler::TensorDataset(rows, rows), {.batch_size = 1});
  auto [net, batches] = accelerator.prepare(model, loader);
  const coupler::GradientState gradients;
  EXPECT(!gradients.in_dataloader() && !gradients.end_of_dataloader() &&
             gradients.own_samples() == -1 && gradients.num_steps() == 2,
         "GradientState is wrong before the loop");
  std::vector<bool> synced, ended;
  for (auto& batch : batches) {
    auto scope = accelerator.accumulate(net);
    accelerator.backward(net->forward(batch.data).sum());
    EXPECT(gradients.in_dataloader() && gradients.own_samples() == 1,
           "GradientState is wrong in the loop");
    synced.push_back(gradients.sync_gradients());
    ended.push_back(gradients.end_of_dataloader());
  }
  EXPECT((synced == std::vector<bool>{false, true, true}), "sync_gradients is wrong for a batch");
  EXPECT((ended == std::vector<bool>{false, false, true}),
         "end_of_dataloader is wrong for a batch");
  EXPECT(!gradients.in_dataloader() && !gradients.end_of_dataloader(),
         "GradientState is wrong after the loop");
  accelerator.set_gradient_accumulation_steps(1);
}

void seeds(Accelerator& accelerator) {
  coupler::set_seed(7);
  expect_same_everywhere(accelerator, torch::rand({8}), "a number after set_seed");
  coupler::set_seed(7, {.device_specific = true});
  const auto all = accelerator.gather(torch::rand({1, 8}));
  for (int64_t r = 1; r < all.size(0); ++r) {
    EXPECT(!torch::equal(all[0], all[r]), "ranks draw the same numbers despite device_specific");
  }
  accelerator.synchronize_random_state();
  expect_same_everywhere(accelerator, torch::rand({8}), "a number after synchronization");
  coupler::set_seed(7, {.deterministic = true});
  EXPECT(at::globalContext().deterministicAlgorithms(), "deterministic was not set");
  coupler::set_seed(7);
  EXPECT(!at::globalContext().deterministicAlgorithms(), "deterministic stayed set");
}

// 12 does not fit, 6 does not fit on the last rank, 4 does: every rank uses it, with three times as
// many batches per step.
void executable_batch_size(Accelerator& accelerator) {
  accelerator.set_gradient_accumulation_steps(2);
  std::vector<int64_t> tried;
  const int64_t found =
      coupler::find_executable_batch_size(accelerator, 12, [&](int64_t batch_size) {
        tried.push_back(batch_size);
        torch::nn::Linear model(2, 2);
        auto net = accelerator.prepare(model);
        if (batch_size == 12) torch::empty({int64_t{1} << 56});
        if (batch_size == 6 && accelerator.is_last_process()) throw std::bad_alloc();
        return batch_size;
      });
  EXPECT(found == 4 && (tried == std::vector<int64_t>{12, 6, 4}), "the wrong sizes were tried");
  EXPECT(accelerator.gradient_accumulation_steps() == 6, "the number of samples in a step changed");
  accelerator.set_gradient_accumulation_steps(1);

  const auto refused = [&](int64_t start, const std::function<void(int64_t)>& run,
                           const std::string& text) {
    const std::string message =
        error_of([&] { coupler::find_executable_batch_size(accelerator, start, run); });
    EXPECT(message.find(text) != std::string::npos, message);
  };
  refused(
      0, [](int64_t) {}, "the starting batch size is 0, but must be at least 1");
  refused(
      3, [](int64_t) { throw std::bad_alloc(); }, "memory runs out even with a batch size of 1");
  EXPECT(accelerator.gradient_accumulation_steps() == 1, "a failed search changed the steps");
  try {
    coupler::find_executable_batch_size(accelerator, 2,
                                        [](int64_t) { throw std::runtime_error("a bug"); });
    EXPECT(false, "the program's own error was lost");
  } catch (const std::runtime_error& error) {
    EXPECT(std::string(error.what()) == "a bug", error.what());
  }
}

void unwrapped_model(Accelerator& accelerator) {
  torch::manual_seed(3);
  torch::nn::Linear model(5, 4);
  const auto before = model->weight.detach().clone();
  auto net = accelerator.prepare(model);
  {
    const auto whole = accelerator.unwrap_model(net);
    EXPECT(torch::equal(whole->weight, before), "the weight has changed");
    EXPECT(whole->weight.data_ptr<float>()[19] == before.view({-1})[19].item<float>(),
           "the weight's memory is wrong");
  }
  torch::nn::Linear other(2, 2);
  const std::string message = error_of([&] { (void)accelerator.unwrap_model(other); });
  EXPECT(message.find("was not prepared") != std::string::npos, message);
}

// After free_memory a model can be prepared again, and the old one is destroyed.
void freed_memory(Accelerator& accelerator) {
  std::weak_ptr<torch::nn::LinearImpl> old;
  {
    torch::nn::Linear model(4, 4);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = accelerator.prepare(model, optimizer);
    accelerator.backward(net->forward(torch::ones({1, 4})).sum());
    opt.step();
    old = net.ptr();
    accelerator.free_memory();
  }
  EXPECT(old.expired(), "the module was not destroyed");
  torch::nn::Linear model(4, 4);
  auto net = accelerator.prepare(model);
  accelerator.backward(net->forward(own_rank(accelerator) + torch::ones({1, 4})).sum());
  EXPECT(accelerator.gradient(net->weight).defined(), "training fails after free_memory");
}

// The last rank arrives first. log_order_test reads the output.
void logs_in_order(Accelerator& accelerator) {
  const auto logger = coupler::get_logger("order");
  usleep(static_cast<useconds_t>(100'000 * (accelerator.world_size() - accelerator.rank())));
  logger.error("line of rank " + std::to_string(accelerator.rank()), {.in_order = true});
}

}  // namespace

std::vector<Check> process_checks() {
  return {
      {"on_some_process", on_some_process},
      {"main_process_first", main_process_first},
      {"state_anywhere", state_anywhere},
      {"seeds", seeds},
      {"executable_batch_size", executable_batch_size},
      {"unwrapped_model", unwrapped_model},
      {"freed_memory", freed_memory},
      {"logs_in_order", logs_in_order, true},
  };
}
