// The architectures that make_language_model supports, one file each. Used by one thread.
#pragma once

#include <coupler/language_model.h>

#include <memory>

namespace coupler {

std::shared_ptr<LanguageModel> make_gpt2(const ModelConfig& config);
std::shared_ptr<LanguageModel> make_gptj(const ModelConfig& config);
std::shared_ptr<LanguageModel> make_llama(const ModelConfig& config);

}  // namespace coupler
