// Generates an image from a text with Stable Diffusion 1 or 2, loaded from a folder written by
// diffusers, within a given memory limit:
//
//   diffusion --model stable-diffusion-v1-4 --prompt "a lighthouse at dawn" --output dawn.png
//   diffusion --model stable-diffusion-v1-4 --prompt "a lighthouse" --max-memory 800MB
//   diffusion --model /tmp/random-sd --random-weights --prompt "nothing" --steps 2 --height 256
//
// The last one writes a model with the shapes of Stable Diffusion 1 and random weights (2.1 GB) if
// the folder has none yet: its images are noise, but take as long.
#include <coupler/error.h>
#include <coupler/text_to_image.h>
#include <coupler/tracker.h>
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>

#include "../peak_memory.h"
#include "png_file.h"

namespace {

struct Arguments {
  std::string model, prompt, output = "picture.png", max_memory, device, dtype = "float32";
  bool random_weights = false;
  coupler::diffusion::ImageOptions picture;
};

coupler::diffusion::TextToImageOptions options_of(const Arguments& arguments) {
  coupler::diffusion::TextToImageOptions options;
  if (!arguments.device.empty()) options.device = c10::Device(arguments.device);
  options.dtype = arguments.dtype == "float16"    ? c10::kHalf
                  : arguments.dtype == "bfloat16" ? c10::kBFloat16
                                                  : c10::kFloat;
  if (!arguments.max_memory.empty()) {
    options.max_memory = coupler::ByteCount(arguments.max_memory);
    // Returns the memory of activations to the system as soon as they are freed.
    mallopt(M_MMAP_THRESHOLD, 1 << 20);
  }
  return options;
}

void run(Arguments& arguments) {
  PngFile file(arguments.output);
  const auto options = options_of(arguments);
  const std::filesystem::path config =
      std::filesystem::path(arguments.model) / "scheduler" / "scheduler_config.json";
  if (arguments.random_weights && !std::filesystem::exists(config)) {
    std::fprintf(stderr, "writing random weights into %s (2.1 GB)\n", arguments.model.c_str());
    coupler::diffusion::write_random_stable_diffusion(arguments.model);
  }
  auto paint = coupler::diffusion::TextToImage::open(arguments.model, options);
  const auto begin = std::chrono::steady_clock::now();
  std::optional<coupler::ProgressBar> bar;
  arguments.picture.on_step = [&](int64_t done, int64_t steps) {
    if (done == 0) {
      bar.emplace("denoising", steps);
    } else {
      bar->advance();
    }
    if (done == steps) bar.reset();
  };
  const at::Tensor picture = paint(arguments.prompt, arguments.picture);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  file.write(picture.const_data_ptr<uint8_t>(), picture.size(0), picture.size(1));
  std::printf("%s: %lld x %lld, %lld steps in %.1f s, peak %lld MiB\n", arguments.output.c_str(),
              static_cast<long long>(picture.size(1)), static_cast<long long>(picture.size(0)),
              static_cast<long long>(arguments.picture.steps), took.count(),
              static_cast<long long>(peak_memory_mib()));
}

}  // namespace

int main(int argc, char** argv) {
  coupler::install_terminate_handler();
  Arguments arguments;
  auto& picture = arguments.picture;
  CLI::App app{"Generates an image from a text with Stable Diffusion."};
  app.add_option("--model", arguments.model,
                 "name on the Hugging Face Hub, or folder written by diffusers' save_pretrained")
      ->required();
  app.add_option("--prompt", arguments.prompt, "what the image shows")->required();
  app.add_option("--negative-prompt", picture.negative_prompt, "what it should not show");
  app.add_option("--output", arguments.output, "the PNG file")->capture_default_str();
  app.add_option("--steps", picture.steps, "number of DDIM steps")->capture_default_str();
  app.add_option("--height", picture.height, "in pixels, a multiple of 8")->capture_default_str();
  app.add_option("--width", picture.width, "in pixels, a multiple of 8")->capture_default_str();
  app.add_option("--guidance-scale", picture.guidance_scale, "weight of the text")
      ->capture_default_str();
  app.add_option("--seed", picture.seed, "seed of the initial noise")->capture_default_str();
  app.add_option("--max-memory", arguments.max_memory,
                 "limit of resident memory, such as 800MB; default: no limit");
  app.add_option("--device", arguments.device, "cpu, cuda:0; default: the first accelerator");
  app.add_option("--dtype", arguments.dtype, "dtype of the computation")
      ->check(CLI::IsMember({"float32", "float16", "bfloat16"}))
      ->capture_default_str();
  app.add_flag("--random-weights", arguments.random_weights,
               "write a model with random weights if the folder has none");
  CLI11_PARSE(app, argc, argv);
  try {
    run(arguments);
  } catch (...) {
    // Catching unwinds run(), which removes an unfinished file; then the error ends the process.
    throw;
  }
}
