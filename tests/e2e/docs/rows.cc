// Runs the code of every row of docs/from-accelerate.md on each rank of a job, each row with its
// own objects. If a row throws, prints its line and exits with 1.
#include "rows.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>

#include "names_rows.inc"  // rows()

namespace {

coupler::TensorDataset ten_examples() {
  torch::manual_seed(3);
  return {torch::randn({10, 4}), torch::randn({10, 2})};
}

Loader in_fours(const coupler::TensorDataset& dataset) {
  return coupler::data_loader(dataset, {.batch_size = 4});
}

void run(const Row& row, coupler::Accelerator& accelerator, const std::string& folder) {
  const coupler::TensorDataset dataset = ten_examples();
  torch::manual_seed(1);
  Net model, made;
  torch::optim::SGD optimizer(model->parameters(), 0.1), optimizer_made(made->parameters(), 0.1);
  auto [net, opt, batches, scheduler] = accelerator.prepare(
      made, optimizer_made, in_fours(dataset), coupler::constant_schedule(optimizer_made));
  const torch::data::Example<> batch(torch::ones({4, 4}), torch::zeros({4, 2}));
  Names names{accelerator,
              dataset,
              Stream(),
              std::make_shared<Backwards>(),
              std::make_shared<ThreesAndTwos>(),
              model,
              optimizer,
              in_fours(dataset),
              coupler::constant_schedule(optimizer),
              net,
              opt,
              batches,
              scheduler,
              batch,
              torch::ones({3, 2}),
              folder};
  row.run(names);
  accelerator.free_memory();
}

}  // namespace

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  std::string top;
  if (accelerator.is_main_process()) {
    top = (std::filesystem::temp_directory_path() / "coupler-rows-XXXXXX").string();
    if (mkdtemp(top.data()) == nullptr) {
      std::perror(top.c_str());
      return 1;
    }
  }
  top = coupler::broadcast_object(accelerator, top);
  for (const Row& row : rows()) {
    const std::string folder = top + "/" + std::to_string(row.line);
    try {
      if (accelerator.is_main_process()) std::filesystem::create_directory(folder);
      accelerator.wait_for_everyone();
      run(row, accelerator, folder);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: docs/from-accelerate.md:%d: %s\n", accelerator.rank(),
                   row.line, error.what());
      return 1;
    }
  }
  accelerator.print(rows().size(), " rows ran");
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) std::filesystem::remove_all(top);
  return 0;
}
