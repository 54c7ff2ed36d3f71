// Checkpoints: training that resumes from one ends with the same bits as uninterrupted training,
// with any optimizer; registered objects are restored; another program's checkpoint is rejected
// with all differences and changes nothing.
#include <coupler/coupler.h>
#include <coupler/objects.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>

#include "check.h"
#include "shared_folder.h"

namespace {

namespace fs = std::filesystem;
using coupler::Accelerator;

// Random numbers in forward, buffers, a frozen parameter.
struct MixedImpl : torch::nn::Module {
  explicit MixedImpl(int64_t hidden = 8)
      : in(register_module("in", torch::nn::Linear(6, hidden))),
        norm(register_module("norm", torch::nn::BatchNorm1d(hidden))),
        out(register_module("out", torch::nn::Linear(hidden, 3))),
        frozen(register_parameter("frozen", torch::ones({3}), /*requires_grad=*/false)) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return out(torch::dropout(norm(in(x)), 0.25, is_training())) * frozen;
  }
  torch::nn::Linear in;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear out;
  torch::Tensor frozen;
};
TORCH_MODULE(Mixed);

using Values = std::map<std::string, torch::Tensor>;

Values values_of(Accelerator& accelerator, Mixed& net) {
  torch::NoGradGuard no_grad;
  Values values;
  accelerator.for_each_tensor(net, [&](const std::string& name, const torch::Tensor& value) {
    values[name] = value.detach().clone();
  });
  return values;
}

void expect_equal(const Values& ours, const Values& expected, const std::string& what) {
  for (const auto& [name, value] : expected) {
    EXPECT(torch::equal(ours.at(name), value), what + ": '" + name + "' differs");
  }
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind,
                                                        std::vector<torch::Tensor> parameters) {
  using namespace torch::optim;
  if (kind == "SGD") {
    return std::make_unique<SGD>(parameters, SGDOptions(0.05).momentum(0.9).nesterov(true));
  }
  if (kind == "plain SGD") return std::make_unique<SGD>(parameters, SGDOptions(0.05));
  if (kind == "Adam") return std::make_unique<Adam>(parameters, AdamOptions(0.01).amsgrad(true));
  if (kind == "RMSprop") {
    return std::make_unique<RMSprop>(parameters, RMSpropOptions(0.01).momentum(0.5).centered(true));
  }
  if (kind == "Adagrad") return std::make_unique<Adagrad>(parameters, AdagradOptions(0.05));
  return std::make_unique<AdamW>(parameters, AdamWOptions(0.01));
}

// Saves in the middle of an epoch; trains its rest and another epoch twice.
void goes_on_with(Accelerator& accelerator, const std::string& kind) {
  const SharedFolder folder(accelerator);
  torch::manual_seed(7);
  const torch::Tensor samples = torch::randn({64, 6}), targets = torch::randn({64, 3});
  torch::manual_seed(100 + accelerator.rank());  // ranks draw different numbers
  Mixed model;
  std::vector<torch::Tensor> trained;
  for (const auto& parameter : model->parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  const auto optimizer = make_optimizer(kind, trained);
  auto loader = coupler::data_loader(coupler::TensorDataset(samples, targets),
                                     {.batch_size = 4, .shuffle = true, .seed = 3});
  auto [net, opt, batches] = accelerator.prepare(model, *optimizer, loader);
  torch::Tensor seen = torch::zeros({64}, torch::kLong);  // this rank's samples since the save
  std::string saved;
  const auto train = [&, &net = net, &opt = opt, &batches = batches](int64_t epochs,
                                                                     int64_t save_at) {
    for (int64_t epoch = batches.next_epoch(); epoch < epochs; ++epoch) {
      int64_t step = 0;
      for (auto& batch : batches) {
        accelerator.backward((net->forward(batch.data) - batch.target).square().mean());
        opt.step();
        opt.zero_grad();
        if (epoch == 0 && ++step == save_at) saved = accelerator.save_state(folder.path());
      }
    }
  };
  train(2, 2);
  const Values expected = values_of(accelerator, net);
  accelerator.load_state(saved);
  EXPECT(batches.next_epoch() == 0, "the loader is not in the interrupted epoch");
  train(2, -1);
  expect_equal(values_of(accelerator, net), expected, kind);
  // Again, given the folder.
  accelerator.load_state(folder.path());
  train(2, -1);
  expect_equal(values_of(accelerator, net), expected, kind + " once more");
  accelerator.free_memory();
}

void optimizers_go_on(Accelerator& accelerator) {
  for (const char* kind : {"SGD", "plain SGD", "Adam", "AdamW"}) goes_on_with(accelerator, kind);
}

// These keep their own state, which cannot be offloaded.
void other_optimizers_go_on(Accelerator& accelerator) {
  goes_on_with(accelerator, "RMSprop");
  // Adagrad has state before its first step, which cannot be sharded.
  if (check_options().expect.empty() && accelerator.backend() != "fsdp" &&
      accelerator.backend() != "deepspeed_like") {
    goes_on_with(accelerator, "Adagrad");
  }
}

// The loader's cursor counts samples: each comes once, even after a change of the batch size.
void another_batch_size_sees_every_sample_once(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  constexpr int64_t kSamples = 90;
  const torch::Tensor samples = torch::arange(kSamples);
  std::vector<int64_t> seen(kSamples, 0);
  const auto loader_of = [&](int64_t batch_size) {
    return coupler::data_loader(coupler::TensorDataset(samples, samples),
                                {.batch_size = batch_size, .shuffle = true, .seed = 5});
  };
  const auto count = [&](const torch::Tensor& batch) {
    const auto all = accelerator.gather_for_metrics(batch);
    for (int64_t i = 0; i < all.size(0); ++i) ++seen.at(all[i].item<int64_t>());
  };
  std::string saved;
  {
    Mixed model;
    torch::optim::SGD optimizer({model->in->weight}, 0.1);
    auto loader = loader_of(2);
    auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
    int64_t step = 0;
    for (auto& batch : batches) {
      count(batch.data);
      if (++step < 3) continue;
      saved = accelerator.save_state(folder.path());
      break;
    }
    accelerator.free_memory();
  }
  Mixed model;
  torch::optim::SGD optimizer({model->in->weight}, 0.1);
  auto loader = loader_of(7);
  auto [net, opt, batches] = accelerator.prepare(model, optimizer, loader);
  accelerator.load_state(saved);
  for (auto& batch : batches) count(batch.data);
  EXPECT(std::all_of(seen.begin(), seen.end(), [](int64_t times) { return times == 1; }),
         "a sample was repeated or missing");
  EXPECT(batches.next_epoch() == 1, "it was not the interrupted epoch");
  accelerator.free_memory();
}

// Needs fp16, training.gradient_accumulation_steps=2 and training.loss_scale_growth_interval=3.
void fp16_scale_comes_back(Accelerator& accelerator) {
  if (accelerator.loss_scale() == 1) return;
  const SharedFolder folder(accelerator);
  Mixed model;
  torch::optim::SGD optimizer({model->in->weight}, 1e-4);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const auto step = [&, &net = net, &opt = opt] {
    for (int i = 0; i < 2; ++i) {
      auto scope = accelerator.accumulate(net);
      accelerator.backward(net->forward(torch::ones({4, 6})).sum() * 1e-6);
      opt.step();
      opt.zero_grad();
    }
  };
  double before = 0;
  do {  // until the scale has just grown
    before = accelerator.loss_scale();
    step();
  } while (accelerator.loss_scale() <= before);
  const double scale = accelerator.loss_scale();
  step();
  step();
  const std::string saved = accelerator.save_state(folder.path());
  step();
  EXPECT(accelerator.loss_scale() == 2 * scale, "the scale did not grow");
  accelerator.load_state(saved);
  EXPECT(accelerator.loss_scale() == scale, "the scale was not restored");
  step();
  EXPECT(accelerator.loss_scale() == 2 * scale, "the count until the next growth was not restored");
  accelerator.free_memory();
}

struct Progress {
  int64_t best = 0;
  double score = 0;
  bool done = false;
  std::string note;
  torch::Tensor history = torch::zeros({2});
  void save(coupler::StateDict& state) const {
    state.set("best", best);
    state.set("score", score);
    state.set("done", done);
    state.set("note", note);
    state.set("history", history);
  }
  void load(const coupler::StateDict& state) {
    best = state.integer("best");
    score = state.number("score");
    done = state.boolean("done");
    note = state.text("note");
    history = state.tensor("history");
  }
};

void registered_objects_and_schedules_come_back(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  torch::manual_seed(1);
  Mixed model;
  torch::optim::SGD optimizer({model->in->weight, model->out->weight}, 0.5);
  auto [net, opt, schedule] = accelerator.prepare(
      model, optimizer,
      coupler::linear_schedule(optimizer, {.warmup_steps = 2, .total_steps = 10}));
  static Progress
      progress;  // stays registered, so it must outlive the Accelerator's last checkpoint
  static Mixed average;
  accelerator.register_for_checkpointing(progress, average);
  progress = {.best = int64_t{1} << 40, .score = 0.1, .done = true, .note = "ä \"x\""};
  const auto average_before = average->in->weight.detach().clone();
  std::vector<std::string> called;
  const auto on_save = accelerator.register_save_state_pre_hook([&](const std::string& path) {
    called.push_back("save");
    if (!accelerator.is_main_process()) return;
    std::FILE* file = std::fopen((path + "/notes.txt").c_str(), "w");
    std::fputs("of the program's own", file);
    std::fclose(file);
  });
  const auto on_load = accelerator.register_load_state_pre_hook([&](const std::string& path) {
    called.push_back(fs::exists(path + "/notes.txt") ? "load" : "?");
  });
  const auto step = [&, &net = net, &opt = opt, &schedule = schedule] {
    accelerator.backward(net->forward(torch::ones({4, 6})).sum());
    opt.step();
    schedule.step();
    opt.zero_grad();
  };
  step();
  const double rate = schedule.rates()[0];
  const std::string saved = accelerator.save_state(folder.path());
  step();
  progress = {};
  {
    torch::NoGradGuard no_grad;
    average->in->weight.zero_();
  }
  accelerator.load_state(saved);
  EXPECT(schedule.rates()[0] == rate && schedule.steps() == 1, "the schedule was not restored");
  EXPECT(progress.best == int64_t{1} << 40 && progress.score == 0.1 && progress.done &&
             progress.note == "ä \"x\"" && progress.history.size(0) == 2,
         "the registered object was not restored");
  EXPECT(torch::equal(average->in->weight, average_before),
         "the registered module was not restored");
  EXPECT((called == std::vector<std::string>{"save", "load"}), "the hooks were not called");
  accelerator.free_memory();
}

void hooks_leave_out_tensors(Accelerator& accelerator) {
  accelerator.free_memory();
  const SharedFolder folder(accelerator);
  torch::manual_seed(4);
  Mixed first, second;
  torch::optim::AdamW optimizer({second->in->weight, second->in->bias, second->out->weight});
  auto [teacher, net, opt] = accelerator.prepare(first, second, optimizer);
  const auto step = [&, &net = net, &opt = opt] {
    accelerator.backward(net->forward(torch::ones({4, 6})).sum());
    opt.step();
    opt.zero_grad();
  };
  const auto set = [](Mixed& model, double value) {
    const auto whole = coupler::summon_full_parameters(model);
    torch::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.fill_(value);
  };
  // Loads it, and returns what the two models hold afterwards if all was 7 before.
  const auto load = [&, &net = net, &teacher = teacher](const std::string& path) {
    set(teacher, 7);
    set(net, 7);
    accelerator.load_state(path);
    return std::pair(values_of(accelerator, teacher), values_of(accelerator, net));
  };
  const auto is_7 = [](const torch::Tensor& value) { return value.eq(7).all().item<bool>(); };
  step();
  const Values all = values_of(accelerator, net), of_teacher = values_of(accelerator, teacher);
  const std::string whole = accelerator.save_state(folder.path());
  std::string saved;
  {
    const auto hook = accelerator.register_save_state_pre_hook(
        [&, &net = net, &teacher = teacher](coupler::CheckpointContents& contents) {
          EXPECT(contents.tensors(net).size() == all.size(), "not all of the model is saved");
          contents.leave_out(teacher);
          contents.leave_out(net, {"in.bias", "norm.running_mean"});
          EXPECT(
              contents.tensors(teacher).empty() && contents.tensors(net).size() == all.size() - 2,
              "what was left out is listed");
          EXPECT(error_of([&] {
                   contents.leave_out(net, {"in.bias", "nothing"});
                 }).find("has no nothing") != std::string::npos,
                 "an unknown name is accepted");
          contents.extra().set("note", "of a hook");
          contents.extra().set("best", std::numeric_limits<double>::infinity());
          contents.extra().set("table", torch::arange(5));
          if (accelerator.is_main_process()) {
            std::ofstream(contents.folder() + "/adapter.txt") << "of the program's own";
          }
        });
    saved = accelerator.save_state(folder.path());
  }
  {
    auto [theirs, ours] = load(saved);
    for (const auto& [name, value] : theirs) {
      EXPECT(value.equal(of_teacher.at(name)) || is_7(value), "the teacher was loaded: " + name);
    }
    EXPECT(is_7(theirs.at("in.weight")) && is_7(ours.at("in.bias")),
           "what is not there was loaded");
    EXPECT(ours.at("in.weight").equal(all.at("in.weight")), "the rest was not loaded");
  }
  {
    std::string note;
    const auto hook = accelerator.register_load_state_pre_hook(
        [&, &net = net](coupler::CheckpointContents& contents) {
          note = contents.extra().text("note");
          EXPECT(std::isinf(contents.extra().number("best")) &&
                     contents.extra().tensor("table").equal(torch::arange(5)),
                 "what a hook added is another");
          contents.leave_out(net, {"out.weight"});
        });
    auto [theirs, ours] = load(saved);
    EXPECT(note == "of a hook" && fs::exists(saved + "/adapter.txt"), "the extra state is missing");
    EXPECT(is_7(ours.at("out.weight")) && ours.at("in.weight").equal(all.at("in.weight")),
           "a tensor that a hook left out was loaded");
  }
  {
    const auto hook = accelerator.register_load_state_pre_hook(
        [&, &teacher = teacher](coupler::CheckpointContents& contents) {
          EXPECT(contents.extra().values().empty(), "another checkpoint's extra state");
          contents.leave_out(teacher);
        });
    auto [theirs, ours] = load(whole);
    EXPECT(is_7(theirs.at("in.weight")) && ours.at("in.bias").equal(all.at("in.bias")),
           "a model that a hook left out was loaded");
  }
  if (accelerator.world_size() > 1) {
    const auto leave_out_on_rank_1 = [&, &net = net](coupler::CheckpointContents& contents) {
      if (accelerator.rank() == 1) contents.leave_out(net, {"in.weight"});
    };
    {
      const auto hook = accelerator.register_save_state_pre_hook(leave_out_on_rank_1);
      const std::string said = error_of([&] { accelerator.save_state(folder.path()); });
      EXPECT(said.find("rank 1 saves other tensors of the models than rank 0") != std::string::npos,
             said);
    }
    const auto hook = accelerator.register_load_state_pre_hook(leave_out_on_rank_1);
    const std::string said = error_of([&] { accelerator.load_state(whole); });
    EXPECT(said.find("rank 1 loads other tensors of the models than rank 0") != std::string::npos,
           said);
  }
  accelerator.free_memory();
}

void wrong_checkpoints_are_refused(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  const auto has = [](const std::string& text, const std::string& part) {
    EXPECT(text.find(part) != std::string::npos, "'" + part + "' is not in: " + text);
  };
  std::string saved;
  {
    Mixed model;
    torch::optim::AdamW optimizer(model->parameters());
    auto [net, opt] = accelerator.prepare(model, optimizer);
    accelerator.set_gradient_accumulation_steps(2);
    {
      auto scope = accelerator.accumulate(net);
      accelerator.backward(net->forward(torch::ones({4, 6})).sum());
    }
    has(error_of([&] { accelerator.save_state(folder.path()); }),
        "while gradients are being accumulated");
    {
      auto scope = accelerator.accumulate(net);
      accelerator.backward(net->forward(torch::ones({4, 6})).sum());
      opt.step();
    }
    accelerator.set_gradient_accumulation_steps(1);
    saved = accelerator.save_state(folder.path());
    accelerator.free_memory();
  }
  Mixed larger(9);
  torch::optim::SGD optimizer({larger->in->weight}, 0.1);
  auto [net, opt] = accelerator.prepare(larger, optimizer);
  const Values before = values_of(accelerator, net);
  const std::string said = error_of([&] { accelerator.load_state(saved); });
  has(said, "tensor 'in.weight' is \"F32\" [8,6], the program's is \"F32\" [9,6]");
  has(said, "tensor 'norm.running_mean' is");
  has(said, "optimizer 0 is AdamW, the program's is SGD");
  expect_equal(values_of(accelerator, net), before, "after a rejected checkpoint");
  has(error_of([&] { accelerator.load_state(folder.path() + "/nothing"); }), "nothing");
  accelerator.free_memory();
}

void weights_are_saved_for_others(Accelerator& accelerator) {
  const SharedFolder folder(accelerator);
  torch::manual_seed(2);
  Mixed model;
  torch::optim::SGD optimizer({model->in->weight}, 0.1);
  auto [net, opt] = accelerator.prepare(model, optimizer);
  const Values expected = values_of(accelerator, net);
  const std::string one = folder.path() + "/model.safetensors";
  const auto expect_file = [&](const coupler::SafeTensors& file, size_t count) {
    EXPECT(file.names().size() == count, "the file's number of tensors differs");
    for (const std::string& name : file.names()) {
      EXPECT(torch::equal(file.tensor(name), expected.at(name)), "'" + name + "' is another");
    }
  };
  accelerator.save_model(net, folder.path(), {.max_shard_size = "200B"});
  EXPECT(fs::exists(one + ".index.json") && !fs::exists(one),
         "the model was not split into several files");
  size_t files = 0, tensors = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".safetensors") continue;
    ++files;
    const auto file = coupler::SafeTensors::open(entry.path());
    tensors += file.names().size();
    expect_file(file, file.names().size());
  }
  EXPECT(files > 1 && tensors == expected.size(), "the files do not contain the whole model");
  accelerator.wait_for_everyone();
  // Replaces them by one file.
  accelerator.save_model(net, folder.path());
  expect_file(coupler::SafeTensors::open(one), expected.size());
  EXPECT(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1,
         "the older files still exist");
  accelerator.wait_for_everyone();
  // Integers stay as they are in 16 bits.
  accelerator.save_model(net, folder.path(), {.dtype = torch::kBFloat16});
  {
    const auto file = coupler::SafeTensors::open(one);
    EXPECT(file.names().size() == expected.size(), "a tensor is missing in 16 bits");
    for (const std::string& name : file.names()) {
      const torch::Tensor& value = expected.at(name);
      const auto wanted = value.is_floating_point() ? value.to(torch::kBFloat16) : value;
      EXPECT(file.tensor(name).dtype() == wanted.dtype() && torch::equal(file.tensor(name), wanted),
             "'" + name + "' is another in 16 bits");
    }
  }
  accelerator.wait_for_everyone();
  const auto said = error_of([&, &net = net] {
    accelerator.save_model(net, folder.path(), {.safe_serialization = false});
  });
  EXPECT(said.find("only safetensors is written") != std::string::npos, said);
  EXPECT(error_of([&, &net = net] {
           accelerator.save_model(net, folder.path(), {.max_shard_size = "1gb"});
         }).find("max_shard_size") != std::string::npos,
         "an invalid size is accepted");
  EXPECT(error_of([&, &net = net] { accelerator.save_model(net, one + "/in"); }).find(one) !=
             std::string::npos,
         "the file that blocks the folder is not named");
  accelerator.save(torch::arange(3), folder.path() + "/tensor.safetensors");
  accelerator.wait_for_everyone();
  EXPECT(coupler::SafeTensors::open(folder.path() + "/tensor.safetensors")
             .tensor("tensor")
             .equal(torch::arange(3)),
         "a tensor was not saved");
  coupler::StateDict state;
  state.set("rank", accelerator.rank());
  state.set("steps", torch::arange(3));
  accelerator.save(state, folder.path() + "/state.safetensors");
  accelerator.wait_for_everyone();
  const auto read = coupler::load_state_dict(folder.path() + "/state.safetensors");
  EXPECT(read.integer("rank") == 0 && read.tensor("steps").equal(torch::arange(3)),
         "rank 0's state was not saved");
  accelerator.wait_for_everyone();
  accelerator.free_memory();
}

}  // namespace

std::vector<Check> checkpoint_checks() {
  return {
      {"optimizers_go_on", optimizers_go_on},
      {"other_optimizers_go_on", other_optimizers_go_on},
      {"another_batch_size_sees_every_sample_once", another_batch_size_sees_every_sample_once},
      {"fp16_scale_comes_back", fp16_scale_comes_back},
      {"weights_are_saved_for_others", weights_are_saved_for_others},
      {"hooks_leave_out_tensors", hooks_leave_out_tensors},
      {"wrong_checkpoints_are_refused", wrong_checkpoints_are_refused},
      // Last, because its objects stay registered.
      {"registered_objects_and_schedules_come_back", registered_objects_and_schedules_come_back}};
}
