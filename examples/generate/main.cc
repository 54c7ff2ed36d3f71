// Continues texts with a language model loaded from a folder written by
// transformers, which may be larger than memory:
//
//   generate --model gpt2 --prompt "Hello, my name is"
//   generate --model gpt-j-6B --dtype float16 --max-memory cpu=8GiB --print-map --prompt "Once"
//   generate --model llama --sample --temperature 0.8 --top-p 0.95 --seed 7 --prompt "Dear"
//   generate --model gpt-j-6B --quantize int4 --report --prompt "Once"
//   coupler launch -n 4 generate --model gpt2 --prompts questions.txt
//
// A single prompt's text is printed as it is generated. Several prompts, one per line of a file,
// are split across the processes, and the first one prints all answers in order. For folders
// without a tokenizer.json, --tokens takes and prints tokens.
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <coupler/objects.h>
#include <coupler/quantize.h>
#include <coupler/text.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace {

struct Arguments {
  std::string model;
  std::vector<std::string> prompts;
  std::string prompts_file;
  std::vector<int64_t> tokens;
  std::string device_map = "auto";
  std::vector<std::string> max_memory;
  std::string dtype;
  std::string offload_folder;
  std::string quantize;
  int64_t group_size = 64;
  std::vector<std::string> skip;
  bool report = false;
  std::string save;
  bool print_map = false;
  bool lenient = false;
  coupler::GenerationOptions generation;
  uint64_t seed = 0;
};

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

std::vector<std::string> read_lines(const std::string& path) {
  std::ifstream in(path);
  if (!in)
    throw coupler::Error(
        coupler::ErrorCode::kIo, path + " cannot be read",
        {.subject = path, .hint = "--prompts takes a file with one prompt per line"});
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

void print_rate(const coupler::GenerationTime& time) {
  std::fprintf(stderr, "%lld tokens in, %lld out; the first after %.2f s, then %.1f tokens/s\n",
               static_cast<long long>(time.prompt_tokens), static_cast<long long>(time.new_tokens),
               time.prompt_seconds, time.tokens_per_second());
}

// Prints pieces of text as they are generated.
void stream(coupler::TextGeneration& generator, const std::string& prompt,
            coupler::GenerationOptions options) {
  std::fputs(prompt.c_str(), stdout);
  options.on_text = [](size_t, const std::string& piece) {
    std::fputs(piece.c_str(), stdout);
    std::fflush(stdout);
  };
  generator(prompt, options);
  std::fputs("\n", stdout);
}

void print_tokens(coupler::TextGeneration& generator, const std::vector<int64_t>& tokens,
                  coupler::GenerationOptions options) {
  options.on_token = [](size_t, int64_t token) {
    std::printf("%lld ", static_cast<long long>(token));
    std::fflush(stdout);
  };
  generator.continue_tokens({tokens}, options);
  std::fputs("\n", stdout);
}

// Each process answers its share, and the first one prints all answers.
void answer_all(coupler::Accelerator& accelerator, coupler::TextGeneration& generator,
                const std::vector<std::string>& prompts, coupler::GenerationOptions options) {
  std::vector<size_t> numbers(prompts.size());
  std::iota(numbers.begin(), numbers.end(), size_t{0});
  const std::vector<size_t> mine = accelerator.split_between_processes(numbers);
  std::vector<std::string> own, answers;
  for (const size_t number : mine) own.push_back(prompts[number]);
  // Makes sampling for a prompt independent of the number of processes.
  if (options.seed && !mine.empty()) *options.seed += mine.front();
  for (const coupler::GeneratedText& answer : generator(own, options))
    answers.push_back(answer.text);
  size_t number = 0;
  for (const auto& part : coupler::gather_object(accelerator, answers)) {
    for (const std::string& answer : part) {
      if (accelerator.is_main_process())
        std::printf("%s%s\n", prompts[number].c_str(), answer.c_str());
      ++number;
    }
  }
}

std::optional<c10::ScalarType> read_dtype(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "float32") return at::kFloat;
  if (name == "float16") return at::kHalf;
  return at::kBFloat16;
}

// Only one process prints the quantization report.
std::optional<coupler::QuantizeOptions> read_quantize(const Arguments& arguments, bool print) {
  if (arguments.quantize.empty()) return std::nullopt;
  coupler::QuantizeOptions options;
  options.bits = arguments.quantize == "int4" ? 4 : 8;
  options.group_size = arguments.group_size;
  options.skip = arguments.skip;
  if (arguments.report && print) {
    options.report = [](const coupler::QuantizationReport& report) {
      std::fputs(coupler::to_table(report).c_str(), stderr);
    };
  }
  return options;
}

void run(coupler::Accelerator& accelerator, Arguments& arguments) {
  coupler::PretrainedOptions options;
  options.device_map = read_map(arguments.device_map);
  options.max_memory = read_memory(arguments.max_memory);
  options.dtype = read_dtype(arguments.dtype);
  options.strict = !arguments.lenient;
  options.offload_folder = arguments.offload_folder;
  options.quantize = read_quantize(arguments, accelerator.is_main_process());
  auto generator = coupler::pipeline("text-generation", arguments.model, options);
  if (arguments.print_map && accelerator.is_main_process())
    std::fputs(coupler::to_table(generator.model(), generator.device_map()).c_str(), stdout);
  std::vector<std::string> prompts = arguments.prompts;
  if (!arguments.prompts_file.empty()) prompts = read_lines(arguments.prompts_file);
  if (!arguments.tokens.empty()) {
    print_tokens(generator, arguments.tokens, arguments.generation);
  } else if (prompts.size() == 1 && accelerator.world_size() == 1) {
    stream(generator, prompts[0], arguments.generation);
  } else {
    answer_all(accelerator, generator, prompts, arguments.generation);
  }
  if (accelerator.is_main_process()) {
    print_rate(generator.time());
    if (!arguments.save.empty()) generator.save_pretrained(arguments.save);
  }
}

}  // namespace

int main(int argc, char** argv) {
  coupler::Accelerator accelerator(argc, argv);
  Arguments arguments;
  coupler::GenerationOptions& generation = arguments.generation;
  CLI::App app{"Continues texts with a language model."};
  app.add_option(
         "--model", arguments.model,
         "name on the Hugging Face Hub, or folder with config.json, weights and tokenizer.json")
      ->required();
  auto* const input = app.add_option_group("prompts");
  input->add_option("--prompt", arguments.prompts, "a text to continue; may be repeated");
  input->add_option("--prompts", arguments.prompts_file, "a file with one text per line");
  input->add_option("--tokens", arguments.tokens, "token ids, for models without a tokenizer")
      ->delimiter(',');
  input->require_option(1);
  app.add_option("--max-new-tokens", generation.max_new_tokens, "maximum number of new tokens")
      ->capture_default_str();
  app.add_flag("--sample", generation.do_sample, "sample instead of taking the likeliest token");
  app.add_option("--temperature", generation.temperature, "below 1 favors likelier tokens")
      ->capture_default_str();
  app.add_option("--top-k", generation.top_k, "sample from the k likeliest tokens; 0: all")
      ->capture_default_str();
  app.add_option("--top-p", generation.top_p,
                 "sample from the likeliest tokens with this total probability")
      ->capture_default_str();
  auto* const seed = app.add_option("--seed", arguments.seed, "makes sampling reproducible");
  app.add_option("--batch-size", generation.batch_size, "prompts per batch")->capture_default_str();
  app.add_option("--device-map", arguments.device_map,
                 "auto, balanced, balanced_low_0, sequential, optimal, or a JSON file")
      ->capture_default_str();
  app.add_option("--max-memory", arguments.max_memory,
                 "DEVICE=SIZE, such as cpu=8GiB; may be repeated");
  app.add_option("--dtype", arguments.dtype, "dtype of the weights; default: as saved")
      ->check(CLI::IsMember({"float32", "float16", "bfloat16"}));
  app.add_option("--offload-folder", arguments.offload_folder,
                 "folder for weights on disk that must be converted");
  auto* const quantize =
      app.add_option("--quantize", arguments.quantize, "quantize weights to 8 or 4 bits")
          ->check(CLI::IsMember({"int8", "int4"}));
  app.add_option("--group-size", arguments.group_size, "int4: number of inputs that share a scale")
      ->capture_default_str()
      ->needs(quantize);
  app.add_option("--skip", arguments.skip,
                 "layers not to quantize, such as lm_head; may be repeated")
      ->needs(quantize);
  app.add_flag("--report", arguments.report, "print the quantization error of each layer")
      ->needs(quantize);
  app.add_option("--save", arguments.save, "write a folder that transformers can open");
  app.add_flag("--print-map", arguments.print_map, "print the device map");
  app.add_flag("--lenient", arguments.lenient, "skip tensors that the model does not have");
  CLI11_PARSE(app, argc, argv);
  if (seed->count() > 0) generation.seed = arguments.seed;
  run(accelerator, arguments);
}
