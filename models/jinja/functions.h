// What templates can call: Jinja's filters and tests, methods of Python's strings, lists and
// dictionaries, and the functions that transformers adds. Used by one thread. Do not depend on
// LibTorch.
#pragma once

#include <string>
#include <vector>

#include "jinja/value.h"

namespace coupler::jinja {

bool is_filter(const std::string& name);
bool is_test(const std::string& name);
// The name must be one. Throw Problem for wrong arguments.
Value filtered(const std::string& name, const Value& input, const Arguments& arguments,
               Budget& budget);
bool tested(const std::string& name, const Value& input, const Arguments& arguments,
            Budget& budget);

// value.name and value[key], also bound methods; undefined if there is none. budget: must outlive
// the methods.
Value attribute_of(const Value& value, const std::string& name, Budget& budget);
Value element_of(const Value& value, const Value& key, Budget& budget);
Value slice_of(const Value& value, const Value& from, const Value& to, const Value& step,
               Budget& budget);

// range, dict, namespace, raise_exception and strftime_now. Namespaces that the template makes are
// added to `namespaces`. Both must outlive the functions.
std::vector<std::pair<std::string, Value>> global_functions(
    Budget& budget, std::vector<std::shared_ptr<Dict>>& namespaces);

// a + b of strings and lists, and the repetition of one.
Value joined(const Value& a, const Value& b, Budget& budget);
Value repeated(const Value& value, int64_t count, Budget& budget);

}  // namespace coupler::jinja
