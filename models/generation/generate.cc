#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <coupler/error.h>
#include <coupler/text.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>
#include <tuple>

namespace coupler {
namespace {

using Clock = std::chrono::steady_clock;
using Prompts = std::vector<std::vector<int64_t>>;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

[[noreturn]] void refuse_argument(const std::string& subject, const std::string& problem,
                                  const std::string& hint) {
  throw Error(ErrorCode::kInvalidArgument, "generate: " + problem,
              {.subject = subject, .hint = hint});
}

void check(const GenerationOptions& options) {
  if (options.max_new_tokens < 1)
    refuse_argument("max_new_tokens", fmt::format("max_new_tokens is {}", options.max_new_tokens),
                    "request at least one token");
  if (!options.do_sample) return;
  if (!(options.temperature > 0))
    refuse_argument("temperature", fmt::format("temperature is {}", options.temperature),
                    "use a value above 0; do_sample = false always takes the likeliest token");
  if (options.top_k < 0)
    refuse_argument("top_k", fmt::format("top_k is {}", options.top_k),
                    "use 1 or more, or 0 for all tokens");
  if (!(options.top_p > 0 && options.top_p <= 1))
    refuse_argument("top_p", fmt::format("top_p is {}", options.top_p),
                    "use a value above 0 and up to 1");
}

void check(const LanguageModel& model, const Prompts& prompts) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto size = static_cast<int64_t>(prompts[i].size());
    if (size == 0)
      refuse_argument("prompt", fmt::format("text {} has no tokens to continue", i),
                      "start with a token, such as the beginning-of-text token");
    if (size >= model.context())
      refuse_argument(
          "prompt",
          fmt::format("the prompt of text {} has {} tokens, but the model's context is {}, "
                      "including new tokens",
                      i, size, model.context()),
          "shorten the prompt, or use a model with a longer context");
    for (const int64_t token : prompts[i]) {
      if (token < 0 || token >= model.vocabulary())
        refuse_argument("prompt",
                        fmt::format("text {} has token {}, but the model has {} tokens", i, token,
                                    model.vocabulary()),
                        "use the tokenizer of this model");
    }
  }
}

// Chooses the next token of each text from the last logits.
class TokenSampler {
 public:
  TokenSampler(const GenerationOptions& options, size_t texts) : options_(options) {
    if (!options.do_sample) return;
    const uint64_t seed = options.seed ? *options.seed : std::random_device()();
    for (size_t i = 0; i < texts; ++i)
      generators_.push_back(at::make_generator<at::CPUGeneratorImpl>(seed + i));
  }

  std::vector<int64_t> choose(const at::Tensor& logits) {
    at::Tensor chosen;
    if (!options_.do_sample) {
      chosen = logits.argmax(-1).to(at::kCPU);
    } else {
      const at::Tensor chances = sampling_probabilities(logits.to(at::kCPU), options_);
      std::vector<at::Tensor> drawn;
      for (size_t i = 0; i < generators_.size(); ++i)
        drawn.push_back(
            at::multinomial(chances[static_cast<int64_t>(i)], 1, false, generators_[i]));
      chosen = at::cat(drawn);
    }
    const auto* const data = chosen.const_data_ptr<int64_t>();
    return {data, data + chosen.numel()};
  }

 private:
  const GenerationOptions& options_;
  std::vector<at::Generator> generators_;
};

struct Batch {
  at::Tensor tokens;   // [texts, longest], padded on the left
  at::Tensor padding;  // [texts]; undefined if all have the same length
  int64_t longest = 0;
};

Batch batch_of(const Prompts& prompts) {
  Batch batch;
  bool equal = true;
  for (const auto& prompt : prompts) {
    const auto size = static_cast<int64_t>(prompt.size());
    equal = equal && (batch.longest == 0 || batch.longest == size);
    batch.longest = std::max(batch.longest, size);
  }
  const auto texts = static_cast<int64_t>(prompts.size());
  batch.tokens = at::zeros({texts, batch.longest}, at::kLong);
  const at::Tensor padding = at::zeros({texts}, at::kLong);
  for (int64_t i = 0; i < texts; ++i) {
    const auto& prompt = prompts[static_cast<size_t>(i)];
    const int64_t fillers = batch.longest - static_cast<int64_t>(prompt.size());
    padding[i] = fillers;
    std::copy(prompt.begin(), prompt.end(),
              batch.tokens.mutable_data_ptr<int64_t>() + i * batch.longest + fillers);
  }
  if (!equal) batch.padding = padding;
  return batch;
}

}  // namespace

double GenerationTime::tokens_per_second() const {
  return decode_seconds > 0 ? static_cast<double>(new_tokens - texts) / decode_seconds : 0;
}

GenerationTime& GenerationTime::operator+=(const GenerationTime& other) {
  prompt_tokens += other.prompt_tokens;
  new_tokens += other.new_tokens;
  prompt_seconds += other.prompt_seconds;
  decode_seconds += other.decode_seconds;
  texts += other.texts;
  return *this;
}

std::vector<GeneratedTokens> generate(LanguageModel& model, const Prompts& prompts,
                                      const GenerationOptions& options, GenerationTime* time) {
  check(options);
  check(model, prompts);
  std::vector<GeneratedTokens> results(prompts.size());
  if (prompts.empty()) return results;
  const at::NoGradGuard no_grad;
  const auto texts = static_cast<int64_t>(prompts.size());
  const Batch batch = batch_of(prompts);
  const int64_t steps = std::min(options.max_new_tokens, model.context() - batch.longest);
  TokenSampler sampler(options, prompts.size());
  KeyValueCache cache(batch.padding, batch.longest + steps);
  at::Tensor all = batch.tokens, next = batch.tokens;
  GenerationTime taken{.texts = texts};
  taken.prompt_tokens = batch.tokens.numel();
  Clock::time_point start = Clock::now();
  size_t running = prompts.size();
  for (int64_t step = 0; step < steps && running > 0; ++step) {
    KeyValueCache full(batch.padding);
    const at::Tensor hidden =
        options.use_cache ? model.hidden(next, &cache) : model.hidden(all, &full);
    // Only for the last tokens: the head is the largest layer of small models.
    const at::Tensor logits = model.logits(hidden.narrow(1, hidden.size(1) - 1, 1)).select(1, 0);
    const std::vector<int64_t> chosen = sampler.choose(logits);
    for (size_t i = 0; i < chosen.size(); ++i) {
      GeneratedTokens& result = results[i];
      if (result.ended) continue;
      result.tokens.push_back(chosen[i]);
      ++taken.new_tokens;
      const auto& ends = options.end_tokens;
      result.ended = std::find(ends.begin(), ends.end(), chosen[i]) != ends.end();
      if (result.ended) --running;
      if (options.on_token) options.on_token(i, chosen[i]);
    }
    next = at::tensor(chosen, at::kLong).view({texts, 1});
    if (!options.use_cache) all = at::cat({all, next}, 1);
    if (step == 0) {
      taken.prompt_seconds = since(start);
      start = Clock::now();
    }
  }
  taken.decode_seconds = since(start);
  if (time != nullptr) *time += taken;
  return results;
}

at::Tensor sampling_probabilities(const at::Tensor& logits, const GenerationOptions& options) {
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  at::Tensor left = logits.to(at::kFloat).div(options.temperature);
  if (options.top_k > 0) {
    const int64_t k = std::min(options.top_k, left.size(-1));
    const at::Tensor least = std::get<0>(at::topk(left, k)).narrow(-1, k - 1, 1);
    left = left.masked_fill(left.lt(least), kNever);
  }
  if (options.top_p < 1.0) {
    const auto [sorted, order] = at::sort(left, /*dim=*/-1, /*descending=*/false);
    // Cumulative probability from the least likely token up; the likeliest always stays.
    at::Tensor removed = at::softmax(sorted, -1).cumsum(-1).le(1.0 - options.top_p);
    removed.narrow(-1, removed.size(-1) - 1, 1).fill_(false);
    left = left.masked_fill(removed.scatter(-1, order, removed), kNever);
  }
  return at::softmax(left, -1);
}

}  // namespace coupler
