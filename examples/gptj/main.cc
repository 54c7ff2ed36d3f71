// Runs GPT-J out of a checkpoint that may be larger than memory, and goes on with a text by always
// taking the most likely token:
//
//   gptj --checkpoint sharded-gpt-j-6B --tokens 15496,11,616,1438,318 --generate 20
//   gptj --checkpoint sharded-gpt-j-6B --max-memory cpu=8GiB --print-map
//   gptj --checkpoint sharded-gpt-j-6B --device-map map.json
//
// The checkpoint is a folder with config.json and weights in safetensors files or torch.save's, one
// or several, as transformers writes them. Tokens are numbers, since a tokenizer is another
// program's: transformers' AutoTokenizer gives and takes them.
#include <coupler/big_model.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "model.h"

namespace {

struct Arguments {
  std::string checkpoint;
  std::string device_map = "auto";
  std::vector<std::string> max_memory;
  std::vector<int64_t> tokens{15496, 11, 616, 1438, 318};  // "Hello, my name is"
  int64_t generate = 10;
  bool print_map = false;
  bool lenient = false;
};

GPTJOptions read_options(const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / "config.json").string();
  std::ifstream in(path);
  if (!in) {
    throw coupler::Error(coupler::ErrorCode::kIo, path + " cannot be read",
                         {.subject = path, .hint = "name the folder of a GPT-J checkpoint"});
  }
  const auto config = nlohmann::json::parse(in);
  GPTJOptions options;
  options.vocabulary = config.value("vocab_size", options.vocabulary);
  options.width = config.value("n_embd", options.width);
  options.layers = config.value("n_layer", options.layers);
  options.heads = config.value("n_head", options.heads);
  options.rotary = config.value("rotary_dim", options.rotary);
  options.epsilon = config.value("layer_norm_epsilon", options.epsilon);
  return options;
}

// A mode's name, or a file with a map.
std::variant<std::string, coupler::DeviceMap> read_map(const std::string& text) {
  if (!std::filesystem::is_regular_file(text)) return text;
  std::ifstream in(text);
  return coupler::DeviceMap::from_json(std::string(std::istreambuf_iterator<char>(in), {}));
}

// "0=20GiB", "cpu=8GiB".
coupler::MaxMemory read_memory(const std::vector<std::string>& words) {
  coupler::MaxMemory memory;
  for (const std::string& word : words) {
    const size_t equals = std::min(word.find('='), word.size() - 1);
    memory.set(coupler::MapDevice(std::string_view(word).substr(0, equals)),
               word.substr(equals + 1));
  }
  return memory;
}

void run(const Arguments& arguments) {
  const GPTJOptions options = read_options(arguments.checkpoint);
  GPTJ model{nullptr};
  {
    const coupler::EmptyWeights empty;
    model = GPTJ(options);
  }
  model->eval();
  coupler::LoadAndDispatchOptions load;
  load.device_map = read_map(arguments.device_map);
  load.max_memory = read_memory(arguments.max_memory);
  load.no_split_module_classes = {"GPTJBlock"};
  load.strict = !arguments.lenient;
  const auto placed = coupler::load_checkpoint_and_dispatch(model, arguments.checkpoint, load);
  if (arguments.print_map)
    std::fputs(coupler::to_table(*model, placed.device_map()).c_str(), stdout);

  const torch::NoGradGuard no_grad;
  at::Tensor tokens = torch::tensor(arguments.tokens).unsqueeze(0);
  for (int64_t i = 0; i < arguments.generate; ++i) {
    const at::Tensor scores = model->forward(tokens).select(1, -1).cpu();
    tokens = torch::cat({tokens, scores.argmax(-1, true)}, 1);
    std::printf("%lld ", static_cast<long long>(tokens[0][-1].item<int64_t>()));
    std::fflush(stdout);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  coupler::install_terminate_handler();
  Arguments arguments;
  CLI::App app{"Runs GPT-J out of a checkpoint that may be larger than memory."};
  app.add_option("--checkpoint", arguments.checkpoint, "folder with config.json and weights")
      ->required();
  app.add_option("--device-map", arguments.device_map,
                 "auto, balanced, balanced_low_0, sequential, optimal, or a JSON file")
      ->capture_default_str();
  app.add_option("--max-memory", arguments.max_memory, "DEVICE=SIZE, as cpu=8GiB; several");
  app.add_option("--tokens", arguments.tokens, "numbers to go on from")->delimiter(',');
  app.add_option("--generate", arguments.generate, "how many tokens")->check(CLI::PositiveNumber);
  app.add_flag("--print-map", arguments.print_map, "where each part lies");
  app.add_flag("--lenient", arguments.lenient,
               "pass over tensors that the model has not, as older checkpoints hold");
  CLI11_PARSE(app, argc, argv);
  run(arguments);
}
