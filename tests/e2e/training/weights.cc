// Weights into and out of a prepared model, however it is divided: load_model from files and from
// memory, before and after steps; save_model in 16 bits; damaged and foreign weights change
// nothing.
#include <coupler/coupler.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "check.h"
#include "shared_folder.h"

namespace {

namespace fs = std::filesystem;
using coupler::Accelerator;
using Values = std::map<std::string, torch::Tensor>;

constexpr int64_t kWeightRows = 24;  // divisible by world sizes 1 to 4

// All names, those of tied tensors included.
Values weight_values(torch::nn::Module& module) {
  Values values;
  for (const auto& item : module.named_parameters())
    values[item.key()] = item.value().detach().clone();
  return values;
}

Values values_in(Accelerator& accelerator, Net& net) {
  Values values;
  accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& value) {
    values[name] = value.detach().clone();
  });
  return values;
}

void expect_values(Accelerator& accelerator, Net& net, const Values& expected,
                   const std::string& what) {
  for (const auto& [name, value] : values_in(accelerator, net)) {
    EXPECT(torch::equal(value, expected.at(name)), what + ": '" + name + "' differs");
  }
}

void expect_in_message(const std::string& text, const std::string& part) {
  EXPECT(text.find(part) != std::string::npos, "'" + part + "' is not in: " + text);
}

// A network with other values, and its files.
struct Source {
  Source(Accelerator& accelerator, const std::string& folder) {
    accelerator.free_memory();
    torch::manual_seed(21);
    Net plain(/*mixed=*/true);
    values = weight_values(*plain);
    accelerator.save(*plain, folder + "/one.safetensors");
    auto net = accelerator.prepare(plain);
    accelerator.save_model(net, folder + "/shards", {.max_shard_size = "200B"});
    accelerator.save_model(net, folder + "/bf16", {.dtype = torch::kBFloat16});
    accelerator.free_memory();
    accelerator.wait_for_everyone();
  }
  Values values;
};

void models_load_weights(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  const Source source(accelerator, folder.path());
  torch::manual_seed(22);
  Net model(/*mixed=*/true), reference(/*mixed=*/true);
  const Values other = weight_values(*reference);
  for (auto& item : reference->named_parameters())
    item.value().set_data(source.values.at(item.key()).clone());
  torch::optim::AdamW optimizer(trainable(model), 1e-2), theirs(trainable(reference), 1e-2);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto step = [&, &net = net, &opt = opt](int number) {
    const Batch joined = joined_batch(number, kWeightRows);
    opt.zero_grad();
    theirs.zero_grad();
    accelerator.backward(
        loss_of(net, own_part(joined, accelerator.rank(), accelerator.world_size())));
    loss_of(reference, joined).backward();
    opt.step();
    theirs.step();
  };
  const auto expect_reference = [&, &net = net](const std::string& what) {
    for (const auto& [name, value] : values_in(accelerator, net)) {
      EXPECT(torch::allclose(value, reference->named_parameters()[name], 1e-6, 1e-7),
             what + ": '" + name + "' differs from LibTorch's");
    }
  };
  // Before steps.
  accelerator.load_model(net, folder.path() + "/shards");
  expect_values(accelerator, net, source.values, "from several files");
  step(0);
  expect_reference("a step after loading");
  // After steps: the optimizer keeps its state.
  accelerator.load_model(net, folder.path() + "/one.safetensors");
  expect_values(accelerator, net, source.values, "from one file");
  {
    torch::NoGradGuard no_grad;
    for (auto& item : reference->named_parameters())
      item.value().copy_(source.values.at(item.key()));
  }
  step(1);
  expect_reference("a step after loading again");
  // From memory, under other names, some of them missing.
  accelerator.load_model(net,
                         {{"x.hidden.weight", other.at("hidden.weight").to(torch::kFloat)},
                          {"x.ignored", torch::ones({2})}},
                         {.strict = false, .rename = [](const std::string& name) {
                            return name == "x.ignored" ? "" : name.substr(2);
                          }});
  const Values now = values_in(accelerator, net);
  EXPECT(torch::equal(now.at("hidden.weight"),
                      other.at("hidden.weight").to(torch::kFloat).to(torch::kDouble)),
         "a tensor in memory was not loaded");
  EXPECT(torch::allclose(now.at("hidden.bias"), reference->hidden->bias, 1e-6, 1e-7),
         "a missing tensor changed");
  // In 16 bits, from the folder and from a checkpoint.
  accelerator.load_model(net, folder.path() + "/bf16");
  Values rounded;
  for (const auto& [name, value] : source.values)
    rounded[name] = value.to(torch::kBFloat16).to(value.scalar_type());
  expect_values(accelerator, net, rounded, "from bf16");
  const std::string saved = accelerator.save_state(folder.path() + "/states");
  accelerator.load_model(net, other);
  expect_values(accelerator, net, other, "from memory");
  accelerator.load_model(net, saved);
  expect_values(accelerator, net, rounded, "from a checkpoint");
  accelerator.free_memory();
}

void weights_that_do_not_fit_change_nothing(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  const Source source(accelerator, folder.path());
  torch::manual_seed(22);
  Net model(/*mixed=*/true);
  auto net = accelerator.prepare(model);
  const std::string saved = accelerator.save_state(folder.path() + "/states");
  const Values before = values_in(accelerator, net);
  const auto refused = [&](const auto& from) {
    const std::string said = error_of([&] { accelerator.load_model(net, from); });
    expect_values(accelerator, net, before, "after: " + said);
    return said;
  };
  Values wrong = source.values;
  wrong["hidden.weight"] = torch::zeros({2, 3});
  wrong["frozen"] = torch::zeros({7});
  wrong.erase("hidden.bias");
  wrong["one.too.many"] = torch::zeros({1});
  std::string said = refused(wrong);
  expect_in_message(said, "missing: hidden.bias");
  expect_in_message(said, "unexpected: one.too.many");
  expect_in_message(said, "hidden.weight is [2, 3], but the model's is [6, 6]");
  expect_in_message(said, "frozen is [7], but the model's is [6]");
  if (accelerator.world_size() > 1) {
    Values others = source.values;
    others["scale"] = torch::full({1}, accelerator.rank(), torch::kFloat);
    expect_in_message(refused(others), "rank 1 finds other tensors in the state dict than rank 0");
  }
  // A file that was cut short.
  const std::string one = folder.path() + "/one.safetensors",
                    cut = folder.path() + "/cut.safetensors";
  if (accelerator.is_main_process()) {
    fs::copy(one, cut);
    fs::resize_file(cut, fs::file_size(cut) - 8);
  }
  accelerator.wait_for_everyone();
  expect_in_message(refused(cut), "cut.safetensors");
  expect_in_message(refused(folder.path() + "/nothing"), "nothing");
  // A damaged part of a checkpoint, which only some rank reads.
  if (accelerator.is_main_process()) {
    for (const auto& entry : fs::directory_iterator(saved)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("model", 0) != 0) continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(-1, std::ios::end);
      const char byte = static_cast<char>(file.get() ^ 1);
      file.seekp(-1, std::ios::end);
      file.put(byte);
      break;
    }
  }
  accelerator.wait_for_everyone();
  expect_in_message(refused(saved), "damaged");
  accelerator.free_memory();
}

void weights_are_saved_in_16_bits(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  torch::manual_seed(23);
  Net model(/*mixed=*/true);
  const Values expected = weight_values(*model);
  auto net = accelerator.prepare(model);
  accelerator.save_model(net, folder.path(), {.max_shard_size = "160B", .dtype = torch::kHalf});
  size_t tensors = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    const auto file = coupler::SafeTensors::open(entry.path());
    size_t bytes = 0;
    for (const std::string& name : file.names()) {
      const torch::Tensor tensor = file.tensor(name);
      EXPECT(torch::equal(tensor, expected.at(name).to(torch::kHalf)), "'" + name + "' is another");
      bytes += tensor.nbytes();
      ++tensors;
    }
    EXPECT(bytes <= 160, "a file is larger than max_shard_size");
    EXPECT(file.names().size() == 1 || file.metadata().count("tied") == 0 ||
               file.metadata().at("tied") == "embedding.weight",
           "the tied name is missing");
  }
  EXPECT(tensors == expected.size() - 1, "a tied tensor was saved twice, or one is missing");
  accelerator.wait_for_everyone();
  // 230 bytes in 16 bits.
  accelerator.save_model(net, folder.path(), {.max_shard_size = "240B", .dtype = torch::kHalf});
  EXPECT(fs::exists(folder.path() + "/model.safetensors"), "the bytes before conversion count");
  const auto said =
      error_of([&] { accelerator.save_model(net, folder.path(), {.dtype = torch::kLong}); });
  expect_in_message(said, "dtype is int64, which is not floating-point");
  accelerator.wait_for_everyone();
  accelerator.free_memory();
}

// Whatever the model computes in, the optimizer's own values are saved and loaded, and what is made
// from them follows. Also runs with mixed_precision = "bf16" and fsdp's param_dtype = "bf16".
void weights_under_bf16(Accelerator& accelerator) {
  accelerator.free_memory();
  const SharedFolder folder(accelerator);
  torch::manual_seed(24);
  torch::nn::Linear plain(6, 5), other(6, 5);
  const Values first = weight_values(*plain), second = weight_values(*other);
  torch::optim::SGD optimizer(plain->parameters(), 0.1);
  auto [net, opt] = accelerator.prepare(plain, optimizer);
  const torch::Tensor x = torch::randn({4, 6});
  const auto expect_saved = [&, &net = net](const Values& expected, torch::nn::Linear& like) {
    accelerator.save_model(net, folder.path() + "/weights");
    const auto file = coupler::SafeTensors::open(folder.path() + "/weights/model.safetensors");
    for (const auto& [name, value] : expected) {
      EXPECT(torch::equal(file.tensor(name), value), "'" + name + "' is rounded, or another");
    }
    const torch::NoGradGuard no_grad;
    const auto scope = accelerator.autocast();
    EXPECT(torch::allclose(net->forward(x).to(torch::kFloat), like->forward(x).to(torch::kFloat),
                           0.05, 0.05),
           "forward uses other weights");
    accelerator.wait_for_everyone();
  };
  torch::nn::Linear like(6, 5);
  {
    const torch::NoGradGuard no_grad;
    like->weight.copy_(first.at("weight"));
    like->bias.copy_(first.at("bias"));
  }
  expect_saved(first, like);
  const std::string saved = accelerator.save_state(folder.path() + "/states");
  accelerator.load_model(net, second);
  expect_saved(second, other);
  accelerator.load_state(saved);
  expect_saved(first, like);
  accelerator.load_model(net, folder.path() + "/weights");
  expect_saved(first, like);
  accelerator.free_memory();
}

// For tests/e2e/checkpoint/python_test.cc, into the folder given by --expect: the network of the
// digits example.
struct DigitsImpl : torch::nn::Module {
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(64, 128));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(128, 10));
};
TORCH_MODULE(Digits);

void weights_for_python(Accelerator& accelerator) {
  auto net = accelerator.prepare(Digits());
  accelerator.save_model(net, check_options().expect + "/fp32");
  accelerator.save_model(net, check_options().expect + "/bf16", {.dtype = torch::kBFloat16});
}

}  // namespace

std::vector<Check> weight_checks() {
  return {{"models_load_weights", models_load_weights},
          {"weights_that_do_not_fit_change_nothing", weights_that_do_not_fit_change_nothing},
          {"weights_are_saved_in_16_bits", weights_are_saved_in_16_bits},
          {"weights_under_bf16", weights_under_bf16},
          {"weights_for_python", weights_for_python, /*alone=*/true}};
}
