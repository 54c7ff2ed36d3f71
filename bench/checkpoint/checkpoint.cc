// Saves and loads an MLP of 201 million parameters and AdamW's state, or trains it while
// checkpoints are written, in turns, driven by bench/run: bench checkpoint --folder FOLDER --steps
// N
// --control SOCKET, plus configuration arguments. The counterpart is bench/python/checkpoint.py.
//
// A turn's mode and what its number means:
//   steps          trains for that many steps, N per epoch, and waits for a pending checkpoint
//   keep, load     saves to FOLDER/kept, or loads it
//   save           saves to FOLDER/measured
//   raw            writes that many bytes to FOLDER/measured and forces them to disk
//   read           reads that many bytes of the files in FOLDER/kept into memory
//   clear          removes the files of save and raw, and waits for the disk
// The answer in place of a loss is the peak growth of the process's memory in MiB; with the suffix
// "-anonymous" on the mode, of its anonymous memory only.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <coupler/data_loader.h>
#include <coupler/error.h>
#include <fcntl.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "control.h"
#include "extra_memory.h"
#include "large_mlp.h"
#include "program.h"

namespace coupler::bench::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWidth = LargeMLPImpl::kWidth, kBatch = 4;
constexpr int64_t kPiece = int64_t{16} << 20;  // of plain writes and reads

// The best the disk can do: writes a file from memory in large pieces, then calls fsync.
void write_plainly(const std::string& path, int64_t bytes, const at::Tensor& from) {
  const auto check = [&](int64_t result) {
    if (result < 0) throw std::system_error(errno, std::generic_category(), path);
    return result;
  };
  const int file =
      static_cast<int>(check(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)));
  const auto room = static_cast<int64_t>(from.nbytes());
  const auto* const begin = static_cast<const char*>(from.const_data_ptr());
  for (int64_t done = 0; done < bytes;) {
    const int64_t at = done % room;
    const int64_t size = std::min({bytes - done, room - at, kPiece});
    done += check(::write(file, begin + at, static_cast<size_t>(size)));
  }
  check(::fsync(file));
  ::close(file);
}

// Reads from the folder's files one after the other, over and over into the same memory.
void read_plainly(const std::string& folder, int64_t bytes, const at::Tensor& into) {
  auto* const begin = static_cast<char*>(into.mutable_data_ptr());
  const auto room = static_cast<int64_t>(into.nbytes());
  int64_t done = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : 1;
    while (got > 0 && done < bytes) {
      const int64_t at = done % room;
      const int64_t size = std::min({bytes - done, room - at, kPiece});
      got = ::read(file, begin + at, static_cast<size_t>(size));
      done += std::max<int64_t>(got, 0);
    }
    if (got < 0) throw std::system_error(errno, std::generic_category(), entry.path());
    ::close(file);
  }
  if (done != bytes) throw std::runtime_error(folder + " has too few bytes to read");
}

// Keeps the folder itself, because the job holds it.
void remove_written(const std::string& folder) {
  fs::create_directories(folder);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("checkpoint_") || name.starts_with("plain_")) fs::remove_all(entry);
  }
}

}  // namespace

int program(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  const auto values = values_of(argc, argv, "--folder FOLDER --steps N --control SOCKET");
  const fs::path folder = values[0];
  const std::string kept = folder / "kept", measured = folder / "measured";
  const int64_t samples = std::stoll(values[1]) * kBatch * accelerator.world_size();

  torch::manual_seed(0);
  LargeMLP model;
  int64_t parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) parameters += parameter.numel();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-4));
  auto loader =
      coupler::data_loader(coupler::TensorDataset(at::randn({samples, kWidth}),
                                                  at::randint(kWidth, {samples}, at::kLong)),
                           {.batch_size = kBatch});
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
  // The size and kind of the largest tensor of a checkpoint.
  const at::Tensor plain = at::randn({kWidth, kWidth});
  at::Tensor into;  // more than any cache holds

  const auto train = [&, &net = net, &opt = opt, &batches = batches](int64_t steps) {
    for (int64_t done = 0; done < steps;) {
      for (auto& batch : batches) {
        accelerator.backward(at::cross_entropy_loss(net->forward(batch.data), batch.target));
        opt.step();
        opt.zero_grad();
        if (++done == steps) break;
      }
    }
    accelerator.wait_for_checkpoint();
  };
  const std::map<std::string, std::function<void(int64_t)>> modes = {
      {"steps", train},
      {"keep", [&](int64_t) { accelerator.save_state(kept); }},
      {"load", [&](int64_t) { accelerator.load_state(kept); }},
      {"save", [&](int64_t) { accelerator.save_state(measured); }},
      {"raw",
       [&](int64_t bytes) {
         fs::create_directories(measured);
         write_plainly(measured + "/plain_" + std::to_string(accelerator.rank()), bytes, plain);
       }},
      {"read",
       [&](int64_t bytes) {
         if (!into.defined()) into = at::ones({4, kWidth, kWidth});
         read_plainly(kept, bytes, into);
       }},
      {"clear", [&](int64_t) {
         if (accelerator.rank() == 0) remove_written(measured);
         ::sync();
       }}};

  std::unique_ptr<coupler::bench::ExtraMemory> extra;
  const auto perform = [&](const std::string& mode, int64_t number) {
    const std::string what = mode.substr(0, mode.find('-'));
    extra = std::make_unique<coupler::bench::ExtraMemory>(what != mode);
    modes.at(what)(number);
  };
  coupler::bench::Control control(values[2]);
  control.serve(accelerator.rank(), parameters,
                {.ready = [&] { accelerator.wait_for_everyone(); },
                 .train = perform,
                 .loss = [&] { return extra->mib(); }});
  return 0;
}

const Registration kRegistration("checkpoint", program);

}  // namespace coupler::bench::checkpoint
