#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <coupler/big_model.h>
#include <coupler/empty_weights.h>
#include <coupler/error.h>
#include <coupler/model_config.h>
#include <coupler/text_to_image.h>
#include <coupler/tokenizer.h>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "base/units.h"
#include "hub/model_files.h"
#include "json_file.h"
#include "tokenizer/tokenizer_json.h"

namespace coupler::diffusion {
namespace {

namespace fs = std::filesystem;

struct PlaceOptions {
  c10::Device device = c10::kCPU;  // where it runs
  c10::ScalarType dtype = c10::kFloat;
  std::function<std::string(const std::string&)> rename;
};

// The weight file of a folder, or the index of several. Throws Error(kIo) if there is none.
std::string weights_of(const std::string& folder) {
  for (const char* const stem : {"model", "diffusion_pytorch_model"}) {
    for (const char* const kind :
         {".safetensors", ".safetensors.index.json", ".fp16.safetensors"}) {
      const fs::path path = fs::path(folder) / (stem + std::string(kind));
      if (fs::exists(path)) return path.string();
    }
  }
  throw Error(ErrorCode::kIo,
              fmt::format("{} has no weights: neither model.safetensors nor "
                          "diffusion_pytorch_model.safetensors, nor an index of several",
                          folder),
              {.subject = folder,
               .hint = "save the model with diffusers' save_pretrained, as safetensors"});
}

// One model of a folder that diffusers wrote: its config.json, its weights, and when it is on the
// device. Used by one thread.
template <class Model>
class PlacedPart {
 public:
  PlacedPart(const std::string& folder, PlaceOptions options)
      : config_(ModelConfig::open(folder)),
        weights_(weights_of(folder)),
        options_(std::move(options)),
        model_(make()) {}

  // Its parameters have no values before load() and outside turn().
  Model& model() { return *model_; }

  // Keeps the weights in host memory and moves them to the device while the model runs.
  // previous: the hook of the model that is offloaded then.
  const OffloadHook& load(const OffloadHook* previous) {
    load_checkpoint_in_model(*model_, weights_, {},
                             {.dtype = options_.dtype, .rename = options_.rename});
    hook_ = cpu_offload_with_hook(*model_, options_.device, previous);
    return *hook_;
  }
  const std::optional<OffloadHook>& hook() const { return hook_; }

  // Runs `action`, which may use model(), with weights read from the files. bytes: the memory limit
  // of the whole process; 0: no limit.
  template <class Action>
  auto turn(uint64_t bytes, const Action& action) {
    LoadAndDispatchOptions load;
    load.device_map = DeviceMap{{"", "disk"}};
    load.main_device = options_.device;
    load.dtype = options_.dtype;
    load.rename = options_.rename;
    if (bytes > 0) load.max_memory.set(MapDevice::cpu(), bytes);
    // The model of an earlier turn has lost its values.
    model_ = make();
    const DispatchedModel placed = load_checkpoint_and_dispatch(*model_, weights_, load);
    return action();
  }

 private:
  std::shared_ptr<Model> make() const {
    const EmptyWeights empty;
    return std::make_shared<Model>(config_);
  }

  ModelConfig config_;
  std::string weights_;
  PlaceOptions options_;
  std::shared_ptr<Model> model_;
  std::optional<OffloadHook> hook_;
};

// "pad_token": a string, or an object with "content". Defaults to CLIP's end token.
std::string filler_of(const fs::path& folder) {
  for (const char* const name : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const std::string path = (folder / name).string();
    if (!fs::exists(path)) continue;
    const nlohmann::json document = read_json_file(path, "save the tokenizer again");
    const JsonObject keys(document, path);
    if (!keys.has("pad_token")) continue;
    return keys.raw("pad_token").is_object() ? keys.object("pad_token").text("content")
                                             : keys.text("pad_token");
  }
  return kClipEnd;
}

// Turns text into tokens for a CLIP text encoder, padded to its length. Immutable.
class PromptTokenizer {
 public:
  // folder: has tokenizer.json, or CLIP's vocab.json and merges.txt. vocabulary: the model's size.
  // Throws as Tokenizer::open does, and Error(kInvalidArgument) if the start or end token is not in
  // the model's vocabulary, or the pad token is not in the tokenizer's.
  PromptTokenizer(const std::string& folder, int64_t length, int64_t vocabulary)
      : tokenizer_(Tokenizer::open(folder)), length_(static_cast<size_t>(length)) {
    const std::string filler = filler_of(folder);
    const auto id = tokenizer_.id_of(filler);
    if (!id)
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("{}: the pad token '{}' is not in the vocabulary", folder,
                      for_message(filler)),
          {.subject = "pad_token", .hint = "save the tokenizer again; this one is damaged"});
    filler_ = *id;
    for (const int64_t last : tokenizer_.encode("")) {
      if (last < vocabulary) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{}: token {} is out of range; the text encoder has {} tokens",
                              folder, last, vocabulary),
                  {.subject = folder, .hint = "use a folder whose parts belong to one model"});
    }
  }

  // Exactly as many tokens as the model takes. Throws Error(kInvalidArgument) if the text has more;
  // the message quotes what would be lost. what: "prompt", for the message.
  std::vector<int64_t> tokens(const std::string& text, const char* what) const {
    std::vector<int64_t> ids = tokenizer_.encode(text);
    if (ids.size() > length_) {
      const std::vector<int64_t> plain = tokenizer_.encode(text, /*special=*/false);
      const size_t room = length_ - (ids.size() - plain.size());
      const std::string lost =
          tokenizer_.decode({plain.begin() + static_cast<std::ptrdiff_t>(room), plain.end()});
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("the {} has {} tokens, and the text encoder takes {}: '{}' would be "
                              "lost",
                              what, ids.size(), length_, for_message(lost)),
                  {.subject = what, .hint = "shorten it"});
    }
    ids.resize(length_, filler_);
    return ids;
  }

 private:
  Tokenizer tokenizer_;
  size_t length_;
  int64_t filler_;
};

// Allowance for LibTorch's kernels and the heap.
constexpr uint64_t kBeside = uint64_t{24} << 20;

std::string part(const std::string& folder, const char* name) {
  return (fs::path(folder) / name).string();
}

c10::Device device_of(const TextToImageOptions& options) {
  if (options.device) return *options.device;
  const auto kind = at::getAccelerator();
  if (!kind || at::accelerator::deviceCount() == 0) return c10::kCPU;
  return {*kind, 0};
}

ModelConfig open_scheduler(const std::string& folder) {
  const std::string path = part(folder, "scheduler/scheduler_config.json");
  return ModelConfig::parse(
      read_json_file(path, "use a folder written by diffusers' save_pretrained").dump(), path);
}

}  // namespace

struct TextToImage::State {
  State(const std::string& folder, const TextToImageOptions& given)
      : options(given),
        device(device_of(given)),
        scheduler(open_scheduler(folder)),
        text(part(folder, "text_encoder"), {device, given.dtype, text_encoder_checkpoint_name}),
        unet(part(folder, "unet"), {device, given.dtype, nullptr}),
        vae(part(folder, "vae"), {device, given.dtype, vae_checkpoint_name}),
        prompts(part(folder, "tokenizer"), text.model().positions(), text.model().vocabulary()) {
    check_parts();
    if (given.max_memory) {
      place_once(0, 0, 0);
      return;
    }
    const OffloadHook& first = text.load(nullptr);
    const OffloadHook& second = unet.load(&first);
    vae.load(&second);
  }

  void check_parts() {
    const auto require_same = [](const char* what, int64_t a, int64_t b) {
      if (a == b) return;
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} do not match: {} and {}", what, a, b),
                  {.subject = what, .hint = "use a folder whose parts belong to one model"});
    };
    require_same("the text encoder's width and the UNet's cross_attention_dim",
                 text.model().width(), unet.model().text_width());
    require_same("the channels of the UNet and of the VAE", unet.model().in_channels(),
                 vae.model().latent_channels());
  }

  // Checks that all weights exist and fit.
  void place_once(uint64_t text_bytes, uint64_t unet_bytes, uint64_t vae_bytes) {
    text.turn(text_bytes, [] {});
    unet.turn(unet_bytes, [] {});
    vae.turn(vae_bytes, [] {});
  }

  // Also checks that the limit leaves room for the activations.
  void check_bound(uint64_t unet_bytes, uint64_t vae_bytes) {
    try {
      place_once(bound(0), bound(unet_bytes), bound(vae_bytes));
    } catch (const Error& problem) {
      if (problem.detail().subject != "max_memory") throw;
      throw Error(
          problem.code(),
          fmt::format("max_memory is {}, of which up to {} is reserved for this image's "
                      "activations; of the rest, {}",
                      format_byte_size(options.max_memory->bytes()),
                      format_byte_size(std::max(unet_bytes, vae_bytes) + kBeside), problem.what()),
          {.subject = "max_memory", .hint = ""});
    }
  }

  // The memory left for a model's weights after its activations. Throws if there is none.
  uint64_t bound(uint64_t activations) const {
    const uint64_t all = options.max_memory->bytes(), kept = activations + kBeside;
    if (all > kept) return all - kept;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("max_memory is {}, but the activations of this image alone take {}",
                            format_byte_size(all), format_byte_size(kept)),
                {.subject = "max_memory", .hint = "raise max_memory, or make a smaller image"});
  }

  // Runs `action` with the model's weights available.
  template <class Model, class Action>
  auto use(PlacedPart<Model>& placed, uint64_t activations, const Action& action) {
    if (!options.max_memory) return action();
    struct Trim {
      ~Trim() { malloc_trim(0); }  // memory the heap keeps counts towards the process
    } trim;
    return placed.turn(bound(activations), action);
  }

  const TextToImageOptions options;
  const c10::Device device;
  const ModelConfig scheduler;
  PlacedPart<TextEncoder> text;
  PlacedPart<UNet> unet;
  PlacedPart<VaeDecoder> vae;
  const PromptTokenizer prompts;
};

TextToImage::TextToImage(std::unique_ptr<State> state) : state_(std::move(state)) {}
TextToImage::~TextToImage() = default;
TextToImage::TextToImage(TextToImage&&) noexcept = default;
TextToImage& TextToImage::operator=(TextToImage&&) noexcept = default;

TextToImage TextToImage::open(const std::string& model_or_folder,
                              const TextToImageOptions& options) {
  const std::string folder = hub::model_folder(model_or_folder, hub::ModelUse::kTextToImage);
  return TextToImage(std::make_unique<State>(folder, options));
}

at::Tensor TextToImage::operator()(const std::string& prompt, const ImageOptions& options) {
  const at::NoGradGuard no_grad;
  State& s = *state_;
  const Ddim ddim(s.scheduler, options.steps);
  const int64_t factor = s.vae.model().factor();
  for (const auto& [name, size] :
       {std::pair("height", options.height), std::pair("width", options.width)}) {
    if (size > 0 && size % factor == 0) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} {} is not a multiple of {}", name, size, factor),
                {.subject = name,
                 .hint = fmt::format("use {}, the next multiple",
                                     (std::max<int64_t>(size, 1) + factor - 1) / factor * factor)});
  }
  const int64_t rows = options.height / factor, columns = options.width / factor;
  const bool guided = options.guidance_scale > 1;
  const int64_t batch = guided ? 2 : 1;
  std::vector<std::vector<int64_t>> tokens;
  if (guided) tokens.push_back(s.prompts.tokens(options.negative_prompt, "negative prompt"));
  tokens.push_back(s.prompts.tokens(prompt, "prompt"));
  const uint64_t unet_bytes = s.unet.model().activation_bytes(batch, rows, columns);
  const uint64_t vae_bytes = s.vae.model().activation_bytes(1, rows, columns);
  if (s.options.max_memory) s.check_bound(unet_bytes, vae_bytes);

  const at::TensorOptions kind = at::TensorOptions(s.options.dtype).device(s.device);
  const at::Tensor states = s.use(s.text, 0, [&] {
    std::vector<at::Tensor> each;
    for (const auto& ids : tokens) each.push_back(at::tensor(ids).unsqueeze(0));
    return s.text.model().forward(at::cat(each).to(s.device)).to(kind);
  });
  // Drawn on the CPU, so that every device starts from the same noise.
  at::Tensor latents = at::randn({1, s.unet.model().in_channels(), rows, columns},
                                 at::detail::createCPUGenerator(options.seed), at::kFloat)
                           .to(kind);
  latents = s.use(s.unet, unet_bytes, [&] {
    at::Tensor x = latents;
    int64_t done = 0;
    if (options.on_step) options.on_step(done, options.steps);
    for (const int64_t timestep : ddim.timesteps()) {
      at::Tensor noise =
          s.unet.model().forward(guided ? at::cat({x, x}) : x, timestep, states).to(kind);
      if (guided) {
        const at::Tensor plain = noise.narrow(0, 0, 1);
        noise = noise.narrow(0, 1, 1).sub(plain).mul(options.guidance_scale).add(plain);
      }
      x = ddim.step(noise, timestep, x);
      if (options.on_step) options.on_step(++done, options.steps);
    }
    return x;
  });
  const at::Tensor image = s.use(s.vae, vae_bytes, [&] {
    return s.vae.model().forward(latents.div(s.vae.model().scaling_factor())).to(at::kCPU);
  });
  if (s.vae.hook()) s.vae.hook()->offload();
  return image[0]
      .to(at::kFloat)
      .div(2)
      .add(0.5)
      .clamp(0, 1)
      .mul(255)
      .round()
      .to(at::kByte)
      .permute({1, 2, 0})
      .contiguous();
}

}  // namespace coupler::diffusion
