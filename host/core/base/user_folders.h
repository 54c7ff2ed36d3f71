// The user's folders, as variables of the environment name them. Plain functions, [any-thread]
// while no thread sets variables.
#pragma once

#include <initializer_list>
#include <string>

namespace coupler {

// HOME, or what the system knows of this user, as a service without HOME needs it; "" if nothing.
std::string home_folder();

// The first of these variables that is set and not empty, with "~/" and "$NAME" expanded as in
// Python's expanduser and expandvars; else `otherwise`, as it is.
std::string path_of_variables(std::initializer_list<const char*> variables,
                              const std::string& otherwise);

// Where Hugging Face's libraries keep what they share: HF_HOME, or huggingface in XDG_CACHE_HOME,
// which is ~/.cache by default.
std::string hugging_face_home();

}  // namespace coupler
