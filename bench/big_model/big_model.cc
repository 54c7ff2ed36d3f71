// Loads a model of 1.04 billion parameters (4.2 GB) from a sharded checkpoint and runs it from
// memory and from disk, in turns, driven by bench/run: bench big_model --checkpoint FOLDER
// --control SOCKET. Modes:
//   load      loads into CPU memory and reads one value of each page
//   read      reads the same files into one buffer with plain reads
//   memory    forward of the model in memory
//   disk      forward with all weights on disk, loaded before by prepare-disk
//   output    the same as disk, but answers with the output
//   drop      drops the files from the page cache
//   first     builds the model and computes the first output with all weights on disk
//   cold      forward with the weights on disk, just after drop
//   raw       reads the same bytes with direct I/O, as fast as the disk allows
//   empty, empty-memory  makes a model of 100 billion parameters on the meta device
//   free      destroys that model
// The answer in place of a loss: for load, disk and empty-memory the peak growth of anonymous
// memory in MiB (sampling it takes time); for the others a checksum of the output.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <coupler/big_model.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <fcntl.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "control.h"
#include "extra_memory.h"
#include "program.h"

namespace coupler::bench::big_model {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using coupler::DeviceMap;

constexpr int64_t kWidth = 4096, kLayers = 62;
constexpr size_t kPiece = size_t{8} << 20;

int64_t check(int64_t result, const std::string& path) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), path);
  return result;
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

void drop_from_page_cache(const std::vector<std::string>& files) {
  for (const std::string& path : files) {
    const int file = static_cast<int>(check(::open(path.c_str(), O_RDONLY | O_CLOEXEC), path));
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

// direct: bypasses the page cache and reads from two threads, which keeps a disk busy.
void read_all(const std::vector<std::string>& files, bool direct) {
  const auto read_some = [&](size_t first, size_t step) {
    struct Free {
      void operator()(char* memory) const { std::free(memory); }
    };
    const std::unique_ptr<char, Free> memory(static_cast<char*>(std::aligned_alloc(4096, kPiece)));
    for (const std::string& path : files) {
      const int flags = O_RDONLY | O_CLOEXEC | (direct ? O_DIRECT : 0);
      const int file = static_cast<int>(check(::open(path.c_str(), flags), path));
      const auto size = static_cast<int64_t>(fs::file_size(path));
      for (int64_t at = static_cast<int64_t>(first * kPiece); at < size;
           at += static_cast<int64_t>(step * kPiece)) {
        check(::pread(file, memory.get(), kPiece, at), path);
      }
      ::close(file);
    }
  };
  if (!direct) return read_some(0, 1);
  std::thread other([&] { read_some(1, 2); });
  read_some(0, 2);
  other.join();
}

nn::Sequential empty_model() {
  const coupler::EmptyWeights empty;
  nn::Sequential model;
  for (int64_t i = 0; i < kLayers; ++i) {
    model->push_back(nn::Linear(nn::LinearOptions(kWidth, kWidth).bias(false)));
  }
  return model;
}

// 100 billion parameters.
nn::Sequential make_huge_model() {
  const coupler::EmptyWeights empty;
  nn::Sequential model;
  for (int i = 0; i < 1000; ++i) model->push_back(nn::Linear(10000, 10000));
  return model;
}

double forward(nn::Sequential& model) {
  const torch::NoGradGuard no_grad;
  return model->forward(at::ones({1, kWidth})).sum().item<double>();
}

struct Placed {
  explicit Placed(const std::string& checkpoint, const char* place)
      : handle(coupler::load_checkpoint_and_dispatch(model, checkpoint,
                                                     {.device_map = DeviceMap{{"", place}}})) {}
  nn::Sequential model = empty_model();
  coupler::DispatchedModel handle;
};

// Reads one value of each page, which forces all of the model into memory.
double touch(nn::Sequential& model) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    sum += parameter.view(-1).slice(0, 0, std::nullopt, 1024).sum().item<double>();
  }
  return sum;
}

void copy_to_memory(nn::Sequential& model) {
  for (at::Tensor& parameter : model->parameters()) parameter.set_data(parameter.detach().clone());
}

}  // namespace

int program(int argc, char** argv) {
  const auto values = values_of(argc, argv, "--checkpoint FOLDER --control SOCKET");
  const std::string& checkpoint = values[0];
  const std::vector<std::string> files = files_of(checkpoint);
  double answer = 0;
  std::optional<nn::Sequential> in_memory, huge;
  std::optional<Placed> on_disk;
  const auto watched = [&](const std::function<void()>& action) {
    coupler::bench::ExtraMemory memory(/*anonymous=*/true);
    action();
    answer = memory.mib();
  };
  const std::map<std::string, std::function<void()>> modes = {
      {"load",
       [&] {
         watched([&] {
           Placed placed(checkpoint, "cpu");
           touch(placed.model);
         });
       }},
      {"read", [&] { read_all(files, false); }},
      {"memory", [&] { answer = forward(*in_memory); }},
      {"disk", [&] { watched([&] { forward(on_disk->model); }); }},
      {"output", [&] { answer = forward(on_disk->model); }},
      {"drop",
       [&] {
         on_disk.reset();
         drop_from_page_cache(files);
       }},
      {"first",
       [&] {
         Placed placed(checkpoint, "disk");
         answer = forward(placed.model);
       }},
      {"cold", [&] { answer = forward(on_disk->model); }},
      {"raw", [&] { read_all(files, true); }},
      {"empty", [&] { huge = make_huge_model(); }},
      {"empty-memory", [&] { watched([&] { huge = make_huge_model(); }); }},
      {"free", [&] { huge.reset(); }},
  };
  coupler::bench::Control control(values[1]);
  std::string coming;
  control.serve(0, kLayers * kWidth * kWidth,
                {.ready = [] {},
                 .train =
                     [&](const std::string& mode, int64_t steps) {
                       if (mode == "prepare-memory" && !in_memory) {
                         Placed placed(checkpoint, "cpu");
                         copy_to_memory(placed.model);
                         in_memory = placed.model;
                       } else if (mode == "prepare-disk") {
                         on_disk.emplace(checkpoint, "disk");
                       } else {
                         for (int64_t i = 0; i < steps; ++i) modes.at(mode)();
                       }
                     },
                 .loss = [&] { return answer; }});
  return 0;
}

const Registration kRegistration("big_model", program);

}  // namespace coupler::bench::big_model
