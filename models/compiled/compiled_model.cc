#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <coupler/compiled_model.h>
#include <coupler/error.h>
#include <coupler/state_dict.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/text.h"
#include "plugin/resolve.h"
#include "tensors/tensor_text.h"

namespace coupler {
namespace {

using Loader = torch::inductor::AOTIModelPackageLoader;
using Metadata = std::map<std::string, std::string>;

std::string message_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

// A package's library needs libtorch.so by name, which has no code of its own. If LibTorch is built
// for CUDA and the machine has none of CUDA's libraries, it cannot be loaded; Coupler does without
// it, and here a library of that name stands for it.
void provide_libtorch() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (::dlopen("libtorch.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return;
    // If this fails, so does loading the package, with a reason.
    ::dlopen((plugin::own_folder() / "libcoupler_libtorch.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
  });
}

// Generated code compares dtypes and shapes with what it was compiled for only if this is set.
// Without, it would read wherever they lead.
void check_inputs_in_packages() {
  static std::once_flag once;
  std::call_once(once, [] { ::setenv("AOTI_RUNTIME_CHECK_INPUTS", "1", /*overwrite=*/0); });
}

// The first of the package's instruction sets that this processor lacks; "" if it has all.
std::string missing_instructions(const std::string& needed) {
  const std::map<std::string, bool, std::less<>> known = {
      {"AVX2", __builtin_cpu_supports("avx2") != 0},
      {"AVX512", __builtin_cpu_supports("avx512f") != 0},
      {"AVX512_VNNI", __builtin_cpu_supports("avx512vnni") != 0},
  };
  std::istringstream words(needed);
  for (std::string word; words >> word;) {
    const auto found = known.find(word);
    if (found != known.end() && !found->second) return word;
  }
  return "";
}

std::string value_of(const Metadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

void check_fits(const std::string& path, const Metadata& metadata) {
  const std::string machine = value_of(metadata, "AOTI_MACHINE");
  const std::string device = value_of(metadata, "AOTI_DEVICE_KEY");
  std::string why;
  if (!machine.empty() && machine != "x86_64") {
    why = fmt::format("processors of kind {}", for_message(machine));
  } else if (const std::string missing = missing_instructions(value_of(metadata, "AOTI_CPU_ISA"));
             !missing.empty()) {
    why = fmt::format("processors with {}, which this one does not have", missing);
  } else if (!device.empty() && torch::inductor::getAOTIModelRunnerRegistry().count(device) == 0) {
    why = fmt::format("'{}' devices, which this process does not have", for_message(device));
  }
  if (why.empty()) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("{} was compiled for {}", path, why),
              {.subject = path, .hint = "compile it on a machine like this one"});
}

// The leaves of a pytree that PyTorch has written as JSON: [version, {type, context, children}].
size_t leaves_of(const nlohmann::json& tree) {
  const auto children = tree.find("children_spec");
  if (tree.value("type", nlohmann::json()).is_null()) return 1;
  size_t count = 0;
  if (children != tree.end())
    for (const auto& child : *children) count += leaves_of(child);
  return count;
}

size_t count_inputs(const std::vector<std::string>& call_spec, const std::string& path) {
  try {
    return leaves_of(nlohmann::json::parse(call_spec.at(0)).at(1));
  } catch (const std::exception& error) {
    throw Error(ErrorCode::kIo,
                fmt::format("{}: its description of inputs cannot be read: {}", path, error.what()),
                {.subject = path, .hint = "compile it with a PyTorch from 2.11 on"});
  }
}

}  // namespace

struct CompiledModel::Package {
  std::string path;
  Metadata metadata;
  std::unique_ptr<Loader> loader;
  at::Device device = at::kCPU;
  size_t inputs = 0;
};

CompiledModel::CompiledModel(const std::string& path, const CompiledModelOptions& options)
    : package_(std::make_unique<Package>()) {
  if (options.runners < 1) {
    fail_argument(fmt::format("CompiledModelOptions::runners is {}", options.runners), "runners",
                  "use at least 1");
  }
  MappedFile::open(path);  // throws for a file that cannot be read, with the reason
  provide_libtorch();
  check_inputs_in_packages();
  try {
    const auto metadata = Loader::load_metadata_from_package(path, options.name);
    package_->path = path;
    package_->metadata = {metadata.begin(), metadata.end()};
    check_fits(path, package_->metadata);
    package_->loader = std::make_unique<Loader>(
        path, options.name, /*run_single_threaded=*/false, static_cast<size_t>(options.runners),
        static_cast<c10::DeviceIndex>(options.device_index));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const std::string what = message_of(error);
    // LibTorch 2.11 says more about them.
    const bool unnamed = what.find("Available models") != std::string::npos;
    // glibc 2.41 refuses such a library, which PyTorch makes of models with constants.
    const bool stack = what.find("executable stack") != std::string::npos;
    throw Error(unnamed ? ErrorCode::kInvalidArgument : ErrorCode::kIo,
                unnamed ? fmt::format("{} has no model '{}'", path, for_message(options.name))
                        : fmt::format("{} cannot be loaded as a package of AOTInductor: {}", path,
                                      what.substr(0, what.find('\n'))),
                {.subject = path,
                 .hint = unnamed ? "pass a name that was given to "
                                   "torch._inductor.package.package_aoti"
                         : stack ? "this system loads no library that asks for an executable "
                                   "stack: unzip the package, run patchelf --clear-execstack on "
                                   "its .so files, and zip it again"
                                 : "write it again with torch._inductor.aoti_compile_and_package"});
  }
  package_->inputs = count_inputs(package_->loader->get_call_spec(), path);
  const std::string kind = value_of(package_->metadata, "AOTI_DEVICE_KEY");
  if (!kind.empty()) package_->device = at::Device(kind);
  if (!package_->device.is_cpu() && options.device_index >= 0) {
    package_->device.set_index(static_cast<c10::DeviceIndex>(options.device_index));
  }
}

CompiledModel::~CompiledModel() = default;
CompiledModel::CompiledModel(CompiledModel&&) noexcept = default;
CompiledModel& CompiledModel::operator=(CompiledModel&&) noexcept = default;

std::vector<at::Tensor> CompiledModel::forward(const std::vector<at::Tensor>& inputs) const {
  if (inputs.size() != package_->inputs) {
    fail_argument(fmt::format("{} takes {} tensor{}, but got {}", package_->path, package_->inputs,
                              package_->inputs == 1 ? "" : "s", inputs.size()),
                  "inputs");
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].device().type() == package_->device.type()) continue;
    fail_argument(fmt::format("input {} of {} is {}, but the model is on {}", i, package_->path,
                              inputs[i].defined() ? "on " + inputs[i].device().str() : "undefined",
                              package_->device.str()),
                  "inputs");
  }
  const at::NoGradGuard no_grad;
  try {
    return package_->loader->run(inputs);
  } catch (const std::exception&) {
    std::vector<std::string> given;
    for (const at::Tensor& input : inputs) {
      given.push_back(fmt::format("{} with strides [{}]", tensors::text_of(input),
                                  fmt::join(input.strides(), ", ")));
    }
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} failed on {}; LibTorch has printed why", package_->path,
                            fmt::join(given, ", ")),
                {.subject = package_->path,
                 .hint = "give it inputs like those that it was exported with; dynamic_shapes of "
                         "torch.export says which sizes may vary"});
  }
}

at::Device CompiledModel::device() const { return package_->device; }

size_t CompiledModel::num_inputs() const { return package_->inputs; }

std::vector<std::string> CompiledModel::weight_names() const {
  std::vector<std::string> names = package_->loader->get_constant_fqns();
  std::sort(names.begin(), names.end());
  return names;
}

void CompiledModel::load_weights(const std::string& path) {
  const SafeTensors file = SafeTensors::open(path);
  std::unordered_map<std::string, at::Tensor> weights;
  for (const auto& [name, own] :
       package_->loader->get_runner()->extract_constants_map(/*use_inactive=*/false)) {
    if (!file.contains(name)) {
      fail_argument(
          fmt::format("{} has no '{}', which {} needs", path, for_message(name), package_->path),
          name, "save all weights of the model that was compiled");
    }
    const at::Tensor given = file.tensor(name);
    if (given.sizes() != own.sizes() || given.scalar_type() != own.scalar_type()) {
      fail_argument(
          fmt::format("'{}' is {} in {}, but {} in {}", for_message(name), tensors::text_of(given),
                      path, tensors::text_of(own), package_->path),
          name, "save the weights of the model that was compiled");
    }
    weights[name] = given.to(package_->device);
  }
  package_->loader->load_constants(weights, /*use_inactive=*/false, /*check_full_update=*/true);
}

const std::map<std::string, std::string>& CompiledModel::metadata() const {
  return package_->metadata;
}

}  // namespace coupler
