// Trains a LLaMA on a text, then continues a prompt, over any mesh of ranks:
//
//   llama --text kjv.txt   # one process; examples/gpt/get-text writes this text
//   coupler launch -n 2 -o parallel.tensor=2 llama --text kjv.txt
//   coupler launch -n 4 -o parallel.pipeline=2 -o parallel.tensor=2 llama --text kjv.txt
//   coupler launch -n 4 -o parallel.context=2 -o parallel.tensor=2 llama --text kjv.txt
//   coupler launch -n 2 -o parallel.tensor=2 llama --weights SmolLM-135M --text notes.txt
//
// [parallel] in train.toml does the same as -o. Without --weights the model starts with random
// values, and its tokens are bytes.
#include <coupler/coupler.h>
#include <coupler/text.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iterator>

namespace {

struct Arguments {
  std::string text = "kjv.txt", weights, prompt = "In the beginning";
  int64_t steps = 200, batch_size = 8, sequence = 128, layers = 4, width = 128, heads = 4,
          new_tokens = 64;
  double learning_rate = 1e-3;
  uint64_t seed = 0;
};

// Bytes are the tokens of a model that has no tokenizer.
struct Tokens {
  std::vector<int64_t> encode(const std::string& text) const {
    if (tokenizer) return tokenizer->encode(text);
    const auto* const bytes = reinterpret_cast<const unsigned char*>(text.data());
    return {bytes, bytes + text.size()};
  }
  std::string decode(const std::vector<int64_t>& ids) const {
    return tokenizer ? tokenizer->decode(ids) : std::string(ids.begin(), ids.end());
  }
  std::optional<coupler::Tokenizer> tokenizer;
};

// Sample i: the next `sequence` tokens of a text, and the token that follows each of them.
struct Windows : torch::data::datasets::Dataset<Windows> {
  // least: how many samples a step needs.
  Windows(const std::string& path, const Tokens& tokens, int64_t length, int64_t least)
      : sequence(static_cast<size_t>(length)) {
    std::ifstream file(path, std::ios::binary);
    all = tokens.encode({std::istreambuf_iterator<char>(file), {}});
    if (static_cast<int64_t>(all.size()) <= length * least)
      throw coupler::Error(
          coupler::ErrorCode::kIo,
          "the text '" + path + "' cannot be read, or is shorter than the samples of a step",
          {.subject = path, .hint = "name another text, or lower --batch-size or --seq"});
  }
  torch::data::Example<> get(size_t index) override {
    const c10::ArrayRef<int64_t> rest = c10::ArrayRef<int64_t>(all).slice(index * sequence);
    return {torch::tensor(rest.slice(0, sequence)), torch::tensor(rest.slice(1, sequence))};
  }
  std::optional<size_t> size() const override { return (all.size() - 1) / sequence; }
  std::vector<int64_t> all;
  size_t sequence;
};

coupler::ModelConfig config_of(const Arguments& arguments) {
  if (!arguments.weights.empty()) return coupler::ModelConfig::open(arguments.weights);
  std::string json = R"({"model_type": "llama", "vocab_size": 256)";
  const auto add = [&](const std::string& key, int64_t value) {
    json += ", \"" + key + "\": " + std::to_string(value);
  };
  add("hidden_size", arguments.width);
  add("intermediate_size", 4 * arguments.width);
  add("num_hidden_layers", arguments.layers);
  add("num_attention_heads", arguments.heads);
  return coupler::ModelConfig::parse(json + "}", "--width, --layers and --heads");
}

torch::Tensor next_token_loss(const torch::Tensor& logits, const torch::Tensor& target) {
  return torch::cross_entropy_loss(logits.flatten(0, 1), target.flatten());
}

void run(coupler::Accelerator& accelerator, const Arguments& arguments) {
  const coupler::ModelConfig config = config_of(arguments);
  Tokens tokens;
  if (!arguments.weights.empty()) tokens.tokenizer = coupler::Tokenizer::open(arguments.weights);
  torch::manual_seed(arguments.seed);
  std::shared_ptr<coupler::LanguageModel> model;
  {
    const coupler::EmptyWeights empty;  // each rank gets memory for what it keeps only
    model = coupler::make_language_model(config);
  }
  torch::optim::AdamW adamw(model->parameters(), arguments.learning_rate);
  const int64_t least = arguments.batch_size * accelerator.mesh().size("data+shard+expert");
  auto loader = coupler::data_loader(Windows(arguments.text, tokens, arguments.sequence, least),
                                     {.batch_size = arguments.batch_size,
                                      .shuffle = true,
                                      .drop_last = true,
                                      .seed = arguments.seed});
  std::optional<coupler::PipelineParallel> stages;
  if (accelerator.mesh().size("pipeline") > 1)
    stages.emplace(coupler::prepare_pipeline(accelerator, model));
  if (!stages) model = accelerator.prepare(model);
  if (!arguments.weights.empty())
    accelerator.load_model(model, arguments.weights, {.rename = coupler::checkpoint_names(*model)});
  auto [opt, batches] = accelerator.prepare(adamw, loader);

  for (int64_t step = 0; step < arguments.steps;) {
    for (auto& batch : batches) {
      const auto window = accelerator.accumulate(model);
      // Each rank of a context group gets its part of the sequences.
      const auto part = accelerator.context_parallel({{batch.data, 1}, {batch.target, 1}});
      torch::Tensor loss =
          stages ? torch::tensor(stages->train_step(batch.data, batch.target, next_token_loss))
                 : next_token_loss(model->forward(batch.data), batch.target);
      if (!stages) accelerator.backward(loss);  // which is in train_step
      accelerator.clip_grad_norm(model, 1.0);
      opt.step();
      opt.zero_grad();
      loss = accelerator.reduce(loss.detach(), coupler::ReduceOp::kMean);
      accelerator.print("step ", ++step, "  loss ", loss.item<float>());
      if (step == arguments.steps) break;
    }
  }
  if (stages) return;  // no rank has all layers, as generate needs
  // The likeliest tokens; with divided layers or sharded weights, all ranks compute each.
  const coupler::GenerationOptions options{.max_new_tokens = arguments.new_tokens};
  const auto made = coupler::generate(*model, {tokens.encode(arguments.prompt)}, options);
  accelerator.print(arguments.prompt, tokens.decode(made[0].tokens));
}

}  // namespace

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  Arguments arguments;
  CLI::App app{"Trains a LLaMA on a text, then continues a prompt."};
  const auto add = [&](const char* name, auto& value, const char* what) {
    return app.add_option(name, value, what)->capture_default_str();
  };
  add("--text", arguments.text, "the file to train on");
  add("--weights", arguments.weights, "a folder that transformers wrote, instead of the sizes");
  add("--prompt", arguments.prompt, "the text to continue");
  add("--new-tokens", arguments.new_tokens, "how many tokens continue it");
  add("--steps", arguments.steps, "batches per replica");
  add("--batch-size", arguments.batch_size, "sequences per step")->check(CLI::PositiveNumber);
  add("--seq", arguments.sequence, "tokens per sequence")->check(CLI::PositiveNumber);
  add("--layers", arguments.layers, "transformer blocks");
  add("--width", arguments.width, "size of the hidden state; a multiple of --heads");
  add("--heads", arguments.heads, "attention heads");
  add("--lr", arguments.learning_rate, "learning rate");
  add("--seed", arguments.seed, "seed of initial values and order");
  CLI11_PARSE(app, argc, argv);
  run(accelerator, arguments);
}
