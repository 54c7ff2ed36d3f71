// Run as every rank of a job by over_ranks_test: each folder's model, divided over the ranks by the
// backend, gives transformers' logits and continues a text as transformers does; of prompts divided
// among ranks, each is answered once; the saved model opens again, also in transformers if
// COUPLER_TEST_PYTHON names a Python that has it. Exits with 0 if all of this holds.
#include <ATen/core/grad_mode.h>
#include <coupler/accelerator.h>
#include <coupler/big_model.h>
#include <coupler/empty_weights.h>
#include <coupler/objects.h>
#include <coupler/state_dict.h>
#include <coupler/text.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "fixture.h"

namespace {

bool expect(bool right, const std::string& what) {
  if (!right) std::fprintf(stderr, "%s\n", what.c_str());
  return right;
}

// In fp32 the folder gives the same logits; in bf16 it has the rounded weights, and its config
// names that dtype.
bool is_saved(coupler::Accelerator& accelerator, coupler::LanguageModel& model,
              const coupler::ModelConfig& config, const std::string& name) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "coupler-saved-XXXXXX").string();
  if (accelerator.is_main_process() && ::mkdtemp(folder.data()) == nullptr) folder.clear();
  folder = coupler::broadcast_object(accelerator, folder);
  const std::string from = coupler::fixture(name);
  const auto reference = coupler::SafeTensors::open(from + "/reference.safetensors");
  coupler::save_pretrained(accelerator, model, config, folder + "/bf16",
                           {.max_shard_size = "60KB", .dtype = at::kBFloat16});
  coupler::save_pretrained(accelerator, model, config, folder);
  auto again = coupler::pipeline("text-generation", folder);
  auto rounded = coupler::pipeline("text-generation", folder + "/bf16");
  const at::NoGradGuard no_grad;
  const auto apart = [&](coupler::LanguageModel& read) {
    return read.forward(reference.tensor("tokens"))
        .sub(reference.tensor("logits"))
        .abs()
        .max()
        .item<double>();
  };
  const auto is_rounded = [&] {
    const auto exact = again.model().named_parameters();
    for (const auto& item : rounded.model().named_parameters()) {
      if (!item.value().equal(exact[item.key()].to(at::kBFloat16))) return false;
    }
    return true;
  };
  bool right = expect(apart(again.model()) < 1e-4, name + ": other logits after save_pretrained") &&
               expect(rounded.config().dtype() == "bfloat16" && is_rounded(),
                      name + ": not saved in bf16") &&
               expect(fs::exists(folder + "/generation_config.json") ==
                          fs::exists(from + "/generation_config.json"),
                      name + ": generation_config.json");
  const char* const python = std::getenv("COUPLER_TEST_PYTHON");
  if (python != nullptr && accelerator.is_main_process()) {
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      if (fs::exists(from + "/" + file)) fs::copy(from + "/" + file, folder);
    const std::string command =
        std::string(python) + " " MODEL_TESTS "/open_saved.py " + folder + " " + from;
    const std::string has = std::string(python) + " -c 'import transformers' 2> /dev/null";
    right = (std::system(has.c_str()) != 0 ||
             expect(std::system(command.c_str()) == 0, name + ": transformers disagrees")) &&
            right;
  }
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) fs::remove_all(folder);
  return right;
}

bool logits_agree(coupler::Accelerator& accelerator, const std::string& name) {
  const std::string folder = coupler::fixture(name);
  const auto config = coupler::ModelConfig::open(folder);
  std::shared_ptr<coupler::LanguageModel> model;
  {
    const coupler::EmptyWeights empty;
    model = coupler::make_language_model(config);
  }
  coupler::load_checkpoint_in_model(*model, folder, {},
                                    {.rename = coupler::checkpoint_names(*model)});
  model = accelerator.prepare(model);
  const auto reference = coupler::SafeTensors::open(folder + "/reference.safetensors");
  const at::NoGradGuard no_grad;
  const double apart = model->forward(reference.tensor("tokens"))
                           .sub(reference.tensor("logits"))
                           .abs()
                           .max()
                           .item<double>();
  const auto all = coupler::read_json(folder + "/greedy.json");
  const auto& greedy = all.is_array() ? all[4] : all;
  const auto given =
      coupler::generate(*model, {greedy["ids"].get<std::vector<int64_t>>()},
                        {.max_new_tokens = static_cast<int64_t>(greedy["continued"].size())});
  return expect(apart < 1e-4, folder + ": logits differ by " + std::to_string(apart)) &&
         expect(given[0].tokens == greedy["continued"].get<std::vector<int64_t>>(),
                folder + ": other tokens") &&
         is_saved(accelerator, *model, config, name);
}

bool prompts_are_divided(coupler::Accelerator& accelerator) {
  const std::vector<std::string> prompts = {"You", "may", "reproduce", "and", "distribute"};
  auto generator = coupler::pipeline("text-generation", coupler::fixture("gpt2"));
  const coupler::GenerationOptions options{.max_new_tokens = 8};
  std::vector<std::string> mine;
  for (const auto& text : generator(accelerator.split_between_processes(prompts), options))
    mine.push_back(text.text);
  std::vector<std::string> all;
  for (const auto& part : coupler::gather_object(accelerator, mine))
    all.insert(all.end(), part.begin(), part.end());
  std::vector<std::string> alone;
  for (const auto& text : generator(prompts, options)) alone.push_back(text.text);
  return expect(all == alone, "the answers of all ranks differ from those of one rank");
}

}  // namespace

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  bool right = true;
  for (const char* name : {"gpt2", "gptj", "llama", "llama3", "architectures/gemma2",
                           "architectures/gpt_neox", "architectures/opt-post"})
    right = logits_agree(accelerator, name) && right;
  right = prompts_are_divided(accelerator) && right;
  return right ? 0 : 1;
}
